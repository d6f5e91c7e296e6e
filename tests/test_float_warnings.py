"""Overflow, NaN, infinities and subnormals go through without a NumPy warning or a change of NumPy's state."""

import warnings

import ml_dtypes
import numpy as np
import pytest

import convkit

FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def values(dtype, kind, shape):
    info = ml_dtypes.finfo(dtype)
    table = {
        "overflow": [float(info.max), -float(info.max), float(info.max)],
        "nan": [np.nan, 1.0, -1.0],
        "infinity": [np.inf, -np.inf, 1.0],
        "subnormal": [float(info.smallest_subnormal), -float(info.smallest_subnormal), float(info.tiny)],
    }
    with np.errstate(all="ignore"):
        return np.resize(np.array(table[kind], np.float64), shape).astype(dtype)


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
@pytest.mark.parametrize("kind", ["overflow", "nan", "infinity", "subnormal"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_no_floating_point_warnings(dtype, kind, algorithm):
    keywords = {"algorithm": algorithm, "num_threads": 2}
    for size in (1, 3):
        x, w = values(dtype, kind, (2, 7, 7, 3)), values(dtype, kind, (size, size, 3, 4))
        dy = values(dtype, kind, convkit.conv2d_output_shape(x.shape, w.shape))
        with warnings.catch_warnings(), np.errstate(all="raise"):
            warnings.simplefilter("error")
            before = np.geterr()
            convkit.conv2d(x, w, **keywords)
            convkit.conv2d_backprop_filter(x, w.shape, dy, **keywords)
            convkit.conv2d_backprop_filter(x, w.shape, dy, out=w.copy(), accumulate=True, **keywords)
            convkit.conv2d_backprop_input(x.shape, w, dy, **keywords)
            assert np.geterr() == before


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
def test_no_warnings_from_values_that_a_half_type_cannot_hold(algorithm):
    """Nested lists take the type of the filter; integer images are converted to it."""
    w = np.ones((1, 1, 1, 1), np.float16)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert np.isinf(convkit.conv2d([[[[1e30]]]], w, algorithm=algorithm)).all()
        assert np.isinf(convkit.conv2d(np.full((1, 1, 1, 1), 255, np.uint8), w * 300, algorithm=algorithm)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_subnormals_are_kept(dtype):
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    x = np.full((1, 5, 5, 3), tiny, dtype)
    w = np.ones((1, 1, 3, 2), dtype)
    # Dot products of bfloat16 pairs take them for zeros; precision="high" excludes these.
    precision = "high" if dtype.name == "bfloat16" else "default"
    for algorithm in ("auto", "direct", "im2col", "reference"):
        with convkit.options(precision=precision):
            taken = convkit.conv2d(x, w, algorithm=algorithm).astype(np.float64)
        np.testing.assert_array_equal(taken, 3 * float(tiny))


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_bad_pixel_reaches_exactly_the_outputs_whose_window_holds_it(dtype, algorithm):
    x, w = np.ones((1, 9, 9, 2), dtype), np.ones((3, 3, 2, 2), dtype)
    for bad in (np.nan, np.inf):
        x[0, 4, 5, 1] = bad
        finite = np.isfinite(convkit.conv2d(x, w, padding="SAME", algorithm=algorithm).astype(np.float64))
        expected = np.ones((1, 9, 9, 2), bool)
        expected[0, 3:6, 4:7] = False
        np.testing.assert_array_equal(finite, expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_rounding_to_a_half_type_saturates_to_infinity(dtype):
    top = ml_dtypes.finfo(dtype).max
    x, w = np.full((1, 2, 2, 4), top, dtype), np.ones((1, 1, 4, 1), dtype)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        assert np.isinf(convkit.conv2d(x, w).astype(np.float64)).all()
