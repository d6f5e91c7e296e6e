"""Random geometries in every family, dtype and layout of the GPU, against the reference and the CPU."""

import harness
import numpy as np
import pytest
import reference
import test_fused_float
from harness import ALL_LAYOUTS, DTYPES, HALVES, LAYOUTS, NHWC
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from int8_cases import LAYOUTS as INT8_LAYOUTS
from int8_cases import Fused

import convkit

MODES = ("SAME", "VALID", "FULL", "SAME_LOWER")


def examples(count):
    """Return the settings of a property; the stand-in stays installed from example to example."""
    unlike = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, suppress_health_check=unlike)


@st.composite
def geometries(draw, most_images=3, vectors=False):
    """Return shapes of an image and a filter, and the other arguments, with a result of at least one pixel."""
    size = [draw(st.integers(1, 9)), draw(st.integers(1, 9))]
    strides, dilations = (tuple(draw(st.integers(1, 3)) for _ in range(2)) for _ in range(2))
    padding = draw(st.sampled_from(MODES) | st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2))
    taps = [draw(st.integers(1, 4)), draw(st.integers(1, 4))]
    # Products without patches and whole images are worth more than chance gives them.
    shape = draw(st.sampled_from(("any", "any", "1x1", "whole")))
    if shape == "1x1":
        taps, strides, padding = [1, 1], (1, 1), "VALID"
    elif shape == "whole":
        taps, dilations, padding = list(size), (1, 1), "VALID"
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    unit = 4 if vectors else 1
    inputs, outputs = (groups * unit * draw(st.integers(1, 4)) for _ in range(2))
    if draw(st.booleans()) and not vectors:
        groups, outputs = inputs, inputs * draw(st.integers(1, 2))
    image = (draw(st.integers(1, most_images)), *size, inputs)
    weights = (*taps, inputs // groups, outputs)
    geometry = {"strides": strides, "padding": padding, "dilations": dilations}
    try:
        reference.output_shape(image, weights, **geometry)
    except ValueError:
        geometry["padding"] = "SAME"
    return image, weights, {**geometry, "groups": groups}


def check_random(drawn, seed, layout, dtype):
    image, weights, geometry = drawn
    for call in harness.layer(np.random.default_rng(seed), image, weights, **geometry):
        harness.assert_exact(call, (layout,), (dtype,))


@examples(80)
@given(geometries(), st.integers(0, 2**32), st.sampled_from(ALL_LAYOUTS), st.sampled_from(DTYPES))
def test_random_geometries_are_exact(gpu, drawn, seed, layout, dtype):
    check_random(drawn, seed, layout, dtype)


@pytest.mark.slow
@examples(600)
@given(geometries(), st.integers(0, 2**32), st.sampled_from(ALL_LAYOUTS), st.sampled_from(DTYPES))
def test_many_random_geometries_are_exact(gpu, drawn, seed, layout, dtype):
    check_random(drawn, seed, layout, dtype)


@examples(30)
@given(geometries(), st.integers(0, 2**32), st.sampled_from(LAYOUTS))
def test_random_floats_keep_the_error_contract(gpu, drawn, seed, layout):
    image, weights, geometry = drawn
    rng = np.random.default_rng(seed)
    y_shape = reference.output_shape(image, weights, **{k: v for k, v in geometry.items() if k != "groups"})
    arrays = (harness.floats(rng, shape) for shape in (image, weights, y_shape))
    for call in harness.three_calls(*arrays, **geometry):
        harness.assert_close(call, (layout,))


@examples(30)
@given(geometries(), st.data(), st.integers(0, 2**32), st.sampled_from(LAYOUTS), st.sampled_from(DTYPES))
def test_random_fused_convolutions(gpu, drawn, data, seed, layout, dtype):
    image, weights, geometry = drawn
    rng = np.random.default_rng(seed)
    plain = {key: value for key, value in geometry.items() if key != "groups"}
    x, w, bias, side = test_fused_float.arrays(rng, image, weights, **plain)
    bias, side = (array if data.draw(st.booleans()) else None for array in (bias, side))
    activation = data.draw(st.sampled_from(tuple(test_fused_float.ACTIVATIONS)))
    more = {"out_dtype": np.float32} if dtype in HALVES and data.draw(st.booleans()) else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_fused_float, "convkit", gpu)
        test_fused_float.check(x, w, bias, side, activation, dtype, layout, geometry, **more)


@examples(30)
@given(geometries(vectors=True), st.data(), st.integers(0, 2**32))
def test_random_int8_convolutions_are_those_of_the_cpu(gpu, drawn, data, seed):
    """Scales, zero points, uint8, side inputs; every layout, bit for bit."""
    image, weights, geometry = drawn
    rng = np.random.default_rng(seed)
    plain = {key: value for key, value in geometry.items() if key != "groups"}
    y_shape = reference.output_shape(image, weights, **plain)
    unsigned, outputs = data.draw(st.booleans()), weights[3]
    out_dtype = data.draw(st.sampled_from(("int8", "uint8", "float32")))
    x = rng.integers(0, 256, image).astype(np.uint8 if unsigned else np.int8)
    terms = {
        "conv_scale": data.draw(st.sampled_from((0.01, 0.02)) | st.just(rng.uniform(-0.02, 0.02, outputs))),
        "activation": data.draw(st.sampled_from((None, "relu"))),
        "out_dtype": out_dtype,
        "input_zero_point": data.draw(st.integers(0, 200) if unsigned else st.integers(-100, 100)),
        "output_zero_point": {"int8": -7, "uint8": 131, "float32": 0}[out_dtype],
    }
    biases = None, rng.normal(0, 20, outputs).astype(np.float32), rng.integers(-999, 999, outputs, np.int32)
    bias = biases[data.draw(st.integers(0, 2))]
    side = rng.integers(0, 100, y_shape).astype(out_dtype) if data.draw(st.booleans()) else None
    if side is not None:
        terms["side_scale"] = data.draw(st.sampled_from((0.3, -1.7)))
    fused = Fused(x, rng.integers(-128, 128, weights).astype(np.int8), bias, side, terms, geometry)
    expected = convkit.fused_conv2d(*fused.arguments(NHWC), **terms, **geometry)
    fused.check(expected, INT8_LAYOUTS)
