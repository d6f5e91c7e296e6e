"""Every family against the reference, exactly: geometries, layouts, dtypes, memory layouts, integer images."""

import itertools

import harness
import numpy as np
import pytest
import reference
from harness import ALL_LAYOUTS, BFLOAT16, DTYPES, LAYOUTS, NCHW, NHWC, WIDE, Call

import convkit

FLOAT32 = np.dtype(np.float32)

# name: image, filter (HWIO), geometry
GEOMETRIES = {
    "plain 3x3": ((2, 8, 9, 5), (3, 3, 5, 7), {}),
    "same 3x3": ((2, 8, 9, 4), (3, 3, 4, 8), {"padding": "SAME"}),
    "same lower, even filter": ((2, 8, 9, 3), (4, 2, 3, 6), {"padding": "SAME_LOWER"}),
    "full": ((1, 5, 6, 3), (3, 4, 3, 5), {"padding": "FULL"}),
    "pointwise": ((3, 7, 5, 6), (1, 1, 6, 9), {}),
    "pointwise, strided": ((3, 7, 5, 6), (1, 1, 6, 9), {"strides": (2, 3)}),
    "pointwise, padded": ((3, 4, 5, 6), (1, 1, 6, 9), {"padding": ((1, 0), (2, 3))}),
    "whole image": ((5, 6, 7, 3), (6, 7, 3, 8), {}),
    "odd strides": ((2, 17, 19, 3), (3, 5, 3, 4), {"strides": (3, 5), "padding": "SAME"}),
    "stride beyond the filter": ((2, 17, 13, 3), (2, 1, 3, 4), {"strides": (5, 4)}),
    "dilated": ((2, 13, 14, 3), (3, 2, 3, 4), {"dilations": (2, 5), "padding": "SAME"}),
    "dilated and strided": ((2, 13, 14, 3), (3, 3, 3, 4), {"dilations": (3, 2), "strides": (2, 3)}),
    "padding of the filter's size": ((1, 5, 4, 2), (3, 3, 2, 3), {"padding": ((3, 3), (3, 3))}),
    "padding beyond the filter": ((1, 5, 4, 2), (2, 3, 2, 3), {"padding": ((5, 3), (4, 7)), "strides": (2, 1)}),
    "padding on one side": ((1, 6, 5, 2), (3, 3, 2, 3), {"padding": ((0, 2), (2, 0))}),
    "one output row": ((2, 3, 12, 4), (3, 2, 4, 5), {"strides": (2, 2)}),
    "one output column": ((2, 12, 3, 4), (2, 3, 4, 5), {"strides": (1, 2)}),
    "row filter": ((2, 6, 15, 3), (1, 7, 3, 4), {"padding": "SAME"}),
    "column filter": ((2, 15, 6, 3), (7, 1, 3, 4), {"padding": "SAME"}),
    "filter larger than the image": ((2, 3, 2, 3), (5, 5, 3, 4), {"padding": "SAME"}),
    "one pixel": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "one pixel, many channels": ((1, 1, 1, 70), (1, 1, 70, 65), {}),
    "deeper than a block of sums": ((1, 3, 3, 600), (2, 2, 600, 3), {}),
    "two groups": ((2, 7, 8, 6), (3, 3, 3, 8), {"groups": 2, "padding": "SAME"}),
    "groups, pointwise": ((2, 7, 8, 6), (1, 1, 2, 9), {"groups": 3}),
    "groups, whole image": ((3, 4, 5, 6), (4, 5, 2, 9), {"groups": 3}),
    "depthwise": ((2, 9, 10, 7), (3, 3, 1, 7), {"groups": 7, "strides": (2, 1), "padding": "SAME"}),
    "depthwise with multiplier": ((2, 9, 10, 5), (3, 2, 1, 15), {"groups": 5, "dilations": (2, 1)}),
    "empty batch": ((0, 9, 10, 5), (3, 2, 5, 4), {}),
    "no channels": ((2, 5, 5, 0), (3, 2, 0, 4), {}),
    "no filters": ((2, 5, 5, 3), (3, 2, 3, 0), {}),
}
# Enough of them to meet every way of reading and writing an operand.
BRIEF = ["same 3x3", "pointwise", "whole image", "dilated and strided", "padding beyond the filter", "two groups"]


