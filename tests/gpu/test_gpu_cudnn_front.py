"""cuDNN behind the public functions, on stand-ins: calls find it, results are right, and tuning is an option."""

import cases
import cudnn_calls
import harness
import int8_cases
import numpy as np
import pytest
from fake_cudnn import FakePlan
from harness import LAYOUTS

import convkit

F32 = np.dtype(np.float32)
GOLDEN = cases.golden_ids()[3::10]


@pytest.fixture
def script(cupy):
    """The stand-in for cuDNN, installed."""
    with cudnn_calls.installed() as script:
        convkit.clear_caches()
        yield script
        convkit.clear_caches()


def on_gpu(arguments):
    """Return arguments with their arrays on the device."""
    import cupy

    return [cupy.asarray(value) if isinstance(value, np.ndarray) else value for value in arguments]


@pytest.mark.parametrize("autotune", [False, True])
@pytest.mark.parametrize("case", GOLDEN)
def test_golden_values_come_out_to_the_last_bit(script, case, autotune):
    golden = cases.golden(case)
    calls = harness.three_calls(*(a.astype(np.float64) for a in (golden.x, golden.w, golden.dy)), **golden.geometry)
    served = 0
    with convkit.options(autotune=autotune):
        for call, wanted in zip(calls, (golden.y, golden.dw, golden.dx), strict=True):
            for layout in LAYOUTS:
                arguments = on_gpu(call.in_layout(layout, F32))
                keywords = {**call.geometry, **layout.keywords}
                explanation = convkit.explain(call.op, *arguments, **keywords)
                objections = dict(explanation.candidates)
                served += objections["gpu:cudnn_f32"] is None
                family = "auto" if objections["gpu:cudnn_f32"] else "cudnn"
                result = harness.operation(call.op)(*arguments, algorithm=family, **keywords)
                np.testing.assert_array_equal(result.get(), call.result_to(wanted, layout))
    assert served >= 6


@pytest.mark.parametrize("case", int8_cases.golden_ids()[1::16])
def test_golden_int8_values_come_out_to_the_last_bit(script, case):
    golden, wanted = int8_cases.golden(case)
    for layout in int8_cases.LAYOUTS:
        if golden.fits(layout):
            arguments = on_gpu(golden.arguments(layout))
            keywords = {**golden.terms, **golden.geometry, **layout.keywords}
            keywords = dict(zip(keywords, on_gpu(keywords.values()), strict=True))
            result = convkit.fused_conv2d(*arguments, **keywords)
            np.testing.assert_array_equal(int8_cases.from_layout(result.get(), layout.data), wanted)
    assert "INT32" in {graph.compute.name for graph in script.graphs}


def test_a_scale_of_one_needs_no_operation(script, rng):
    x, w = on_gpu(harness.layer(rng, (1, 5, 5, 2), (3, 3, 2, 4))[0].in_layout(harness.NHWC, F32))
    bias = np.arange(4, dtype=F32)
    for scale, wanted in ((1.0, ["fprop", "add"]), (2.0, ["fprop"])):
        (on_device,) = on_gpu([bias])
        convkit.fused_conv2d(x, w, on_device, conv_scale=scale)
        assert [op for op, _, _ in script.graphs[-1].nodes] == wanted


def test_what_cudnn_fails_at_is_served_by_other_kernels(script, rng):
    script.plans = {"A": (FakePlan("bad", fault="run"),)}
    for call in harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8), padding="SAME"):
        for dtype in harness.DTYPES:
            result = harness.operation(call.op)(*on_gpu(call.in_layout(harness.NHWC, dtype)), padding="SAME")
            np.testing.assert_array_equal(result.get().astype(np.float64), call.reference())
    assert {name for name, _ in script.runs} == {"bad"}


def test_clearing_caches_forgets_choices_and_handles(script, rng):
    call = harness.layer(rng, (1, 5, 5, 2), (3, 3, 2, 4))[0]
    convkit.conv2d(*on_gpu(call.in_layout(harness.NHWC, F32)))
    assert cudnn_calls.cache.choices.items()
    convkit.clear_caches()
    assert not cudnn_calls.cache.choices.items() and script.destroyed == len(script.handles) == 1
