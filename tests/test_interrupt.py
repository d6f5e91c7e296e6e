"""Ctrl-C ends a long call within a second, whatever the call, and leaves the process as it was."""

import signal
import time

import pytest
from child import start_python

# Problems of several seconds at least on a few cores, in a few dozen MB.
PROGRAM = """
import sys, time
import numpy as np, threadpoolctl, convkit

def blas():
    return [info["num_threads"] for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"]

op, algorithm, threads, dtype = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
small = np.ones((1, 6, 6, 4), np.float32), np.ones((3, 3, 4, 5), np.float32)
expected = convkit.conv2d(*small, num_threads=threads)
before = blas()
if algorithm == "gemm":
    image, filter, padding = (1, 64, 80, 5120), (1, 1, 5120, 5120), "VALID"
else:
    image, filter, padding = (8, 128, 128, 32), (31, 31, 32, 64), "SAME"
result = (*image[:3], filter[3])
x, w, dy = (np.ones(shape, dtype) for shape in (image, filter, result))
arguments = {
    "conv2d": (x, w),
    "conv2d_backprop_filter": (x, w.shape, dy),
    "conv2d_backprop_input": (x.shape, w, dy),
}[op]
try:
    print("ready")
    while True:
        getattr(convkit, op)(*arguments, padding=padding, algorithm=algorithm, num_threads=threads)
except KeyboardInterrupt:
    print(time.monotonic())
assert blas() == before, (blas(), before)
assert (convkit.conv2d(*small, num_threads=threads) == expected).all()
print("fine")
"""


def interrupt_after(seconds, *arguments):
    """The seconds from the signal to the KeyboardInterrupt."""
    process = start_python(PROGRAM, *arguments)
    try:
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=30)
        time.sleep(seconds)
        sent = time.monotonic()  # one clock for all processes of a Linux machine
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output + errors
    caught, fine = output.split()
    assert fine == "fine"
    return float(caught) - sent


OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", OPS)
def test_im2col(op, threads):
    assert interrupt_after(0.4, op, "im2col", threads, "float32") < 1


@pytest.mark.parametrize("op", OPS)
def test_reference(op):
    assert interrupt_after(0.4, op, "reference", 1, "float32") < 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", OPS)
def test_gemm(op, threads):
    assert interrupt_after(0.4, op, "gemm", threads, "float32") < 1


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_other_dtypes(op, dtype, threads):
    assert interrupt_after(0.4, op, "im2col", threads, dtype) < 1


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_early_signals(seconds):
    assert interrupt_after(seconds, "conv2d_backprop_filter", "im2col", 2, "float32") < 1
