"""Convolutions that do not mix channels: exact at every level, with every tail, and accurate over long sums."""

import math
from dataclasses import replace

import harness
import numpy as np
import pytest
import reference
from child import run_python
from harness import ALL_LAYOUTS, NCHW, NHWC, WIDE, Layout

import convkit
from convkit import _calls
from convkit._cpu import _engine, depthwise_tiles

LEVELS = [level for level in _engine.ISA_RUNS if any(k.isa == level for k in depthwise_tiles.KERNELS)]
each_level = pytest.mark.parametrize("level", LEVELS)
FLOAT32 = np.dtype(np.float32)

# name: image, taps, geometry
GEOMETRIES = {
    "same 3x3": ((2, 8, 9, 5), (3, 3), {"padding": "SAME"}),
    "one channel": ((3, 20, 37, 1), (5, 5), {"padding": "SAME"}),
    "one channel, strided": ((1, 40, 70, 1), (5, 4), {"strides": (2, 3), "padding": "SAME"}),
    "one channel, stride beyond the filter": ((2, 17, 23, 1), (1, 2), {"strides": (3, 5)}),
    "5x5": ((2, 13, 30, 4), (5, 5), {"padding": ((1, 4), (3, 2))}),
    "5x5, strided": ((2, 13, 31, 6), (5, 5), {"strides": (2, 2), "padding": "SAME"}),
    "7x7": ((1, 20, 35, 5), (7, 7), {"padding": "SAME"}),
    "7x7, strided": ((1, 21, 50, 4), (7, 7), {"strides": (2, 2), "padding": "SAME_LOWER"}),
    "strided both ways": ((2, 15, 40, 6), (3, 3), {"strides": (2, 2), "padding": "SAME"}),
    "more rows than a block of sums": ((1, 700, 18, 4), (3, 3), {"padding": "SAME"}),
    "strided": ((2, 9, 10, 37), (3, 3), {"strides": (2, 1), "padding": "SAME"}),
    "dilated and strided": ((2, 13, 14, 3), (3, 3), {"dilations": (3, 2), "strides": (2, 3)}),
    "padding beyond the filter": ((1, 5, 4, 2), (2, 3), {"padding": ((5, 3), (4, 7)), "strides": (2, 1)}),
    "full": ((1, 5, 6, 33), (3, 4), {"padding": "FULL"}),
    "pointwise": ((2, 5, 6, 18), (1, 1), {}),
    "more taps than a block of sums": ((1, 33, 35, 2), (31, 31), {"padding": "SAME"}),
    "a row of more taps than a block of sums": ((1, 3, 700, 3), (1, 600), {}),
    "columns of many vectors": ((1, 3, 1100, 1), (3, 3), {"padding": "SAME"}),
    "more rows than one tile": ((1, 400, 300, 4), (3, 2), {"padding": "SAME"}),
    "more channels than one tile": ((1, 15, 15, 1030), (3, 3), {"padding": "SAME"}),
}


# name: image, taps, filters of each channel, geometry
MULTIPLIED = {
    "two filters": ((2, 8, 9, 5), (3, 3), 2, {"padding": "SAME"}),
    "three filters, strided": ((2, 9, 10, 37), (3, 3), 3, {"strides": (2, 1), "padding": "SAME"}),
    "four filters, dilated": ((1, 13, 14, 3), (3, 2), 4, {"dilations": (3, 2)}),
    "two filters, strided both ways": ((2, 11, 20, 6), (3, 3), 2, {"strides": (2, 2), "padding": "SAME"}),
    "eight filters": ((1, 30, 31, 16), (5, 5), 8, {"padding": "SAME"}),
    "many filters of one channel": ((2, 12, 11, 1), (3, 3), 21, {"padding": "SAME"}),
}


def layer(name, rng, limit=3):
    """Return the three calls of a named geometry, on small integers."""
    image, taps, *times, geometry = GEOMETRIES[name] if name in GEOMETRIES else MULTIPLIED[name]
    channels = image[3]
    filters = channels * math.prod(times)
    return harness.layer(rng, image, (*taps, 1, filters), limit, groups=channels, **geometry)


def check(call, layouts, dtypes):
    """Check that the family gives the reference to the last bit, rounded once to each dtype, in each layout."""
    expected = call.reference()
    for layout in layouts:
        for dtype in dtypes:
            arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
            result = harness.operation(call.op)(*arguments, algorithm="depthwise", **keywords)
            assert result.dtype == dtype
            message = f"{call.op} {call.geometry} in {layout}"
            np.testing.assert_array_equal(call.result_from(result, layout), expected.astype(dtype), err_msg=message)


@pytest.mark.parametrize("name", [*GEOMETRIES, *MULTIPLIED])
def test_exact_in_every_layout_and_dtype(name, rng):
    for call in layer(name, rng):
        check(call, ALL_LAYOUTS, WIDE)
    for call in layer(name, rng, limit=1):
        check(call, (NHWC, NCHW), harness.HALVES)


