"""The cases of TensorFlow's own tests, mapped to convkit by one table."""

import cases
import harness
import numpy as np
import pytest
import reference
from harness import LAYOUTS, NHWC, WIDE, Call

import convkit

DEFAULTS = {"input_shape": (32, 20, 20, 3), "filter_shape": (1, 1, 3, 2)}


def geometry_of(case: dict) -> dict:
    """Return strides, padding, dilations and groups as convkit and the reference both take them."""
    padding = case.get("padding", "VALID")
    return {
        "strides": tuple(case.get("strides", (1, 1))),
        "padding": padding if isinstance(padding, str) else tuple(map(tuple, padding)),
        "dilations": tuple(case.get("dilations", (1, 1))),
        "groups": case.get("groups", 1),
    }


def shape_of(case: dict, *names: str) -> tuple[int, ...]:
    """Return the first of the fields ``names`` that the case has, as a shape."""
    return next(tuple(case[name]) for name in names if name in case)


def call_of(case: dict) -> Call:
    """Return the call that a case of one of the three operations describes."""
    op, inputs, geometry = case["op"], case["inputs"], geometry_of(case)
    if op == "conv2d":
        arrays = [cases.fill(inputs[name], shape_of(case, f"{name}_shape")) for name in ("input", "filter")]
        return Call(op, tuple(arrays), geometry)
    dy = cases.fill(inputs["out_backprop"], shape_of(case, "out_backprop_shape"))
    if op == "conv2d_backprop_filter":
        x = cases.fill(inputs["input"], shape_of(case, "input_shape"))
        return Call(op, (x, shape_of(case, "filter_sizes"), dy), geometry)
    w = cases.fill(inputs["filter"], shape_of(case, "filter_shape"))
    return Call(op, (shape_of(case, "input_sizes"), w, dy), geometry)


def depthwise(case: dict, rule: str | None = None) -> Call:
    """Return the grouped convolution that a depthwise case stands for: filter [H, W, C, M] is HWIO (H, W, 1, C*M)."""
    kh, kw, channels, multiplier = shape_of(case, "filter_shape", "depthwise_filter_shape")
    x = cases.fill(rule or case["inputs"]["input"], shape_of(case, "input_shape"))
    w = cases.fill(rule or case["inputs"]["filter"], (kh, kw, 1, channels * multiplier))
    return Call("conv2d", (x, w), {**geometry_of(case), "groups": channels})


def check_value(case: dict) -> None:
    """The numbers of the test, or those derived for it, exactly."""
    call = call_of(case)
    expected = np.array(case["expected"], np.float64).reshape(call.reference().shape)
    harness.assert_exact(call, LAYOUTS, WIDE, expected)


def check_compare(case: dict) -> None:
    """Against the reference: values beyond float32's integers are exact in float64, and bounded in float32."""
    call = call_of(case)
    assert call.reference().shape == shape_of(case, "output_shape")
    harness.assert_exact(call, LAYOUTS, (np.dtype(np.float64),))
    harness.assert_close(call, LAYOUTS, (np.dtype(np.float32),))


def check_depthwise_value(case: dict) -> None:
    """As `check_value`, one group for each channel."""
    expected = np.array(case["expected"], np.float64).reshape(case["output_shape"])
    harness.assert_exact(depthwise(case), LAYOUTS, WIDE, expected)


def check_depthwise_compare(case: dict) -> None:
    """Against the reference, within the error contract."""
    call = depthwise(case)
    call = Call(call.op, tuple(a.astype(np.float32).astype(np.float64) for a in call.arguments), call.geometry)
    assert call.reference().shape == shape_of(case, "output_shape")
    harness.assert_close(call)


def check_separable(case: dict) -> None:
    """A depthwise convolution, then a 1x1 convolution."""
    first = depthwise(case, rule=case["inputs"]["all"])
    pointwise = cases.fill(case["inputs"]["all"], shape_of(case, "pointwise_filter_shape"))
    for dtype in WIDE:
        for family, middle in harness.each_family(first, NHWC, dtype):
            result = convkit.conv2d(middle, pointwise.astype(dtype))
            np.testing.assert_array_equal(result.ravel(), case["expected"], err_msg=family)


