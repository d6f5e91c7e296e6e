"""The workspace limit, the memory limit, and results that no memory holds."""

import re
import time

import ml_dtypes
import numpy as np
import pytest
from child import run_python
from refusals import refused

import convkit
from convkit import ShapeError, WorkspaceError

KIB, MIB = 1 << 10, 1 << 20

PROBLEMS = {
    # name: image, filter, keywords
    "3x3": ((4, 28, 28, 32), (3, 3, 32, 48), {"padding": "SAME"}),
    "1x1": ((4, 28, 28, 64), (1, 1, 64, 64), {}),
    "one large image": ((1, 120, 120, 8), (5, 5, 8, 16), {"padding": "SAME"}),
    "large filter": ((2, 24, 24, 8), (21, 21, 8, 16), {"padding": "SAME"}),
    "whole image": ((8, 9, 9, 64), (9, 9, 64, 32), {}),
    "depthwise": ((2, 28, 28, 32), (3, 3, 1, 32), {"groups": 32, "padding": 1}),
    "few channels": ((2, 40, 44, 3), (9, 9, 3, 2), {"padding": "SAME"}),
    "strided": ((2, 65, 65, 12), (7, 7, 12, 16), {"strides": 2, "dilations": 2, "padding": "SAME"}),
}
LIMITS = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 64 * MIB]
OPS = ["conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"]


def call(op, x, w, dy, **keywords):
    if op == "conv2d":
        return convkit.conv2d(x, w, **keywords)
    if op == "conv2d_backprop_filter":
        return convkit.conv2d_backprop_filter(x, w.shape, dy, **keywords)
    return convkit.conv2d_backprop_input(x.shape, w, dy, **keywords)


def explain(op, x, w, dy, **keywords):
    if op == "conv2d":
        return convkit.explain(op, x, w, **keywords)
    if op == "conv2d_backprop_filter":
        return convkit.explain(op, x, w.shape, dy, **keywords)
    return convkit.explain(op, x.shape, w, dy, **keywords)


def arrays(name, dtype):
    image, filter_, keywords = PROBLEMS[name]
    shape = convkit.conv2d_output_shape(image, filter_, **keywords)
    rng = np.random.default_rng(7)
    return [rng.integers(-1, 2, s).astype(dtype) for s in (image, filter_, shape)], keywords


# The reference, which serves by itself where only it fits a tiny limit, says so in a warning.
@pytest.mark.filterwarnings("ignore::convkit.PerformanceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", np.dtype(ml_dtypes.bfloat16)], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_workspace_limit_holds_and_changes_no_exact_sum(name, dtype):
    """Small integers: every order of summation gives the same float, so a limit may change nothing."""
    operands, keywords = arrays(name, dtype)
    for op in OPS:
        # Transforms are not exact: where they serve, it is the next family that must be.
        transforms = "winograd" in explain(op, *operands, **keywords).implementation
        exact = {"precision": "high" if transforms else "default"}
        with convkit.options(**exact):
            expected = call(op, *operands, **keywords)
        for limit in LIMITS:
            for threads in (1, 2, 16):
                with convkit.options(workspace_limit=limit, num_threads=threads):
                    try:
                        told = explain(op, *operands, **keywords)
                    except WorkspaceError as error:
                        assert bytes_named(error) > limit
                        continue
                    assert told.workspace <= limit, (op, limit, threads)
            with convkit.options(workspace_limit=limit, **exact):
                try:
                    np.testing.assert_array_equal(call(op, *operands, **keywords), expected)
                except WorkspaceError as error:
                    assert limit < MIB, error
                    assert bytes_named(error) > limit


def bytes_named(error):
    """The largest number in the message: what would be needed."""
    return max(int(number) for number in re.findall(r"\d+", re.sub(r"(?<=\d)[,_](?=\d{3})", "", str(error))))


@pytest.mark.parametrize("op", OPS)
def test_a_limit_too_small_names_the_bytes_that_are_needed(op):
    operands, keywords = arrays("large filter", "float32")
    with refused(WorkspaceError, "workspace", op=op), convkit.options(workspace_limit=16):
        call(op, *operands, algorithm="im2col", **keywords)
    with convkit.options(workspace_limit=16), pytest.raises(WorkspaceError) as caught:
        call(op, *operands, algorithm="im2col", **keywords)
    with convkit.options(workspace_limit=bytes_named(caught.value)):
        limited = call(op, *operands, algorithm="im2col", **keywords)
    np.testing.assert_array_equal(limited, call(op, *operands, **keywords))


