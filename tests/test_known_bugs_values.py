"""Known failures of other libraries, by id: NaN, half types, accuracy, subnormals, and wildly slow shapes."""

import time

import harness
import numpy as np
import pytest
import reference
from harness import BFLOAT16, DTYPES, HALVES, LAYOUTS, NCHW, NHWC, WIDE, Call

import convkit

FLOAT32 = np.dtype(np.float32)


def test_F01_nan_in_out_never_survives(rng):
    for call in harness.layer(rng, (1, 9, 9, 5), (3, 3, 5, 7)):
        for layout in LAYOUTS:
            for dtype in DTYPES:
                arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
                expected = call.result_to(call.reference(), layout)
                for family in harness.families(call.op, *arguments, **keywords):
                    out = np.full(expected.shape, np.nan, dtype)
                    harness.operation(call.op)(*arguments, out=out, algorithm=family, **keywords)
                    np.testing.assert_array_equal(out, expected.astype(dtype), err_msg=f"{call.op} by {family}")


def test_F02_sums_that_are_no_whole_number_of_vectors():
    call = Call("conv2d", (np.ones((1, 28, 28, 3)), np.ones((14, 14, 3, 4))))
    harness.assert_exact(call, expected=np.full((1, 15, 15, 4), 588.0))


@pytest.mark.parametrize("length", range(1, 34))
def test_F02_every_remainder_after_nan_in_freed_memory(rng, length):
    for call in harness.layer(rng, (2, 3, 5, length), (1, 2, length, 3)):
        del [np.full(size, np.nan, np.float32) for size in (64, 1024, 16384, 2**20)][:]
        harness.assert_exact(call, [NHWC, NCHW])


SPECIAL = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", SPECIAL, ids=str)
def test_F03_a_pixel_reaches_exactly_its_neighbourhood(value):
    x = np.zeros((1, 5, 5, 1))
    x[0, 2, 2, 0] = value
    expected = np.zeros((1, 5, 5, 1))
    expected[0, 1:4, 1:4] = value
    call = Call("conv2d", (x, np.ones((3, 3, 1, 1))), {"padding": "SAME"})
    for dtype in DTYPES:
        for layout in LAYOUTS:
            for family, y in harness.each_family(call, layout, dtype):
                # NumPy takes NaN to equal NaN only in its own types.
                np.testing.assert_array_equal(y.astype(np.float64), expected, err_msg=f"{family}, {dtype}")


GEOMETRIES = [
    {"padding": "SAME"},
    {"padding": ((2, 1), (0, 3)), "strides": (2, 1)},
    {"padding": "SAME", "dilations": (1, 2), "strides": (1, 3)},
    {"padding": "FULL"},
]


def reached(op, arguments, geometry):
    """Return which elements of the result a non-finite element of ``arguments`` has a term in."""
    marks = [~np.isfinite(a) if isinstance(a, np.ndarray) else a for a in arguments]
    ones = [np.ones(a.shape) if isinstance(a, np.ndarray) else a for a in arguments]
    count = 0
    for i, mark in enumerate(marks):
        if isinstance(mark, np.ndarray) and mark.any():
            count = count + reference.OPS[op](*ones[:i], mark.astype(np.float64), *ones[i + 1 :], **geometry)
    return count > 0


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("value", SPECIAL, ids=str)
def test_F03_exact_reach_in_all_three_operations(rng, value, geometry):
    """Data without zeros, so that an infinity meets no zero inside the image; filters and gradients are finite."""
    x = rng.integers(1, 4, (2, 7, 8, 3)).astype(np.float64)
    w = rng.integers(1, 4, (3, 3, 3, 4)).astype(np.float64)
    dy = rng.integers(1, 4, reference.output_shape(x.shape, w.shape, **geometry)).astype(np.float64)
    bad_x, bad_dy = x.copy(), dy.copy()
    bad_x[1, 3, 4, 2] = value
    bad_dy[0, 1, 2, 1] = value
    for call in (
        Call("conv2d", (bad_x, w), geometry),
        Call("conv2d_backprop_input", (x.shape, w, bad_dy), geometry),
        Call("conv2d_backprop_filter", (bad_x, w.shape, dy), geometry),
    ):
        hit = reached(call.op, call.arguments, geometry)
        assert hit.any()
        assert not hit.all()
        finite = Call(call.op, tuple(replace_bad(a) for a in call.arguments), geometry).reference()
        expected = np.where(hit, value, finite)
        for layout in LAYOUTS:
            for dtype in WIDE:
                for family, result in harness.each_family(call, layout, dtype):
                    np.testing.assert_array_equal(result, expected, err_msg=f"{call.op} by {family} in {layout}")


