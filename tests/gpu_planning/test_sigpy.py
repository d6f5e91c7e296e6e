"""sigpy itself, unchanged: its GPU convolutions through `convkit.compat` against its own on the CPU.

CuPy's stand-in takes the place of a GPU.  Needs sigpy, which brings numba with it.
"""

import json
import sys
import warnings
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import gpu_checks.compat
import record_sigpy
import standin
from child import run_python
from gpu_checks.findings import RIGHT
from gpu_checks.session import Session
from record_sigpy import TARGET

from convkit import clear_caches, compat


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, with what sigpy takes from CuPy besides."""
    with standin.installed():
        import cupy

        # sigpy makes kernels of its own when it is imported, none of them for convolutions.
        monkeypatch.setattr(cupy, "ElementwiseKernel", lambda *source, **names: None, raising=False)
        monkeypatch.setattr(cupy, "expand_dims", lambda array, axis: array[..., None], raising=False)
        monkeypatch.setattr(cupy, "real", lambda array: array.real, raising=False)
        monkeypatch.setattr(cupy, "imag", lambda array: array.imag, raising=False)
        monkeypatch.setattr(cupy.ndarray, "conj", lambda array: cupy.asarray(array.get().conj()), raising=False)
        yield cupy
        compat.uninstall()
        for name in [name for name in sys.modules if name.split(".")[0] == "sigpy"]:
            del sys.modules[name]
        clear_caches()


def import_sigpy():
    """Import it as a user does, without what it says of other packages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sigpy import config

    return config


def test_its_convolutions_and_adjoints_are_those_of_the_cpu(cupy):
    compat.install()
    assert import_sigpy().cudnn_enabled
    finding = gpu_checks.compat.sigpy(Session(cupy, golden=0, random=0))
    assert finding.state == RIGHT and finding.compared == 3 * 3 * 4 * 2 * 2, finding.failures


def test_volumes_are_refused_in_a_sentence(cupy):
    compat.install()
    import_sigpy()
    from sigpy import conv

    with pytest.raises(NotImplementedError, match="as for a 3-D convolution, which convkit does not have yet"):
        conv.convolve(cupy.zeros((4, 4, 4), "f"), cupy.zeros((2, 2, 2), "f"))


def test_imported_too_early_it_is_named_with_the_order(cupy):
    assert not import_sigpy().cudnn_enabled
    with pytest.raises(RuntimeError, match=r"sigpy is already imported, .* import sigpy after it"):
        compat.install()


def test_it_calls_as_it_was_recorded(cupy):
    compat.install()
    import_sigpy()
    assert record_sigpy.record() == json.loads(TARGET.read_text(encoding="utf-8"))


def test_beside_the_real_cupy_which_needs_no_gpu_to_be_imported():
    told, enabled = run_python(
        """
        import warnings
        warnings.simplefilter("ignore")
        import convkit
        print(convkit.compat.install())
        import cupy, sigpy
        print(cupy.cudnn.convolution_forward is sigpy.conv.cudnn.convolution_forward, sigpy.config.cudnn_enabled)
        """
    ).splitlines()
    assert told.startswith("convkit serves cupy.cudnn, cupyx.cudnn, cupy.cuda.cudnn of CuPy 14")
    assert enabled == "True True"
