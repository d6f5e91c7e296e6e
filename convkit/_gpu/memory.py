"""Memory on the GPU: results and scratch from CuPy's pool, in stream order.

What is freed goes back to the pool, which hands it to later work of the same stream; nothing ever waits for the device.
While a stream is being captured no work runs yet, but all of it runs again whenever the graph is launched, long after
the call.  Scratch of a captured call is therefore kept until `forget` is called (by `clear_caches`).  The pool may have
to ask CUDA for memory, which not every mode of capture allows: a call made once before the capture leaves the pool with
what it needs.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from .._errors import WorkspaceError
from . import access
from .machine import GpuMachine

# What CuPy's pool, and CUDA itself, align to; other allocators that a user may have set need not.
ALIGNMENT = 256
MOST_DEFAULT = 2**30
# The part of a GPU's memory that one call may take as scratch by default.
DEFAULT_PART = 10

_captured: list[Any] = []
_lock = threading.Lock()


def default_limit(machine: GpuMachine) -> int:
    """Return the workspace limit where nobody has set one: 1 GiB, or a tenth of the GPU's memory if that is less."""
    return min(MOST_DEFAULT, machine.memory // DEFAULT_PART)


def new(op: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return a new array on the current device without values, or raise WorkspaceError."""
    need = math.prod(shape) * dtype.itemsize
    try:
        return access.cupy().ndarray(shape, dtype)
    except MemoryError as error:
        raise WorkspaceError(
            f"{op}: the result has shape {shape} and dtype {dtype.name} and takes {need} bytes, which the GPU cannot "
            f"hold ({error!s:.200})"
        ) from error


def scratch(op: str, nbytes: int) -> Any:
    """Return bytes of scratch memory on the current device, as a vector of uint8, or raise WorkspaceError.

    It is free again when nobody holds it, in the order of the current stream, on which alone it may be used.
    """
    cupy = access.cupy()
    try:
        whole = cupy.ndarray((nbytes,), np.uint8)
        first = -whole.data.ptr % ALIGNMENT
        if first:
            whole = cupy.ndarray((nbytes + ALIGNMENT,), np.uint8)
            first = -whole.data.ptr % ALIGNMENT
    except MemoryError as error:
        raise WorkspaceError(
            f"{op}: {nbytes} bytes of scratch memory cannot be had on the GPU ({error!s:.200})"
        ) from error
    if access.is_capturing():
        with _lock:
            _captured.append(whole)
    return whole[first : first + nbytes] if first else whole


def clear(array: Any) -> None:
    """Fill an array with zeros, whatever its dtype and strides.

    CuPy's own kernels know bfloat16 from version 14 on, and no byte-swapped dtypes at all; zero bits are zero in all.
    """
    array.view(np.dtype(f"u{array.dtype.itemsize}")).fill(0)


def forget() -> None:
    """Give back the scratch memory of captured calls; their graphs must not be launched any more."""
    with _lock:
        _captured.clear()
