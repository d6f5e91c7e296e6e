"""On a machine with a GPU, `pytest -m gpu`: the checks of tools/gpu_check.py, one test each, without the timings."""

import sys
from pathlib import Path

import pytest

import convkit

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import gpu_check
from gpu_checks.findings import NOT_RUN, RIGHT
from gpu_checks.session import Session

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def session():
    """The first GPU, and everything to be checked on it."""
    found = convkit.gpu_info()
    if not found["available"]:
        pytest.skip(f"there is no GPU to run this on: {found['reason']}")
    import cupy

    with cupy.cuda.Device(0):
        yield Session(cupy, gpu_check.GOLDEN, gpu_check.RANDOM)


@pytest.mark.parametrize("check", (*gpu_check.RESULTS, *gpu_check.BEHAVIOUR), ids=lambda check: check.__name__)
def test_check(session, check):
    finding = check(session)
    if finding.state == NOT_RUN:
        pytest.skip(finding.detail)
    assert finding.state == RIGHT, "\n".join(finding.failures)
    assert finding.compared
