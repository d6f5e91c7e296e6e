"""convkit against every framework that is installed, problem by problem.

Each contestant is a process of its own; one at a time is woken.  Results are first compared with float64.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import measuring
import peers
import processes
import report
import targets
from contest import Contest, Record
from problems import Case
from yardstick import Yardstick

LISTS = Path(__file__).resolve().parent / "problems"
QUICK = "quick"
QUICK_SECONDS = 110.0
ROUNDS, QUICK_ROUNDS = 11, 5
ROUNDS_SECONDS, QUICK_ROUNDS_SECONDS = 4.0, 1.0  # of a problem's rounds; long ones get fewer rounds
SAVE_SECONDS = 60.0  # between two writings of what there is so far
FOOTPRINTS = (1 << 14, 1 << 18, 1 << 22, 1 << 28)


def read_list(path: Path) -> list[Case]:
    """Return the cases of a list: one line each, ``#`` begins a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [case for line in lines if line for case in Case.parse(line)]


def all_lists() -> dict[str, list[Case]]:
    """Return the lists by name."""
    return {path.stem: read_list(path) for path in sorted(LISTS.glob("*.txt"))}


def membership(lists: dict[str, list[Case]]) -> dict[Case, frozenset[str]]:
    """Return the lists of each case; the quick one, a choice from the others, does not count."""
    found: dict[Case, set[str]] = {}
    for name, cases in lists.items():
        for case in cases:
            found.setdefault(case, set()).update({name} - {QUICK})
    return {case: frozenset(names) for case, names in found.items()}


