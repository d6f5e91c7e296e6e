"""Known failures of other libraries, by id: shapes, padding and strides.

The other ids are in ``test_known_bugs_*.py``, those of GPUs in ``gpu/``.
"""

import re
from pathlib import Path

import cases
import harness
import numpy as np
import pytest
import reference
from harness import DTYPES, LAYOUTS, NCHW, NHWC, WIDE, Call

import convkit

FLOAT32 = np.dtype(np.float32)


def test_every_id_has_a_test():
    files = Path(__file__).parent.rglob("test_known_bugs*.py")
    tested = {match for file in files for match in re.findall(r"^def test_([A-Z]\d\d)_", file.read_text(), re.M)}
    assert tested == set(cases.known_bugs())


def zeros(*shape, dtype=FLOAT32):
    return np.zeros(shape, dtype)


def assert_refused(op, *arguments, error=convkit.ShapeError, **keywords):
    """Check that a call is refused, with a sentence that opens with the operation."""
    with pytest.raises(error, match=rf"^{op}: "):
        harness.operation(op)(*arguments, **keywords)


def test_A01_all_dimensions_zero():
    assert_refused("conv2d_backprop_filter", zeros(0, 0, 0, 0), (0, 0, 0, 0), zeros(0, 0, 0, 0), padding="SAME")
    assert_refused("conv2d", zeros(0, 0, 0, 0), zeros(0, 0, 0, 0), padding="SAME")
    assert_refused("conv2d_backprop_input", (0, 0, 0, 0), zeros(0, 0, 0, 0), zeros(0, 0, 0, 0), padding="SAME")


def test_A01_each_choice_of_zero_dimensions():
    for empty in np.ndindex(2, 2, 2, 2, 2):
        n, h, w, c, k = (0 if zero else size for zero, size in zip(empty, (2, 3, 4, 2, 3), strict=True))
        call_shapes = (n, h, w, c), (2, 2, c, k)
        for call in harness.layer(np.random.default_rng(1), *call_shapes, padding="SAME"):
            harness.assert_exact(call, LAYOUTS, (FLOAT32,))


def test_A02_filter_depth_one_over_image_depth_zero():
    keywords = {"strides": (66, 18), "padding": "SAME"}
    assert_refused("conv2d_backprop_filter", zeros(0, 0, 1, 0), (1, 1, 1, 1), zeros(0, 0, 1, 1), **keywords)
    dw = convkit.conv2d_backprop_filter(zeros(0, 0, 1, 0), (1, 1, 0, 1), zeros(0, 0, 1, 1), **keywords)
    assert dw.shape == (1, 1, 0, 1)


def test_A05_filter_depth_differs_from_image_depth():
    x, dy = np.full((1, 1, 1, 2), 386.0784, np.float32), np.full((1, 1, 1, 1), 386.0784, np.float32)
    out = np.full((1, 1, 1, 1), 7, np.float32)
    assert_refused("conv2d_backprop_filter", x, (1, 1, 1, 1), dy, strides=(66, 49), out=out)
    assert out == 7


@pytest.mark.parametrize("depth", [1, 5])
def test_A06_empty_batch_and_filter_larger_than_the_image(depth):
    dy = zeros(0, 1, 1, 1)
    assert_refused("conv2d_backprop_filter", zeros(0, 1, 1, 5), (3, 8, depth, 1), dy, strides=(66, 49))
    assert_refused("conv2d_backprop_filter", zeros(0, 3, 8, 5), (3, 8, 1, 1), dy, strides=(66, 49))


def test_A09_filter_extent_comes_from_the_array(rng):
    call, _, _ = harness.layer(rng, (1, 8, 8, 3), (3, 3, 3, 32))
    harness.assert_exact(call, [harness.Layout("NHWC", "OHWI")], (FLOAT32,))
    x, w = call.in_layout(harness.Layout("NHWC", "OHWI"), FLOAT32)
    assert w.shape == (32, 3, 3, 3)
    with pytest.raises(convkit.ArgumentTypeError, match=r"^conv2d: "):
        convkit.conv2d(x, w, filter_format="OHWI", kernel_size=(5, 5))
    dy = zeros(1, 6, 6, 32)
    assert_refused("conv2d_backprop_filter", x, (32, 5, 5, 3), dy, filter_format="OHWI")


