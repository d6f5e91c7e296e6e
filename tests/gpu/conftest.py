"""Fixtures of the GPU tests: a stand-in for CuPy wherever there is no GPU."""

import harness
import int8_cases
import on_gpu
import pytest
import standin

from convkit import clear_caches
from convkit._gpu import access, machine, memory


def forget_gpu() -> None:
    """Forget whatever convkit keeps of CuPy and of GPUs."""
    clear_caches()
    for module in (memory, machine, access):
        module.forget()


@pytest.fixture
def world(request):
    """CuPy's stand-in, installed; the value is what it does not show: cards, memory, log.

    ``@pytest.mark.parametrize("world", [{"version": "13.6.0"}], indirect=True)`` gives it other settings.
    """
    forget_gpu()
    with standin.installed(**getattr(request, "param", {})) as world:
        yield world
        forget_gpu()


@pytest.fixture
def cupy(world):
    """The module that ``import cupy`` finds."""
    import cupy

    return cupy


@pytest.fixture
def gpu(cupy, monkeypatch):
    """The public operations on the GPU, for arrays of NumPy; the helpers of the CPU's tests use them, too."""
    module = on_gpu.module()
    for helper in (harness, int8_cases):
        monkeypatch.setattr(helper, "convkit", module)
    return module
