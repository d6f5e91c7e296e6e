"""Known failures of other libraries, by id: layouts, buffers and overlaps of the arrays given."""

import harness
import ml_dtypes
import numpy as np
import pytest
import reference
from harness import LAYOUTS, NCHW, NHWC, WIDE, Call
from numpy.lib.stride_tricks import as_strided

import convkit

FLOAT32 = np.dtype(np.float32)


def assert_same_for_views(call, layout, *views, **keywords):
    """Check that the arguments replaced by ``views`` of the same values give the reference, by every family."""
    keywords = {**call.geometry, **layout.keywords, **keywords}
    expected = call.reference()
    for family in harness.families(call.op, *views, **keywords):
        result = harness.operation(call.op)(*views, algorithm=family, **keywords)
        np.testing.assert_array_equal(call.result_from(result, layout), expected, err_msg=f"{call.op} by {family}")


def test_C01_strides_of_axes_of_size_one_say_nothing_about_the_layout(rng):
    for call in harness.layer(rng, (1, 100, 100, 1), (3, 3, 1, 64), padding=((1, 1), (1, 1))):
        # With one channel, NCHW made by transposing NHWC has the strides of either layout.
        arguments = [
            np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if isinstance(a, np.ndarray) else a
            for a in call.in_layout(NCHW, FLOAT32)
        ]
        assert_same_for_views(call, NCHW, *arguments)


def with_strides_of_unit_axes(array, stride):
    """Return the array with ``stride`` bytes along each axis of length one."""
    strides = [stride if n == 1 else s for n, s in zip(array.shape, array.strides, strict=True)]
    return as_strided(array, strides=strides)


@pytest.mark.parametrize("stride", [0, 3, -4, -(2**40)])
def test_C02_any_strides_on_axes_of_length_one(rng, stride):
    for call in harness.layer(rng, (3, 1, 1, 64), (125, 1, 64, 1), strides=(2, 2), padding=((63, 63), (63, 63))):
        views = [
            with_strides_of_unit_axes(a, stride) if isinstance(a, np.ndarray) else a
            for a in call.in_layout(NCHW, FLOAT32)
        ]
        assert_same_for_views(call, NCHW, *views)


def test_C02_literal():
    x = np.arange(6400, dtype=np.float32).reshape(100, 64, 1, 1) % 7
    w = np.arange(8000, dtype=np.float32).reshape(1, 64, 125, 1) % 5
    y = convkit.conv2d(x, w, data_format="NCHW", strides=(2, 2), padding=(63, 63))
    assert y.shape == (100, 1, 2, 64)
    nhwc, hwio = reference.from_data_format(x, "NCHW"), reference.from_filter_format(w, "OIHW")
    expected = reference.conv2d(nhwc, hwio, strides=(2, 2), padding=((63, 63), (63, 63)))
    np.testing.assert_array_equal(reference.from_data_format(y, "NCHW"), expected)


def test_C03_filter_as_a_stepped_slice():
    x = np.ones((3, 3, 2, 2), np.float32)
    w = np.arange(144, dtype=np.float32).reshape(3, 3, 4, 4)[:, :, ::2, ::2]
    for family in harness.families("conv2d", x, w, **NCHW.keywords):
        y = convkit.conv2d(x, w, data_format="NCHW", algorithm=family)
        np.testing.assert_array_equal(y, np.tile([252, 828, 1404], (3, 1)).reshape(3, 3, 1, 1), err_msg=family)


def test_C05_transposed_and_sliced_filters(rng):
    x = np.arange(1, 19, dtype=np.float32).reshape(1, 2, 3, 3)
    square = np.arange(1, 17, dtype=np.float32).reshape(2, 2, 2, 2)
    big = harness.integers(rng, (7, 2, 2, 2)).astype(np.float32)
    dy = harness.integers(rng, (1, 2, 2, 2)).astype(np.float32)
    for w in (square.transpose(1, 0, 2, 3), big[3:5], big[5:3:-1], square.transpose(0, 1, 3, 2)):
        nhwc = [reference.from_data_format(a.astype(np.float64), "NCHW") for a in (x, dy)]
        hwio = reference.from_filter_format(w.astype(np.float64), "OIHW")
        forward, filter_gradient, input_gradient = harness.three_calls(nhwc[0], hwio, nhwc[1])
        assert_same_for_views(forward, NCHW, x, w)
        assert_same_for_views(filter_gradient, NCHW, x, w.shape, dy)
        assert_same_for_views(input_gradient, NCHW, x.shape, w, dy)


