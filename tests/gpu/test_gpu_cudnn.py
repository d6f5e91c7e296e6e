"""The family cudnn on stand-ins: the graphs it builds give the right results in every layout, dtype and geometry."""

from dataclasses import replace

import cases
import cudnn_calls
import fake_cudnn
import harness
import numpy as np
import pytest
from cudnn_calls import MIB, Bystander, carried
from fake_cudnn import FakePlan
from harness import BFLOAT16, NCHW, NHWC

from convkit import BackendError
from convkit._calls import Limits

F16, F32, F64 = (np.dtype(name) for name in ("float16", "float32", "float64"))
DTYPES = (F16, BFLOAT16, F32, F64)
GEOMETRIES = [
    ((2, 5, 6, 3), (3, 3, 3, 4), {"padding": "SAME"}),
    ((1, 7, 5, 4), (2, 3, 2, 6), {"strides": (2, 1), "padding": ((0, 1), (2, 0)), "groups": 2}),
    ((2, 9, 8, 2), (3, 2, 2, 3), {"dilations": (2, 3), "padding": "SAME_LOWER"}),
    ((1, 4, 4, 6), (3, 3, 1, 6), {"groups": 6, "padding": "FULL"}),
    ((3, 1, 1, 8), (1, 1, 8, 5), {}),
]


@pytest.fixture
def script(cupy):
    """The stand-in for cuDNN, installed."""
    with cudnn_calls.installed() as script:
        yield script


def exact(call, layout, dtype, **more):
    """Carry out a call, and check that small integers come out exactly."""
    made = carried(call, layout, dtype, **more)
    wanted = call.result_to(call.reference(), layout)
    np.testing.assert_array_equal(made.run().astype(np.float64), wanted, err_msg=f"{call.op} {layout} {dtype}")
    return made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_small_integers_are_exact_in_every_layout(script, rng, geometry, dtype):
    x, w, keywords = geometry
    for call in harness.layer(rng, x, w, **keywords):
        for layout in harness.ALL_LAYOUTS:
            exact(call, layout, dtype)
    assert {name for name, _ in script.runs} == {"eng1"}


@pytest.mark.parametrize("case", cases.golden_ids()[::10])
def test_golden_values_come_out_to_the_last_bit(script, case):
    golden = cases.golden(case)
    calls = harness.three_calls(*(a.astype(np.float64) for a in (golden.x, golden.w, golden.dy)), **golden.geometry)
    for call, wanted in zip(calls, (golden.y, golden.dw, golden.dx), strict=True):
        if 0 in (golden.y.size, golden.x.size):
            continue
        for layout in (NHWC, NCHW):
            made = carried(call, layout, F32, others=[Bystander(call.op)])
            if made.objection is None and not made.problem.empty:
                np.testing.assert_array_equal(made.run(), call.result_to(wanted, layout))


@pytest.mark.parametrize("layout", [NHWC, NCHW], ids=str)
def test_pixels_are_read_and_written_in_place(script, rng, world, layout):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[0]
    exact(call, layout, F32)
    copies = [line for line in world.log if "copy" in line]
    # The filter of NHWC lies in the order H, W, I, O, which no library has.
    assert len(copies) == (1 if layout is NHWC else 0), copies


def strided(array):
    """Return views of the same values whose memory is neither dense nor ordered."""
    import cupy

    wide = cupy.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
    wide[..., 1::2] = array
    flipped = cupy.asarray(np.ascontiguousarray(array.get()[:, ::-1]))[:, ::-1]
    return [wide[..., 1::2], flipped]


def test_strided_and_flipped_arrays_are_copied(script, rng, cupy):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[0]
    x, w = (cupy.asarray(a) for a in call.in_layout(NHWC, F32))
    for image in strided(x):
        out = strided(cupy.zeros((2, 4, 3, 8), F32))[1]
        made = cudnn_calls.Carried("conv2d", [image, w], out=out)
        np.testing.assert_array_equal(made.run(), call.reference())
        assert any("input" in text for text in made.plan.copies) and any("out" in text for text in made.plan.copies)