def check_chain(case: dict) -> None:
    """Convolutions of convolutions, the last one with bias and side input, in all orders of the additions."""
    x = cases.fill(case["inputs"]["x"], case["input_shape"])
    f = cases.fill(case["inputs"]["f"], case["filter_shape"])
    bias, relu = np.arange(1.0, f.shape[3] + 1), lambda a: np.maximum(a, 0)
    for dtype in WIDE:

        def conv(image, weights, *more, dtype=dtype, **keywords):
            more = (array.astype(dtype) for array in more)
            return convkit.fused_conv2d(
                image.astype(dtype), weights.astype(dtype), *more, padding=case["padding"], **keywords
            )

        c1 = conv(x, f)
        c2 = conv(c1, f + 1)
        result = {
            "y = conv(c2,f-1)+bias+c1": lambda c1=c1, c2=c2: conv(c2, f - 1, bias, c1),
            "y = relu(conv(c1,f-1)+bias+c2)+c2": lambda c1=c1, c2=c2: conv(c1, f - 1, bias, c2, activation="relu") + c2,
            "y = relu(conv(c1,f-1)+bias+c2)+relu(c2)": lambda c1=c1, c2=c2: (
                conv(c1, f - 1, bias, c2, activation="relu") + relu(c2)
            ),
            "y = conv(c1,f)+bias+c1": lambda c1=c1: conv(c1, f, bias, c1),
        }[case["recipe"].split("; ")[-1]]()
        np.testing.assert_array_equal(result.ravel(), case["expected"])


def small(call: Call) -> Call:
    """Return a call of the same shapes on the integers -1, 0 and 1, which are exact in every dtype."""
    rng = np.random.default_rng(4)
    return Call(call.op, tuple(harness.integers(rng, a.shape, 1) for a in call.arguments), call.geometry)


ACTIVATIONS = {
    "None": (None, lambda t: t),
    "Relu": ("relu", lambda t: np.maximum(t, 0)),
    "Relu6": ("relu6", lambda t: np.clip(t, 0, 6)),
    "Elu": ("elu", lambda t: np.where(t > 0, t, np.expm1(t))),
    "LeakyRelu": ("leaky_relu", lambda t: np.where(t > 0, t, 0.2 * t)),
}


# Multiplications above which a fused case is computed by the family that serves alone.
LARGE = 10**8


def fused_families(call: Call, layout, dtype, *more, **keywords):
    """Yield what each family makes of a call with a bias and a side input."""
    arguments = (*call.in_layout(layout, dtype), *more)
    keywords = {**call.geometry, **layout.keywords, **keywords}
    large = convkit.explain("fused_conv2d", *arguments, **keywords).flops > LARGE
    for family in ["auto"] if large else harness.families("fused_conv2d", *arguments, **keywords):
        yield family, call.result_from(convkit.fused_conv2d(*arguments, algorithm=family, **keywords), layout)


def check_fused_value(case: dict) -> None:
    """Bias and relu."""
    inputs = [cases.fill(case["inputs"][name], case[f"{name}_shape"]) for name in ("input", "filter")]
    call = Call("conv2d", tuple(inputs), geometry_of(case))
    expected = np.array(case["expected"]).reshape(case["output_shape"])
    for layout in LAYOUTS:
        for dtype in WIDE:
            bias = np.array(case["bias"], dtype)
            for family, result in fused_families(call, layout, dtype, bias, activation="relu"):
                np.testing.assert_array_equal(result, expected, err_msg=f"{family} in {layout}")


