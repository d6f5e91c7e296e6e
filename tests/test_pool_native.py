"""The C drivers of the thread pool, plain and under the sanitizers, without Python in the process."""

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent / "c" / "Makefile"


@pytest.mark.parametrize("kind", ["plain", "sanitized", "tsan"])
def test_pool_driver(kind: str, tmp_path: Path) -> None:
    """Every driver in tests/c passes; its output is the message of a failure."""
    for tool in ("gcc", "make"):
        assert shutil.which(tool), f"{tool} is needed to test csrc/"
    done = subprocess.run(
        ["make", "-f", str(MAKEFILE), "CC=gcc", f"BUILD={tmp_path}", "DRIVERS=test_pool", f"run-{kind}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert " passed, 0 failed" in done.stdout
