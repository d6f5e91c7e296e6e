"""The examples run, print what they promise, and fail when it is not true."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child import environment

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run_example(name, *arguments, status=0, **extra):
    """Runs an example to its end, checks its exit status, and returns what it printed on both streams."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        env=environment(**extra), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def accuracy(output):
    return float(re.search(r"^test accuracy (\d+\.\d+)% \(\d+ of 360 images\)$", output, re.M)[1])


def learned(output):
    """The three lines that must not depend on the number of threads."""
    return re.findall(r"^(?:test accuracy|learned parameters|float32 accuracy) .*$", output, re.M)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What `digits.py --quick` printed on one thread, and its picture."""
    picture = tmp_path_factory.mktemp("digits") / "new" / "digits.png"
    output, _ = run_example("digits.py", "--quick", "--output", picture, CONVKIT_NUM_THREADS="1")
    return output, picture


def test_digits_learns_and_shows_its_progress(quick):
    output, _ = quick
    lines = re.findall(r"^epoch +\d+/4   loss (\d\.\d+)   train accuracy +\d+\.\d+%   \d+\.\d+ s$", output, re.M)
    losses = [float(loss) for loss in lines]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert accuracy(output) >= 90
    assert re.search(r"^total time \d+\.\d s$", output, re.M)


def test_digits_reads_as_well_in_int8(quick):
    output, _ = quick
    both = re.search(
        r"^float32 accuracy (\d+\.\d+)%, int8 accuracy (\d+\.\d+)% \(([0-2]) of 360 images apart\)$", output, re.M
    )
    assert float(both[1]) == accuracy(output)
    assert round(abs(float(both[1]) - float(both[2])) * 3.6) == int(both[3])
    weights = re.search(r"^float32 weights (\d+) bytes, int8 weights (\d+) bytes$", output, re.M)
    floats, integers = map(int, weights.groups())
    assert 3.8 * integers < floats < 4 * integers
    assert re.search(r"^convolutions of 256 images: float32 \d+\.\d\d ms, int8 \d+\.\d\d ms$", output, re.M)


def test_digits_draws_a_picture(quick):
    output, picture = quick
    assert f"picture {picture}" in output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("setting", ["environment", "argument"])
def test_digits_prints_the_same_on_any_number_of_threads(quick, setting, tmp_path):
    extra = {"CONVKIT_NUM_THREADS": "2"} if setting == "environment" else {}
    arguments = [] if setting == "environment" else ["--threads", 3]
    output, _ = run_example("digits.py", "--quick", "--output", tmp_path / "digits.png", *arguments, **extra)
    assert len(learned(output)) == 3
    assert learned(output) == learned(quick[0])


def test_digits_fails_below_its_accuracy(tmp_path):
    output, errors = run_example("digits.py", "--epochs", 1, "--output", tmp_path / "digits.png", status=1)
    assert accuracy(output) < 98
    assert "the test accuracy is below 98%" in errors


@pytest.mark.slow
def test_digits_reaches_98_percent_with_every_precision(tmp_path):
    """And reads as many images but for two."""
    found = []
    for precision in ("high", "default", "fast"):
        output, _ = run_example("digits.py", "--precision", precision, "--output", tmp_path / "digits.png")
        found.append(accuracy(output))
    assert min(found) >= 98
    assert round((max(found) - min(found)) * 3.6) <= 2


def test_digits_learns_other_bits_with_high_precision(quick, tmp_path):
    """So that the comparison above is not one of a precision with itself."""
    output, _ = run_example("digits.py", "--quick", "--precision", "high", "--output", tmp_path / "digits.png")
    assert accuracy(output) >= 90
    assert learned(output)[1] != learned(quick[0])[1]


def test_batch_gives_the_same_bits_in_flat_memory(tmp_path):
    output, errors = run_example("batch.py", "--images", 10, "--size", 96, "--directory", tmp_path)
    for way in ("one call after the other", "8 user threads", "2 processes"):
        assert re.search(rf"^{way}: \d+\.\d s, \d+\.\d images/s, \d+\.\d megapixels/s$", output, re.M)
        assert f"{way}: 10 of 10 images" in errors
    hashes = re.findall(r"^  sha256: .*$", output, re.M)
    assert len(hashes) == 3
    assert len(set(hashes)) == 1
    assert len(re.findall(r"^  memory grew by \d+ MiB at most \(allowed: \d+ MiB\)$", output, re.M)) == 3
    assert output.endswith("bits: the same three times; memory: flat\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("hashes", "peak", "verdict", "status"),
    [
        ("aaa", 0, "bits: the same three times; memory: flat", 0),
        ("aba", 0, "bits: DIFFERENT; memory: flat", 1),
        ("aab", 0, "bits: DIFFERENT; memory: flat", 1),
        ("aaa", 2**40, "bits: the same three times; memory: NOT FLAT", 1),
    ],
)
def test_batch_fails_when_its_promise_is_broken(hashes, peak, verdict, status, monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    batch = importlib.import_module("batch")
    results = iter(hashes)
    monkeypatch.setattr(batch, "do_stack", lambda *way: (next(results), peak))
    monkeypatch.setattr(sys, "argv", ["batch.py", "--images", "1", "--size", "8", "--directory", str(tmp_path)])
    assert batch.main() == status
    assert capsys.readouterr().out.splitlines()[-1] == verdict


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits.py", ["--epochs", "--seed", "--threads", "--precision", "--output", "--quick"]),
        ("batch.py", ["--images", "--size", "--directory"]),
    ],
)
def test_help_names_every_option_and_the_exit_status(name, options):
    output, _ = run_example(name, "--help")
    for word in [*options, "Exit status"]:
        assert word in output


@pytest.mark.parametrize(("name", "option"), [("digits.py", "--epochs"), ("batch.py", "--images")])
def test_a_count_of_zero_is_refused(name, option):
    _, errors = run_example(name, option, 0, status=2)
    assert f"argument {option}: invalid positive value: '0'" in errors
