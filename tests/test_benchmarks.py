"""The benchmarks run, check their results, and print their tables; what they measure is nobody's test."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child import environment

import convkit

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")


def run_benchmark(name, *arguments, status=0, **extra):
    """Runs a benchmark to its end, checks its exit status, and returns what it printed on both streams."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *map(str, arguments)],
        env=environment(**extra), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def figures(path):
    """What a benchmark wrote as JSON, by name; checks that each figure is that of its rounds."""
    record = json.loads(path.read_text())
    assert record["machine"]["convkit"] == convkit.__version__
    for figure in record["figures"]:
        assert min(figure["ratios"]) <= figure["median"] <= max(figure["ratios"])
    return {figure["name"]: figure for figure in record["figures"]}


def test_im2col_compares_every_operation_in_both_layouts(tmp_path):
    output, errors = run_benchmark("im2col.py", "--quick", "--json", tmp_path / "figures.json")
    rows = re.findall(r"^n1 h14 .* (NHWC|NCHW) float32  (\w+)  ([12]) +\d+\.\d\d .*GFLOP/s", output, re.M)
    assert rows == [(layout, op, threads) for threads in "12" for layout in ("NHWC", "NCHW") for op in OPS]
    assert len(figures(tmp_path / "figures.json")) == 12
    assert "round 2 of 2" in errors


def test_im2col_takes_problems_and_threads():
    line = "n2 h9 w7 c5 k3 r2 s2 SAME_LOWER NCHW float64"
    output, errors = run_benchmark("im2col.py", "--rounds", 1, "--threads", 1, "--", line, OPENBLAS_CORETYPE="Haswell")
    assert [row.split("  ")[1] for row in output.splitlines() if row.startswith(line)] == list(OPS)
    assert "OPENBLAS_CORETYPE is set" in errors


@pytest.mark.parametrize(
    "line", ["n1 h2", "n1 h9 w9 c1 k1 r3 s1 same NHWC float32", "n1 h9 w9 c1 k1 r3 s1 SAME NHWC int8"]
)
def test_another_line_is_no_problem(line):
    _, errors = run_benchmark("im2col.py", line, status=2)
    assert f"{line!r} is not of the form" in errors


def test_threads_measures_each_case(tmp_path):
    output, errors = run_benchmark("threads.py", "--quick", "--json", tmp_path / "figures.json")
    found = figures(tmp_path / "figures.json")
    for start in ("8 user threads", "2 callers at once", *(f"tiny {op}:" for op in OPS)):
        assert sum(name.startswith(start) for name in found) == 1
        assert re.search(rf"^{start}.* \d+\.\d\d ", output, re.M)
    waits = json.loads((tmp_path / "figures.json").read_text())["hand_over"]
    assert {wait["caller"] for wait in waits} == {"busy", "asleep"}
    assert "round 2 of 2" in errors


@pytest.mark.parametrize("name", ["im2col.py", "threads.py"])
def test_a_wrong_result_ends_a_benchmark(name, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import convkit\nright = convkit.conv2d\nconvkit.conv2d = lambda *a, **k: right(*a, **k) * 1.001\n"
    )
    path = environment()["PYTHONPATH"]
    output, errors = run_benchmark(name, "--quick", status=1, PYTHONPATH=f"{tmp_path}:{path}")
    assert re.search(r"conv2d of n1 .* is wrong: .* off", errors)
    assert "median" not in output


@pytest.mark.parametrize("name", ["im2col.py", "threads.py"])
def test_help_names_every_option_and_the_exit_status(name):
    output, _ = run_benchmark(name, "--help")
    for word in ("--quick", "--json", "--rounds", "--threads", "problem", "Exit status"):
        assert word in output


def test_selection_times_every_family_that_can_serve():
    line = "n1 h9 w9 c8 k16 r3 s1 SAME NHWC float32"
    output, errors = run_benchmark("selection.py", "--all", "--rounds", 1, "--threads", 1, "--", line)
    found = re.findall(r"^(\d\.\d\d)  (\w+) selected, (\w+) is best  (\w+) n1 h9", output, re.M)
    assert [op for *_, op in found] == list(OPS)
    for ratio, selected, best, _ in found:
        assert 0 < float(ratio) <= 1 and {selected, best} <= {"winograd", "direct", "im2col", "fft"}
        assert selected != best or float(ratio) == 1.0
    assert "3 problems, " in output and "[3/3]" in errors


def test_selection_names_a_family_that_should_have_been_selected(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "from convkit._cpu.families import Direct\nfrom convkit._cpu.winograd import Winograd\n"
        "Direct.reluctance = Winograd.reluctance = lambda *a: 'a test says so'\n"
    )
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    line = "conv2d n1 h28 w28 c64 k64 r3 s1 SAME NHWC float32"
    output, _ = run_benchmark("selection.py", "--threads", 1, "--all", "--", line, PYTHONPATH=path)
    assert re.search(r"^\d\.\d\d  im2col selected, ", output, re.M)
