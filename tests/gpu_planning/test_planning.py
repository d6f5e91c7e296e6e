"""cuDNN's own planner, without a device, has plans for what convkit asks for: `make test-gpu-planning`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
GROUPS = [
    *(["every_geometry", layers, dtype] for layers in ("golden", "resnet50") for dtype in
      ("float16", "bfloat16", "float32", "float64", "int8")),
    ["other_results"],
    ["whole_epilogues"],
    ["filters"],
    ["tuning"],
    ["facts"],
    *(["cards", sm] for sm in ("75", "80", "89", "100", "120")),
]  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("words", GROUPS, ids="-".join)
def test_the_planner_has_what_is_asked_for(words):
    """A group that ends the process is a failed test, and no more."""
    command = [sys.executable, str(HERE / "asking.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    report = json.loads(done.stdout.splitlines()[-1])
    print(report["asked"], "answers in", report["seconds"], "s")
    assert report["asked"] > 0
    assert not report["wrong"], "\n".join([f"{len(report['wrong'])} of {report['asked']}:", *report["wrong"][:20]])
