"""What may be given as an array, what comes back, `out`, `out_dtype` and `accumulate`."""

import sys

import ml_dtypes
import numpy as np
import pytest
from refusals import refused

import convkit
from convkit import (
    ArgumentError,
    ArgumentTypeError,
    BackendError,
    ConvkitError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BF16]


def small_integers(shape, dtype, seed=0):
    """Values whose products and sums are exact in every float type here, so that results compare to the last bit."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def problem(dtype=np.float32):
    x = small_integers((2, 6, 5, 3), dtype, 1)
    w = small_integers((3, 2, 3, 4), dtype, 2)
    dy = small_integers((2, 4, 4, 4), dtype, 3)
    return x, w, dy


def operations(x, w, dy, **keywords):
    """The three operations on one problem, as (name, call taking further keywords)."""
    return {
        "conv2d": lambda **more: convkit.conv2d(x, w, **keywords, **more),
        "conv2d_backprop_filter": lambda **more: convkit.conv2d_backprop_filter(x, w.shape, dy, **keywords, **more),
        "conv2d_backprop_input": lambda **more: convkit.conv2d_backprop_input(x.shape, w, dy, **keywords, **more),
    }


OPS = list(operations(*problem()))


class Exporter:
    """An array of some other library: DLPack is all that it offers."""

    def __init__(self, array, device=None):
        self._array, self._device = array, device

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._device or self._array.__dlpack_device__()


class Tensor(Exporter):
    """A CPU array of a library whose arrays may also live on a GPU: the attribute is there by type, not by value."""

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype, copy=copy)

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("not on a GPU")


def fake_cupy_array(shape):
    """Looks as CuPy's arrays do, down to the refusal to become a NumPy array."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    members = {
        "__module__": "cupy",
        "__array__": __array__,
        "shape": shape,
        "ndim": len(shape),
        "dtype": np.dtype(np.float32),
        "__cuda_array_interface__": {"shape": shape, "typestr": "<f4", "data": (0, False), "version": 3},
    }
    return type("ndarray", (), members)()


# What is taken


def test_lists_are_taken():
    x, w, dy = problem(np.float64)
    for as_list in (np.ndarray.tolist, lambda a: tuple(list(row) for row in a)):
        taken = convkit.conv2d(as_list(x), as_list(w))
        np.testing.assert_array_equal(taken, convkit.conv2d(x, w))
    gradient = convkit.conv2d_backprop_filter(x.tolist(), w.shape, dy.tolist())
    np.testing.assert_array_equal(gradient, convkit.conv2d_backprop_filter(x, w.shape, dy))
    assert gradient.dtype == np.float64


def test_a_ragged_list_is_refused():
    with refused(ArgumentTypeError, "input"):
        convkit.conv2d([[[[1.0], [2.0, 3.0]]]], np.ones((1, 1, 1, 1)))


def test_dlpack_exporters_are_taken():
    x, w, dy = problem()
    np.testing.assert_array_equal(convkit.conv2d(Exporter(x), Exporter(w)), convkit.conv2d(x, w))
    taken = convkit.conv2d_backprop_filter(Exporter(x), w.shape, Exporter(dy))
    assert type(taken) is np.ndarray
    np.testing.assert_array_equal(taken, convkit.conv2d_backprop_filter(x, w.shape, dy))


def test_a_cpu_tensor_of_a_library_that_also_has_gpu_tensors_is_taken():
    x, w, dy = problem()
    np.testing.assert_array_equal(convkit.conv2d(Tensor(x), Tensor(w)), convkit.conv2d(x, w))
    taken = convkit.conv2d_backprop_filter(x, w.shape, Tensor(dy))
    np.testing.assert_array_equal(taken, convkit.conv2d_backprop_filter(x, w.shape, dy))


def test_a_strided_dlpack_exporter_is_taken():
    x, w, _ = problem()
    np.testing.assert_array_equal(convkit.conv2d(Exporter(x[::-1, :, ::2]), w), convkit.conv2d(x[::-1, :, ::2], w))


def test_a_dlpack_exporter_of_another_device_is_refused():
    x, w, _ = problem()
    with refused(ConvkitError, "input", "device"):
        convkit.conv2d(Exporter(x, device=(2, 0)), w)


