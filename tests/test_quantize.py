"""convkit.quantize: steps of half, ranges, scales by tensor and by channel, and a layer that stays close."""

import doctest

import numpy as np
import pytest
from harness import LAYOUTS
from reference import to_data_format, to_filter_format

import convkit
from convkit import ArgumentError, ArgumentTypeError, ConvkitError, DTypeError, quantize


def test_examples():
    result = doctest.testmod(quantize)
    assert result.attempted > 5
    assert result.failed == 0


def test_it_is_an_attribute_of_the_package():
    assert convkit.quantize is quantize
    assert set(quantize.__all__) <= set(dir(quantize))


def test_rounding_is_half_to_even_and_clipping_to_the_range():
    values = np.array([0.25, 0.75, 1.25, -0.25, -0.75, 63.5, 64.0, -64.0, -1000, 1e30], np.float32)
    expected = [0, 2, 2, 0, -2, 127, 127, -128, -128, 127]
    np.testing.assert_array_equal(quantize.quantize(values, 0.5), expected)
    expected = [3, 5, 5, 3, 1, 130, 131, 0, 0, 255]
    np.testing.assert_array_equal(quantize.quantize(values, 0.5, zero_point=3, dtype=np.uint8), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_there_and_back(dtype, rng):
    limits = np.iinfo(dtype)
    integers = np.arange(limits.min, limits.max + 1).astype(dtype)
    for scale in (0.1, 3e-5, 7.0, 1e20):
        for zero in (limits.min, 0, 5, limits.max):
            floats = quantize.dequantize(integers, scale, zero_point=zero)
            assert floats.dtype == np.float32
            np.testing.assert_array_equal(quantize.quantize(floats, scale, zero_point=zero, dtype=dtype), integers)


def test_an_error_of_half_a_step_at_most(rng):
    values = rng.standard_normal(1000).astype(np.float32)
    scale = quantize.activation_scale(values)
    assert scale == float(np.float32(np.abs(values).max() / 127))
    back = quantize.dequantize(quantize.quantize(values, scale), scale)
    assert np.abs(back - values).max() <= scale * 0.50001


@pytest.mark.parametrize("layout", ["HWIO", "OIHW", "OHWI"])
def test_filters_by_channel_and_by_tensor(layout, rng):
    w = rng.standard_normal((3, 2, 5, 7)) * 10.0 ** rng.integers(-3, 3, 7)
    w[..., 3] = 0
    q, scales = quantize.quantize_filter(to_filter_format(w, layout), filter_format=layout)
    assert (q.dtype, scales.dtype, scales.shape) == (np.int8, np.float32, (7,))
    assert scales[3] == 1
    expected = np.rint(w / scales)
    np.testing.assert_array_equal(q, to_filter_format(expected, layout))
    assert np.abs(expected).max(axis=(0, 1, 2))[[0, 1, 2, 4, 5, 6]].tolist() == [127] * 6
    q, scale = quantize.quantize_filter(to_filter_format(w, layout), filter_format=layout, per_channel=False)
    assert scale.shape == ()
    np.testing.assert_array_equal(q, to_filter_format(np.rint(w / scale), layout))
    assert np.abs(q).max() == 127
    empty, scales = quantize.quantize_filter(np.zeros((3, 3, 0, 4)))
    assert empty.shape == (3, 3, 0, 4)
    assert scales.tolist() == [1] * 4


def test_activation_scales(rng):
    batches = [rng.standard_normal((4, 3, 3, 2)) for _ in range(3)]
    largest = max(np.abs(batch).max() for batch in batches)
    assert quantize.activation_scale(batches) == float(np.float32(largest / 127))
    assert quantize.activation_scale(iter(batches)) == quantize.activation_scale(np.stack(batches))
    assert quantize.activation_scale(np.abs(batches), dtype="uint8") == float(np.float32(largest / 255))
    assert quantize.activation_scale(np.zeros(3)) == 1.0
    values = np.append(np.full(999, 1.0), 1000.0)
    assert quantize.activation_scale(values, percentile=99) == float(np.float32(1 / 127))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layer_stays_close_to_its_floats(layout, rng):
    """Within a few steps, in each of the results that fused_conv2d has."""
    x = np.maximum(rng.standard_normal((4, 9, 9, 12)), 0).astype(np.float32)
    w, b = rng.standard_normal((3, 3, 12, 16)).astype(np.float32), rng.standard_normal(16).astype(np.float32)
    x, w = to_data_format(x, layout.data), to_filter_format(w, layout.filter)
    y = convkit.fused_conv2d(x, w, b, activation="relu", **layout.keywords)
    q, scales = quantize.quantize_filter(w, filter_format=layout.filter)
    for dtype in ("int8", "uint8"):
        x_scale, y_scale = (quantize.activation_scale(a, dtype=dtype) for a in (x, y))
        integers = quantize.quantize(x, x_scale, dtype=dtype)
        keywords = {"activation": "relu", "algorithm": "reference", **layout.keywords}
        result = convkit.fused_conv2d(
            integers, q, b / np.float32(y_scale), conv_scale=x_scale * scales / y_scale, out_dtype=dtype, **keywords
        )
        assert np.abs(quantize.dequantize(result, y_scale) - y).max() < 3 * y_scale
        floats = convkit.fused_conv2d(integers, q, b, conv_scale=x_scale * scales, out_dtype="float32", **keywords)
        assert np.abs(floats - y).max() < 0.02 * y.max()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ArgumentError, lambda: quantize.quantize([1.0], 0.0)),
        (ArgumentError, lambda: quantize.quantize([1.0], np.nan)),
        (ArgumentError, lambda: quantize.quantize([np.nan], 1.0)),
        (ArgumentError, lambda: quantize.quantize([1.0], 1.0, zero_point=128)),
        (ArgumentTypeError, lambda: quantize.quantize([1.0], 1.0, zero_point=1.5)),
        (DTypeError, lambda: quantize.quantize([1.0], 1.0, dtype="int16")),
        (DTypeError, lambda: quantize.quantize([1j], 1.0)),
        (ArgumentTypeError, lambda: quantize.quantize([1.0], 1.0, bits=8)),
        (DTypeError, lambda: quantize.dequantize([1.0], 1.0)),
        (ArgumentError, lambda: quantize.quantize_filter(np.ones((3, 3)))),
        (ArgumentError, lambda: quantize.quantize_filter(np.full((1, 1, 1, 1), np.inf))),
        (ArgumentError, lambda: quantize.quantize_filter(np.ones((1, 1, 1, 1)), filter_format="IOHW")),
        (ArgumentError, lambda: quantize.activation_scale([-1.0], dtype="uint8")),
        (ArgumentError, lambda: quantize.activation_scale([np.inf])),
        (ArgumentError, lambda: quantize.activation_scale([])),
        (ArgumentError, lambda: quantize.activation_scale([1.0], percentile=0)),
        (ArgumentTypeError, lambda: quantize.activation_scale("abc")),
    ],
)
def test_refusals(error, call):
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, ConvkitError)


@pytest.mark.parametrize("function", [quantize.quantize, quantize.dequantize])
def test_a_scale_of_another_shape_is_refused_by_name(function):
    for scale in (np.ones(3), np.ones((4, 2))):
        with pytest.raises(convkit.ShapeError, match=rf"^{function.__name__}: scale has shape .* array's \(2,\)"):
            function(np.ones(2, np.int8), scale)


def test_a_buffer_of_activations_is_one_batch():
    assert quantize.activation_scale(memoryview(np.full((1, 2, 2, 3), 63.5, np.float32))) == 0.5