def test_a_transposed_view_of_the_other_layout_needs_no_copy(script, rng, cupy, world):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[0]
    x, w = call.in_layout(NCHW, F32)
    image = cupy.asarray(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
    out = cupy.zeros((2, 4, 3, 8), F32).transpose(0, 3, 1, 2)
    made = cudnn_calls.Carried("conv2d", [image, w], out=out, data_format="NCHW")
    np.testing.assert_array_equal(made.run(), call.result_to(call.reference(), NCHW))
    assert [text.split(":")[0] for text in made.plan.copies] == ["filter"]


def test_a_misaligned_array_is_copied(script, rng, cupy):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[0]
    x, w = (cupy.asarray(a) for a in call.in_layout(NHWC, F32))
    shifted = cupy.zeros(x.size + 1, F32)[1:].reshape(x.shape)
    shifted[...] = x
    assert shifted.data.ptr % 16
    np.testing.assert_array_equal(cudnn_calls.Carried("conv2d", [shifted, w]).run(), call.reference())


def test_a_plan_made_for_an_aligned_array_serves_a_misaligned_one(script, rng, cupy):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[0]
    made = carried(call, NHWC, F32)
    shifted = cupy.zeros(made.arrays[0].size + 1, F32)[1:].reshape(made.arrays[0].shape)
    shifted[...] = made.arrays[0]
    made.arrays[0] = shifted
    np.testing.assert_array_equal(made.run(), call.reference())


def test_an_integer_image_is_converted(script, rng, cupy):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[0]
    x, w = call.in_layout(NHWC, np.dtype(np.int8), F32)
    np.testing.assert_array_equal(cudnn_calls.Carried("conv2d", [x, w]).run(), call.reference())


@pytest.mark.parametrize("dtype", [F16, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", range(3))
def test_halves_give_float32_where_that_is_asked_for(script, rng, dtype, op):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8), limit=30)[op]
    made = exact(call, NHWC, dtype, out_dtype="float32")
    assert made.out.dtype == F32


def test_halves_are_widened_where_no_plan_gives_float32(script, rng, monkeypatch):
    """As dgrad on a real planner; the values that were halves go through TF32 without loss."""
    create = fake_cudnn.pygraph.create_execution_plans

    def refuse(graph, modes):
        if graph.io.name == "HALF":
            raise fake_cudnn.cudnnGraphNotSupportedError("No valid engine configs")
        create(graph, modes)

    monkeypatch.setattr(fake_cudnn.pygraph, "create_execution_plans", refuse)
    script.plans["A"] = (FakePlan("tensor", notes=("TENSOR_CORE",)),)
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8), limit=30)[2]
    exact(call, NHWC, F16, out_dtype="float32")
    assert script.runs == [("tensor", 0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accumulating_adds_to_what_is_there(script, rng, cupy, dtype):
    call = harness.layer(rng, (2, 6, 5, 4), (3, 3, 4, 8))[1]
    for layout in (NHWC, NCHW):
        before = harness.integers(rng, call.arguments[1])
        out = cupy.asarray(call.result_to(before, layout).astype(dtype))
        made = carried(call, layout, dtype, out=out, accumulate=True)
        wanted = call.result_to(before + call.reference(), layout)
        np.testing.assert_array_equal(made.run().astype(np.float64), wanted)


def test_more_elements_than_32_bits_can_count_are_left_to_others(cupy, script):
    one = cupy.asarray(np.zeros((1, 1), np.float32))
    image = cupy.lib.stride_tricks.as_strided(one, (1, 2**16, 2**16, 1), (0, 0, 0, 0))
    out = cupy.lib.stride_tricks.as_strided(one, (1, 1, 1, 1), (4, 4, 4, 4))
    made = cudnn_calls.Carried("conv2d", [image, np.zeros((1, 1, 1, 1), np.float32)], strides=2**16, out=out)
    assert "input has more than the 2147483647 elements" in made.objection


def test_negative_padding_is_left_to_others(script, rng):
    """It stands for taps that have been left out, since they meet no pixel."""
    call = harness.layer(rng, (1, 3, 3, 1), (1, 1, 1, 2))[0]
    made = carried(call, NHWC, F32)
    geometry = replace(made.problem.geometry, pad_before=(-1, 0))
    family = cudnn_calls.Cudnn("conv2d", "float32", ())
    assert "negative padding" in family.objection(replace(made.problem, geometry=geometry), cudnn_calls.MACHINE)


def test_the_objection_says_why_there_is_no_cudnn(cupy, script):
    without = replace(cudnn_calls.MACHINE, cudnn=None, no_cudnn="the Python package is not installed")
    arrays = [np.zeros((1, 3, 3, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)]
    assert cudnn_calls.Carried("conv2d", arrays, machine=without).objection == "the Python package is not installed"


def test_copies_count_against_the_workspace(cupy, script):
    arrays = [np.zeros((1, 8, 8, 4), np.float32), np.zeros((3, 3, 4, 4), np.float32)]
    filter_bytes = arrays[1].nbytes
    tight = cudnn_calls.Carried("conv2d", arrays, limits=Limits(filter_bytes - 1, "default"))
    assert str(filter_bytes) in tight.objection
    cudnn_calls.Carried("conv2d", arrays, limits=Limits(filter_bytes, "default")).run()
    # eng1 takes 4096 bytes, which are not left.
    assert script.runs == [("eng2", 0)]
    cudnn_calls.Carried("conv2d", arrays, limits=Limits(filter_bytes + 4096, "default")).run()
    assert script.runs[-1][0] == "eng1"


def test_devices_of_one_model_share_a_choice_but_no_handle_and_no_plan(script, rng, cupy):
    call = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0]
    for device in (0, 1, 0, 1):
        with cupy.cuda.Device(device):
            exact(call, NHWC, F32, machine=replace(cudnn_calls.MACHINE, device=device))
    assert len(cudnn_calls.cache.choices.items()) == 1
    assert [handle.device for handle in script.handles] == [0, 1] and len(script.builds) == 2


def test_work_goes_to_the_stream_of_the_call(script, rng, cupy):
    """The stand-in refuses a handle whose stream is not the current one."""
    made = exact(harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0], NHWC, F32)
    for _ in range(2):
        with cupy.cuda.Stream(non_blocking=True):
            made.plan.run(*made.views(), 1)
    made.run()
    assert len(script.runs) == 4 and len(script.handles) == 1


class TestWhichPlan:
    """What may not be taken, and what comes first."""

    def names(self, script, rng, dtype=F32, **limits):
        call = harness.layer(rng, (1, 4, 4, 2), (2, 2, 2, 2))[0]
        carried(call, NHWC, dtype, limits=Limits(**{"workspace_limit": MIB, "precision": "default", **limits})).run()
        return script.runs[-1][0]

    def test_float32_does_without_tensor_cores_unless_fast(self, script, rng):
        script.plans["A"] = (FakePlan("tf32", notes=("TENSOR_CORE",)), FakePlan("exact"))
        assert self.names(script, rng) == "exact"
        assert self.names(script, rng, precision="high") == "exact"
        assert self.names(script, rng, precision="fast") == "tf32"
        assert self.names(script, rng, F16) == "tf32"

    @pytest.mark.parametrize("note", ["FFT", "REDUCED_PRECISION_REDUCTION"])
    def test_some_are_never_taken(self, script, rng, note):
        script.plans["A"] = (FakePlan("bad", notes=(note,)), FakePlan("good"))
        for precision in ("fast", "default", "high"):
            assert self.names(script, rng, precision=precision) == "good"

    @pytest.mark.parametrize("note", ["WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_13x13", "DOWN_CONVERT_INPUTS"])
    def test_some_are_taken_when_fast(self, script, rng, note):
        script.plans["A"] = (FakePlan("quick", notes=(note,)), FakePlan("good"))
        assert self.names(script, rng) == "good"
        assert self.names(script, rng, precision="fast") == "quick"

    def test_deterministic_excludes_the_others(self, script, rng):
        script.plans["A"] = (FakePlan("atomic", notes=("NONDETERMINISTIC",)), FakePlan("ordered"))
        assert self.names(script, rng) == "atomic"
        assert self.names(script, rng, deterministic=True) == "ordered"

    def test_plans_that_compile_come_after_the_others_of_their_mode(self, script, rng):
        script.plans["A"] = (FakePlan("compiles", compiled=True), FakePlan("ready"))
        assert self.names(script, rng) == "ready"
        script.plans["A"] = (FakePlan("compiles", compiled=True),)
        assert self.names(script, rng, F64) == "compiles"

    def test_fallback_plans_serve_where_there_is_no_other(self, script, rng):
        script.plans["A"] = (FakePlan("large", workspace=2 * MIB), FakePlan("broken", fault="build"))
        assert self.names(script, rng) == "eng0"


class TestFailure:
    """What happens when cuDNN refuses or fails."""

    def test_a_plan_that_fails_gives_way_to_the_next(self, script, rng, caplog):
        script.plans["A"] = (FakePlan("bad", fault="run"), FakePlan("good"))
        call = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0]
        made = exact(call, NHWC, F32)
        assert [name for name, _ in script.runs] == ["bad", "good"]
        assert "plan bad failed" in caplog.text and "CUDNN_STATUS_EXECUTION_FAILED" in caplog.text
        made.run()
        assert [name for name, _ in script.runs][2:] == ["good"], "the plan that failed is remembered"

    @pytest.mark.parametrize("fault", ["run", "build"])
    def test_other_kernels_serve_when_all_plans_fail(self, script, rng, fault):
        script.plans = {"A": tuple(FakePlan(f"plan{i}", fault=fault) for i in range(9)), "FALLBACK": ()}
        call = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0]
        other = Bystander()
        made = exact(call, NHWC, F32, others=[Bystander(objection="it has no time"), other])
        tried = len(script.runs)
        assert tried == (3 if fault == "run" else 0)
        made.run()
        assert other.runs == 2 and len(script.runs) == tried, "what has failed is not tried again"

    def test_other_kernels_serve_where_there_is_no_plan(self, script, rng):
        script.lacks = ("dgrad",)
        call, other = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[2], Bystander("conv2d_backprop_input")
        exact(call, NHWC, F32, others=[other])
        assert other.runs == 1

    def test_the_error_names_the_geometry_and_every_reason(self, script, rng):
        script.plans = {"A": (FakePlan("bad", fault="run"),)}
        call = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0]
        with pytest.raises(BackendError, match=r"conv2d: .*in_size=\(5, 5\).*EXECUTION_FAILED.*it has no time"):
            carried(call, NHWC, F32, others=[Bystander(objection="it has no time")]).run()

    def test_a_frontend_that_raises_in_its_own_ways(self, script, rng, monkeypatch):
        call, other = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0], Bystander()
        for place in ("validate", "build_operation_graph", "create_execution_plans", "get_plan_name_at_index"):
            for error in (ValueError, RuntimeError, fake_cudnn.cudnnGraphNotSupportedError, IndexError):
                with monkeypatch.context() as patched:

                    def fail(*args, error=error):
                        raise error("this version cannot")

                    patched.setattr(fake_cudnn.pygraph, place, fail)
                    cudnn_calls.cache.forget()
                    exact(call, NHWC, F32, others=[other])
        assert other.runs == 16

    def test_other_kernels_serve_when_cudnn_cannot_be_set_up(self, script, rng, monkeypatch):
        def fail():
            raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")

        monkeypatch.setattr(fake_cudnn.MODULE, "create_handle", fail)
        call, other = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0], Bystander()
        exact(call, NHWC, F32, others=[other])
        assert other.runs == 1

    def test_a_plan_without_workspace_runs_where_none_can_be_had(self, script, rng, world):
        call = harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0]
        made = exact(call, NCHW, F32)
        for left, plan in ((0, "eng2"), (None, "eng1")):
            world.allocations_left = left
            made.run()
            assert script.runs[-1][0] == plan

    def test_the_fallback_mode_is_searched_for_a_plan_without_workspace(self, script, rng, world):
        script.plans["A"] = (FakePlan("only", workspace=512),)
        made = exact(harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0], NCHW, F32)
        world.allocations_left = 0
        made.run()
        assert script.runs[-1][0] == "eng0"

    def test_without_memory_for_copies_other_kernels_serve(self, script, rng, world):
        other = Bystander()
        made = exact(harness.layer(rng, (1, 5, 5, 2), (2, 2, 2, 3))[0], NHWC, F32, others=[other])
        script.plans = {}
        views, out = made.views()
        world.allocations_left = 0
        # The other kernels of this test take memory, too.
        with pytest.raises(MemoryError):
            made.plan.run(views, out, 1)
        assert other.runs == 1 and len(script.runs) == 1