@pytest.mark.parametrize("op", OPS)
def test_masked_arrays_are_refused_by_name(op):
    x, w, dy = problem()
    masked = {
        "conv2d": lambda: convkit.conv2d(np.ma.masked_array(x, x > 0), w),
        "conv2d_backprop_filter": lambda: convkit.conv2d_backprop_filter(x, w.shape, np.ma.masked_array(dy)),
        "conv2d_backprop_input": lambda: convkit.conv2d_backprop_input(x.shape, np.ma.masked_array(w), dy),
    }
    with refused(ArgumentTypeError, "masked", op=op):
        masked[op]()
    with refused(ArgumentTypeError, "masked", "out", op=op):
        call = operations(x, w, dy)[op]
        call(out=np.ma.masked_array(call()))


def test_a_subclass_gives_a_plain_array():
    class Sub(np.ndarray):
        pass

    x, w, dy = problem()
    for op, call in operations(x.view(Sub), w.view(Sub), dy.view(Sub)).items():
        assert type(call()) is np.ndarray
        np.testing.assert_array_equal(call(), operations(x, w, dy)[op]())
    out = np.empty((2, 4, 4, 4), np.float32).view(Sub)
    assert convkit.conv2d(x, w, out=out) is out


def test_an_array_on_a_gpu_says_that_there_is_no_cupy():
    x, w, dy = fake_cupy_array((2, 6, 5, 3)), fake_cupy_array((3, 2, 3, 4)), fake_cupy_array((2, 4, 4, 4))
    for call in operations(x, w, dy).values():
        with pytest.raises(BackendError, match=r"^convkit: CuPy is not installed.*cuda12"):
            call()


