"""Fused convolutions by cuDNN: what the graph holds, what the epilogue does after it, and int8's exact sums."""

from dataclasses import replace

import cudnn_calls
import harness
import int8_cases
import numpy as np
import pytest
import reference
from cudnn_calls import MIB, PLAIN, Bystander, Fused
from fake_cudnn import FakePlan
from harness import BFLOAT16, NCHW, NHWC

from convkit._calls import Limits

F16, F32, F64 = (np.dtype(name) for name in ("float16", "float32", "float64"))
FAST = Limits(256 * MIB, "fast")
# Operations after the convolution, by the values of the epilogue.
ACTIVATIONS = {
    None: lambda t: t,
    "relu": lambda t: np.where(t <= 0, 0, t),
    "relu6": lambda t: np.where(t <= 0, 0, np.where(t >= 6, 6, t)),
    "elu": lambda t: np.where(t > 0, t, np.expm1(t)),
    "leaky_relu": lambda t: np.where(t > 0, t, t * 0.25),
}


@pytest.fixture
def script(cupy):
    """The stand-in for cuDNN, installed."""
    with cudnn_calls.installed() as script:
        yield script


def layer(rng, dtype, layout, geometry=None):
    """Return image and filter of small integers in a layout, and the exact convolution in NHWC."""
    geometry = geometry or {"padding": "SAME"}
    call = harness.layer(rng, (2, 5, 4, 3), (3, 3, 3, 4), **geometry)[0]
    return call.in_layout(layout, dtype), call.reference(), geometry


def nodes(script):
    """Return the operations of the last graph."""
    return [op for op, _, _ in script.graphs[-1].nodes]