def check_fused_compare(case: dict) -> None:
    """Each activation, dtype and family, on whole numbers and with a side input of zeros."""
    shapes = (np.zeros(case[f"{name}_shape"]) for name in ("input", "filter"))
    call = small(Call("conv2d", tuple(shapes), geometry_of(case)))
    bias = harness.integers(np.random.default_rng(5), case["filter_shape"][3:], 1)
    sums = call.reference() + bias
    assert sums.shape == tuple(case["output_shape"])
    for dtype in (*WIDE, np.dtype(np.int8)):
        for name in case["activations"] if dtype.kind == "f" else ("None", "Relu"):
            activation, function = ACTIVATIONS[name]
            more = bias.astype(np.float32 if dtype == np.int8 else dtype), np.zeros(sums.shape, dtype)
            expected = function(sums).clip(*((-128, 127) if dtype == np.int8 else (None, None)))
            for family, result in fused_families(call, NHWC, dtype, *more, activation=activation):
                np.testing.assert_allclose(result, expected, 1e-6, 1e-6, err_msg=f"{family}, {name}")


def check_fused_refused(case: dict) -> None:
    """A stride along batch or channels, an activation that there is not."""
    keywords = {"padding": case.get("padding", "VALID"), "strides": case.get("strides_full", 1)}
    arrays = (np.ones(case[f"{name}_shape"], np.float32) for name in ("input", "filter", "bias"))
    with pytest.raises(convkit.ConvkitError, match=r"^fused_conv2d: "):
        convkit.fused_conv2d(*arrays, activation=case.get("activation"), **keywords)