def test_C06_flipped_spike():
    spike = np.zeros((1, 1, 31, 1), np.float32)
    spike[0, 0, 15, 0] = 1
    w = np.arange(1, 32, dtype=np.float32).reshape(1, 31, 1, 1)
    for family in harness.families("conv2d", spike, w, padding="SAME"):
        flipped = convkit.conv2d(spike[:, :, ::-1], w, padding="SAME", algorithm=family)
        np.testing.assert_array_equal(flipped, w[:, ::-1].reshape(1, 1, 31, 1), err_msg=family)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_C06_negative_strides_in_every_operand_and_out(rng, layout):
    flip = (slice(None, None, -1),) * 4
    for call in harness.layer(rng, (2, 6, 7, 5), (3, 2, 5, 4), strides=(2, 1), padding="SAME"):
        arguments = call.in_layout(layout, FLOAT32)
        views = [np.ascontiguousarray(a[flip])[flip] if isinstance(a, np.ndarray) else a for a in arguments]
        assert_same_for_views(call, layout, *views)
        expected = call.result_to(call.reference(), layout)
        buffer, keywords = np.empty(expected.shape, np.float32), {**call.geometry, **layout.keywords}
        for family in harness.families(call.op, *views, out=buffer[flip], **keywords):
            buffer[...] = np.nan
            harness.operation(call.op)(*views, out=buffer[flip], algorithm=family, **keywords)
            np.testing.assert_array_equal(buffer[flip], expected, err_msg=f"{call.op} by {family}")


def read_only(array, tmp_path):
    """Return read-only arrays of the same values: a flag, a memory map and a buffer of bytes."""
    frozen = array.copy()
    frozen.flags.writeable = False
    path = tmp_path / f"{array.ndim}-{array.size}-{array.shape[0]}"
    array.tofile(path)
    mapped = np.memmap(path, array.dtype, "r", shape=array.shape)
    return frozen, mapped, np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def test_C07_read_only_inputs(rng, tmp_path):
    for call in harness.layer(rng, (8, 16, 16, 3), (3, 3, 3, 4)):
        arguments = call.in_layout(NHWC, FLOAT32)
        kinds = [read_only(a, tmp_path) if isinstance(a, np.ndarray) else (a,) * 3 for a in arguments]
        for views in zip(*kinds, strict=True):
            assert_same_for_views(call, NHWC, *views)


def test_C07_literal_and_read_only_out():
    x, w = np.ones((64, 64, 64, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)
    x.flags.writeable = w.flags.writeable = False
    y = convkit.conv2d(x, w)
    assert type(y) is np.ndarray
    assert y.flags.writeable
    assert np.all(y == 27)
    y.flags.writeable = False
    with pytest.raises(convkit.ArgumentError, match=r"^conv2d: out"):
        convkit.conv2d(x, w, out=y)


def test_C08_big_endian(rng):
    x, w = np.ones((1, 4, 4, 1), ">f4"), np.ones((3, 3, 1, 1), "<f4")
    for family in harness.families("conv2d", x, w):
        y = convkit.conv2d(x, w, algorithm=family)
        assert y.dtype == np.dtype("=f4")
        assert y.dtype.isnative
        np.testing.assert_array_equal(y, np.full((1, 2, 2, 1), 9.0), err_msg=family)
    for dtype in ("f4", "f8", "f2"):
        big = np.dtype(dtype).newbyteorder(">")
        for call in harness.layer(rng, (2, 6, 7, 5), (3, 2, 5, 4), strides=(2, 1), padding="SAME"):
            for layout in LAYOUTS:
                assert_same_for_views(call, layout, *call.in_layout(layout, big))
                expected = call.result_to(call.reference(), layout)
                out = np.full(expected.shape, np.nan, big)
                keywords = {**call.geometry, **layout.keywords}
                harness.operation(call.op)(*call.in_layout(layout, big), out=out, **keywords)
                np.testing.assert_array_equal(out, expected)


def at_offset(array, offset):
    """Return the same values in a buffer that begins ``offset`` bytes into an allocation."""
    view = np.frombuffer(bytearray(offset + array.nbytes), array.dtype, offset=offset).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8, 12])
