"""What the comparison prints, writes and draws."""

import json
import os
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import measuring
from contest import Record
from problems import OPS
from targets import WORKSPACE_LIMIT, Verdict, geometric_mean

ROW = "{:<88} {:>3}  {:>7} {:>5} {:>5}  {:>6} {:<14} {:>6}  {:<20} {:>9} {}"
HEADINGS = (
    "problem", "thr", "GFLOP/s", "FMA", "copy", "ratio", "quartiles", "in CPU", "best peer", "workspace",
    "implementation",
)  # fmt: skip
COLORS = {"conv2d": "tab:blue", "conv2d_backprop_filter": "tab:orange", "conv2d_backprop_input": "tab:green"}
LABELLED = 60  # bars that get their problem's line


def number(value: float | None, form: str) -> str:
    """Return a figure, or a dash."""
    return "-" if value is None else format(value, form)


def row(record: Record) -> str:
    """Return the line of the table, with the ratio of the last run."""
    if record.wrong:
        return f"{record.case!s:<88} {record.threads:>3}  {record.wrong}"
    run, ratio, quartiles, in_cpu = record.runs[-1], "-", "", "-"
    if run.ratios:
        figure = measuring.Figure("", run.ratios)
        ratio, quartiles = f"{figure.median:.2f}", "{:.2f} to {:.2f}".format(*figure.quartiles)
        in_cpu = number(statistics.median(run.cpu_ratios) if run.cpu_ratios else None, ".2f")
    return ROW.format(
        str(record.case), record.threads, number(record.gflops, ".1f"), number(record.peak_share, ".0%"),
        number(record.bandwidth_share, ".0%"), ratio, quartiles, in_cpu, run.peer or "no peer",
        f"{record.workspace / 1024:.0f} KiB", record.implementation,
    ).rstrip()  # fmt: skip


def print_summary(records: list[Record]) -> None:
    """Print, for each list, dtype, operation and number of threads, the mean, the ends, and who the best peers were."""
    rows = []
    lists = sorted({name for record in records for name in record.lists}) or [""]
    for name in lists:
        groups: dict[tuple[str, int, int], list[Record]] = {}
        for record in records:
            if (name in record.lists or not name) and record.ratio is not None:
                key = (record.case.problem.dtype, OPS.index(record.case.op), record.threads)
                groups.setdefault(key, []).append(record)
        for (dtype, op, threads), some in sorted(groups.items(), key=lambda item: item[0]):
            ratios = [record.ratio for record in some]
            wins = [record.runs[-1].peer for record in some]
            ranked = sorted(set(wins), key=lambda peer: (-wins.count(peer), peer))
            rows.append((
                name, dtype, OPS[op], str(threads), str(len(some)), f"{geometric_mean(ratios):.2f}",
                f"{min(ratios):.2f}", f"{max(ratios):.2f}", ", ".join(f"{peer} {wins.count(peer)}" for peer in ranked),
            ))  # fmt: skip
    if rows:
        headings = ("list", "dtype", "operation", "threads", "problems", "mean", "least", "most", "best peers")
        measuring.print_table(headings, rows)


def print_refusals(records: list[Record]) -> None:
    """Print, once for each contestant and reason, what was left out."""
    reasons: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        for run in record.runs:
            for peer, reason in run.refused.items():
                if reason.startswith("failed"):
                    reasons.setdefault((peer, reason.split("(")[0]), []).append(record)
    for (peer, reason), found in sorted(reasons.items(), key=lambda item: item[0]):
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        print(f"{peer} {reason.strip()}: {found[0].case}, {found[0].threads} threads{more}")
    if reasons:
        print()


def print_verdicts(verdicts: Iterable[Verdict], records: list[Record]) -> None:
    """Print the targets, and the problems that miss one."""
    verdicts = list(verdicts)
    measuring.print_table(
        ("target", "threads", "problems", "figure", "at least", ""),
        [
            (v.target.name, str(v.threads), str(v.problems), number(v.value, ".2f"), f"{v.target.least:.2f}", v.text)
            for v in verdicts
        ],
    )
    largest = max(records, key=lambda record: record.workspace)
    within = "met" if largest.workspace <= WORKSPACE_LIMIT else "MISSED"
    print(f"workspace: at most {largest.workspace / 2**20:.1f} MiB ({largest.case}), of 64 MiB: {within}\n")
    for verdict in verdicts:
        for record in sorted(verdict.missed, key=lambda record: getattr(record, verdict.target.figure)):
            what = f"{verdict.target.figure}, {len(record.runs)} run{'s' * (len(record.runs) > 1)}"
            figure = getattr(record, verdict.target.figure)
            print(f"below {verdict.target.least} ({what}): {figure:.2f}  {record.case}  {record.threads}")
    sys.stdout.flush()


def write_json(path: Path | None, machine: dict, records: Iterable[Record], verdicts: Iterable[Verdict]) -> None:
    """Write everything to a file, if there is a path; a reader sees the old contents or the new."""
    if path is None:
        return
    summary = [
        {
            "name": v.target.name, "threads": v.threads, "problems": v.problems, "value": v.value,
            "at_least": v.target.least, "verdict": v.text, "missed": [str(record.case) for record in v.missed],
        }
        for v in verdicts
    ]  # fmt: skip
    content = {"machine": machine, "targets": summary, "records": [record.as_json() for record in records]}
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)


def draw(path: Path | None, machine: dict, records: Iterable[Record]) -> None:
    """Draw one bar for each problem, its ratio to the best peer, sorted; needs matplotlib."""
    bars = sorted((record for record in records if record.ratio is not None), key=lambda record: record.ratio)
    if path is None or not bars:
        return
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    labelled = len(bars) <= LABELLED
    figure, axes = pyplot.subplots(figsize=(12, 2.5 + 0.2 * len(bars)) if labelled else (14, 6), layout="constrained")
    places, ratios = range(len(bars)), [record.ratio for record in bars]
    colors = [COLORS[record.case.op] for record in bars]
    if labelled:
        axes.barh(places, [r - 1 for r in ratios], left=1, color=colors)
        lines = [f"{record.case.problem}  {record.threads} thr, {record.runs[-1].peer}" for record in bars]
        axes.set_yticks(places, lines, fontsize=7)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel("time of the best peer over convkit's")
    else:
        axes.bar(places, [r - 1 for r in ratios], bottom=1, width=1, color=colors)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.set_ylabel("time of the best peer over convkit's")
        axes.set_xlabel(f"{len(bars)} problems, sorted")
    axes.legend(handles=[Patch(color=color, label=op) for op, color in COLORS.items()], loc="best")
    axes.set_title(f"convkit {machine['convkit']} on {machine['cpu']}, {machine['date']}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