def calls_of(name, rng):
    """Return the three calls of a named geometry, on small integers."""
    x, w, geometry = GEOMETRIES[name]
    return harness.layer(rng, x, w, **geometry)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_dtype_in_every_layout(name, rng):
    for call in calls_of(name, rng):
        harness.assert_exact(call, ALL_LAYOUTS, DTYPES)


@pytest.mark.parametrize("channels", range(1, 18))
def test_every_number_of_channels_and_filters(channels, rng):
    for filters in range(1, 18):
        for call in harness.layer(rng, (2, 5, 6, channels), (3, 2, channels, filters), strides=(2, 1), padding="SAME"):
            harness.assert_exact(call, [NHWC, NCHW], (FLOAT32,))


@pytest.mark.parametrize("taps", list(itertools.product((1, 2, 3, 5), repeat=2)), ids=str)
def test_every_filter_stride_and_dilation(taps, rng):
    for strides, dilations in itertools.product([(1, 1), (2, 3), (4, 1)], [(1, 1), (1, 3), (2, 2)]):
        geometry = {"strides": strides, "dilations": dilations, "padding": "SAME"}
        for call in harness.layer(rng, (2, 7, 8, 3), (*taps, 3, 5), **geometry):
            harness.assert_exact(call, [NHWC, NCHW], (FLOAT32,))


def broadcast(array):
    """Return a view that repeats the first entry of every axis but the last, and its plain copy."""
    first = array[(slice(0, 1),) * (array.ndim - 1)]
    view = np.broadcast_to(first, array.shape)
    return view, view.copy()


def stepped(array):
    """Return a view of every second element of a larger buffer, in each axis."""
    buffer = np.full([2 * n + 1 for n in array.shape], 1 if array.dtype.kind in "bui" else np.nan, array.dtype)
    view = buffer[(slice(1, None, 2),) * array.ndim]
    view[...] = array
    return view


def negative(array):
    """Return a view with every stride negative."""
    flip = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[flip])[flip]


def fortran(array):
    """Return an array whose first axis is the fastest."""
    return np.asfortranarray(array)


def swapped(array):
    """Return an array of the other byte order."""
    return array.astype(array.dtype.newbyteorder("S"))


def misaligned(array):
    """Return an array one byte off its alignment."""
    view = np.frombuffer(bytearray(1 + array.nbytes), array.dtype, offset=1).reshape(array.shape)
    view[...] = array
    return view


def swapped_and_stepped(array):
    """Return an array of the other byte order, with gaps."""
    return stepped(swapped(array))


WAYS = [stepped, negative, fortran, swapped, misaligned, swapped_and_stepped]
MEMORY_DTYPES = [*WIDE, np.dtype(np.float16)]


@pytest.mark.parametrize("dtype", MEMORY_DTYPES, ids=str)
@pytest.mark.parametrize("name", BRIEF)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_operands_and_out_however_they_lie_in_memory(way, name, dtype, rng):
    for call in calls_of(name, rng):
        expected = call.reference()
        for layout in LAYOUTS:
            plain = call.in_layout(layout, dtype)
            odd = [way(a) if isinstance(a, np.ndarray) else a for a in plain]
            keywords = {**call.geometry, **layout.keywords}
            wanted = call.result_to(expected, layout)
            function = harness.operation(call.op)
            for family in harness.families(call.op, *odd, **keywords):
                result = function(*odd, algorithm=family, **keywords)
                assert result.dtype == dtype
                assert result.flags.c_contiguous
                np.testing.assert_array_equal(result, wanted, err_msg=f"{call.op} by {family} in {layout}")
            out = way(np.full(wanted.shape, np.nan, dtype))
            for family in harness.families(call.op, *plain, out=out, **keywords):
                out[...] = np.nan
                assert function(*plain, out=out, algorithm=family, **keywords) is out
                np.testing.assert_array_equal(out, wanted, err_msg=f"{call.op} by {family} in {layout}, into out")