@pytest.mark.parametrize(("depth", "groups"), [(3, 2), (6, 1)])
@pytest.mark.parametrize("size", [1, 2])
def test_A10_filter_larger_than_the_image(size, depth, groups):
    x, w = zeros(1, size, size, 6), zeros(3, 3, depth, 4)
    for strides in (1, 2, 3):
        keywords = {"strides": strides, "groups": groups}
        assert_refused("conv2d", x, w, **keywords)
        with pytest.raises(convkit.ShapeError, match=r"^conv2d_output_shape: "):
            convkit.conv2d_output_shape(x.shape, w.shape, **keywords)
        for out in (0, 1):
            dy = zeros(1, out, out, 4)
            assert_refused("conv2d_backprop_filter", x, w.shape, dy, **keywords)
            assert_refused("conv2d_backprop_input", x.shape, w, dy, **keywords)


def test_A10_filter_as_large_as_the_padded_image(rng):
    for call in harness.layer(rng, (1, 2, 2, 6), (3, 3, 3, 4), padding=((1, 0), (0, 1)), groups=2):
        harness.assert_exact(call)


@pytest.mark.parametrize("number", [0, -1, (0, 1), (1, 0), (-3, 1), (1, 0, 1, 1), -(2**70)])
@pytest.mark.parametrize("keyword", ["strides", "dilations"])
def test_A11_strides_and_dilations_below_one(keyword, number):
    x, w, dy = zeros(1, 32, 32, 1), zeros(3, 3, 1, 32), zeros(1, 30, 32, 32)
    keywords = {"padding": (0, 1), keyword: number}
    assert_refused("conv2d", x, w, **keywords)
    assert_refused("conv2d_backprop_filter", x, w.shape, dy, **keywords)
    assert_refused("conv2d_backprop_input", x.shape, w, dy, **keywords)


def test_A11_literal():
    x, w = zeros(1, 1, 32, 32), zeros(32, 1, 3, 3)
    assert_refused("conv2d", x, w, data_format="NCHW", strides=(0, 0), padding=(0, 1))


def dirty_the_allocator():
    """Leave garbage in freed memory, for an uninitialised result to show."""
    for size in (64, 432, 4096, 65536):
        del [np.full(size, np.nan, np.float32) for _ in range(64)][:]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_A13_empty_batch_gives_a_zero_filter_gradient(layout):
    shapes = [((0, 5, 5, 3), (3, 3, 3, 4), "VALID"), ((2, 0, 2, 3), (3, 3, 3, 4), "SAME")]
    for x_shape, w_shape, padding in shapes:
        _, call, _ = harness.layer(np.random.default_rng(1), x_shape, w_shape, padding=padding)
        for dtype in DTYPES:
            dirty_the_allocator()
            for family, dw in harness.each_family(call, layout, dtype):
                assert dw.shape == w_shape, family
                assert not dw.any(), family


def test_A13_empty_output_of_a_filter_larger_than_the_image_is_refused():
    assert_refused("conv2d_backprop_filter", zeros(2, 2, 2, 3), (3, 3, 3, 4), zeros(2, 0, 0, 4))


def test_A13_empty_batch_forward_and_no_filters_or_channels(rng):
    forward, _, _ = harness.layer(rng, (0, 5, 5, 3), (3, 3, 3, 4))
    assert convkit.conv2d(*forward.in_layout(NHWC, FLOAT32)).shape == (0, 3, 3, 4)
    for x_shape, w_shape in [((2, 5, 5, 3), (3, 3, 3, 0)), ((2, 5, 5, 0), (3, 3, 0, 4))]:
        for call in harness.layer(rng, x_shape, w_shape):
            dirty_the_allocator()
            harness.assert_exact(call)


def test_A15_unequal_strides(rng):
    forward, *gradients = harness.layer(rng, (10, 30, 40, 3), (10, 10, 3, 1), strides=(5, 7), padding=((5, 5), (5, 5)))
    assert forward.reference().shape == (10, 7, 6, 1)
    for call in (forward, *gradients):
        harness.assert_exact(call, LAYOUTS, WIDE)


def test_B01_same_padding_is_never_negative():
    x, w = np.arange(16.0).reshape(1, 4, 4, 1), np.ones((2, 2, 1, 1))
    dy = np.full((1, 1, 1, 1), 3.0)
    forward, filter_gradient, input_gradient = harness.three_calls(x, w, dy, strides=(4, 4), padding="SAME")
    harness.assert_exact(forward, expected=np.full((1, 1, 1, 1), 10.0))
    harness.assert_exact(filter_gradient, expected=3 * x[0, :2, :2, :, None])
    harness.assert_exact(input_gradient, expected=np.pad(np.full((1, 2, 2, 1), 3.0), ((0, 0), (0, 2), (0, 2), (0, 0))))