def replace_bad(argument):
    """Return the argument with zeros for its non-finite elements."""
    return np.where(np.isfinite(argument), argument, 0) if isinstance(argument, np.ndarray) else argument


def test_F03_a_zero_weight_times_infinity_is_nan():
    x = np.full((1, 3, 3, 1), np.inf)
    for family, y in harness.each_family(Call("conv2d", (x, np.zeros((3, 3, 1, 1)))), NHWC, FLOAT32):
        assert np.isnan(y).all(), family


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_F04_half_types_are_summed_in_float32(dtype):
    ones = Call("conv2d", (np.ones((1, 1, 1, 4096)), np.ones((1, 1, 4096, 1))))
    harness.assert_exact(ones, LAYOUTS, (dtype,), np.full((1, 1, 1, 1), 4096.0))
    signs = np.repeat([256.0, -256.0], 2048).reshape(1, 1, 4096, 1)
    cancelling = Call("conv2d", (np.full((1, 1, 1, 4096), 256.0), signs))
    harness.assert_exact(cancelling, LAYOUTS, (dtype,), np.zeros((1, 1, 1, 1)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_F04_half_gradients_are_summed_in_float32(dtype):
    x, dy = np.ones((1, 64, 64, 1)), np.ones((1, 64, 64, 1))
    harness.assert_exact(Call("conv2d_backprop_filter", (x, (1, 1, 1, 1), dy)), LAYOUTS, (dtype,))
    w, one = np.ones((1, 1, 1, 4096)), np.ones((1, 1, 1, 4096))
    harness.assert_exact(Call("conv2d_backprop_input", ((1, 1, 1, 1), w, one)), LAYOUTS, (dtype,))


def test_F05_overflow_of_a_half_type_is_a_signed_infinity(rng):
    w, dy = harness.integers(rng, (15, 18, 3, 7), 64), harness.integers(rng, (6, 15, 23, 7), 64)
    call = Call("conv2d_backprop_input", ((6, 25, 36, 3), w, dy), {"padding": ((2, 2), (2, 2))})
    with np.errstate(over="ignore"):
        expected = call.reference().astype(np.float16)
    assert {-np.inf, np.inf} <= set(expected.ravel().tolist())
    for layout in LAYOUTS:
        for family, dx in harness.each_family(call, layout, np.dtype(np.float16)):
            np.testing.assert_array_equal(dx, expected, err_msg=f"{family} in {layout}")


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_F07_output_of_one_row_or_column(rng, stride):
    dtypes = (FLOAT32, BFLOAT16)
    for call in harness.layer(rng, (2, 9, 3, 16), (3, 3, 16, 8), strides=(1, stride)):
        harness.assert_exact(call, LAYOUTS, dtypes)
    for call in harness.layer(rng, (2, 3, 9, 16), (3, 3, 16, 8), strides=(stride, 1)):
        harness.assert_exact(call, LAYOUTS, dtypes)
    for call in harness.layer(rng, (2, 3, 3, 5), (3, 3, 5, 4), strides=(stride, stride)):
        harness.assert_exact(call, LAYOUTS, dtypes)


def test_F08_long_sums(rng):
    calls = harness.three_calls(
        *(harness.floats(rng, shape) for shape in ((2, 4, 4, 8192), (3, 3, 8192, 8), (2, 1, 1, 8))), strides=(2, 2)
    )
    for call in calls:
        expected = call.reference()
        for layout in (NHWC, NCHW):
            for family, result in harness.each_family(call, layout, FLOAT32):
                error = np.sqrt(np.mean((result - expected) ** 2) / np.mean(expected**2))
                assert error < 1e-6, f"{call.op} by {family} in {layout}: {error}"
        harness.assert_close(call, [NHWC], (FLOAT32,))


def test_F08_long_filter_gradient_sums(rng):
    """Over 200,704 terms of one sign; in one float32 chain they would be off by 8e-6."""
    x, dy = harness.floats(rng, (4, 224, 224, 1)) + 100, harness.floats(rng, (4, 224, 224, 2)) + 1
    x, dy = (a.astype(np.float32).astype(np.float64) for a in (x, dy))
    call = Call("conv2d_backprop_filter", (x, (3, 3, 1, 2), dy), {"padding": "SAME"})
    expected = call.reference()
    for family, dw in harness.each_family(call, NHWC, FLOAT32):
        assert np.max(np.abs(dw - expected) / expected) < 2e-6, family


def test_F09_subnormals_are_kept():
    """Sums of whole multiples of the smallest subnormal are exact, unless one is flushed to zero."""
    rng = np.random.default_rng(9)
    tiny = 2.0**-149
    x, w = harness.integers(rng, (1, 56, 56, 64)), harness.integers(rng, (3, 3, 64, 64)) * tiny
    dy = harness.integers(rng, (1, 56, 56, 64), 1)
    for call in (
        Call("conv2d", (x, w), {"padding": "SAME"}),
        Call("conv2d_backprop_input", (x.shape, w, dy), {"padding": "SAME"}),
        Call("conv2d_backprop_filter", (x * tiny, w.shape, dy), {"padding": "SAME"}),
    ):
        expected = call.reference()
        assert 0 < np.abs(expected[expected != 0]).min() < np.finfo(np.float32).tiny
        with convkit.options(precision="high"):  # transforms round such numbers too
            harness.assert_exact(call, [NHWC, NCHW], (FLOAT32,), expected)


def test_F09_subnormals_among_ordinary_weights(rng):
    x, w = harness.floats(rng, (1, 28, 28, 64)), harness.floats(rng, (3, 3, 64, 64))
    mixed = np.where(rng.random(w.shape) < 0.3, w * 1e-40, w).astype(np.float32).astype(np.float64)
    harness.assert_close(Call("conv2d", (x, mixed), {"padding": "SAME"}), [NHWC, NCHW], (FLOAT32,))


def test_F09_subnormal_half_results_are_rounded_once():
    tiny = 2.0**-24
    call = Call("conv2d", (np.arange(1.0, 65).reshape(1, 8, 8, 1) / 2, np.full((1, 1, 1, 1), tiny)))
    harness.assert_exact(call, LAYOUTS, (np.dtype(np.float16),))


def seconds(function):
    """Return the shortest time of three calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def run(call, layout=NHWC):
    """Return a function that makes the call in float32, after checking its result."""
    arguments = call.in_layout(layout, FLOAT32)
    keywords = {**call.geometry, **layout.keywords}
    result = call.result_from(harness.operation(call.op)(*arguments, **keywords), layout)
    np.testing.assert_array_equal(result, call.reference(), err_msg=call.op)
    return lambda: harness.operation(call.op)(*arguments, **keywords)


def test_P01_gradients_of_a_small_layer(rng):
    calls = harness.layer(rng, (32, 32, 32, 8), (5, 5, 8, 8), padding=((2, 2), (2, 2)))
    forward, *gradients = (seconds(run(call, NCHW)) for call in calls)
    assert max(gradients) < 15 * forward + 0.05


def test_P03_depthwise_is_no_slower_than_the_full_convolution(rng):
    depthwise, *gradients = harness.layer(rng, (1, 56, 56, 256), (3, 3, 1, 256), padding="SAME", groups=256)
    for call in gradients:
        run(call)
    x, w = depthwise.arguments[0].astype(np.float32), np.ones((3, 3, 256, 256), np.float32)
    full = seconds(lambda: convkit.conv2d(x, w, padding="SAME"))
    assert seconds(run(depthwise)) < 3 * full + 0.05


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "stride"),
    [((1, 2048, 2048, 1), (3, 3, 1, 1), 1), ((1, 224, 224, 3), (7, 7, 3, 64), 2)],
    ids=str,
)
def test_P05_pictures_of_few_channels(rng, x_shape, w_shape, stride):
    call, _, _ = harness.layer(rng, x_shape, w_shape, strides=(stride, stride), padding="SAME")
    assert seconds(run(call)) < 5 * seconds(call.reference)


def test_P06_very_large_filter(rng):
    call, _, _ = harness.layer(rng, (1, 128, 128, 8), (45, 45, 8, 8), padding="SAME")
    assert convkit.explain("conv2d", (1, 128, 128, 8), (45, 45, 8, 8), padding="SAME").flops == 2 * 128**2 * 64 * 45**2
    start = time.perf_counter()
    call.reference()
    naive = time.perf_counter() - start
    start = time.perf_counter()
    run(call)
    assert time.perf_counter() - start < 10 * naive
