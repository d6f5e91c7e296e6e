"""The one door to CuPy: whether it can be used, the current device and stream, and its errors in convkit's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .._errors import BackendError, ConvkitError, WorkspaceError

# The first major version whose arrays, streams and raw kernels are as this package uses them.
OLDEST = 13
INSTALL = "the extras cuda12 and cuda13 of convkit-kernels bring it, as in: pip install '.[cuda12]'"

_cupy: Any = None


def cupy() -> Any:
    """Return the module ``cupy``, once it is known that it can compute.

    Raises
    ------
    BackendError
        If CuPy is absent, broken, too old or built for other GPUs, or if there is no driver or no GPU.
    """
    global _cupy
    if _cupy is None:
        _cupy = _checked()
    return _cupy


def imported() -> Any:
    """Return the module ``cupy`` of a version that is supported, whether or not there is a GPU.

    Raises
    ------
    BackendError
        If CuPy is absent, broken or too old.
    """
    try:
        import cupy as module
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            raise BackendError(f"convkit: CuPy is not installed, which GPU arrays come from; {INSTALL}") from error
        raise BackendError(f"convkit: CuPy cannot be imported: {error!s:.300}") from error
    except Exception as error:
        raise BackendError(f"convkit: CuPy cannot be imported: {type(error).__name__}: {error!s:.300}") from error
    version = str(getattr(module, "__version__", ""))
    if not version.split(".")[0].isdigit() or int(version.split(".")[0]) < OLDEST:
        raise BackendError(f"convkit: CuPy is version {version or 'unknown'}, but must be at least {OLDEST}; {INSTALL}")
    return module


def _checked() -> Any:
    module = imported()
    version = module.__version__
    if module.cuda.runtime.is_hip:
        raise BackendError("convkit: CuPy is built for ROCm, but only NVIDIA GPUs are supported")
    try:
        count = module.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise BackendError(f"convkit: CuPy {version} finds no usable driver or GPU ({error!s:.200})") from error
    if count == 0:
        raise BackendError(f"convkit: CuPy {version} finds no GPU")
    return module


def forget() -> None:
    """Look for CuPy again at the next call."""
    global _cupy
    _cupy = None


def device_count() -> int:
    """Return how many GPUs there are."""
    count: int = cupy().cuda.runtime.getDeviceCount()
    return count


def current_device() -> int:
    """Return the calling thread's current device."""
    device: int = cupy().cuda.runtime.getDevice()
    return device


def on_device(device: int) -> AbstractContextManager[Any]:
    """Return a context in which a device is the current one."""
    context: AbstractContextManager[Any] = cupy().cuda.Device(device)
    return context


def current_stream() -> int:
    """Return the address of the calling thread's current stream on the current device; 0 is the default stream."""
    pointer: int = cupy().cuda.get_current_stream().ptr
    return pointer


def is_capturing() -> bool:
    """Tell whether the current stream is being captured into a graph, when nothing may wait or call cuBLAS."""
    runtime = cupy().cuda.runtime
    capturing: bool = runtime.streamIsCapturing(current_stream())
    return capturing


def translated(op: str, what: object, error: Exception) -> Exception:
    """Return what to raise for an error that came out of CuPy or a library under it.

    Parameters
    ----------
    op : str
        The operation that starts the message.
    what : object
        What was computed, such as the geometry.
    error : Exception
        Errors of memory become WorkspaceError, those of CUDA, its libraries and its compiler BackendError; convkit's
        own errors, and all others, which are faults in convkit, stay what they are.
    """
    if isinstance(error, ConvkitError):
        return error
    told = f"{type(error).__name__}: {error!s:.500}"
    if isinstance(error, MemoryError):
        return WorkspaceError(f"{op}: the GPU's memory is used up ({told}) in {what}")
    if isinstance(error, RuntimeError) or type(error).__name__ == "CompileException":
        return BackendError(f"{op}: the GPU failed ({told}) in {what}")
    return error


@contextmanager
def failures(op: str, what: object) -> Iterator[None]:
    """Raise what comes out of CuPy, or of a library under it, as `translated` says it."""
    try:
        yield
    except Exception as error:
        told = translated(op, what, error)
        if told is error:
            raise
        raise told from error