MEASURE = """
    import resource, sys
    import numpy as np, convkit
    op, limit, dtype = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    x, w = np.ones((4, 96, 96, 16), dtype), np.ones((15, 15, 16, 16), dtype)
    dy = np.ones((4, 96, 96, 16), dtype)
    calls = {
        "conv2d": (convkit.conv2d, (x, w), dy.copy()),
        "conv2d_backprop_filter": (convkit.conv2d_backprop_filter, (x, w.shape, dy), w.copy()),
        "conv2d_backprop_input": (convkit.conv2d_backprop_input, (x.shape, w, dy), x.copy()),
    }
    call, arguments, out = calls[op]
    convkit.conv2d(x[:1, :8, :8], w[:3, :3], num_threads=2)
    with convkit.options(workspace_limit=limit):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call(*arguments, padding="SAME", out=out, num_threads=2)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((after - before) * 1024)
"""


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_process_grows_by_no_more_than_the_limit(op, dtype):
    """The whole patch matrix of this problem would take 530 MB in float32."""
    limit = 4 * MIB
    slack = 8 * MIB  # BLAS keeps packing buffers of its own
    assert int(run_python(MEASURE, op, limit, dtype)) <= limit + slack


def test_the_memory_limit_of_the_process():
    program = """
        import threading
        import numpy as np, convkit
        x, w = np.ones((2, 40, 40, 16), np.float32), np.ones((5, 5, 16, 16), np.float32)
        outcomes = []

        def work():
            try:
                outcomes.append(float(convkit.conv2d(x, w, algorithm="im2col", num_threads=1).max()))
            except convkit.WorkspaceError as error:
                outcomes.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(*outcomes, sep="\\n")
    """
    assert run_python(program, CONVKIT_MEMORY_LIMIT=str(1 << 30)).split() == ["400.0"] * 4
    for line in run_python(program, CONVKIT_MEMORY_LIMIT="64").splitlines():
        assert line.startswith("conv2d: ") and re.search(r"\d", line)


def test_a_result_that_no_memory_holds_is_refused_at_once():
    start = time.monotonic()
    many = np.broadcast_to(np.float32(1), (1, 2**20, 2**20, 1))
    one = np.ones((1, 1, 1, 1), np.float32)
    with refused(WorkspaceError, "bytes"):
        convkit.conv2d(many, one)
    with refused(WorkspaceError, "bytes", op="conv2d_backprop_input"):
        convkit.conv2d_backprop_input(many.shape, one, many)
    with refused(WorkspaceError, "bytes"):
        convkit.conv2d(np.ones((1, 1, 1, 1), np.float32), one, padding=2**20)
    huge = np.broadcast_to(np.float32(1), (1, 1, 2**20, 2**20))
    with refused(WorkspaceError, "bytes", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(
            np.ones((1, 1, 1, 2**20), np.float32), huge.shape, np.ones((1, 1, 1, 2**20), np.float32)
        )
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "image, filter_, keywords",
    [
        ((1, 2**62, 2**62, 1), (1, 1, 1, 1), {}),
        ((2**31, 2**31, 2**31, 1), (1, 1, 1, 1), {}),
        ((1, 2**63, 1, 1), (1, 1, 1, 1), {}),
        ((1, 10**30, 1, 1), (1, 1, 1, 1), {}),
        ((1, 4, 4, 1), (2**32, 2**32, 1, 1), {"padding": 2**33}),
        ((1, 4, 4, 1), (3, 3, 1, 1), {"padding": 2**62}),
        ((1, 4, 4, 1), (3, 3, 1, 1), {"padding": 2**63}),
        ((1, 4, 4, 1), (3, 3, 1, 1), {"dilations": 2**62, "padding": "SAME"}),
        ((1, 4, 4, 1), (3, 3, 1, 1), {"dilations": 2**63, "padding": "FULL"}),
        ((1, 4, 4, 1), (3, 3, 1, 1), {"strides": 2**64}),
        ((1, 4, 4, 2**62), (3, 3, 1, 2**62), {"groups": 2**62}),
    ],
)  # fmt: skip
def test_sizes_beyond_64_bits_are_a_shape_error(image, filter_, keywords):
    with refused(ShapeError, op="conv2d_output_shape"):
        convkit.conv2d_output_shape(image, filter_, **keywords)
    with pytest.raises(ShapeError):
        convkit.explain("conv2d", image, filter_, **keywords)


def test_large_sizes_within_64_bits_are_plain_arithmetic():
    assert convkit.conv2d_output_shape((1, 2**40, 3, 1), (1, 1, 1, 1)) == (1, 2**40, 3, 1)
    assert convkit.conv2d_output_shape((1, 2**40, 3, 1), (1, 1, 1, 1), strides=2**39) == (1, 2, 1, 1)
    x, w = np.ones((1, 4, 4, 1), np.float32), np.ones((2, 2, 1, 1), np.float32)
    np.testing.assert_array_equal(convkit.conv2d(x, w, strides=2**40), np.full((1, 1, 1, 1), 4, np.float32))
    np.testing.assert_array_equal(convkit.conv2d(x, w[:1, :1], dilations=2**40), x)
