"""The C drivers of the engine but its pool, plain and under the sanitizers, without Python in the process."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent / "c" / "Makefile"
DRIVERS = (
    "test_convert test_patches test_product test_filter_gradient test_scatter test_dot test_direct "
    "test_direct_gradient test_depthwise test_planar test_pairs test_int8_kernels test_int8 test_winograd"
)


@pytest.mark.slow  # to compile: two of the files take half a minute each
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["plain", "sanitized", "tsan"])
def test_engine_drivers(kind: str, tmp_path: Path) -> None:
    """Every driver passes; its output is the message of a failure."""
    for tool in ("gcc", "make"):
        assert shutil.which(tool), f"{tool} is needed to test csrc/"
    done = subprocess.run(
        [
            "make",
            f"-j{os.cpu_count()}",
            "-O",
            "-f",
            str(MAKEFILE),
            "CC=gcc",
            f"BUILD={tmp_path}",
            f"DRIVERS={DRIVERS}",
            f"run-{kind}",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" passed, 0 failed") == len(DRIVERS.split())
