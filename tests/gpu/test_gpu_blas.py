"""Products by cuBLAS: every way for matrices to lie in memory, exact sums, and what is refused."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convkit._gpu import blas

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
KINDS = [
    (np.float32, np.float32),
    (np.float64, np.float64),
    (np.float16, np.float16),
    (np.float16, np.float32),
    (BFLOAT16, BFLOAT16),
    (BFLOAT16, np.float32),
]
# How a matrix may lie: (transposed, elements between its rows, elements before it).
LAYOUTS = [(False, 0, 0), (False, 3, 1), (True, 0, 0), (True, 2, 5)]


def place(cupy, values, dtype, layout):
    """Return values on the device, in one of the layouts; around them is memory that is not theirs."""
    transposed, gap, before = layout
    host = values.swapaxes(-1, -2) if transposed else values
    *batch, rows, columns = host.shape
    whole = cupy.asarray(np.full((*batch, rows, before + columns + gap), 99, np.float32).astype(dtype))
    part = whole[..., before : before + columns]
    part[...] = cupy.asarray(host.astype(dtype))
    return (part.swapaxes(-1, -2) if transposed else part), whole


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(np.dtype(d).name for d in kind))
@pytest.mark.parametrize("batch", [(), (3,)])
def test_any_layout_gives_the_product(cupy, rng, kind, batch):
    for a_layout, b_layout, c_layout in itertools.product(LAYOUTS, repeat=3):
        m, n, k = (int(size) for size in rng.integers(1, 6, 3))
        a, b = rng.integers(-3, 4, (*batch, m, k)), rng.integers(-3, 4, (*batch, k, n))
        c = rng.integers(-3, 4, (*batch, m, n))
        left, _ = place(cupy, a, kind[0], a_layout)
        right, _ = place(cupy, b, kind[0], b_layout)
        out, whole = place(cupy, c, kind[1], c_layout)
        around = whole.get().astype(np.float64).sum() - c.sum()
        assert blas.can_multiply(left, right, out)
        blas.product(left, right, out)
        np.testing.assert_array_equal(out.get().astype(np.int64), a @ b)
        blas.product(left, right, out, accumulate=True)
        np.testing.assert_array_equal(out.get().astype(np.int64), 2 * (a @ b))
        assert whole.get().astype(np.float64).sum() - 2 * (a @ b).sum() == around


def test_one_matrix_serves_a_batch(cupy, rng):
    a, b = rng.integers(-3, 4, (2, 4)), rng.integers(-3, 4, (5, 4, 3))
    left, right = cupy.asarray(a.astype(np.float32)), cupy.asarray(b.astype(np.float32))
    out = cupy.empty((5, 2, 3), np.float32)
    blas.product(cupy.broadcast_to(left, (5, 2, 4)), right, out)
    np.testing.assert_array_equal(out.get(), a @ b)


def test_results_are_never_read(cupy):
    out = cupy.full((2, 2), np.nan, np.float32)
    blas.product(cupy.ones((2, 3), np.float32), cupy.ones((3, 2), np.float32), out)
    assert (out.get() == 3).all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_arrangement_reads_and_writes_what_it_should(data):
    """Every element that cuBLAS computes from the arrangement is where the strides say; checked on addresses alone."""
    m, n, k = (data.draw(st.integers(1, 5)) for _ in range(3))

    def matrix(rows, columns):
        steps = data.draw(st.sampled_from([1, 1, 2, 3, 5, 8, 20, -1, 0])), data.draw(st.sampled_from([1, 1, 2, 4, 7]))
        if data.draw(st.booleans()):
            steps = steps[::-1]
        return blas.Matrix((rows, columns), tuple(4 * step for step in steps), "float32", 4)

    a, b, out = matrix(m, k), matrix(k, n), matrix(m, n)
    found = blas.arrange(a, b, out)
    if isinstance(found, str):
        flat = [
            one for one in (a, b, out) if 4 not in [s for s, d in zip(one.strides, one.shape, strict=True) if d > 1]
        ]
        crossing = [one for one in (a, b, out) if not increasing(one)]
        assert flat or crossing, (a, b, out, found)
        return

    def address(transposed, leading, row, column):
        return 4 * (row * leading + column if transposed else row + column * leading)

    for i, j, p in itertools.product(range(m), range(n), range(k)):
        row, column = (j, i) if found.exchanged else (i, j)
        first, second = (b, a) if found.exchanged else (a, b)
        places = ((p, j), (i, p)) if found.exchanged else ((i, p), (p, j))
        for which, (one, place_, at) in enumerate(zip((first, second), places, ((row, p), (p, column)), strict=True)):
            wanted = sum(index * stride for index, stride in zip(place_, one.strides, strict=True) if index)
            assert address(found.transposed[which], found.leading[which], *at) == wanted
        wanted = sum(index * stride for index, stride in zip((i, j), out.strides, strict=True) if index)
        assert address(0, found.leading[2], row, column) == wanted


def increasing(matrix):
    """Tell whether the outer axis of a matrix steps over the inner one."""
    sizes = [(abs(s), s, d) for s, d in zip(matrix.strides, matrix.shape, strict=True) if d > 1]
    if any(s <= 0 for _, s, _ in sizes):
        return False
    return len(sizes) < 2 or (max(sizes)[0] >= min(sizes)[0] * min(sizes)[2] and sizes[0][0] != sizes[1][0])


def test_float32_is_multiplied_as_float32(cupy, world):
    one_and_a_bit = np.float32(1 + 2**-20)
    a, out = cupy.full((8, 8), one_and_a_bit, np.float32), cupy.empty((8, 8), np.float32)
    identity = cupy.asarray(np.eye(8, dtype=np.float32))
    handle = cupy.cuda.get_cublas_handle()
    # A handle that its user has set to TF32 keeps its mode, but not for this.
    cupy.cuda.cublas.setMathMode(handle, 3)
    blas.product(a, identity, out)
    assert (out.get() == one_and_a_bit).all()
    assert cupy.cuda.cublas.getMathMode(handle) == 3
    blas.product(a, identity, out, tf32=True)
    assert (out.get() == 1).all()


def test_sums_of_halves_are_rounded_once(cupy):
    """2048 + 1 + 1 is 2048 when it is rounded after every step in float16."""
    a, b = np.ones((1, 3), np.float16), np.array([[2048], [1], [1]], np.float16)
    out = cupy.empty((1, 1), np.float16)
    blas.product(cupy.asarray(a), cupy.asarray(b), out)
    assert out.get()[0, 0] == 2050


def form(shape, strides, dtype="float32", itemsize=4):
    return blas.Matrix(shape, strides, dtype, itemsize)


@pytest.mark.parametrize(
    ("a", "b", "out", "why"),
    [
        (form((2, 3), (24, 8)), form((3, 2), (8, 4)), form((2, 2), (8, 4)), "no axis of adjacent"),
        (form((2, 3), (12, 4)), form((3, 2), (8, 4)), form((2, 2), (16, 8)), "the result lies"),
        (form((2, 3), (12, 4)), form((3, 2), (8, 4)), form((2, 2), (8, 4), "float64", 8), "into float64"),
        (form((2, 3), (3, 1), "int8", 1), form((3, 2), (2, 1), "int8", 1), form((2, 2), (8, 4), "int32"), "int8"),
        (form((2, 3), (13, 4)), form((3, 2), (8, 4)), form((2, 2), (8, 4)), "whole number"),
        (form((2, 3), (-12, 4)), form((3, 2), (8, 4)), form((2, 2), (8, 4)), "no axis of adjacent"),
        (form((2**31, 3), (12, 4)), form((3, 2), (8, 4)), form((2**31, 2), (8, 4)), "32-bit sizes"),
        (form((2, 3), (4 * 2**31, 4)), form((3, 2), (8, 4)), form((2, 2), (8, 4)), "farther apart"),
        (form((2, 2, 3), (-24, 12, 4)), form((2, 3, 2), (24, 8, 4)), form((2, 2, 2), (16, 8, 4)), "descending"),
        (form((2, 2, 3), (24, 12, 4)), form((2, 3, 2), (24, 8, 4)), form((2, 2, 2), (0, 8, 4)), "in one place"),
    ],
)
def test_what_cublas_cannot_do_is_said(a, b, out, why):
    assert why in blas.arrange(a, b, out)


def test_no_int8(cupy):
    a = cupy.zeros((2, 2), np.int8)
    with pytest.raises(ValueError, match="int8"):
        blas.product(a, a, cupy.zeros((2, 2), np.int32))