@pytest.mark.parametrize("channels", [*range(1, 19), 31, 32, 33, 47, 48, 49, 64, 65])
def test_every_number_of_channels(channels, rng):
    for columns in (1, 2, 7, 16, 18):
        for strides in ((1, 1), (2, 2)):
            geometry = {"strides": strides, "padding": "SAME", "groups": channels}
            for call in harness.layer(rng, (2, 5, columns, channels), (3, 3, 1, channels), **geometry):
                check(call, (NHWC, NCHW), WIDE)


@pytest.mark.parametrize("rows", range(1, 19))
def test_every_height_of_a_single_channel(rows, rng):
    for columns in (1, 3, 8, 15, 16, 17, 31, 32, 33, 50):
        for call in harness.layer(rng, (1, rows, columns, 1), (3, 5, 1, 1), padding="SAME"):
            check(call, (NHWC,), WIDE)


SIDES = ((1, 1), (1, 1)), ((0, 1), (1, 2)), ((2, 0), (3, 1))


@pytest.mark.parametrize("padding", ["VALID", "SAME", "SAME_LOWER", "FULL", *SIDES], ids=str)
def test_pairs_of_pixels_of_strided_input_gradients(padding, rng):
    for columns in (3, 4, 5, 6, 15, 30):
        for taps in ((3, 3), (1, 3), (4, 3)):
            geometry = {"strides": (2, 2), "padding": padding, "groups": 17}
            *_, call = harness.layer(rng, (2, 7, columns, 17), (*taps, 1, 17), **geometry)
            check(call, (NHWC, NCHW), WIDE)


