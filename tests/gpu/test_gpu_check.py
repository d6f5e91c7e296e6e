"""tools/gpu_check.py, run on the stand-in: it finds nothing wrong here, and finds what is made wrong."""

import contextlib
import json
import sys
from pathlib import Path

import cudnn_calls
import numpy as np
import pytest
import standin_device
from child import run_python

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import gpu_check
import harness
from gpu_checks import findings, geometries, rivals, timing
from gpu_checks.session import Session

# Layer 10 has taps that meet padding alone.
FEW = ("--no-timing", "--golden", "3", "--random", "12")


@pytest.fixture
def session(cupy):
    """A session for a little of everything."""
    return Session(cupy, golden=1, random=2)


@pytest.mark.parametrize(
    "cudnn",
    [
        pytest.param(contextlib.nullcontext, id="alone", marks=pytest.mark.slow),
        pytest.param(cudnn_calls.installed, id="cudnn"),
    ],
)
def test_everything_but_the_timings_is_right_on_the_stand_in(cupy, cudnn, capsys, tmp_path):
    path = tmp_path / "check.json"
    with cudnn():
        status = gpu_check.main([*FEW, "--json", str(path)])
    told, found = capsys.readouterr().out, json.loads(path.read_text())
    assert status == findings.ALL_RIGHT, told
    states = {finding["name"]: finding["state"] for finding in found["findings"]}
    assert len(states) == len(gpu_check.RESULTS) + len(gpu_check.BEHAVIOUR)
    assert set(states.values()) <= {findings.RIGHT, findings.NOT_RUN}
    assert [name for name, state in states.items() if state == findings.NOT_RUN] in ([], ["sigpy"])
    assert all(name in told for name in states)
    assert found["machine"]["cupy"] == "14.2.0" and found["machine"]["devices"][0]["name"] == "Stand-in"
    assert found["timings"] == []
    routes = {route for finding in found["findings"] for route in finding["by_route"]}
    assert routes == {"gemm", "direct", "im2col"} | ({"cudnn"} if cudnn is cudnn_calls.installed else set())


@pytest.mark.parametrize("world", [{"cards": []}, {"driver": False}], ids=["no card", "no driver"], indirect=True)
def test_without_a_gpu_it_says_so(cupy, capsys):
    assert gpu_check.main(list(FEW)) == findings.NO_GPU
    assert capsys.readouterr().out.startswith("no GPU to check: convkit: CuPy 14.2.0 finds no")


def test_the_script_runs_from_anywhere(tmp_path):
    program = """
        import os, runpy, sys
        sys.modules["cupy"] = None
        script, folder = sys.argv[1:]
        os.chdir(folder)
        sys.path[:] = [os.path.dirname(script), *sys.path]
        sys.argv[:] = [script]
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            print("status", end.code)
    """
    told = run_python(program, gpu_check.__file__, tmp_path).splitlines()
    assert told[0].startswith("no GPU to check: convkit: CuPy is not installed") and told[1] == "status 3"


def test_a_wrong_result_is_found_and_says_how_to_repeat_it(cupy, capsys, monkeypatch):
    right = harness.operation

    def wrong(op):
        def off(*arguments, **keywords):
            result = right(op)(*arguments, **keywords)
            if "algorithm" in keywords:
                result[0, 0, 0, 0] = result[0, 0, 0, 0] + 1000
            return result

        return off

    monkeypatch.setattr(harness, "operation", wrong)
    assert gpu_check.main(["--case", "1"]) == findings.SOMETHING_WRONG
    told = capsys.readouterr().out
    assert "WRONG, random layers: conv2d by" in told and "--case 1:" in told


def test_an_error_is_found_and_hides_nothing_else(cupy, capsys, monkeypatch):
    right = harness.operation

    def failing(op):
        def fail(*arguments, **keywords):
            if op == "conv2d" and "algorithm" in keywords:
                raise standin_device.CUDARuntimeError(700)
            return right(op)(*arguments, **keywords)

        return fail

    monkeypatch.setattr(harness, "operation", failing)
    assert gpu_check.main(["--case", "1"]) == findings.SOMETHING_WRONG
    told = capsys.readouterr().out
    assert "CUDARuntimeError: cudaErrorIllegalAddress" in told and "conv2d_backprop_filter" not in told