def test_numpy_and_cupy_do_not_mix():
    x, w, dy = problem()
    with refused(ArgumentTypeError, "CuPy", "NumPy", "filter"):
        convkit.conv2d(x, fake_cupy_array(w.shape))
    with refused(ArgumentTypeError, "CuPy", "NumPy", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(fake_cupy_array(x.shape), w.shape, dy)
    with refused(ArgumentTypeError, "CuPy", "out"):
        convkit.conv2d(x, w, out=fake_cupy_array(dy.shape))
    assert "cupy" not in sys.modules


# Types


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_type_gives_itself(dtype):
    for call in operations(*problem(dtype)).values():
        assert call().dtype == dtype


@pytest.mark.parametrize(
    "image, filter_",
    [
        ("uint8", "float16"),
        ("uint8", BF16),
        ("int8", "float16"),
        ("int8", "float32"),
        ("uint8", "float32"),
        ("uint16", "float32"),
        ("int16", "float64"),
        ("int32", "float64"),
        ("uint32", "float64"),
        ("bool", "float32"),
        ("bool", "float16"),
    ],
)
def test_an_integer_image_takes_the_type_of_the_filter(image, filter_):
    _, w, dy = problem(filter_)
    x = np.random.default_rng(5).integers(0, 2, (2, 6, 5, 3)).astype(image)
    assert np.can_cast(x.dtype, w.dtype, "safe")
    for taken, expected in (
        (convkit.conv2d(x, w), convkit.conv2d(x.astype(filter_), w)),
        (
            convkit.conv2d_backprop_filter(x, w.shape, dy),
            convkit.conv2d_backprop_filter(x.astype(filter_), w.shape, dy),
        ),
    ):
        assert taken.dtype == w.dtype
        np.testing.assert_array_equal(taken, expected)


@pytest.mark.parametrize(
    "image, filter_", [("int32", "float32"), ("uint32", "float32"), ("uint16", "float16"), ("int64", "float32")]
)
def test_an_integer_image_that_would_lose_digits_is_refused_with_the_cast(image, filter_):
    x, w, _ = problem()
    with refused(DTypeError, image, str(np.dtype(filter_)), "astype"):
        convkit.conv2d(x.astype(image), w.astype(filter_))


@pytest.mark.parametrize(
    "first, second", [("float32", "float64"), ("float64", "float32"), ("float16", "float32"), (BF16, "float16")]
)
def test_mixed_float_types_are_refused_with_the_cast(first, second):
    x, w, dy = problem()
    names = (str(np.dtype(first)), str(np.dtype(second)), "astype")
    with refused(DTypeError, *names):
        convkit.conv2d(x.astype(first), w.astype(second))
    with refused(DTypeError, *names, op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(x.astype(first), w.shape, dy.astype(second))
    with refused(DTypeError, *names, op="conv2d_backprop_input"):
        convkit.conv2d_backprop_input(x.shape, w.astype(first), dy.astype(second))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool"])
def test_integer_filters_are_refused(dtype):
    x, w, dy = (a.astype(dtype) for a in problem())
    for op, call in operations(x, w, dy).items():
        if (op, dtype) == ("conv2d", "int8"):
            continue
        with refused((DTypeError, UnsupportedError), dtype, op=op):
            call()
    with refused((DTypeError, UnsupportedError), dtype):
        convkit.conv2d(problem()[0], w)


OTHERS = {
    "complex64": np.ones((2, 6, 5, 3), np.complex64),
    "complex128": np.ones((2, 6, 5, 3), np.complex128),
    "object": np.ones((2, 6, 5, 3), object),
    "<U3": np.full((2, 6, 5, 3), "abc"),
    "|S3": np.full((2, 6, 5, 3), b"abc"),
    "datetime64": np.zeros((2, 6, 5, 3), "datetime64[s]"),
    "timedelta64": np.zeros((2, 6, 5, 3), "timedelta64[s]"),
    "structured": np.zeros((2, 6, 5, 3), [("a", "f4"), ("b", "f4")]),
    "longdouble": np.ones((2, 6, 5, 3), np.longdouble),
    "float8": np.ones((2, 6, 5, 3), ml_dtypes.float8_e4m3fn),
    "void": np.zeros((2, 6, 5, 3), "V4"),
    "strings": np.full((2, 6, 5, 3), "abc", np.dtypes.StringDType()),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_types_are_refused(other):
    x, w, dy = problem()
    with refused((DTypeError, UnsupportedError), "input"):
        convkit.conv2d(other, w)
    with refused((DTypeError, UnsupportedError), "filter"):
        convkit.conv2d(x, np.resize(other, w.shape))
    with refused((DTypeError, UnsupportedError), "out_backprop", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(x, w.shape, np.resize(other, dy.shape))


# Layouts


def misaligned(array):
    """A copy of `array` that starts one byte after an aligned address."""
    buffer = np.empty(array.nbytes + 1, np.uint8)
    copy = buffer[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS = {
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "fortran": np.asfortranarray,
    "negative strides": lambda a: np.ascontiguousarray(a[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
    "every other": lambda a: np.repeat(np.repeat(a, 2, axis=1), 2, axis=3)[:, ::2, :, ::2],
    "misaligned": misaligned,
    "read-only": read_only,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_unusual_layouts_give_contiguous_native_results(layout, dtype):
    plain, change = problem(dtype), LAYOUTS[layout]
    for op, call in operations(*map(change, plain)).items():
        taken = call()
        assert taken.flags.c_contiguous and taken.flags.owndata and taken.flags.writeable
        assert taken.dtype.isnative and taken.dtype == dtype
        np.testing.assert_array_equal(taken, operations(*plain)[op]())


def test_broadcast_arrays_are_taken():
    x, w, dy = (np.broadcast_to(np.float32(3), a.shape) for a in problem())
    for op, call in operations(x, w, dy).items():
        np.testing.assert_array_equal(call(), operations(x.copy(), w.copy(), dy.copy())[op]())


def test_inputs_are_left_alone():
    before = problem()
    x, w, dy = (a.copy() for a in before)
    for call in operations(x, w, dy).values():
        call()
    for kept, array in zip(before, (x, w, dy), strict=True):
        np.testing.assert_array_equal(kept, array)


# out


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_out_is_written_whatever_its_layout_and_returned(op, dtype, algorithm):
    call = operations(*problem(dtype), algorithm=algorithm)[op]
    expected = call()
    outs = {name: change(np.full(expected.shape, np.nan, dtype)) for name, change in LAYOUTS.items()}
    del outs["read-only"]
    outs["plain"] = np.full(expected.shape, np.nan, dtype)
    if dtype == BF16:  # ml_dtypes has no other byte order
        del outs["big-endian"]
    for name, out in outs.items():
        assert call(out=out) is out, name
        np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64), err_msg=name)


@pytest.mark.parametrize("op", OPS)
def test_outs_that_cannot_be_written(op):
    call = operations(*problem())[op]
    good = call()
    with refused(ArgumentError, "out", "read-only", op=op):
        call(out=read_only(good))
    for shape in (good.shape[:-1], (*good.shape, 1), (1, *good.shape[1:]), (good.size,), ()):
        with refused(ShapeError, "out", str(good.shape), op=op):
            call(out=np.empty(shape, np.float32))
    for dtype in ("float64", "float16", "int32", object):
        with refused(DTypeError, "out", "float32", op=op):
            call(out=np.empty(good.shape, dtype))
    for bad in (good.tolist(), "out", 3, Exporter(good), memoryview(good)):
        with refused(ArgumentTypeError, "out", op=op):
            call(out=bad)


def test_a_refused_call_does_not_touch_out():
    x, w, _ = problem()
    out = np.full((2, 4, 4, 4), 7, np.float32)
    with pytest.raises(ShapeError):
        convkit.conv2d(x, w, strides=2, out=out)
    assert (out == 7).all()


def test_out_may_not_overlap_an_input():
    memory = np.zeros(1000, np.float32)
    shape = (2, 6, 5, 3)
    x = memory[:180].reshape(shape)
    w = np.ones((1, 1, 3, 3), np.float32)
    for out in (x, x[::-1], memory[179:359].reshape(shape), memory[90:270].reshape(shape)):
        with refused(ArgumentError, "out", "input", "overlap"):
            convkit.conv2d(x, w, out=out)
        with refused(ArgumentError, "out", "overlap", op="conv2d_backprop_input"):
            convkit.conv2d_backprop_input(shape, w, x, out=out)
    taps = memory[:9].reshape(1, 1, 3, 3)
    with refused(ArgumentError, "out", "overlap", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(x, (1, 1, 3, 3), x.copy(), out=taps)
    with refused(ArgumentError, "out", "overlap", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(x.copy(), (1, 1, 3, 3), x, out=taps)
    with refused(ArgumentError, "out", "filter", "overlap"):
        convkit.conv2d(x.copy(), memory[170:179].reshape(1, 1, 3, 3), out=x)


def test_neighbours_and_interleaved_arrays_do_not_overlap():
    memory = small_integers((2, 6, 5, 6), np.float32, 4)
    w = small_integers((1, 1, 3, 3), np.float32, 5)
    expected = convkit.conv2d(memory[..., ::2].copy(), w)
    out = memory[..., 1::2]
    assert convkit.conv2d(memory[..., ::2], w, out=out) is out
    np.testing.assert_array_equal(out, expected)
    line = np.zeros(360, np.float32)
    line[:180] = memory[..., ::2].ravel()
    x, out = line[:180].reshape(2, 6, 5, 3), line[180:].reshape(2, 6, 5, 3)
    np.testing.assert_array_equal(convkit.conv2d(x, w, out=out), expected)


# out_dtype


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_half_types_may_give_float32(dtype):
    x, w, dy = (np.random.default_rng(i).standard_normal(a.shape).astype(dtype) for i, a in enumerate(problem()))
    for op, call in operations(x, w, dy).items():
        wide = call(out_dtype="float32")
        assert wide.dtype == np.float32
        assert (wide != wide.astype(dtype).astype(np.float32)).any(), f"{op} was rounded on the way"
        np.testing.assert_array_equal(wide.astype(dtype), call())
        np.testing.assert_array_equal(call(out_dtype=np.float32), wide)
        out = np.full(wide.shape, np.nan, np.float32)
        assert call(out_dtype=np.dtype("float32"), out=out) is out
        np.testing.assert_array_equal(out, wide)
        with refused(DTypeError, "out", "float32", op=op):
            call(out_dtype=np.float32, out=np.empty(wide.shape, dtype))
        np.testing.assert_array_equal(call(out_dtype=dtype), call())


@pytest.mark.parametrize(
    "dtype, bad",
    [
        ("float32", "float64"),
        ("float32", "float16"),
        ("float64", "float32"),
        ("float16", "float64"),
        (BF16, "float16"),
        ("float32", "int32"),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_other_out_dtypes_are_refused(op, dtype, bad):
    with refused(DTypeError, "out_dtype", bad, op=op):
        operations(*problem(dtype))[op](out_dtype=bad)


def test_an_out_dtype_that_is_no_dtype():
    x, w, _ = problem()
    for bad in ("banana", 3, object(), [1, 2]):
        with refused(ArgumentTypeError, "out_dtype"):
            convkit.conv2d(x, w, out_dtype=bad)


def test_out_dtype_may_repeat_the_type_there_is():
    for dtype in ("float32", "float64"):
        for call in operations(*problem(dtype)).values():
            assert call(out_dtype=dtype).dtype == dtype


# accumulate


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["fortran", "negative strides", "misaligned"])
def test_accumulate_adds_to_out(dtype, algorithm, layout):
    x, w, dy = problem(dtype)
    gradient = convkit.conv2d_backprop_filter(x, w.shape, dy)
    out = LAYOUTS[layout](small_integers(w.shape, dtype, 9))
    expected = out + gradient
    taken = convkit.conv2d_backprop_filter(x, w.shape, dy, out=out, accumulate=True, algorithm=algorithm)
    assert taken is out
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64))


def test_accumulate_adds_in_float32_for_half_types():
    x, w, dy = problem(np.float16)
    out = small_integers(w.shape, np.float32, 9)
    expected = out + convkit.conv2d_backprop_filter(x, w.shape, dy, out_dtype="float32")
    convkit.conv2d_backprop_filter(x, w.shape, dy, out=out, out_dtype="float32", accumulate=True)
    np.testing.assert_array_equal(out, expected)


def test_accumulate_over_an_empty_batch_leaves_out_as_it_is():
    x, w, dy = problem()
    out = small_integers(w.shape, np.float32, 9)
    before = out.copy()
    convkit.conv2d_backprop_filter(x[:0], w.shape, dy[:0], out=out, accumulate=True)
    np.testing.assert_array_equal(out, before)


def test_accumulate_needs_out():
    x, w, dy = problem()
    with refused(ArgumentError, "accumulate", "out", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(x, w.shape, dy, accumulate=True)
    for bad in (2, "yes", None, np.ones(3)):
        with refused(ConvkitError, "accumulate", op="conv2d_backprop_filter"):
            convkit.conv2d_backprop_filter(x, w.shape, dy, accumulate=bad, out=w.copy())


# Nothing to compute


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
@pytest.mark.parametrize(
    "image, filter_, padding",
    [
        ((0, 6, 5, 3), (3, 2, 3, 4), "VALID"),
        ((2, 6, 5, 0), (3, 2, 0, 4), "VALID"),
        ((2, 6, 5, 3), (3, 2, 3, 0), "VALID"),
        ((2, 0, 5, 3), (3, 2, 3, 4), "SAME"),
        ((2, 6, 0, 3), (3, 2, 3, 4), "SAME"),
        ((0, 0, 0, 0), (1, 1, 0, 0), "SAME"),
        ((2, 0, 5, 3), (3, 2, 3, 4), 2),
    ],
)
def test_empty_problems_give_empty_results_or_zeros(dtype, algorithm, image, filter_, padding):
    keywords = {"padding": padding, "algorithm": algorithm}
    shape = convkit.conv2d_output_shape(image, filter_, padding=padding)
    x, w, dy = (np.ones(s, dtype) for s in (image, filter_, shape))
    for call, expected in zip(operations(x, w, dy, **keywords).values(), (shape, filter_, image), strict=True):
        taken = call()
        assert taken.shape == expected and taken.dtype == dtype
        assert not taken.any()
        out = np.full(expected, np.nan, dtype)
        assert call(out=out) is out
        assert not out.any()