@pytest.mark.parametrize("dtype", [F32, F64, F16, BFLOAT16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("precision", ["default", "fast"])
def test_every_epilogue_comes_out_right(script, rng, dtype, activation, precision):
    for layout in (NHWC, NCHW):
        for per_channel, biased in ((False, True), (True, True), (False, False)):
            arrays, sums, geometry = layer(rng, dtype, layout)
            wide = "float64" if dtype == F64 else "float32"
            e = replace(
                PLAIN, per_channel=per_channel, bias=wide if biased else None, activation=activation,
                alpha=0.25 if activation == "leaky_relu" else 0.0,
            )  # fmt: skip
            scale = np.array([0.5, 2, 1, -1]) if per_channel else 1.0
            bias = np.array([1, -2, 0.5, 0]) if biased else None
            made = Fused(arrays, e, dtype, layout, limits=Limits(256 * MIB, precision), **geometry)
            t = ACTIVATIONS[activation](sums * scale + (0 if bias is None else bias))
            result = made.run(scale, bias).astype(np.float64)
            if activation == "elu":
                np.testing.assert_allclose(result, t, rtol=2**-7, atol=1e-6)
            else:
                np.testing.assert_array_equal(result, t.astype(dtype).astype(np.float64))


class TestWhatTheGraphHolds:
    """The graph does as much as is known to be right, and no more."""

    def run(self, script, rng, dtype, scale=1.0, bias=True, limits=None, side=None, **terms):
        (arrays, _, geometry) = layer(rng, dtype, NHWC)
        per_channel = isinstance(scale, np.ndarray)
        wide = "float64" if dtype == F64 else "float32"
        e = replace(PLAIN, per_channel=per_channel, bias=wide if bias else None, side=side is not None, **terms)
        made = Fused(arrays, e, dtype, NHWC, limits=limits, side=side, **geometry)
        made.run(scale, np.zeros(4) if bias else None, 0.0 if side is None else 1.0)
        return nodes(script)

    def test_bias(self, script, rng):
        assert self.run(script, rng, F32) == ["fprop", "add"]
        assert self.run(script, rng, F32, bias=False) == ["fprop"]

    def test_a_scale_on_halves_only(self, script, rng):
        assert self.run(script, rng, F16, scale=0.5) == ["fprop", "mul", "add"]
        assert self.run(script, rng, F16, scale=np.ones(4)) == ["fprop", "mul", "add"]
        assert self.run(script, rng, F16) == ["fprop", "add"]
        assert self.run(script, rng, F32, scale=0.5) == ["fprop"]

    def test_activations_only_where_a_nan_may_be_lost(self, script, rng):
        for dtype in (F32, F16):
            assert self.run(script, rng, dtype, activation="relu") == ["fprop"]
            assert self.run(script, rng, dtype, activation="relu", limits=FAST) == ["fprop", "add", "relu"]
            assert self.run(script, rng, dtype, activation="relu6", limits=FAST) == ["fprop", "add", "relu"]
            assert self.run(script, rng, dtype, activation="elu", limits=FAST) == ["fprop"]

    def test_never_a_side_input(self, script, rng):
        """Scale, side input, bias and relu in one graph are known to end the process."""
        for dtype in (F32, F16, F64):
            side = np.ones((2, 5, 4, 4), dtype)
            assert self.run(script, rng, dtype, side=side, activation="relu", limits=FAST) == ["fprop"]

    def test_float64_convolves_only(self, script, rng):
        assert self.run(script, rng, F64) == ["fprop"]

    def test_nothing_is_compiled_for_a_float32_scale(self, script, rng):
        script.plans["A"] = (FakePlan("compiles", compiled=True), FakePlan("ready"))
        self.run(script, rng, F32, scale=2.0)
        assert script.runs[-1][0] == "ready"


def test_a_bias_and_a_scale_that_are_misaligned_are_copied(script, rng, cupy):
    arrays, sums, geometry = layer(rng, F16, NHWC)
    parts = cupy.asarray(np.arange(9, dtype=F32))
    scale, bias = parts[1:5], parts[5:]
    made = Fused(arrays, replace(PLAIN, per_channel=True, bias="float32"), F16, NHWC, **geometry)
    wanted = sums * np.arange(1.0, 5) + np.arange(5.0, 9)
    np.testing.assert_array_equal(made.run(scale, bias).astype(float), wanted.astype(F16).astype(float))
    assert nodes(script) == ["fprop", "mul", "add"]


def test_a_nan_stays_a_nan_through_relu(script, rng):
    (x, w), _, geometry = layer(rng, F32, NHWC)
    x[0, 0, 0, 0] = np.nan
    result = Fused((x, w), replace(PLAIN, activation="relu"), F32, NHWC, **geometry).run()
    assert np.isnan(result[0, 0, 0]).all()


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_a_refused_graph_gives_way_to_the_epilogue(script, rng, dtype):
    script.lacks = ("add", "mul")
    arrays, sums, geometry = layer(rng, dtype, NCHW)
    made = Fused(arrays, replace(PLAIN, bias="float32"), dtype, NCHW, **geometry)
    np.testing.assert_array_equal(made.run(1.0, np.array([1.0, 2, 3, 4])).astype(float), sums + np.array([1, 2, 3, 4]))
    assert nodes(script) == ["fprop"]


@pytest.mark.parametrize("dtype", [F32, F64, F16, BFLOAT16], ids=str)
@pytest.mark.parametrize("onto_side", [False, True])
def test_a_side_input_and_a_result_in_its_place(script, rng, dtype, onto_side):
    for layout in (NHWC, NCHW):
        arrays, sums, geometry = layer(rng, dtype, layout)
        side = harness.integers(rng, sums.shape)
        placed = reference.to_data_format(side, layout.data).astype(dtype)
        e = replace(PLAIN, side=True, bias="float64" if dtype == F64 else "float32")
        made = Fused(arrays, e, dtype, layout, side=placed, onto_side=onto_side, **geometry)
        result = made.run(2.0, np.array([1.0, 2, 3, 4]), 3.0).astype(float)
        np.testing.assert_array_equal(result, sums * 2 + side * 3 + np.array([1, 2, 3, 4]))


def test_other_kernels_do_fused_calls_too(script, rng):
    script.plans = {}
    arrays, sums, geometry = layer(rng, F32, NHWC)
    other = Bystander("fused_conv2d")
    np.testing.assert_array_equal(Fused(arrays, PLAIN, F32, NHWC, others=[other], **geometry).run(3.0), sums * 3)
    assert other.runs == 1


class TestInt8:
    """Exact sums by cuDNN, which are checked at first use; the epilogue is the project's own."""

    def fused(self, case, layout, **more):
        e = replace(
            PLAIN,
            per_channel=np.size(case.terms.get("conv_scale", 1)) > 1,
            bias=None if case.bias is None else case.bias.dtype.name,
            side=case.side is not None and bool(case.terms.get("side_scale", 1)),
            activation=case.terms.get("activation"),
        )
        x, w, _, side = case.arguments(layout)
        made = Fused((x, w), e, np.int8, layout, side=side if e.side else None, **case.geometry, **more)
        return made, {
            "scale": np.float32(case.terms.get("conv_scale", 1.0)),
            "bias": case.bias,
            "side_scale": float(np.float32(case.terms.get("side_scale") or 1.0)) if e.side else 0.0,
        }

    @pytest.mark.parametrize("case", int8_cases.golden_ids()[::6])
    def test_golden_values_come_out_to_the_last_bit(self, script, case):
        golden, wanted = int8_cases.golden(case)
        for layout in int8_cases.LAYOUTS:
            if not golden.fits(layout):
                continue
            made, terms = self.fused(golden, layout)
            if made.problem.empty:
                continue
            np.testing.assert_array_equal(made.run(**terms), wanted, err_msg=str(layout))
        assert script.graphs[-1].compute.name == "INT32"

    @pytest.mark.parametrize("layout", int8_cases.LAYOUTS, ids=str)
    def test_plain_convolutions_give_int32(self, script, rng, layout):
        x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 5, 4, 8), (3, 3, 8, 4)))
        arrays = int8_cases.to_layout(x, layout.data), int8_cases.to_layout(w, layout.filter)
        made = cudnn_calls.Carried("conv2d", arrays, padding="SAME", out_dtype="int32", **layout.keywords)
        result = int8_cases.from_layout(made.run(), layout.data)
        np.testing.assert_array_equal(result, reference.conv2d(x, w, padding="SAME"))

    def call(self, rng, judge, others=(), shape=(2, 5, 4, 4)):
        x, w = (rng.integers(-128, 128, size).astype(np.int8) for size in (shape, (3, 3, 4, 8)))
        made = cudnn_calls.Carried("conv2d", (x, w), padding="SAME", out_dtype="int32", judge=judge, others=others)
        np.testing.assert_array_equal(made.run(), reference.conv2d(x, w, padding="SAME"))
        return made

    def test_sums_are_checked_once_for_a_family_of_geometries(self, script, rng):
        judge = Bystander("conv2d", "int8")
        for shape in ((2, 5, 4, 4), (2, 5, 4, 4), (1, 9, 7, 4)):
            self.call(rng, judge, shape=shape)
        assert judge.runs == 1 and len(script.runs) == 3
        cudnn_calls.cudnn_int8.forget()
        self.call(rng, judge)
        assert judge.runs == 2

    def test_wrong_sums_are_told_and_never_used_again(self, script, rng, caplog):
        script.plans = {"A": (FakePlan("lies", fault="wrong"),)}
        judge, other = Bystander("conv2d", "int8"), Bystander("conv2d", "int8")
        for count in (1, 2, 3):
            self.call(rng, judge, [other])
            assert (judge.runs, other.runs) == (1, count)
        assert caplog.text.count("plan lies gives wrong sums of int8") == 1

    def test_sums_that_cannot_be_checked_are_not_used(self, script, rng, caplog):
        other = Bystander("conv2d", "int8")
        self.call(rng, Bystander("conv2d", "int8", objection="it is out of service"), [other])
        assert other.runs == 1

    def test_nothing_is_checked_while_a_stream_is_captured(self, script, rng, cupy):
        judge = Bystander("conv2d", "int8")

        class Later(Bystander):
            def plan(self, problem, machine):
                return self

            def run(self, operands, out, threads):
                self.runs += 1

        other = Later("conv2d", "int8")
        made = self.call(rng, judge, [other])
        cudnn_calls.cudnn_int8.forget()
        stream = cupy.cuda.Stream()
        with stream:
            stream.begin_capture()
            made.plan.run(*made.views(), 1)
            stream.end_capture()
        assert (judge.runs, other.runs) == (1, 1)

    def test_what_cudnn_does_not_multiply_is_left_to_others(self, cupy, script):
        x, w = np.zeros((1, 3, 3, 4), np.uint8), np.zeros((1, 1, 4, 4), np.int8)
        assert "input is uint8" in cudnn_calls.Carried("conv2d", (x, w), out_dtype="int32").objection
        shifted = replace(PLAIN, input_zero_point=3)
        assert "input's zero is 3" in Fused((x.astype(np.int8), w), shifted, np.int8, NHWC).objection
