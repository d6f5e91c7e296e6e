"""What threads cost: eight user threads, two callers at a time, a tiny call from Python, a hand-over to a helper.

On a machine that others use too, figures in CPU time say more: they leave out the time when others ran.
"""

import argparse
import functools
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import measuring
import numpy as np
from measuring import Figure
from problems import FLOAT_OPS, Layer, Problem, WrongResultError

USER_THREADS = 8
SHARE_TARGET = 0.9
CALLERS = 2
LOSS_TARGET = 1.15  # time of two callers at once over that of one after the other
PROBLEM = Problem.parse("n1 h56 w56 c64 k64 r3 s1 SAME NHWC float32")
QUICK = Problem.parse("n1 h14 w14 c16 k16 r3 s1 SAME NHWC float32")
TINY = [Problem.parse(f"n1 h8 w8 c4 k8 r3 s1 VALID {order} float32") for order in ("NHWC", "NCHW")]
TINY_CALLS = 200
TINY_TARGET = 2.6  # 5 us where np.matmul takes 1.9
C_TESTS = Path(__file__).resolve().parents[1] / "tests" / "c"
HAND_OVER = re.compile(r"caller (?P<caller>\w+) +for +(?P<pause_us>\d+) us:.*?median +(?P<median_us>[\d.]+)")


@dataclass(frozen=True)
class Spent:
    """Wall and CPU seconds of some threads, and what the threads did in theirs: ran, queued for a core, or neither."""

    wall: float
    cpu: float
    ran: float
    queued: float
    alive: float

    @property
    def detail(self) -> str:
        """Where the threads' time went; empty where the kernel does not say."""
        if not self.ran:
            return ""
        ran, queued = self.ran / self.alive, self.queued / self.alive
        return f"threads ran {ran:.0%}, queued for a core {queued:.0%}, blocked {max(0.0, 1 - ran - queued):.0%}"


def scheduled() -> tuple[float, float]:
    """Return the seconds that this thread ran and queued so far, 0 where the kernel does not say."""
    try:
        ran, queued, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except OSError:
        return 0.0, 0.0
    return int(ran) * 1e-9, int(queued) * 1e-9


