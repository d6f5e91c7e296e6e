"""Runs a small program in a fresh interpreter, which imports the same convkit and test helpers as the tests."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import convkit

TESTS = Path(__file__).resolve().parent
_PATH = os.pathsep.join([str(Path(convkit.__file__).resolve().parents[1]), str(TESTS)])
# Set by a user or a CI job, these would change what the tests look at.
_OURS = ("CONVKIT_", "OMP_", "OPENBLAS_", "MKL_")


def environment(**extra):
    """The environment of a child: this one without any thread or convkit setting, plus `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**kept, "PYTHONPATH": _PATH, **extra}


def start_python(program, *arguments, **extra):
    """Starts `program`; its output is unbuffered text."""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", textwrap.dedent(program), *map(str, arguments)],
        env=environment(**extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run_python(program, *arguments, timeout=120, **extra):
    """Runs `program` to its end, checks that it ended well, and returns what it printed."""
    process = start_python(program, *arguments, **extra)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{output}\n{errors}") from None
    assert process.returncode == 0, f"exit status {process.returncode}\n{output}\n{errors}"
    return output.strip()