def test_B01_gradients_are_central_differences(rng):
    geometry = {"strides": (4, 4), "padding": "SAME"}
    x, w = harness.integers(rng, (2, 4, 4, 2)), harness.integers(rng, (2, 2, 2, 3))
    dy = harness.integers(rng, (2, 1, 1, 3))
    dx = convkit.conv2d_backprop_input(x.shape, w, dy, **geometry)
    dw = convkit.conv2d_backprop_filter(x, w.shape, dy, **geometry)
    for array, gradient, function in [
        (x, dx, lambda a: np.vdot(convkit.conv2d(a, w, **geometry), dy)),
        (w, dw, lambda a: np.vdot(convkit.conv2d(x, a, **geometry), dy)),
    ]:
        for index in np.ndindex(*array.shape):
            step = np.zeros_like(array)
            step[index] = 1
            assert gradient[index] == (function(array + step) - function(array - step)) / 2
    assert not dx[:, 2:].any()
    assert not dx[:, :, 2:].any()


def test_B02_same_at_stride_two_pads_bottom_and_right(rng):
    expected = np.array([[9, 9, 6], [9, 9, 6], [6, 6, 4.0]]).reshape(1, 3, 3, 1)
    ones = Call("conv2d", (np.ones((1, 6, 6, 1)), np.ones((3, 3, 1, 1))), {"strides": (2, 2), "padding": "SAME"})
    harness.assert_exact(ones, expected=expected)
    for call in harness.layer(rng, (1, 6, 6, 2), (3, 3, 2, 1), strides=(2, 2), padding="SAME"):
        explicit = Call(call.op, call.arguments, {"strides": (2, 2), "padding": ((0, 1), (0, 1))})
        harness.assert_exact(call, expected=explicit.reference())


def test_B03_same_with_an_even_filter():
    call = Call("conv2d", (np.ones((1, 5, 5, 1)), np.ones((4, 4, 1, 1))), {"padding": "SAME"})
    harness.assert_exact(call)
    for _, y in harness.each_family(call, NHWC, FLOAT32):
        assert y[0, 0, :, 0].tolist() == [9, 12, 12, 9, 6]


def test_B04_first_layer_of_resnet(rng):
    x, w = (harness.integers(rng, shape).astype(np.float32) for shape in ((1, 224, 224, 3), (7, 7, 3, 64)))
    same, asymmetric, symmetric = (
        convkit.conv2d(x, w, strides=2, padding=padding) for padding in ("SAME", ((2, 3), (2, 3)), ((3, 3), (3, 3)))
    )
    np.testing.assert_array_equal(same, asymmetric)
    np.testing.assert_array_equal(same, reference.conv2d(x, w, strides=(2, 2), padding="SAME"))
    np.testing.assert_array_equal(symmetric, reference.conv2d(x, w, strides=(2, 2), padding=((3, 3), (3, 3))))
    assert not np.array_equal(same, symmetric)


def test_B09_padding_beyond_the_filter(rng):
    thin = Call("conv2d", (np.ones((16, 1, 1, 1)), np.ones((1, 1, 1, 1))), {"padding": ((0, 0), (1, 1))})
    harness.assert_exact(thin, expected=np.tile([0.0, 1, 0], 16).reshape(16, 1, 3, 1))
    calls = harness.layer(rng, (5, 11, 14, 2), (3, 3, 2, 3), padding=((4, 4), (4, 4)))
    y = calls[0].reference()
    assert y.shape == (5, 17, 20, 3)
    assert not y[:, [0, 1, -2, -1]].any()
    for call in calls:
        harness.assert_exact(call)


def test_B10_stride_larger_than_the_filter(rng):
    calls = harness.layer(rng, (1, 133, 210, 3), (1, 1, 3, 8), strides=(2, 2), padding="SAME")
    assert calls[0].reference().shape == (1, 67, 105, 8)
    for call in calls:
        harness.assert_exact(call, LAYOUTS, (FLOAT32,))
    for _, dx in harness.each_family(calls[2], NCHW, FLOAT32):
        assert not dx[:, 1::2].any()
        assert not dx[:, :, 1::2].any()


@pytest.mark.parametrize("width", range(1, 18))
def test_B12_input_gradient_of_narrow_rows_at_stride_two(rng, width):
    _, _, call = harness.layer(rng, (2, 8, width, 64), (3, 3, 64, 17), strides=(2, 2), padding=((1, 1), (1, 1)))
    harness.assert_exact(call, LAYOUTS, WIDE)


