"""The comparison with peers: its line of text, its lists, its check of results, its targets, and that it runs."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from child import environment

import convkit

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import compare as comparison
import peers
import processes
import targets
import truth
from contest import PEER_SLACK, Contest, Record, Run
from peers.job import int8_terms
from problems import FLOAT_OPS, Case, Problem, reference
from yardstick import Yardstick

BENCHMARKS = Path(comparison.__file__).parent
LISTS = comparison.all_lists()
IMAGE = "conv2d n1 h40 w50 c1 k1 r3 s1 SAME NHWC float32"


def compare(*arguments, status=0, **extra):
    """Runs the comparison to its end, checks its exit status, and returns what it printed on both streams."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "compare.py", *map(str, arguments)],
        env=environment(**extra), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def patched(tmp_path, program):
    """PYTHONPATH for contestants in which `program` ran before anything else."""
    (tmp_path / "sitecustomize.py").write_text(program)
    return f"{tmp_path}:{environment()['PYTHONPATH']}"


# The line of text


@pytest.mark.parametrize("line", [
    "n16 h56 w56 c64 k64 r3 s1 SAME NHWC float32",
    "n1 h9 w8 c12 k24 r1x3 s2x1 d1x2 g4 SAME_LOWER NCHW bfloat16",
    "n2 h9 w9 c3 k5 r3 s1 d2 p2 NHWC float16",
    "n2 h9 w9 c3 k5 r3x5 s1 g1 p1x2 NHWC float64",
    "n1 h9 w9 c3 k5 r3 s1 FULL NHWC float64",
])  # fmt: skip
def test_a_line_gives_a_problem_and_a_problem_its_line(line):
    problem = Problem.parse(f"  {line.replace(' ', '  ')} ")
    assert str(problem) == line.replace(" g1", "")
    assert Problem.parse(str(problem)) == problem
    x, w, y = problem.shapes
    assert convkit.conv2d_output_shape(x, w, **problem.geometry) == y
    assert problem.flops == convkit.explain("conv2d", x, w, **problem.geometry).flops


def test_a_line_names_an_operation_or_means_all_three():
    line = "n1 h9 w9 c3 k5 r3 s1 FULL NHWC float64"
    assert [case.op for case in Case.parse(line)] == list(FLOAT_OPS)
    (case,) = Case.parse(f"conv2d_backprop_filter {line}")
    assert str(case) == f"conv2d_backprop_filter {line}"
    assert case.bytes_moved == 8 * (9 * 9 * 3 + 3 * 3 * 3 * 5 + 11 * 11 * 5)


def test_a_line_of_whole_numbers_means_the_fused_operation():
    line = "n1 h9 w9 c3 k5 r3 s1 FULL NCHW int8"
    (case,) = Case.parse(line)
    assert str(case) == f"fused_conv2d {line}"
    assert Case.parse(str(case)) == [case]
    assert case.bytes_moved == 9 * 9 * 3 + 3 * 3 * 3 * 5 + 11 * 11 * 5
    for wrong in (f"conv2d {line}", f"fused_conv2d {line.replace('int8', 'float32')}"):
        with pytest.raises(argparse.ArgumentTypeError, match="goes with"):
            Case.parse(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="is not of the form"):
        Problem.parse(line)


def test_braces_stand_for_either():
    cases = Case.parse("{conv2d,conv2d_backprop_input} n{1,16} h9 w9 c3 k5 r3 s1 SAME NHWC {float32,float16}")
    assert len(set(cases)) == len(cases) == 8
    assert [case.problem.n for case in cases] == [1, 1, 16, 16] * 2
    assert str(cases[-1]) == "conv2d_backprop_input n16 h9 w9 c3 k5 r3 s1 SAME NHWC float16"