def assert_gradient(function, array: np.ndarray, gradient: np.ndarray) -> None:
    """Check a gradient of a scalar function that is linear in ``array`` by central differences.

    Up to 48 elements, evenly spread, are moved by one: for a linear function no smaller step is more accurate.
    """
    for index in range(0, array.size, max(1, array.size // 48)):
        step = np.zeros(array.size)
        step[index] = 1
        step = step.reshape(array.shape)
        slope = (function(array + step) - function(array - step)) / 2
        np.testing.assert_allclose(gradient.flat[index], slope, rtol=1e-9, atol=1e-10)


def check_gradients(x: np.ndarray, w: np.ndarray, geometry: dict) -> None:
    """Both gradients of conv2d, weighted by a random output gradient."""
    rng = np.random.default_rng(7)
    dy = rng.uniform(-1, 1, convkit.conv2d_output_shape(x.shape, w.shape, **geometry))
    dx = convkit.conv2d_backprop_input(x.shape, w, dy, **geometry)
    dw = convkit.conv2d_backprop_filter(x, w.shape, dy, **geometry)
    assert_gradient(lambda a: np.vdot(convkit.conv2d(a, w, **geometry), dy), x, dx)
    assert_gradient(lambda a: np.vdot(convkit.conv2d(x, a, **geometry), dy), w, dw)


def check_gradcheck(case: dict) -> None:
    """First order, in both arguments whichever of them the test asks for."""
    call = call_of(case)
    check_gradients(*call.arguments, call.geometry)


def check_depthwise_gradcheck(case: dict) -> None:
    """The same, one group for each channel."""
    call = depthwise(case)
    check_gradients(*call.arguments, call.geometry)


def check_second_order(case: dict) -> None:
    """The filter gradient's own gradients: they are conv2d_backprop_input and conv2d of the same geometry."""
    rng, geometry = np.random.default_rng(1), geometry_of(case)
    x = rng.uniform(-1, 1, shape_of(case, "input_shape"))
    dy = rng.uniform(-1, 1, shape_of(case, "out_backprop_shape"))
    w_shape = shape_of(case, "filter_sizes")
    ddw = rng.uniform(-1, 1, w_shape)

    def weighted(x, dy):
        return np.vdot(convkit.conv2d_backprop_filter(x, w_shape, dy, **geometry), ddw)

    assert_gradient(lambda a: weighted(a, dy), x, convkit.conv2d_backprop_input(x.shape, ddw, dy, **geometry))
    assert_gradient(lambda a: weighted(x, a), dy, convkit.conv2d(x, ddw, **geometry))


def check_accepted(case: dict) -> None:
    """Shapes that must be taken; the groups are the quotient of the depths."""
    x_shape, w_shape = shape_of(case, "input_shape"), shape_of(case, "filter_shape")
    geometry = {**geometry_of(case), "groups": x_shape[3] // w_shape[2]}
    assert convkit.conv2d_output_shape(x_shape, w_shape, **geometry) == shape_of(case, "output_shape")
    x, w = np.ones(x_shape, np.float32), np.ones(w_shape, np.float32)
    np.testing.assert_array_equal(convkit.conv2d(x, w, **geometry), reference.conv2d(x, w, **geometry))


def check_refused(case: dict) -> None:
    """A ConvkitError whose sentence opens with the operation; what a case leaves out is legal."""
    x_shape = shape_of({**DEFAULTS, **case}, "input_sizes", "input_shape")
    if "input_sizes_given" in case:
        x_shape = (2, *case["input_sizes_given"], 1)
    w_shape = shape_of({**DEFAULTS, **case}, "filter_sizes", "filter_shape")
    keywords = geometry_of(case)
    keywords["strides"] = case.get("strides_full", keywords["strides"])
    keywords["padding"] = case.get("padding_full", keywords["padding"])
    keywords["data_format"] = case.get("data_format", "NHWC")
    w, dy = np.ones(w_shape, np.float32), np.ones(case.get("out_backprop_shape", (32, 20, 20, 2)), np.float32)
    arguments = {
        "conv2d": lambda: (np.ones(x_shape, np.float32), w),
        "conv2d_backprop_filter": lambda: (np.ones(x_shape, np.float32), w_shape, dy),
        "conv2d_backprop_input": lambda: (x_shape, w, dy),
    }[case["op"]]()
    with pytest.raises(convkit.ConvkitError, match=rf"^{case['op']}: "):
        harness.operation(case["op"])(*arguments, filter_format="HWIO", **keywords)


def check_filter_beyond_input(case: dict) -> None:
    """TensorFlow's kernel invents an empty output where the filter is larger than the input; convkit refuses."""
    call = call_of({**case})
    for layout in LAYOUTS:
        arguments = call.in_layout(layout, np.dtype(np.float32))
        with pytest.raises(convkit.ShapeError, match=rf"^{call.op}: "):
            harness.operation(call.op)(*arguments, **call.geometry, **layout.keywords)


def check_extra_batch_dims(case: dict) -> None:
    """5-D input is refused, with a sentence; reshaped to one batch dimension it works."""
    x, w = (cases.fill(case["inputs"][name], case[f"{name}_shape"]) for name in ("input", "filter"))
    with pytest.raises(convkit.ConvkitError, match=r"^conv2d: "):
        convkit.conv2d(x, w, **geometry_of(case))
    y = convkit.conv2d(x.reshape(-1, *x.shape[2:]), w, **geometry_of(case))
    np.testing.assert_array_equal(y.reshape(case["output_shape"]), x @ w[0, 0])


CHECKS = {
    ("conv2d", "value"): check_value,
    ("conv2d", "compare"): check_compare,
    ("conv2d", "gradcheck"): check_gradcheck,
    ("conv2d", "accept"): check_accepted,
    ("conv2d", "error"): check_refused,
    ("conv2d_backprop_filter", "value"): check_value,
    ("conv2d_backprop_filter", "gradcheck"): check_second_order,
    ("conv2d_backprop_filter", "error"): check_refused,
    ("conv2d_backprop_input", "value"): check_value,
    ("conv2d_backprop_input", "error"): check_refused,
    ("depthwise_conv2d", "value"): check_depthwise_value,
    ("depthwise_conv2d", "compare"): check_depthwise_compare,
    ("depthwise_conv2d", "gradcheck"): check_depthwise_gradcheck,
    ("separable_conv2d", "value"): check_separable,
    ("conv2d_bias_add_chain", "value"): check_chain,
    ("fused_conv2d_bias_relu", "value"): check_fused_value,
    ("fused_conv2d_bias_activation", "compare"): check_fused_compare,
    ("fused_conv2d_bias_activation", "error"): check_fused_refused,
}

DECIDED_OTHERWISE = {
    "bi_degenerate": check_filter_beyond_input,
    "fwd_expanded_batch": check_extra_batch_dims,
}

ELSEWHERE = {"fused_conv2d_int8": "test_int8_golden.py"}

IN_SCOPE = [case for case in cases.tf_cases() if case["op"] not in ELSEWHERE]


def test_every_case_of_the_file_is_mapped_or_tested_elsewhere():
    ids = [case["id"] for case in cases.tf_cases()]
    assert len(set(ids)) == len(ids) == 173
    unmapped = [case["id"] for case in IN_SCOPE if (case["op"], case["kind"]) not in CHECKS]
    assert unmapped == []
    assert set(DECIDED_OTHERWISE) <= set(ids)
    assert {op for op, _ in CHECKS}.isdisjoint(ELSEWHERE)


@pytest.mark.parametrize("case", IN_SCOPE, ids=lambda case: case["id"])
def test_tf_case(case):
    DECIDED_OTHERWISE.get(case["id"], CHECKS[case["op"], case["kind"]])(case)


@pytest.mark.parametrize("probe", cases.tf_file()["constructed"]["windowed_output_size"], ids=str)
def test_size_rule(probe):
    size, taps, stride, dilation = (probe[name] for name in ("input", "filter", "stride", "dilation"))
    shapes = (1, size, size, 1), (taps, taps, 1, 1)
    geometry = {"strides": stride, "dilations": dilation, "padding": probe["padding"]}
    if taps == 0 or probe["shape_function"] != "accepted":
        with pytest.raises(convkit.ShapeError, match=r"^conv2d_output_shape: "):
            convkit.conv2d_output_shape(*shapes, **geometry)
        return
    assert convkit.conv2d_output_shape(*shapes, **geometry) == (1, probe["output"], probe["output"], 1)
    explained = convkit.explain("conv2d", *shapes, **geometry).geometry
    assert explained.pad_before == (probe["pad_before"],) * 2
    assert explained.pad_after == (probe["pad_after"],) * 2


def assert_layer(x_shape, w_shape, seed: int, ops: int = 3, **geometry) -> None:
    """Check a network's layer on uniform data: forward and both gradients, as the registry would run them."""
    rng = np.random.default_rng(seed)
    y_shape = reference.output_shape(x_shape, w_shape, **geometry)
    x, w, dy = (rng.random(shape, np.float32).astype(np.float64) for shape in (x_shape, w_shape, y_shape))
    for call in harness.three_calls(x, w, dy, **geometry)[:ops]:
        result = harness.operation(call.op)(*call.in_layout(NHWC, np.dtype(np.float32)), **geometry)
        expected = call.reference()
        # Nothing is negative, so the sums are the sums of absolute values.
        excess = np.max(np.abs(result - expected) - call.bound(np.dtype(np.float32), expected), initial=0)
        assert excess <= 0, f"{call.op} is {excess} beyond the bound"


DEEP = cases.tf_file()["deep_conv_shapes"]
INCEPTION = cases.tf_file()["inception"]["list"]


@pytest.mark.parametrize("padding", DEEP["paddings"])
@pytest.mark.parametrize(("x_shape", "w_shape"), DEEP["pairs"], ids=str)
def test_deep_conv_shape(x_shape, w_shape, padding):
    assert_layer(tuple(x_shape), tuple(w_shape), 1, strides=tuple(DEEP["strides"]), padding=padding)


@pytest.mark.parametrize("entry", INCEPTION, ids=lambda entry: str(entry["index"]))
def test_inception_shape_at_a_tenth_of_the_depth(entry):
    shapes = tuple(entry["shrunk10"]["input"]), tuple(entry["shrunk10"]["filter"])
    assert_layer(*shapes, entry["index"], strides=(entry["stride"],) * 2, padding=entry["padding"])
    if entry["stride"] == 1:
        assert_layer(*shapes, entry["index"], dilations=(2, 2), padding=entry["padding"])


@pytest.mark.parametrize("entry", INCEPTION, ids=lambda entry: str(entry["index"]))
def test_inception_shape_in_full_forward_on_one_image(entry):
    shapes = (1, *entry["full"]["input"][1:]), tuple(entry["full"]["filter"])
    assert_layer(*shapes, entry["index"], ops=1, strides=(entry["stride"],) * 2, padding=entry["padding"])
