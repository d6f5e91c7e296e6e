"""What fused_conv2d refuses, by name, and what it takes as bias, side input, scales and zero points."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from refusals import refused as refused_by

import convkit
from convkit import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError

OP = "fused_conv2d"
K = 8


def refused(error, *words):
    return refused_by(error, *words, op=OP)


def arrays(dtype=np.int8):
    x = np.ones((2, 5, 6, 4), np.int8 if dtype == np.uint8 else dtype)
    return x.astype(dtype), np.ones((3, 3, 4, K), np.int8 if dtype == np.uint8 else dtype)


def zeros(shape, dtype=np.float32):
    return np.zeros(shape, dtype)


Y = (2, 3, 4, K)

WRONG_IN_INT8 = [
    ({"bias": zeros(K - 1)}, ShapeError, "bias has shape (7,)", "(8,)"),
    ({"bias": zeros((1, K))}, ShapeError, "bias has shape (1, 8)", "(8,)"),
    ({"bias": zeros(())}, ShapeError, "bias"),
    ({"bias": zeros(K, np.float64)}, DTypeError, "bias has dtype float64", "float32 or int32"),
    ({"bias": zeros(K, np.int64)}, DTypeError, "bias has dtype int64"),
    ({"bias": zeros(K, np.int8)}, DTypeError, "bias has dtype int8"),
    ({"bias": "no"}, ArgumentTypeError, "bias"),
    ({"bias": np.ma.zeros(K, np.float32)}, DTypeError, "bias is a masked array"),
    ({"side_input": zeros((2, 3, 4, 4), np.int8)}, ShapeError, "side_input has shape (2, 3, 4, 4)", str(Y)),
    ({"side_input": zeros(K, np.int8)}, ShapeError, "side_input"),
    ({"side_input": zeros((2, K, 3, 4), np.int8)}, ShapeError, "side_input"),
    ({"side_input": zeros(Y, np.float32)}, DTypeError, "side_input has dtype float32", "int8 or uint8"),
    ({"side_input": zeros(Y, np.int16)}, DTypeError, "side_input has dtype int16"),
    ({"side_input": zeros(Y, np.float32), "side_scale": 0}, DTypeError, "side_input"),
    ({"conv_scale": zeros(K + 1)}, ShapeError, "conv_scale has shape (9,)", "(8,)"),
    ({"conv_scale": zeros((1, 1, 1, K))}, ShapeError, "conv_scale"),
    ({"conv_scale": zeros(0)}, ShapeError, "conv_scale"),
    ({"conv_scale": "large"}, ArgumentTypeError, "conv_scale"),
    ({"conv_scale": None}, ArgumentTypeError, "conv_scale"),
    ({"conv_scale": 1j}, DTypeError, "conv_scale has dtype complex"),
    ({"conv_scale": True}, DTypeError, "conv_scale has dtype bool"),
    ({"side_scale": 0.5}, ArgumentError, "side_scale is 0.5", "side_input"),
    ({"side_scale": float("nan")}, ArgumentError, "side_scale", "side_input"),
    ({"side_input": zeros(Y, np.int8), "side_scale": zeros(K)}, ShapeError, "side_scale has shape (8,)"),
    ({"side_input": zeros(Y, np.int8), "side_scale": "2"}, ArgumentTypeError, "side_scale"),
    ({"activation": "tanh"}, ArgumentError, "activation is 'tanh'", "relu6"),
    ({"activation": "Relu"}, ArgumentError, "activation is 'Relu'", "'relu'"),
    ({"activation": 1}, ArgumentTypeError, "activation"),
    ({"activation": "elu"}, UnsupportedError, "activation is 'elu'", "int8"),
    ({"activation": "relu6"}, UnsupportedError, "activation is 'relu6'"),
    ({"alpha": "0.1"}, ArgumentTypeError, "alpha"),
    ({"alpha": zeros(2)}, ShapeError, "alpha"),
    ({"input_zero_point": 128}, ArgumentError, "input_zero_point is 128", "-128 to 127"),
    ({"input_zero_point": 1.0}, ArgumentTypeError, "input_zero_point"),
    ({"input_zero_point": True}, ArgumentTypeError, "input_zero_point"),
    ({"output_zero_point": -129}, ArgumentError, "output_zero_point is -129", "-128 to 127"),
    ({"output_zero_point": -1, "out_dtype": np.uint8}, ArgumentError, "output_zero_point is -1", "0 to 255"),
    ({"output_zero_point": 1, "out_dtype": np.float32}, ArgumentError, "output_zero_point is 1", "0"),
    ({"output_zero_point": 2**70}, ArgumentError, "output_zero_point"),
    ({"out_dtype": np.int32}, DTypeError, "out_dtype is int32", "int8"),
    ({"out_dtype": np.float64}, DTypeError, "out_dtype is float64"),
    ({"out": zeros(Y, np.int32)}, DTypeError, "out has dtype int32"),
    ({"out": zeros((2, 3, 4, 4), np.int8)}, ShapeError, "out has shape"),
    ({"algorithm": "direct"}, UnsupportedError, "direct", "reference"),
    ({"data_format": "NCHW_VECT_C"}, ShapeError, "OIHW_VECT_I has 5"),
    ({"filter_format": "OIHW_VECT_I"}, ShapeError, "OIHW_VECT_I"),
]

WRONG_IN_FLOAT32 = [
    ({"bias": zeros(K, np.int32)}, DTypeError, "bias has dtype int32", "float32"),
    ({"bias": zeros(K, np.float64)}, DTypeError, "bias has dtype float64"),
    ({"side_input": zeros(Y, np.int8)}, DTypeError, "side_input has dtype int8", "float32"),
    ({"input_zero_point": 1}, ArgumentError, "input_zero_point is 1"),
    ({"output_zero_point": 1}, ArgumentError, "output_zero_point is 1"),
    ({"out_dtype": np.int8}, DTypeError, "out_dtype is int8"),
    ({"algorithm": "int8"}, UnsupportedError, "int8", "direct"),
]


@pytest.mark.parametrize(("keywords", "error", "words"), [(w[0], w[1], w[2:]) for w in WRONG_IN_INT8], ids=str)
def test_refused_with_int8(keywords, error, words):
    with refused(error, *words):
        convkit.fused_conv2d(*arrays(), **keywords)


@pytest.mark.parametrize(("keywords", "error", "words"), [(w[0], w[1], w[2:]) for w in WRONG_IN_FLOAT32], ids=str)
def test_refused_with_float32(keywords, error, words):
    with refused(error, *words):
        convkit.fused_conv2d(*arrays(np.float32), **keywords)


def test_refused_dtypes_of_image_and_filter():
    x, w = arrays()
    for image in (np.float32, np.int16, np.int32, bool):
        for op in ("conv2d", OP):
            with refused_by(DTypeError, "input has dtype", np.dtype(image).name, "int8", op=op):
                getattr(convkit, op)(x.astype(image), w)
    for filter in (np.uint8, np.int16, np.int64):
        for op in ("conv2d", OP):
            with refused_by(DTypeError, "filter has dtype", np.dtype(filter).name, op=op):
                getattr(convkit, op)(x, w.astype(filter))
    with refused_by(DTypeError, "out_dtype is int8", "int32", op="conv2d"):
        convkit.conv2d(x, w, out_dtype="int8")
    with refused_by(DTypeError, "int8", op="conv2d_backprop_input"):
        convkit.conv2d_backprop_input(x.shape, w, np.ones(Y, np.int8))
    with refused_by(DTypeError, "int8", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(x, w.shape, np.ones(Y, np.int8))


def test_the_packed_format_holds_int8_only():
    x, w = np.ones((1, 1, 3, 3, 4), np.float32), np.ones((4, 1, 1, 1, 4), np.float32)
    for op in ("conv2d", OP):
        with refused_by(UnsupportedError, "NCHW_VECT_C", "int8", op=op):
            getattr(convkit, op)(x, w, data_format="NCHW_VECT_C")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("scale", "conv_scale"),
        ("conv_input_scale", "conv_scale"),
        ("side_input_scale", "side_scale"),
        ("activation_mode", "activation"),
        ("negative_slope", "alpha"),
        ("residual", "side_input"),
        ("b", "bias"),
        ("y_zero_point", "output_zero_point"),
        ("stride", "strides"),
        ("weight", "filter"),
    ],
)
def test_names_of_other_libraries(name, ours):
    with refused(ArgumentTypeError, name, repr(ours)):
        convkit.fused_conv2d(*arrays(), **{name: 1})


def test_arguments_that_are_missing_too_many_or_unknown():
    x, w = arrays()
    with refused(ArgumentTypeError, "'filter' is missing"):
        convkit.fused_conv2d(x)
    with refused(ArgumentTypeError, "4 positional arguments", "5"):
        convkit.fused_conv2d(x, w, None, None, 1.0)
    with refused(ArgumentTypeError, "frobnicate", "conv_scale"):
        convkit.fused_conv2d(x, w, frobnicate=1)
    with refused_by(ArgumentTypeError, "bias", "fused_conv2d", op="conv2d"):
        convkit.conv2d(x, w, bias=1)
    with refused_by(ArgumentTypeError, "activation", "fused_conv2d", op="conv2d"):
        convkit.conv2d(x, w, activation="relu")


def test_what_scales_and_biases_may_be():
    x, w = arrays()
    y = convkit.fused_conv2d(x, w, np.full(K, 2, np.float32), conv_scale=0.5)
    assert y.dtype == np.int8
    assert (y == 20).all()
    scales = (np.float16(0.5), np.float64(0.5), [0.5], np.float32([0.5] * K), [0.5] * K, (0.5,) * K)
    scales += (np.full(K, 0.5), np.full(K, 0.5, ml_dtypes.bfloat16), np.full(K, 0.5, ">f8"))
    for scale in scales:
        for bias in (np.full(K, 2, ">f4"), [2.0] * K, [2] * K, memoryview(np.full(K, 2, np.float32))):
            assert np.array_equal(convkit.fused_conv2d(x, w, bias, conv_scale=scale), y)
    assert (convkit.fused_conv2d(x, w, conv_scale=2) == 72).all()
    assert (convkit.fused_conv2d(x, w, conv_scale=1e300) == 127).all()


def test_an_explicit_side_scale_of_zero_leaves_the_side_input_unread():
    for dtype in (np.int8, np.float32):
        x, w = arrays(dtype)
        side = np.full(Y, 1, np.int8) if dtype == np.int8 else np.full(Y, np.nan, np.float32)
        plain = convkit.fused_conv2d(x, w)
        assert np.array_equal(convkit.fused_conv2d(x, w, None, side, side_scale=0), plain)
        assert np.array_equal(convkit.fused_conv2d(x, w, side_scale=0.0), plain)
    side = np.full(Y, 3, np.int8)
    x, w = arrays(np.int8)
    assert (convkit.fused_conv2d(x, w, None, side) == 39).all()
    assert (convkit.fused_conv2d(x, w, side_input=side, side_scale=-2) == 30).all()


def test_results_and_zero_points():
    x, w = arrays(np.uint8)
    x *= 4
    for dtype, y in ((None, 127), (np.int8, 127), ("uint8", 144), (np.float32, 144.0)):
        result = convkit.fused_conv2d(x, w, out_dtype=dtype, activation="relu")
        assert result.dtype == np.dtype(dtype or np.int8)
        assert (result == y).all()
    y = convkit.fused_conv2d(x, w, conv_scale=-1, out_dtype=np.uint8, output_zero_point=200, activation="relu")
    assert (y == 200).all()
    y = convkit.fused_conv2d(x // 2, w, input_zero_point=1, padding="SAME", output_zero_point=-3)
    assert y[0, 0, 0, 0] == 4 * 4 - 3
    assert y[0, 2, 2, 0] == 9 * 4 - 3


def test_a_list_takes_the_dtype_of_the_array_beside_it():
    x, w = arrays(np.float64)
    side = np.ones(Y).tolist()
    assert (convkit.fused_conv2d(x, w, [1] * K, side) == 38).all()
    with refused(DTypeError, "input has dtype float64", "int8"):
        convkit.fused_conv2d(arrays()[0].tolist(), arrays()[1])


def test_errors_pickle_and_calls_are_cached():
    x, w = arrays()
    for _ in range(3):
        with pytest.raises(ShapeError) as caught:
            convkit.fused_conv2d(x, w, zeros(3))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    convkit.clear_caches()
    for strides in (1, [1, 1], np.int64(1)):
        assert convkit.fused_conv2d(x, w, strides=strides).shape == Y