def test_random_layers_are_of_every_kind():
    layers = [geometries.draw(number) for number in range(200)]
    assert [str(layer) for layer in layers[:9]] == [str(geometries.draw(number)) for number in range(9)]
    assert {layer.dtype for layer in layers} == set(geometries.DTYPES)
    assert {layer.layout for layer in layers} == set(harness.ALL_LAYOUTS)
    assert {layer.place for layer in layers} == set(geometries.PLACES)
    assert {*geometries.MODES} <= {p for layer in layers if isinstance(p := layer.geometry["padding"], str)}
    assert any(layer.geometry["groups"] == layer.x_shape[3] > 1 for layer in layers)
    assert any(a != b for layer in layers for a, b in [layer.geometry["dilations"]])
    assert all(len({layer.dtype, layer.place}) for layer in layers)


@pytest.mark.parametrize("place", geometries.PLACES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3,)])
def test_arrays_lie_where_a_layer_says(cupy, place, shape):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = geometries.put(cupy, cupy.asarray(values), place)
    np.testing.assert_array_equal(array.get(), values)
    assert array.flags.c_contiguous is (place == "dense" or (place == "transposed" and len(shape) == 1))
    out = geometries.filled(cupy, shape, np.float32, place)
    assert np.isnan(out.get()).all() and out.strides == array.strides


def test_verdicts_and_exit_status():
    right, wrong, missed = (findings.Finding(name) for name in ("right", "wrong", "missed"))
    wrong.note(False, "here")
    missed.state = findings.MISSED
    assert findings.status([right]) == findings.ALL_RIGHT
    assert findings.status([right, findings.Finding("left out").left_out("no sigpy")]) == findings.ALL_RIGHT
    assert findings.status([right, missed]) == findings.TARGET_MISSED
    assert findings.status([right, missed, wrong]) == findings.SOMETHING_WRONG


@pytest.fixture
def small(cupy, monkeypatch):
    """Layers, products and copies of a size that the stand-in can do; they are timed, and the times mean nothing."""
    lines = ("n1 h6 w5 c3 k4 r3 s1 p1 NHWC float32", "n1 h4 w4 c4 k8 r1 s1 VALID NHWC float32")

    monkeypatch.setattr(timing, "layers", lambda: [timing.Problem.parse(line) for line in lines])
    for name, value in (("ROUNDS", 2), ("MOST_CALLS", 2), ("ROOF_SIZE", 8), ("ROOF_BYTES", 64)):
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(cupy, "matmul", lambda a, b: a.copy(), raising=False)
    monkeypatch.setattr(cupy, "copyto", lambda to, source: to.set(source.get()), raising=False)


def test_timings_check_results_and_are_held_against_targets(session, small, capsys):
    with cudnn_calls.installed():
        native = timing.native(session)
        (finding, verdict), records = timing.resnet50(session, "PyTorch is not installed")
    assert native.compared == 3 * 2 and "of cuDNN's" in native.detail
    assert finding.state == findings.RIGHT and finding.compared == len(records) == 2 * 3 * len(timing.DTYPES)
    assert verdict.state == findings.NOT_RUN and verdict.detail == "PyTorch is not installed"
    assert {record["route"].split(":")[0] for record in records} == {"gpu"}
    assert all(record["seconds"] > 0 and len(record["rounds"]["convkit"]) == 2 for record in records)
    gpu_check.print_timings(records)
    assert capsys.readouterr().out.count("conv2d_backprop_filter") == 2 * len(timing.DTYPES)


def test_timing_ends_when_its_time_is_over(session, small):
    session.seconds = 0
    (finding, _), records = timing.resnet50(session, "PyTorch is not installed")
    assert records == [] and finding.detail == "no time for 18 of 18 cases"


def test_ratios_are_held_against_their_targets():
    def verdict(*ratios):
        records = [{"case": str(number), "ratio": ratio} for number, ratio in enumerate(ratios)]
        return timing._verdicts(records, "")[0]

    assert verdict(1.1, 0.97, 1.03).state == findings.RIGHT
    assert verdict(1.1, 0.97, 1.0).state == findings.RIGHT
    slow = verdict(1.2, 0.94)
    assert slow.state == findings.MISSED and slow.failures == ["0.94 1"]
    assert verdict(1.0, 1.01).state == findings.MISSED


def test_the_layers_are_the_distinct_ones_of_resnet_50():
    found = timing.layers()
    assert len(found) == 23 and {(p.n, p.dtype) for p in found} == {(timing.BATCH, "float32")}


def test_the_python_side_is_timed(session, monkeypatch):
    monkeypatch.setattr(gpu_check.behaviour, "TIMED_CALLS", 20)
    monkeypatch.setattr(gpu_check.behaviour, "TIMINGS", 3)
    finding = gpu_check.behaviour.python_side(session)
    assert finding.state in (findings.RIGHT, findings.MISSED) and "microseconds" in finding.detail


def test_a_rival_that_is_not_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert rivals.find() == "PyTorch is not installed"