@pytest.mark.parametrize("way", [stepped, negative, misaligned], ids=lambda way: way.__name__)
def test_bfloat16_however_it_lies_in_memory(way, rng):
    for call in calls_of("same 3x3", rng):
        for layout in LAYOUTS:
            odd = [way(a) if isinstance(a, np.ndarray) else a for a in call.in_layout(layout, BFLOAT16)]
            keywords = {**call.geometry, **layout.keywords}
            for family in harness.families(call.op, *odd, **keywords):
                result = harness.operation(call.op)(*odd, algorithm=family, **keywords)
                np.testing.assert_array_equal(result, call.result_to(call.reference(), layout).astype(BFLOAT16))


def test_out_leaves_the_gaps_between_its_elements_alone(rng):
    for call in calls_of("same 3x3", rng):
        wanted = call.result_to(call.reference(), NHWC)
        arguments = call.in_layout(NHWC, FLOAT32)
        buffer = np.empty([2 * n for n in wanted.shape], np.float32)
        inside = buffer[(slice(None, None, 2),) * 4]
        for family in harness.families(call.op, *arguments, out=inside, **call.geometry):
            buffer[...] = 7
            harness.operation(call.op)(*arguments, out=inside, algorithm=family, **call.geometry)
            np.testing.assert_array_equal(inside, wanted)
            inside[...] = 7
            assert np.all(buffer == 7), f"{call.op} by {family}"