def aligned(shape, dtype):
    """Return an array of NaN at the beginning of a line of the cache."""
    memory = np.empty(math.prod(shape) * dtype.itemsize + 64, np.uint8)
    first = -memory.ctypes.data % 64
    result = memory[first : first + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    result[...] = np.nan
    return result


@pytest.mark.parametrize("layout", [NHWC, NCHW], ids=str)
@pytest.mark.parametrize("channels", [16, 24, 32, 144])
@pytest.mark.parametrize("strides", [1, 2])
def test_arrays_larger_than_the_caches(strides, channels, layout, rng, monkeypatch):
    """Fetched ahead, and stored past the caches where the result is aligned: on a machine that has hardly any."""
    small = replace(_calls.this_machine(), llc_bytes=2)
    monkeypatch.setattr(_calls, "this_machine", lambda: small)
    convkit.clear_caches()
    geometry = {"padding": SIDES[0], "strides": (strides, strides), "groups": channels}
    for size in ((2, 9, 16), (1, 8, 15), (1, 7, 64)):
        calls = harness.layer(rng, (*size, channels), (3, 3, 1, channels), **geometry)
        for call in calls:
            expected = call.reference().astype(FLOAT32)
            arguments, keywords = call.in_layout(layout, FLOAT32), {**call.geometry, **layout.keywords}
            shape = harness.operation(call.op)(*arguments, algorithm="depthwise", **keywords).shape
            for out in (aligned(shape, FLOAT32), np.full(shape, np.nan, FLOAT32)):
                harness.operation(call.op)(*arguments, algorithm="depthwise", out=out, **keywords)
                np.testing.assert_array_equal(call.result_from(out, layout), expected, err_msg=call.op)
    convkit.clear_caches()


LEVEL_PROGRAM = """
    import numpy as np, test_depthwise

    rng = np.random.default_rng(3)
    for name in (*test_depthwise.GEOMETRIES, *test_depthwise.MULTIPLIED):
        for call in test_depthwise.layer(name, rng):
            test_depthwise.check(call, test_depthwise.ALL_LAYOUTS[:4], test_depthwise.WIDE)
    for channels in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33):
        test_depthwise.test_every_number_of_channels(channels, rng)
    for rows in (1, 2, 5, 7, 9):
        test_depthwise.test_every_height_of_a_single_channel(rows, rng)
    print("exact")
"""


@each_level
def test_exact_at_every_level(level):
    assert run_python(LEVEL_PROGRAM, CONVKIT_MAX_ISA=level) == "exact"


@pytest.mark.parametrize("isa_level", LEVELS)
def test_every_level_has_kernels_of_both_dtypes(isa_level):
    found = {kernel.arithmetic for kernel in depthwise_tiles.KERNELS if kernel.isa == isa_level}
    assert found == {"float32", "float64"}
    assert depthwise_tiles.KERNELS.best("float32", isa_level).isa == isa_level


@pytest.mark.parametrize("layout", [NHWC, NCHW, Layout("NHWC", "OIHW")], ids=str)
@pytest.mark.parametrize("name", ["same 3x3", "one channel", "strided", "columns of many vectors", "two filters"])
def test_a_value_that_is_not_finite_reaches_exactly_its_windows(name, layout, rng):
    forward, backward, _ = layer(name, rng)
    shapes, geometry = [a.shape for a in forward.arguments], forward.geometry
    y_shape = backward.arguments[2].shape
    pixel, gradient = np.zeros(shapes[0]), np.zeros(y_shape)
    for spot in (pixel, gradient):
        spot[0, spot.shape[1] // 2, -1, -1] = 1
    spots = (
        harness.Call("conv2d", (pixel, np.ones(shapes[1])), geometry),
        harness.Call("conv2d_backprop_filter", (pixel, shapes[1], np.ones(y_shape)), geometry),
        harness.Call("conv2d_backprop_input", (shapes[0], np.ones(shapes[1]), gradient), geometry),
    )
    for call in spots:
        reached = call.reference() != 0
        for value in (np.inf, np.nan):
            arguments = (
                np.where(a == 1, value, rng.integers(1, 4, a.shape)) if a is pixel or a is gradient else a
                for a in call.arguments
            )
            bad = harness.Call(call.op, tuple(arguments), geometry)
            result = harness.operation(call.op)(
                *bad.in_layout(layout, FLOAT32), algorithm="depthwise", **geometry, **layout.keywords
            )
            np.testing.assert_array_equal(~np.isfinite(call.result_from(result, layout)), reached, err_msg=call.op)


def floats(name, rng):
    """Return the three calls of a named geometry on random floats."""
    image, taps, *times, geometry = GEOMETRIES[name] if name in GEOMETRIES else MULTIPLIED[name]
    weights = (*taps, 1, image[3] * math.prod(times))
    y = reference.output_shape(image, weights, **geometry)
    arrays = (harness.floats(rng, shape) for shape in (image, weights, y))
    return harness.three_calls(*arrays, groups=image[3], **geometry)


@pytest.mark.parametrize("name", [*GEOMETRIES, *MULTIPLIED])
def test_threads_do_not_change_the_bits(name, rng):
    for call in floats(name, rng):
        for layout in (NHWC, NCHW):
            arguments, keywords = call.in_layout(layout, FLOAT32), {**call.geometry, **layout.keywords}
            one, *others = (
                harness.operation(call.op)(*arguments, algorithm="depthwise", num_threads=n, **keywords).tobytes()
                for n in (1, 2, 3, 16)
            )
            assert all(other == one for other in others)


@pytest.mark.parametrize("name", [*GEOMETRIES, *MULTIPLIED])
def test_errors_stay_within_the_contract(name, rng):
    for call in floats(name, rng):
        for layout in (NHWC, NCHW):
            for dtype in WIDE:
                arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
                result = harness.operation(call.op)(*arguments, algorithm="depthwise", **keywords)
                error = np.abs(call.result_from(result, layout).astype(np.float64) - call.reference())
                assert (error <= 2 * call.bound(dtype)).all(), f"{call.op} {layout} {dtype}"


@pytest.mark.parametrize("layout", [NHWC, NCHW], ids=str)
@pytest.mark.parametrize("channels", [1, 8])
def test_a_filter_gradient_over_very_many_pixels_sums_in_blocks(channels, layout):
    """One float32 chain over a million ones and a half would stop growing evenly long before the end."""
    x = np.full((1, 1024, 1024, channels), 1.5, np.float32)
    dy = np.full_like(x, 1 / 3)
    call = harness.Call("conv2d_backprop_filter", (x, (1, 1, 1, channels), dy), {"groups": channels})
    result = convkit.conv2d_backprop_filter(
        *call.in_layout(layout, FLOAT32), algorithm="depthwise", groups=channels, **layout.keywords
    )
    exact = 1.5 * np.float64(np.float32(1 / 3)) * 1024 * 1024
    assert np.abs(result / exact - 1).max() < 64 * np.finfo(np.float32).eps


@pytest.mark.parametrize("limit", [1 << 12, 1 << 15, 1 << 20])
def test_the_workspace_limit_is_kept(limit, rng):
    for name in (*GEOMETRIES, *MULTIPLIED):
        for call in layer(name, rng):
            arguments = call.in_layout(NHWC, FLOAT32)
            with convkit.options(workspace_limit=limit):
                try:
                    told = convkit.explain(call.op, *arguments, algorithm="depthwise", **call.geometry)
                except convkit.WorkspaceError:
                    assert limit < 1 << 20, name
                    continue
                assert told.workspace <= limit
                check(call, (NHWC,), (FLOAT32,))


def test_mixed_channels_are_refused_with_the_reason():
    x, w = np.ones((1, 5, 5, 4), np.float32), np.ones((3, 3, 2, 4), np.float32)
    with pytest.raises(convkit.UnsupportedError, match="2 channels in"):
        convkit.conv2d(x, w, groups=2, algorithm="depthwise")