def cpu_flags() -> frozenset[str]:
    """Return the CPU's flags as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), ":").partition(":")[2].split())


class Progress:
    """Says on one line what runs, how much is done, and how long the rest may take."""

    def __init__(self, total: int):
        self.total, self.done, self.begin = total, 0, time.monotonic()

    def say(self, record: Record, what: str) -> None:
        """Show a step of a record."""
        spent = time.monotonic() - self.begin
        left = f", about {spent / self.done * (self.total - self.done) / 60:.0f} min left" if self.done else ""
        measuring.progress(f"[{self.done + 1}/{self.total}{left}] {record.case}, {record.threads} thr: {what}")


class Comparison:
    """All records of one call, and the contestants that take part."""

    def __init__(self, arguments: argparse.Namespace, pythons: dict[str, str], folder: Path):
        self.arguments, self.pythons, self.folder = arguments, pythons, folder
        self.records: list[Record] = []
        self.saved = time.monotonic()
        self.yardstick = Yardstick(folder)
        self.machine = measuring.machine() | {"contestants": {}, "yardstick": self._yardstick()}

    def _yardstick(self) -> dict:
        if self.yardstick.objection:
            return {"no yardstick": self.yardstick.objection}
        return {
            f"{threads} threads": {
                **{f"{dtype} FMA GFLOP/s": self.yardstick.fma(dtype, threads) for dtype in ("float32", "float64")},
                **{f"GB/s of copying in {size >> 10} KiB": self.yardstick.copy(size, threads) for size in FOOTPRINTS},
            }
            for threads in self.arguments.threads
        }

    def run(self, records: list[Record], threads: int, deadline: float, progress: Progress) -> list[Record]:
        """Start the contestants, do one run of each record, end the contestants; return the records not reached."""
        log = self.folder / "contestants.log"
        team = {name: processes.Process(name, python, threads, log) for name, python in self.pythons.items()}
        try:
            self._gather(team)
            for number, record in enumerate(records):
                if time.monotonic() > deadline:
                    return records[number:]

                def say(what: str, record: Record = record) -> None:
                    progress.say(record, what)

                Contest(record, team, self.yardstick, self.folder, say).measure(
                    self.arguments.rounds, QUICK_ROUNDS_SECONDS if self.arguments.quick else ROUNDS_SECONDS
                )
                progress.done += 1
                measuring.progress("")
                print(report.row(record), flush=True)
                self._save()
        finally:
            for process in team.values():
                process.stop()
        return []

    def _save(self) -> None:
        if time.monotonic() > self.saved + SAVE_SECONDS:
            report.write_json(self.arguments.json, self.machine, self.records, [])
            self.saved = time.monotonic()

    def _gather(self, team: dict[str, processes.Process]) -> None:
        known = dict(self.machine["contestants"])
        for name in list(team):
            measuring.progress(f"starting {name}")
            try:
                team[name].ready()
            except processes.FailedError as error:
                if name == peers.OURS:
                    raise
                measuring.progress("")
                print(f"{name} does not start, and is left out: {error}", file=sys.stderr)
                team.pop(name).stop()
                continue
            self.machine["contestants"][name] = team[name].version
        measuring.progress("")
        if not known:
            versions = ", ".join(f"{name} {version}" for name, version in self.machine["contestants"].items())
            print(f"contestants: {versions}\n\n{report.ROW.format(*report.HEADINGS)}", flush=True)


def interpreter(text: str) -> tuple[str, str]:
    """Return contestant (or module) and interpreter of ``torch=/path/to/python``; of a mere path, for all peers."""
    name, _, path = text.rpartition("=")
    return name, path


def parse_arguments() -> argparse.Namespace:
    names = sorted(path.stem for path in LISTS.glob("*.txt"))
    others = [name for name in peers.TABLE if name != peers.OURS]
    parser = argparse.ArgumentParser(
        description="Time convkit against the installed peers, each in a process of its own, on lists of problems. "
        "Prints the time of the best peer over that of convkit, the median of paired rounds, the shares of what "
        "the machine can do, and the verdict on each target.",
        epilog="Exit status: 0, also where a target is missed; 1 if a result of convkit is wrong.",
    )
    parser.add_argument(
        "problem", nargs="*", type=Case.parse,
        help="a problem as one argument instead of the lists, such as 'conv2d n16 h56 w56 c64 k64 r3 s1 SAME NHWC "
        "float32': operation (without it, all three), images, height, width, channels, filters, filter size, stride, "
        "dilation (d2) and groups (g4) if not 1, padding (or p1, p0x1), layout, dtype; {a,b} stands for either",
    )  # fmt: skip
    parser.add_argument("--lists", nargs="+", choices=names, help=f"of {LISTS.name}/ (default: all but {QUICK})")
    parser.add_argument(
        "--threads", type=measuring.positive, nargs="+", default=[1, 2],
        help="numbers of threads, for all contestants alike (default: 1 2); put -- between them and a problem",
    )  # fmt: skip
    parser.add_argument("--peers", nargs="*", choices=others, default=others, help="only these (default: those found)")
    parser.add_argument(
        "--python", type=interpreter, action="append", default=[], metavar="[PEER=]PATH",
        help="the interpreter that has a peer, or all peers, installed (default: this one); may be given again",
    )  # fmt: skip
    parser.add_argument("--rounds", type=measuring.positive, help=f"rounds of a problem (default: {ROUNDS})")
    parser.add_argument(
        "--runs", type=measuring.positive,
        help=f"separate runs of a problem that is below its target (default: {targets.RUNS})",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="two minutes: a short list, few rounds, one run")
    parser.add_argument("--seconds", type=float, help="begin no problem after so long")
    parser.add_argument("--shuffle", action="store_true", help="problems in random order, for a part of a long list")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write everything, round by round, to this file")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw a bar for each problem into this file")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    arguments.runs = arguments.runs or (1 if arguments.quick else targets.RUNS)
    arguments.seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else float("inf"))
    return arguments


def chosen_cases(arguments: argparse.Namespace) -> dict[Case, frozenset[str]]:
    """Return the cases to compare, each once, with the lists that they are on."""
    lists = all_lists()
    member = membership(lists)
    names = arguments.lists or ([QUICK] if arguments.quick else [name for name in lists if name != QUICK])
    if arguments.problem:
        cases = [case for some in arguments.problem for case in some]
    else:
        cases = [case for name in names for case in lists[name]]
    if arguments.shuffle:
        random.Random(0).shuffle(cases)
    return {case: member.get(case, frozenset()) for case in cases}


def compare(comparison: Comparison, cases: dict[Case, frozenset[str]]) -> int:
    """Do all runs, print the report; return the exit status.  Ctrl-C ends the runs, not the report."""
    arguments = comparison.arguments
    comparison.records = [Record(case, lists, n) for n in arguments.threads for case, lists in cases.items()]
    try:
        skipped = all_runs(comparison)
    except KeyboardInterrupt:
        skipped = [record for record in comparison.records if not record.runs]
    print()
    if skipped:
        print(f"not reached: {len(skipped)} problems\n")
    records = [record for record in comparison.records if record.runs]
    if not records:
        return 0
    pair_layouts(records)
    verdicts = targets.judge(records, arguments.threads, cpu_flags())
    report.print_summary(records)
    report.print_refusals(records)
    report.print_verdicts(verdicts, records)
    report.write_json(arguments.json, comparison.machine, records, verdicts)
    report.draw(arguments.plot, comparison.machine, records)
    wrong = [record for record in records if record.wrong]
    for record in wrong:
        print(f"{record.case}, {record.threads} threads: {record.wrong}", file=sys.stderr)
    return 1 if wrong else 0


def pair_layouts(records: list[Record]) -> None:
    """Tell each record in NCHW of the same layer in NHWC."""
    known = {(str(record.case), record.threads): record for record in records}
    for record in records:
        if record.case.problem.data_format == "NCHW":
            record.twin = known.get((str(record.case).replace("NCHW", "NHWC"), record.threads))


def all_runs(comparison: Comparison) -> list[Record]:
    """Do every record once, and what is below its target again; return the records that the time did not reach."""
    arguments = comparison.arguments
    begin, skipped = time.monotonic(), []
    for number in range(arguments.runs):
        todo = targets.to_repeat(comparison.records) if number else comparison.records
        progress = Progress(len(todo))
        if number and todo:
            print(f"\nrun {number + 1}: what is below its target so far")
        for place, threads in enumerate(arguments.threads):
            left = begin + arguments.seconds - time.monotonic()
            deadline = time.monotonic() + left / (len(arguments.threads) - place)
            some = [record for record in todo if record.threads == threads]
            if some:
                skipped += comparison.run(some, threads, deadline, progress)
    return [record for record in skipped if not record.runs]


def main() -> int:
    arguments = parse_arguments()
    cases = chosen_cases(arguments)
    measuring.print_machine()
    pythons = processes.find([peers.OURS, *arguments.peers], dict(arguments.python))
    if peers.OURS not in pythons:
        sys.exit("convkit is not installed for this interpreter")
    absent = [name for name in arguments.peers if name not in pythons]
    if absent:
        print(f"not installed: {', '.join(absent)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(arguments, pythons, Path(folder))
        for threads, found in comparison.machine["yardstick"].items():
            known = found if isinstance(found, str) else ", ".join(f"{name} {rate:.0f}" for name, rate in found.items())
            print(f"{threads}: {known}")
        try:
            return compare(comparison, cases)
        finally:
            comparison.yardstick.stop()
            measuring.progress("")


if __name__ == "__main__":
    sys.exit(main())
