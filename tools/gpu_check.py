"""Check convkit on a machine with a GPU: every route's results, streams, memory, and the time of ResNet-50.

    python tools/gpu_check.py                      # everything, under eight minutes
    python tools/gpu_check.py --no-timing          # results and behaviour only
    python tools/gpu_check.py --case 17            # one random layer again, as a failure names it
    python tools/gpu_check.py --json check.json    # what to send with a report

Runs in a copy of the repository, built in place or installed, with CuPy and ml_dtypes; it uses cuDNN where that is
there, and compares with PyTorch where that is installed.  The exit status is 0 if everything is right, 1 if something
is wrong, 3 if there is no GPU to check, and 4 if only a target of speed is missed.
"""

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import gpu_checks  # noqa: F401 - puts the tests and the benchmarks on the path
from gpu_checks import behaviour, compat, results
from gpu_checks.findings import NO_GPU, WRONG, Finding, print_findings, print_table, status, write_json
from gpu_checks.session import Session, machine, print_machine

RESULTS = (results.golden_floats, results.golden_int8, results.random_layers)
BEHAVIOUR = (
    behaviour.capture, behaviour.streams, behaviour.workspace, behaviour.deterministic, behaviour.tuning,
    compat.drop_in, compat.sigpy,
)  # fmt: skip
ALL = 10**6
GOLDEN, RANDOM, SECONDS = ALL, 200, 450.0


def arguments(given: list[str] | None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-timing", action="store_true", help="leave out everything that is measured")
    parser.add_argument("--golden", type=int, default=GOLDEN, help="cases of golden data of each kind (all)")
    parser.add_argument("--random", type=int, default=RANDOM, help=f"random layers ({RANDOM})")
    parser.add_argument("--case", type=int, help="the one random layer to check")
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (0)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"after which timing ends ({SECONDS:.0f})")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write everything to this file")
    return parser.parse_args(given)


def run(check: Callable[[Session], Finding], session: Session) -> Finding:
    """Make one check; whatever it raises is what it found."""
    begin, name = time.monotonic(), check.__name__.replace("_", " ")
    session.say(name)
    try:
        finding = check(session)
    except Exception as error:
        where = traceback.format_tb(error.__traceback__)[-1].strip()
        finding = Finding(name, WRONG, failures=[f"{type(error).__name__}: {error}\n{where}"])
    finding.seconds = time.monotonic() - begin
    session.say("")
    return finding


def timed(session: Session) -> tuple[list[Finding], list[dict]]:
    """Make the measurements."""
    from gpu_checks import rivals, timing

    rival = rivals.find()
    findings = [run(behaviour.python_side, session), run(timing.native, session)]
    more: list[Finding] = []
    records: list[dict] = []

    def resnet50(session: Session) -> Finding:
        found, timings = timing.resnet50(session, rival)
        more.extend(found[1:])
        records.extend(timings)
        return found[0]

    findings.append(run(resnet50, session))
    return findings + more, records


def print_timings(records: list[dict]) -> None:
    """Print a line for each case."""
    rows = [
        (r["case"], f"{1e6 * r['seconds']:.1f}", f"{r['tflops']:.1f}", f"{r['roof']:.0%}",
         f"{r['ratio']:.2f}" if "ratio" in r else "-", r["route"])
        for r in records
    ]  # fmt: skip
    print_table(("case", "us", "TFLOP/s", "of roof", "PyTorch's time / convkit's", "route"), rows)


def main(given: list[str] | None = None) -> int:
    """Do what the command line asks for, and return the exit status."""
    asked = arguments(given)
    if not asked.no_timing and asked.case is None:
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401 - first, so that its cuDNN is the only one in the process
    found = machine()
    if not found["available"]:
        print(f"no GPU to check: {found['reason']}")
        return NO_GPU
    import cupy

    print_machine(found)
    with cupy.cuda.Device(asked.device):
        findings, records = everything(asked, Session(cupy, asked.golden, asked.random, asked.case, asked.seconds))
    if records:
        print_timings(records)
    print_findings(findings)
    write_json(asked.json, found, findings, records)
    return status(findings)


def everything(asked: argparse.Namespace, session: Session) -> tuple[list[Finding], list[dict]]:
    """Make the checks that are asked for."""
    if asked.case is not None:
        return [run(results.random_layers, session)], []
    findings = [run(check, session) for check in (*RESULTS, *BEHAVIOUR)]
    if asked.no_timing:
        return findings, []
    more, records = timed(session)
    return findings + more, records


if __name__ == "__main__":
    sys.exit(main())