@pytest.mark.parametrize("dtype", [*WIDE, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
def test_C09_misaligned_buffers(rng, dtype, offset):
    for call in harness.layer(rng, (2, 6, 7, 5), (3, 2, 5, 4), strides=(2, 1), padding="SAME"):
        for layout in (NHWC, NCHW):
            views = [at_offset(a, offset) if isinstance(a, np.ndarray) else a for a in call.in_layout(layout, dtype)]
            assert_same_for_views(call, layout, *views)
            expected = call.result_to(call.reference(), layout).astype(dtype)
            out = at_offset(np.full(expected.shape, np.nan, dtype), offset)
            harness.operation(call.op)(*views, out=out, **call.geometry, **layout.keywords)
            np.testing.assert_array_equal(out, expected)


def test_C10_out_overlapping_an_input():
    row = np.array([1, 2, 3, 4, 5], np.float32).reshape(1, 1, 5, 1)
    w = np.array([1, 2, 1], np.float32).reshape(1, 3, 1, 1)
    assert convkit.conv2d(row, w, padding="SAME").ravel().tolist() == [4, 8, 12, 16, 14]
    with pytest.raises(convkit.ArgumentError, match=r"^conv2d: out"):
        convkit.conv2d(row, w, padding="SAME", out=row)
    assert row.ravel().tolist() == [1, 2, 3, 4, 5]


def test_C10_out_overlapping_by_one_row_or_one_element():
    buffer = np.arange(60, dtype=np.float32)
    w = np.ones((1, 1, 1, 1), np.float32)
    x = buffer[:20].reshape(1, 4, 5, 1)
    for start in (1, 15, 19):
        with pytest.raises(convkit.ArgumentError, match=r"^conv2d: out"):
            convkit.conv2d(x, w, out=buffer[start : start + 20].reshape(1, 4, 5, 1))
    np.testing.assert_array_equal(buffer, np.arange(60))
    neighbour = buffer[20:40].reshape(1, 4, 5, 1)
    convkit.conv2d(x, w, out=neighbour)
    np.testing.assert_array_equal(neighbour, x)


def test_C10_out_overlapping_the_second_operand():
    x, w, dy = (np.ones(shape, np.float32) for shape in ((1, 4, 4, 1), (1, 1, 1, 1), (1, 4, 4, 1)))
    with pytest.raises(convkit.ArgumentError, match=r"^conv2d: out"):
        convkit.conv2d(np.ones((1, 1, 1, 1), np.float32), w, out=w)
    with pytest.raises(convkit.ArgumentError, match=r"^conv2d_backprop_input: out"):
        convkit.conv2d_backprop_input(x.shape, w, dy, out=dy)
    for operand in (x, dy):
        with pytest.raises(convkit.ArgumentError, match=r"^conv2d_backprop_filter: out"):
            convkit.conv2d_backprop_filter(x, (1, 1, 1, 1), dy, out=operand[:, :1, :1])


def test_C11_integers_never_wrap():
    image = np.full((1, 2, 2, 1), 300, np.uint16)
    weights = np.full((2, 2, 1, 1), 300)
    for dtype in WIDE:
        for family, y in harness.each_family(Call("conv2d", (image, weights)), NHWC, np.dtype(np.uint16), dtype):
            assert y.dtype == dtype
            assert y.item() == 360000, family


@pytest.mark.parametrize(
    ("image", "weights"),
    [
        ("uint16", "uint16"),
        ("uint64", "uint8"),
        ("int64", "int64"),
        ("int64", "int8"),
        ("int64", "float32"),
        ("int32", "float32"),
        ("uint16", "float16"),
        ("float32", "int8"),
        ("float32", "float64"),
        ("float64", "float32"),
        ("float16", "float32"),
        ("complex64", "complex64"),
        ("longdouble", "longdouble"),
        ("object", "object"),
        ("datetime64[s]", "float64"),
        ("U1", "float32"),
    ],
)
def test_C11_dtypes_that_would_lose_digits_are_refused(image, weights):
    x, w = np.zeros((1, 1, 1, 1), image), np.zeros((1, 1, 1, 1), weights)
    with pytest.raises(convkit.ConvkitError, match=r"^conv2d: "):
        convkit.conv2d(x, w)