def in_threads(functions: list[Callable[[], None]]) -> Spent:
    """Call each function in a thread of its own, all starting at once."""
    start = threading.Barrier(len(functions) + 1)
    stories = []

    def body(function):
        start.wait()
        begin, before = time.perf_counter(), scheduled()
        function()
        after = scheduled()
        stories.append((after[0] - before[0], after[1] - before[1], time.perf_counter() - begin))

    threads = [threading.Thread(target=body, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    start.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu, *map(sum, zip(*stories, strict=True)))


def for_a_while(layers: list[Layer], duration: float) -> tuple[float, float, Spent]:
    """Run each layer over and over in a thread of its own; return layers per second and per CPU second."""
    counts, rates = [], []

    def repeat(layer):
        begin = now = time.perf_counter()
        count = 0
        while now < begin + duration:
            layer.run()
            count += 1
            now = time.perf_counter()
        counts.append(count)
        # Each thread ends with a whole layer, so its rate is that of its own time.
        rates.append(count / (now - begin))

    spent = in_threads([lambda layer=layer: repeat(layer) for layer in layers])
    return sum(rates), sum(counts) / spent.cpu, spent


def user_threads(problem, rounds, duration, cores):
    """Compare eight user threads, each on one thread and its own data, with one alone."""
    layers = [Layer(problem, seed, num_threads=1) for seed in range(USER_THREADS)]
    for layer in layers:
        layer.check()
    together, alone = measuring.alternate(
        lambda: for_a_while(layers, duration),
        lambda: for_a_while(layers[:1], duration),
        rounds,
        lambda text: measuring.progress(f"{USER_THREADS} user threads: {text}"),
    )
    (rates, rates_on_cpu, spent), (lone_rates, lone_rates_on_cpu, _) = (
        zip(*together, strict=True),
        zip(*alone, strict=True),
    )
    return [
        Figure(
            f"{USER_THREADS} user threads: share of {cores} cores",
            [rate / cores for rate in measuring.ratios(rates, lone_rates)],
            SHARE_TARGET,
            detail=typical(spent),
        ),
        Figure(
            "  the same per CPU second", measuring.ratios(rates_on_cpu, lone_rates_on_cpu), SHARE_TARGET,
        ),
    ]  # fmt: skip


def typical(spent) -> str:
    """Return the detail of the round with the median wall time."""
    return sorted(spent, key=lambda one: one.wall)[len(spent) // 2].detail


def callers(problem, rounds, duration, cores):
    """Compare two callers at once, each on as many threads as there are cores, with one after the other."""
    layers = [Layer(problem, seed, num_threads=cores) for seed in range(CALLERS)]
    for layer in layers:
        layer.check()
    # As many layers as take about that long.
    count = max(2, round(duration / measuring.seconds(layers[0].run, 3) / CALLERS))

    def repeat(layer):
        for _ in range(count):
            layer.run()

    together, in_turn = measuring.alternate(
        lambda: in_threads([lambda layer=layer: repeat(layer) for layer in layers]),
        lambda: in_threads([lambda: [repeat(layer) for layer in layers]]),
        rounds,
        lambda text: measuring.progress(f"{CALLERS} callers: {text}"),
    )
    return [
        Figure(
            f"{CALLERS} callers at once, {cores} threads each: time over one at a time",
            measuring.ratios([s.wall for s in together], [s.wall for s in in_turn]),
            LOSS_TARGET,
            at_most=True,
            detail=typical(together),
        ),
        Figure(
            "  the same in CPU time",
            measuring.ratios([s.cpu for s in together], [s.cpu for s in in_turn]),
            LOSS_TARGET,
            at_most=True,
        ),
    ]


def overhead(rounds, calls):
    """Compare tiny calls with np.matmul on matrices of the forward call's size, in CPU time."""
    (_, rows, columns, filters), patch = TINY[0].shapes[2], TINY[0].taps * TINY[0].c
    patches, weights = np.ones((rows * columns, patch), np.float32), np.ones((patch, filters), np.float32)
    figures = []
    for name, call in tiny_calls():
        ours, numpys = measuring.alternate(
            lambda call=call: measuring.seconds(call, calls, time.thread_time),
            lambda: measuring.seconds(lambda: np.matmul(patches, weights), calls, time.thread_time),
            rounds,
            lambda text, name=name: measuring.progress(f"tiny {name}: {text}"),
        )
        detail = f"{1e6 * np.median(ours):.1f} of {1e6 * np.median(numpys):.1f} us"
        ratios = measuring.ratios(ours, numpys)
        figures.append(Figure(f"tiny {name}: time over np.matmul", ratios, TINY_TARGET, at_most=True, detail=detail))
    return figures


def tiny_calls():
    """Yield names and functions: each operation in both formats, and with a packed filter where it takes one."""
    for problem in TINY:
        layer = Layer(problem)
        layer.check()
        where = "" if problem is TINY[0] else f" {problem.data_format}"
        for op in FLOAT_OPS:
            yield f"{op}{where}", layer.calls[op]
        for op, call in layer.packed_calls.items():
            yield f"{op}{where} packed", functools.partial(call, layer.pack(op))


def hand_over():
    """Build and run pool_handover.c; return the median of each of its waits in microseconds."""
    if shutil.which("make") is None or not C_TESTS.is_dir():
        print("hand-over: not measured, for it takes make and the source tree\n")
        return []
    with tempfile.TemporaryDirectory() as build:
        measuring.progress("hand-over: building and running pool_handover.c")
        command = ["make", "--silent", "-C", str(C_TESTS), "handover", f"BUILD={build}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    measuring.progress("")
    print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"pool_handover.c failed\n{done.stderr}")
    found = [match.groupdict() for match in HAND_OVER.finditer(done.stdout)]
    return [{"caller": m["caller"], "pause_us": int(m["pause_us"]), "median_us": float(m["median_us"])} for m in found]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=f"Measure (1) the throughput of {USER_THREADS} user threads with num_threads=1 over that of one "
        f"thread times the cores; (2) the time of {CALLERS} callers at once, each on as many threads as there are "
        "cores, over that of the same work by one caller at a time; (3) a tiny call over np.matmul of its size; (4) "
        "the hand-over to a sleeping helper, in C. The work of (1) and (2) is all three operations of a layer.",
        epilog="Exit status: 0, also where a target is missed; 1 if a result is wrong or the C program fails. "
        "For two cores of a larger machine: taskset -c 0,1 python threads.py",
    )
    parser.add_argument(
        "problem", nargs="?", type=Problem.parse,
        help=f"the layer of (1) and (2) as one argument (default: '{PROBLEM}')",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=measuring.positive,
        help="count on so many cores, and give each of the two callers so many threads (default: the CPUs there are)",
    )  # fmt: skip
    parser.add_argument(
        "--only", choices=("user-threads", "callers", "overhead", "hand-over"), help="measure one of the four alone"
    )
    measuring.add_common_arguments(parser)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    quick = arguments.quick
    problem = arguments.problem or (QUICK if quick else PROBLEM)
    rounds = arguments.rounds or (2 if quick else 15)
    cores = arguments.threads or measuring.machine()["cores"]
    duration = 0.02 if quick else 0.4
    parts = {
        "user-threads": lambda: user_threads(problem, rounds, duration, cores),
        "callers": lambda: callers(problem, rounds, duration, cores),
        "overhead": lambda: overhead(5 * rounds, 10 if quick else TINY_CALLS),
    }
    measuring.print_machine()
    try:
        figures = [figure for name, part in parts.items() if arguments.only in (None, name) for figure in part()]
    except WrongResultError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    measuring.progress("")
    if figures:
        print(f"threads: {problem}")
        measuring.print_figures(figures)
    waits = hand_over() if arguments.only in (None, "hand-over") else []
    measuring.write_json(arguments.json, figures, problem=str(problem), hand_over=waits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