@pytest.mark.parametrize("name", BRIEF)
def test_broadcast_operands(name, rng):
    for call in calls_of(name, rng):
        views = [broadcast(a) if isinstance(a, np.ndarray) else (a, a) for a in call.in_layout(NHWC, FLOAT32)]
        copies = Call(call.op, tuple(copy for _, copy in views), call.geometry)
        odd = [view for view, _ in views]
        for family in harness.families(call.op, *odd, **call.geometry):
            result = harness.operation(call.op)(*odd, algorithm=family, **call.geometry)
            np.testing.assert_array_equal(result, copies.reference(), err_msg=f"{call.op} by {family}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_accumulate_adds_to_out(name, dtype, rng):
    _, call, _ = calls_of(name, rng)
    before = harness.integers(rng, call.arguments[1])
    expected = call.reference() + before
    for layout in LAYOUTS:
        arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
        start, wanted = (call.result_to(values, layout).astype(dtype) for values in (before, expected))
        for way in (np.copy, stepped):
            out = way(start)
            for family in harness.families(call.op, *arguments, out=out, accumulate=True, **keywords):
                out[...] = start
                convkit.conv2d_backprop_filter(*arguments, out=out, accumulate=True, algorithm=family, **keywords)
                np.testing.assert_array_equal(out, wanted, err_msg=f"{family} in {layout}")


def test_accumulate_of_half_types_into_float32(rng):
    _, call, _ = calls_of("same 3x3", rng)
    for dtype in harness.HALVES:
        arguments = call.in_layout(NHWC, dtype)
        for family in harness.families(call.op, *arguments, **call.geometry):
            out = np.full(call.arguments[1], 2.0**-12, np.float32)
            keywords = {"accumulate": True, "out_dtype": "float32", "algorithm": family, **call.geometry}
            convkit.conv2d_backprop_filter(*arguments, out=out, **keywords)
            np.testing.assert_array_equal(out, (call.reference() + 2.0**-12).astype(np.float32), err_msg=family)


INTEGER_IMAGES = [
    *itertools.product(("bool", "uint8", "int8"), DTYPES[:3]),
    *itertools.product(("uint16", "int16"), WIDE),
    *itertools.product(("uint32", "int32"), WIDE[1:]),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("image", "dtype"), INTEGER_IMAGES, ids=str)
@pytest.mark.parametrize("name", BRIEF)
def test_integer_images_with_float_filters(name, image, dtype, layout, rng):
    x_shape, w_shape, geometry = GEOMETRIES[name]
    x = rng.integers(0, 2, x_shape) if image == "bool" else rng.integers(0, 100, x_shape)
    if image not in ("bool", "uint8", "uint16", "uint32"):
        x = x - 50
    if np.dtype(image).itemsize > 1:
        x = x * 300
    x = x.astype(image)
    limit = 1 if dtype.itemsize == 2 else 3
    forward, gradient, _ = harness.layer(rng, x_shape, w_shape, limit, **geometry)
    for call in (
        Call("conv2d", (x, forward.arguments[1]), geometry),
        Call("conv2d_backprop_filter", (x, w_shape, gradient.arguments[2]), geometry),
    ):
        expected = call.reference().astype(np.float32 if dtype.itemsize == 2 else np.float64).astype(dtype)
        plain, *others = call.in_layout(layout, x.dtype, dtype)
        keywords = {**geometry, **layout.keywords}
        for odd in (plain, swapped(plain), stepped(plain), misaligned(plain)):
            for family in harness.families(call.op, odd, *others, **keywords):
                result = harness.operation(call.op)(odd, *others, algorithm=family, **keywords)
                assert result.dtype == dtype
                np.testing.assert_array_equal(call.result_from(result, layout), expected, err_msg=family)


def test_a_family_that_cannot_serve_is_refused_with_its_reason(rng):
    forward, _, _ = calls_of("same 3x3", rng)
    arguments = forward.in_layout(NHWC, FLOAT32)
    explanation = convkit.explain("conv2d", *arguments, **forward.geometry)
    objections = {name.split(":")[1].split("_")[0]: objection for name, objection in explanation.candidates}
    assert objections["gemm"]
    assert objections["im2col"] is None
    assert objections["reference"] is None
    for family, objection in objections.items():
        if objection is not None:
            with pytest.raises(convkit.UnsupportedError, match=r"^conv2d: ") as caught:
                convkit.conv2d(*arguments, algorithm=family, **forward.geometry)
            assert objection in str(caught.value)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("filter_format", ["HWIO", "OIHW", "OHWI"])
@pytest.mark.parametrize("view", ["flipped", "stepped", "taps swapped", "one row", "one column"])
def test_filters_of_one_channel_seen_through_a_view(view, filter_format, groups, rng):
    """A view of a filter with one channel per group has strides that look like a dense filter's in all but the taps."""
    taps = {"one row": (1, 3), "one column": (3, 1)}.get(view, (3, 3))
    stored = {"HWIO": (*taps, 1, 6), "OIHW": (6, 1, *taps), "OHWI": (6, *taps, 1)}[filter_format]
    rows = filter_format.index("H")
    columns = filter_format.index("W")
    whole = [2 * size if view == "stepped" and axis in (rows, columns) else size for axis, size in enumerate(stored)]
    w = rng.integers(-4, 5, whole).astype(np.float32)
    index = [slice(None)] * 4
    if view != "taps swapped":
        index[rows] = index[columns] = slice(None, None, 2) if view == "stepped" else slice(None, None, -1)
    w = w[tuple(index)]
    if view == "taps swapped":
        w = w.swapaxes(rows, columns)
    x = rng.integers(-4, 5, (2, 6, 5, groups)).astype(np.float32)
    for family in ("auto", "im2col", "reference"):
        keywords = {"filter_format": filter_format, "groups": groups, "algorithm": family}
        assert np.array_equal(convkit.conv2d(x, w, **keywords), convkit.conv2d(x, w.copy(), **keywords))
        order = tuple(filter_format.index(axis) for axis in "HWIO")
        expected = reference.conv2d(x, np.ascontiguousarray(w.transpose(order)), groups=groups)
        assert np.array_equal(convkit.conv2d(x, w, **keywords), expected)
        dy = rng.integers(-4, 5, expected.shape).astype(np.float32)
        dx = convkit.conv2d_backprop_input(x.shape, w, dy, **keywords)
        assert np.array_equal(dx, convkit.conv2d_backprop_input(x.shape, w.copy(), dy, **keywords))