@pytest.mark.parametrize(("line", "message"), [
    ("n1 h9 w9 c3 k5 r3 s1 same NHWC float32", "is not of the form"),
    ("conv3d n1 h9 w9 c3 k5 r3 s1 SAME NHWC float32", "is not of the form"),
    ("n1 h9 w9 c3 k5 r3 s1 SAME NHWC int16", "is not of the form"),
    ("n1 h9 w9 c3 k6 r3 s1 g2 SAME NHWC float32", "groups do not divide"),
    ("n1 h9 w9 c3 k6 r3 s1 g0 SAME NHWC float32", "groups do not divide"),
    ("n1 h9 w9 c3 k6 r11 s1 VALID NHWC float32", "does not fit"),
])  # fmt: skip
def test_other_lines_are_refused(line, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        Case.parse(line)


# The lists


def test_lists_hold_what_they_promise():
    distinct = {name: {case.problem for case in cases} for name, cases in LISTS.items()}
    assert len(distinct["resnet50"]) == 2 * 23
    assert len(distinct["vgg16"]) == 2 * 9
    assert {p.r[0] for p in distinct["imaging"]} == {3, 5, 7, 9, 11, 15, 21, 31}
    assert all(p.depthwise for p in distinct["mobilenet_v2"])
    assert all(p.c == 3 for p in distinct["first_layers"])
    assert {p.dtype for p in distinct["dtypes"]} == {"float64", "float16", "bfloat16"}
    assert all(p.int8 for p in distinct["int8"])
    whole = {str(p).replace("int8", "float32") for p in distinct["int8"]}
    assert {str(p) for p in distinct["resnet50"]} <= whole
    for name in ("resnet50", "vgg16", "mobilenet_v2", "first_layers", "odd_channels"):
        assert {p.n for p in distinct[name]} == {1, 16}


def test_inception_is_the_list_of_the_recorded_cases():
    recorded = json.loads((BENCHMARKS.parent / "tests" / "data" / "tf_cases.json").read_text())["inception"]
    layers = [layer["full"] | layer for layer in recorded["list"]] + [recorded["extra"]]
    wanted = {
        (*layer["input"], *layer["filter"][:2], layer["filter"][3], layer["stride"], layer["padding"])
        for layer in layers
    }
    found = {(p.n, p.h, p.w, p.c, *p.r, p.k, p.s[0], p.padding) for p in (case.problem for case in LISTS["inception"])}
    assert found == wanted


def test_every_problem_is_one_of_convkit_and_the_quick_ones_are_of_the_lists():
    member = comparison.membership(LISTS)
    assert all(member.values())
    for case in member:
        x, w, y = case.problem.shapes
        assert convkit.conv2d_output_shape(x, w, **case.problem.geometry) == y


# The check of results


def results(case, arrays):
    """The exact result of a case, rounded to its dtype."""
    x, w, dy = arrays
    arguments = {
        "conv2d": (x, w),
        "conv2d_backprop_filter": (x, w.shape, dy),
        "conv2d_backprop_input": (x.shape, w, dy),
    }[case.op]
    return reference.OPS[case.op](*arguments, **case.problem.geometry).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_the_check_takes_the_right_result_and_no_other(op, dtype):
    (case,) = Case.parse(f"{op} n2 h7 w9 c4 k6 r3 s2 g2 p1 NHWC {dtype}")
    arrays = truth.arrays(case)
    exact, right = truth.Truth(case, *arrays), results(case, arrays)
    assert exact.part == []
    assert exact.excess(right) <= 1
    for spoil in (1.02, np.nan, np.inf):
        wrong = right.copy()
        wrong[-1, -1, -1, -1] *= spoil
        assert exact.excess(wrong) > 1
    assert exact.excess(right[:-1]) == np.inf
    assert exact.excess(np.roll(right, 1, axis=3)) > 1


@pytest.mark.parametrize("layer", ["c4 k6 r3 s2 p1", "c4 k6 r3 s1 g2 SAME", "c12 k24 r2 s1 g12 VALID"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("whole", [True, False])
def test_whole_numbers_are_right_to_the_last_bit_or_for_peers_to_one_step(layer, dtype, whole, monkeypatch):
    monkeypatch.setattr(truth, "WHOLE_FLOPS", 1e9 if whole else 1e3)
    (case,) = Case.parse(f"n5 h7 w9 {layer} NHWC {dtype}")
    x, w, dy = truth.arrays(case)
    assert (x.dtype, w.dtype) == (np.dtype(dtype), np.int8)
    exact = truth.Truth(case, x, w, dy)
    scale, bias = int8_terms(dy)
    right = convkit.fused_conv2d(
        x, w, bias, conv_scale=scale, activation="relu", algorithm="reference", **case.problem.geometry
    )
    for axis, indices in exact.part:
        right = right.take(indices, axis)
    assert exact.excess(right) == 0
    assert 5 < right.std() < 100
    right = right.astype(np.int16)
    off = right + (np.arange(right.size).reshape(right.shape) % 7 == 0)
    assert 1 < exact.excess(off) <= PEER_SLACK
    assert exact.excess(2 * off - right) > PEER_SLACK


def test_outputs_of_padding_alone_are_zero_exactly():
    (case,) = Case.parse("conv2d n1 h4 w4 c2 k2 r1 s1 p1 NHWC float32")
    arrays = truth.arrays(case)
    exact, right = truth.Truth(case, *arrays), results(case, arrays)
    assert exact.excess(right) <= 1
    right[0, 0, 0, 0] = 1e-30
    assert exact.excess(right) == np.inf


@pytest.mark.parametrize("layer", ["c20 k30 r3 s1", "c20 k40 r3 s2 g10", "c24 k24 r3 s1 g24"])
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_of_a_large_problem_a_part_is_checked(op, layer, monkeypatch):
    monkeypatch.setattr(truth, "WHOLE_FLOPS", 1e3)
    (case,) = Case.parse(f"{op} n5 h8 w6 {layer} SAME NHWC float64")
    arrays = truth.arrays(case)
    exact, right = truth.Truth(case, *arrays), results(case, arrays)
    part = right
    for axis, indices in exact.part:
        part = part.take(indices, axis)
    assert part.size < right.size
    assert exact.excess(part) <= 1
    assert exact.excess(part * 1.001) > 1


# The targets


def record(line, *runs, threads=1, lists=(), **figure):
    """A record of a case whose runs found these ratios."""
    (case,) = Case.parse(line)
    made = [Run(peer="torch", ours=[1.0], theirs=[ratio], **figure) for ratio in runs]
    return Record(case, frozenset(lists), threads, runs=made)


RESNET = "conv2d n1 h56 w56 c64 k64 r3 s1 p1 NHWC float32"


def verdict(records, name, threads=1, flags=frozenset()):
    """The verdict on the target of that name."""
    (found,) = (v for v in targets.judge(records, (threads,), flags) if v.target.name == name)
    return found


def test_the_table_is_that_of_the_goals():
    table = {target.name: (target.least, target.each) for target in targets.TARGETS}
    assert table == {
        "networks, float32, each": (0.95, True),
        "networks, float32, geometric mean": (1.1, False),
        "3x3 and 5x5, C, K >= 64: share of the FMA peak, each": (0.9, True),
        "imaging, geometric mean": (1.0, False),
        "depthwise 3x3: share of the copy bandwidth, each": (0.7, True),
        "depthwise 3x3, geometric mean": (1.5, False),
        "float64, geometric mean": (1.5, False),
        "float16, geometric mean": (4.0, False),
        "bfloat16, geometric mean": (0.95, False),
        "int8, 3x3 and 1x1, each": (0.95, True),
        "int8, C = 3 and 1x1, each": (1.1, True),
        "int8, over TensorFlow's kernel, each": (4.0, True),
        "int8, 3x3 in NCHW over NHWC, each": (0.8, True),
    }


def test_int8_layers_have_targets_by_filter_library_and_layout():
    line = "n1 h56 w56 c64 k64 r3 s1 p1 NHWC int8"
    times = {"convkit": 1.0, "tensorflow-int8": 3.0, "onnxruntime-int8": 0.9}
    nhwc = record(line, 1.0, first_pass=times)
    nchw = record(line.replace("NHWC", "NCHW"), 0.5)
    comparison.pair_layouts([nhwc, nchw])
    found = [nhwc, nchw]
    assert verdict(found, "int8, 3x3 and 1x1, each").met
    assert verdict(found, "int8, over TensorFlow's kernel, each").value == 3.0
    assert not verdict(found, "int8, over TensorFlow's kernel, each").met
    assert verdict(found, "int8, 3x3 in NCHW over NHWC, each").value == 1.0
    assert verdict(found, "int8, C = 3 and 1x1, each").met is None
    first = record("n1 h56 w56 c3 k64 r3 s1 p1 NHWC int8", 1.0)
    assert not verdict([first], "int8, C = 3 and 1x1, each").met
    assert verdict([first], "int8, 3x3 and 1x1, each").met is None


def test_a_problem_misses_when_every_run_is_below():
    name = "networks, float32, each"
    below = record(RESNET, 0.9, 0.8, 0.94, lists=["resnet50"])
    saved = record(RESNET, 0.9, 0.8, 0.96, lists=["vgg16"])
    above = record(RESNET, 1.2, lists=["inception"])
    elsewhere = record(RESNET, 0.5, lists=["odd_channels"])
    found = verdict([below, saved, above, elsewhere], name)
    assert (found.problems, found.value, found.text) == (3, 0.9, "MISSED by 1")
    assert found.missed == (below,)
    assert targets.to_repeat([below, saved, above, elsewhere]) == [below]
    assert verdict([saved, above], name).text == "met"
    assert verdict([below], name, threads=2).text == "not measured"


def test_a_mean_is_geometric_over_the_medians_of_runs():
    records = [record(RESNET, 0.5, lists=["resnet50"]), record(RESNET, 1.0, 2.0, 8.0, lists=["vgg16"])]
    found = verdict(records, "networks, float32, geometric mean")
    assert (found.value, found.text) == (pytest.approx(1.0), "MISSED")
    records.append(record(RESNET, 8.0, lists=["vgg16"]))
    assert verdict(records, "networks, float32, geometric mean").text == "met"


def test_shares_count_where_they_were_measured():
    name = "3x3 and 5x5, C, K >= 64: share of the FMA peak, each"
    records = [record(RESNET, peak_shares=[0.5]), record(RESNET, 1.0, peak_shares=[0.95]), record(RESNET, 1.0)]
    found = verdict(records, name)
    assert (found.problems, found.value, found.text) == (1, 0.95, "met")
    assert not [v for v in targets.judge(records, (2,), frozenset()) if v.target.name == name]
    depthwise = record("conv2d n1 h8 w8 c8 k8 r3 s1 g8 p1 NHWC float32", 2.0, bandwidth_shares=[0.6, 0.65])
    assert verdict([depthwise], "depthwise 3x3: share of the copy bandwidth, each").value == pytest.approx(0.625)
    assert verdict([depthwise], "depthwise 3x3, geometric mean").text == "met"


def test_imaging_counts_for_its_own_target_alone():
    image = record(IMAGE.replace("float32", "float64"), 1.2, lists=["imaging"])
    assert verdict([image], "imaging, geometric mean").text == "met"
    assert verdict([image], "float64, geometric mean").text == "not measured"


def test_bfloat16_has_a_target_where_the_cpu_has_its_products():
    name = "bfloat16, geometric mean"
    records = [record(RESNET.replace("float32", "bfloat16"), 0.5)]
    assert verdict(records, name).text == "this CPU has no avx512_bf16"
    assert verdict(records, name, flags=frozenset({"avx512_bf16"})).text == "MISSED"


# The contestants


def test_contestants_get_no_settings_of_this_shell(monkeypatch):
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "CONVKIT_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS"):
        monkeypatch.setenv(name, "1")
    found = processes.environment(2, {"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert not {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "CONVKIT_NUM_THREADS"} & found.keys()


def test_each_contestant_has_its_file_and_interpreter():
    for contestant in peers.TABLE.values():
        assert (BENCHMARKS / "peers" / f"{contestant.module}.py").is_file()
    found = processes.find([*peers.TABLE], {})
    assert found[peers.OURS] == sys.executable
    assert {"scipy-oaconvolve", "scipy-ndimage"} <= found.keys()
    assert processes.find(["scipy-ndimage"], {"scipy": sys.executable, "": "/nowhere"}) == {
        "scipy-ndimage": sys.executable
    }


@pytest.mark.parametrize(("times", "chosen"), [
    ({}, []),
    ({"jax": 1.0}, ["jax"]),
    ({"torch": 1.1, "jax": 1.0, "opencv": 1.2}, ["jax", "torch"]),
    ({"torch": 1.1, "torch-channels-last": 1.0, "opencv": 1.8, "jax": 1.9}, ["torch-channels-last", "torch", "opencv"]),
    ({"torch": 1.1, "torch-channels-last": 1.0, "opencv": 2.1}, ["torch-channels-last", "torch"]),
    ({"torch": 1.1, "jax": 1.0, "opencv": 1.12, "tensorflow": 1.13}, ["jax", "torch", "opencv"]),
])  # fmt: skip
def test_the_best_peers_of_the_first_pass_are_paired(times, chosen):
    contest = Contest(record(RESNET), {}, None, None, None)
    contest.estimates = {peers.OURS: 0.1, **times}
    assert contest.finalists() == chosen


def test_the_yardstick_measures_or_says_why_not(tmp_path):
    yardstick = Yardstick(tmp_path)
    figures = [
        yardstick.fma("float32", 1), yardstick.fma("float16", 2), yardstick.fma("float64", 1),
        yardstick.copy(1 << 14, 1), yardstick.copy(1 << 22, 2),
    ]  # fmt: skip
    yardstick.stop()
    if yardstick.objection:
        assert figures == [None] * 5
    else:
        assert min(figures) > 0


# The program


def test_it_compares_with_the_peers_that_are_installed(tmp_path):
    lines = [IMAGE, "n1 h6 w7 c4 k4 r3 s1 g4 SAME NCHW float32", "conv2d n2 h6 w7 c3 k5 r3 s2 d2 p2 NHWC bfloat16"]
    paths = tmp_path / "figures.json", tmp_path / "bars.png"
    output, errors = compare("--rounds", 2, "--runs", 1, "--json", paths[0], "--plot", paths[1], *lines)
    content = json.loads(paths[0].read_text())
    cases = [str(case) for line in lines for case in Case.parse(line)]
    assert [(r["problem"], r["threads"]) for r in content["records"]] == [(c, t) for t in (1, 2) for c in cases]
    for one in content["records"]:
        assert re.search(rf"^{re.escape(one['problem'])} +{one['threads']} .*{one['implementation']}", output, re.M)
        (run,) = one["runs"]
        assert len(run["ours"]) == len(run["ratios"] or run["ours"])
        assert (one["ratio"] is None) == (run["peer"] == "")
        assert peers.OURS in run["first_pass"]
    image = content["records"][0]
    assert image["ratio"] > 0
    assert {"scipy-oaconvolve", "scipy-ndimage"} <= image["runs"][0]["first_pass"].keys()
    assert {"float64, geometric mean", "networks, float32, each"} <= {t["name"] for t in content["targets"]}
    assert content["machine"]["contestants"][peers.OURS] == convkit.__version__
    assert paths[1].stat().st_size > 1000
    assert "round 2 of" in errors
    assert "workspace: at most" in output


def test_quick_takes_a_little_of_each_list_and_ends_in_time(tmp_path):
    output, _ = compare("--quick", "--seconds", 1, "--threads", 1, "--peers", "--json", tmp_path / "figures.json")
    records = json.loads((tmp_path / "figures.json").read_text())["records"]
    assert 1 <= len(records) < len(LISTS["quick"])
    assert "no peer" in output
    assert f"not reached: {len(LISTS['quick']) - len(records)} problems" in output


def test_a_problem_below_its_target_runs_three_times(tmp_path):
    line = "conv2d n1 h9 w9 c64 k64 r3 s1 p1 NHWC float32"
    slow = patched(
        tmp_path,
        "import time, convkit\nright = convkit.conv2d\n"
        "def conv2d(*a, **k):\n    time.sleep(0.01)\n    return right(*a, **k)\nconvkit.conv2d = conv2d\n",
    )
    path = tmp_path / "figures.json"
    output, _ = compare("--rounds", 1, "--threads", 1, "--peers", "--json", path, "--", line, PYTHONPATH=slow)
    (found,) = json.loads(path.read_text())["records"]
    if found["peak_share"] is None:  # no yardstick here, and so no target to be below
        assert len(found["runs"]) == 1
    else:
        assert len(found["runs"]) == targets.RUNS
        assert re.search(rf"below 0\.9 \(peak_share, 3 runs\): 0\.\d\d  {line}", output)
        assert "MISSED by 1" in output


def test_a_wrong_result_of_convkit_is_the_exit_status(tmp_path):
    path = patched(
        tmp_path, "import convkit\nright = convkit.conv2d\nconvkit.conv2d = lambda *a, **k: right(*a, **k) * 1.001\n"
    )
    output, errors = compare("--threads", 1, "--runs", 1, "--peers", "--", IMAGE, status=1, PYTHONPATH=path)
    assert re.search(rf"{re.escape(IMAGE)}, 1 threads: failed: wrong: off by \d+", errors)
    assert not re.search(r"^(networks|imaging).* (met|MISSED)", output, re.M)


@pytest.mark.parametrize(("body", "reason"), [
    ("return right(*a, **k) * 1.001", "wrong: off by"),
    ("os._exit(3)", "the process ended"),
    ("time.sleep(60)", "no answer within"),
    ("raise MemoryError('none left')", "MemoryError: none left"),
])  # fmt: skip
def test_a_peer_that_fails_is_left_out_and_named(body, reason, tmp_path):
    path = patched(
        tmp_path,
        "import os, time\nfrom scipy import ndimage\nright = ndimage.correlate\n"
        f"def correlate(*a, **k):\n    {body}\nndimage.correlate = correlate\n",
    )
    names = ["scipy-ndimage", "scipy-oaconvolve"]
    output, _ = compare("--threads", 1, "--rounds", 1, "--runs", 1, "--peers", *names, "--", IMAGE, PYTHONPATH=path)
    assert re.search(rf"^scipy-ndimage failed: {reason}.*{re.escape(IMAGE)}, 1 threads$", output, re.M)
    assert re.search(rf"^{re.escape(IMAGE)} .*scipy-oaconvolve", output, re.M)


def test_help_names_every_option_and_the_exit_status():
    output, _ = compare("--help")
    for word in ("lists", "threads", "peers", "python", "rounds", "runs", "quick", "seconds", "json", "plot"):
        assert f"--{word}" in output
    assert "Exit status" in output