@pytest.mark.parametrize("channels", range(1, 8))
def test_B13_pointwise_filter_gradient_at_stride_two(rng, channels):
    _, call, _ = harness.layer(rng, (32, 32, 32, channels), (1, 1, channels, 8), strides=(2, 2))
    expected = call.reference()
    for layout in (NHWC, NCHW):
        for threads in (1, 2, 4):
            for family, dw in harness.each_family(call, layout, FLOAT32, num_threads=threads):
                np.testing.assert_array_equal(dw, expected, err_msg=f"{family}, {threads} threads")


def test_B14_depthwise_at_stride_two(rng):
    for call in harness.layer(
        rng, (1, 7, 7, 128), (3, 3, 1, 128), strides=(2, 2), padding=((1, 1), (1, 1)), groups=128
    ):
        harness.assert_exact(call)


@pytest.mark.parametrize("layout", [NHWC, NCHW], ids=str)
def test_B15_every_number_of_channels_and_filters(rng, layout):
    """Of 33 channels and filters, any first C and K are a problem whose three results are running sums or parts."""
    x, w = harness.integers(rng, (1, 12, 12, 33)), harness.integers(rng, (3, 3, 33, 33))
    dy = harness.integers(rng, (1, 12, 12, 33))
    forward = np.cumsum([reference.conv2d(x[..., [c]], w[:, :, [c]], padding="SAME") for c in range(33)], axis=0)
    inputs = [reference.backprop_input(x.shape, w[..., [k]], dy[..., [k]], padding="SAME") for k in range(33)]
    inputs = np.cumsum(inputs, axis=0)
    filters = reference.backprop_filter(x, w.shape, dy, padding="SAME")
    for c in range(1, 34):
        for k in range(1, 34):
            calls = harness.three_calls(x[..., :c], w[:, :, :c, :k], dy[..., :k], padding="SAME")
            expected = forward[c - 1][..., :k], filters[:, :, :c, :k], inputs[k - 1][..., :c]
            for call, values in zip(calls, expected, strict=True):
                arguments = call.in_layout(layout, FLOAT32)
                with convkit.options(precision="high"):
                    result = harness.operation(call.op)(*arguments, padding="SAME", **layout.keywords)
                assert np.array_equal(call.result_from(result, layout), values), (call.op, c, k)


def test_B15_each_family_on_odd_channels(rng):
    for channels, filters in [(9, 5), (1, 33), (33, 1), (3, 7), (31, 2)]:
        for call in harness.layer(rng, (1, 12, 12, channels), (3, 3, channels, filters), padding="SAME"):
            harness.assert_exact(call)


@pytest.mark.parametrize("shape", [(1, 58, 58, 16), (1, 60, 58, 3)], ids=str)
def test_B16_images_that_are_no_whole_number_of_tiles(rng, shape):
    for call in harness.layer(rng, shape, (3, 3, shape[3], 64), padding="SAME"):
        harness.assert_exact(call, [NHWC, NCHW], (FLOAT32,))


@pytest.mark.parametrize("height", range(1, 14))
def test_B16_small_images_of_every_size(rng, height):
    for width in range(1, 14):
        for call in harness.layer(rng, (1, height, width, 5), (3, 3, 5, 6), padding="SAME"):
            harness.assert_exact(call, [NHWC, NCHW], (FLOAT32,))


def test_B18_shortcuts_agree_with_the_general_path(rng):
    pointwise = harness.layer(rng, (1, 32, 32, 2), (1, 1, 2, 1))
    whole_image = harness.layer(rng, (3, 8, 9, 2), (8, 9, 2, 5))
    for call in (*pointwise, *whole_image):
        harness.assert_exact(call)
        served = harness.families(call.op, *call.in_layout(NHWC, FLOAT32), **call.geometry)
        assert {"gemm", "im2col", "reference"} <= set(served)


def test_size_rule_of_the_original_that_wrote_out_of_bounds():
    """The original's loop ran over pixels that its own size rule had not allocated."""
    x, w, dy = zeros(1, 1, 1, 1), zeros(2, 2, 1, 1), zeros(1, 0, 0, 1)
    assert_refused("conv2d_backprop_filter", x, w.shape, dy, strides=2)
    assert_refused("conv2d_backprop_input", x.shape, w, dy, strides=2)
    assert_refused("conv2d", x, w, strides=2)


@pytest.mark.parametrize("x_shape", [(2, 0, 3, 1), (2, 3, 0, 1), (2, 0, 0, 1)], ids=str)
def test_no_rows_or_columns_under_same_at_a_stride_beyond_the_filter(rng, x_shape):
    for call in harness.layer(rng, x_shape, (2, 2, 1, 3), strides=(3, 3), padding="SAME"):
        harness.assert_exact(call)
