"""The im2col path against one NumPy matrix product of the same size.

Both do the same number of multiplications and additions; the product has its patches for nothing.  Results are first
compared with float64.
"""

import argparse
import sys
import time

import measuring
import numpy as np
import threadpoolctl
from measuring import Figure
from problems import FLOAT_OPS, Layer, Problem, WrongResultError

PROBLEMS = [Problem.parse(f"n16 h56 w56 c64 k64 r3 s1 SAME {data_format} float32") for data_format in ("NHWC", "NCHW")]
QUICK = [Problem.parse(f"n1 h14 w14 c16 k16 r3 s1 SAME {data_format} float32") for data_format in ("NHWC", "NCHW")]
TARGET = 0.7
# OpenBLAS's helpers spin this long, at most, after a product on several threads; nothing is timed beside them.
SPIN_SECONDS = 0.05


def products(problem):
    """Return, for each operation, one matrix product of its size in its natural orientation, as a function."""
    rng = np.random.default_rng(1)
    pixels = problem.flops // (2 * problem.taps * problem.c * problem.k)

    def matrix(rows, columns):
        return rng.standard_normal((rows, columns)).astype(problem.dtype)

    patches, filters = matrix(pixels, problem.taps * problem.c), matrix(problem.taps * problem.c, problem.k)
    gradient = matrix(pixels, problem.k)
    gradient_patches, turned = matrix(pixels, problem.taps * problem.k), matrix(problem.taps * problem.k, problem.c)
    return {
        "conv2d": lambda: patches @ filters,
        "conv2d_backprop_filter": lambda: patches.T @ gradient,
        "conv2d_backprop_input": lambda: gradient_patches @ turned,
    }


def timed(function, threads):
    """Return a measurement of a function: one call that warms up, one that counts; wall and CPU seconds."""

    def measure():
        if threads > 1:
            time.sleep(SPIN_SECONDS)
        function()
        cpu = time.thread_time()
        wall = measuring.seconds(function)
        return wall, time.thread_time() - cpu

    return measure


def measure(problem, threads, rounds):
    """Return a figure for each operation of a problem."""
    measuring.progress(f"{problem}: comparing with float64")
    layer = Layer(problem, num_threads=threads, algorithm="im2col")
    layer.check()
    yardsticks = products(problem)
    figures = []
    for op in FLOAT_OPS:

        def progress(text, op=op):
            measuring.progress(f"{problem}, {threads} threads, {op}: {text}")

        taken = measuring.alternate(timed(layer.calls[op], threads), timed(yardsticks[op], threads), rounds, progress)
        (ours, ours_on_cpu), (theirs, theirs_on_cpu) = (tuple(zip(*side, strict=True)) for side in taken)
        rates = [problem.flops * 1e-9 / np.median(times) for times in (ours, theirs)]
        detail = f"{rates[0]:.0f} of {rates[1]:.0f} GFLOP/s"
        if threads == 1:  # then the calling thread's CPU time is all there is, and others on the machine do not count
            detail += f"; in CPU time {np.median(measuring.ratios(theirs_on_cpu, ours_on_cpu)):.2f}"
        figures.append(Figure(f"{problem}  {op}  {threads}", measuring.ratios(theirs, ours), TARGET, detail=detail))
    measuring.progress("")
    return figures


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Time the im2col path of the three operations against one NumPy matrix product of the same size "
        "((N*OH*OW) x (r*r*C) times (r*r*C) x K), in turn, both on the same number of threads. Prints the ratio of "
        "their GFLOP/s: the median over the rounds, and its quartiles.",
        epilog="Exit status: 0, also where a target is missed; 1 if a result is wrong.",
    )
    parser.add_argument(
        "problem", nargs="*", type=Problem.parse,
        help="a layer as one argument, such as 'n16 h56 w56 c64 k64 r3 s1 SAME NHWC float32': images, height, width, "
        "channels, filters, filter height and width, stride, padding, layout, dtype (default: this one, NHWC and NCHW)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=measuring.positive, nargs="+", default=[1, 2],
        help="numbers of threads, for convkit and for BLAS alike (default: 1 2); put -- between them and a problem",
    )  # fmt: skip
    measuring.add_common_arguments(parser)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    problems = arguments.problem or (QUICK if arguments.quick else PROBLEMS)
    rounds = arguments.rounds or (2 if arguments.quick else 11)
    measuring.print_machine()
    figures = []
    for threads in arguments.threads:
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            for problem in problems:
                try:
                    figures += measure(problem, threads, rounds)
                except WrongResultError as error:
                    print(f"\n{error}", file=sys.stderr)
                    return 1
    print("im2col against one matrix product of the same size: problem, operation, threads")
    measuring.print_figures(figures)
    measuring.write_json(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
