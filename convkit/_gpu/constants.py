"""Scales and biases in the form that plans take: dense vectors on the device."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np

from . import access, layout, memory
from .arrays import Array

# The one operation that has scales and biases.
OP = "fused_conv2d"

# Single numbers that are kept on devices: a network has some dozens of scales.
MOST_KEPT = 1024

_kept: OrderedDict[tuple[int, str, bytes], Array] = OrderedDict()
_lock = Lock()


def forget() -> None:
    """Give the kept numbers back."""
    with _lock:
        _kept.clear()


def vector(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return numbers, on the host or on the current device, as a dense vector there.

    Parameters
    ----------
    value : float, numpy.ndarray or cupy.ndarray
        One number, or one per output channel.
    dtype : dtype
        What the epilogue computes with.
    """
    cupy = access.cupy()
    if isinstance(value, cupy.ndarray):
        return _dense(value.reshape(-1), dtype)
    with np.errstate(all="ignore"):
        numbers = np.atleast_1d(np.asarray(value)).astype(dtype)
    return cupy.asarray(numbers) if numbers.size > 1 else _one(numbers)


def _dense(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return a vector as it is, or converted by the project's own kernel, which knows every dtype on any CuPy."""
    if value.dtype == dtype and value.flags.c_contiguous:
        return value
    made = memory.scratch(OP, value.size * dtype.itemsize).view(dtype)
    layout.copy(value, made)
    return made


def _one(number: Any) -> Array:
    """Return a vector of one number, which is read only."""
    key = access.current_device(), number.dtype.name, number.tobytes()
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    # Made by a kernel, which a captured stream records; a copy from the host would end the capture.
    made = memory.scratch(OP, number.nbytes).view(number.dtype)
    made.fill(number[0])
    if access.is_capturing():
        return made
    # Other streams will read it, too.
    access.cupy().cuda.get_current_stream().synchronize()
    with _lock:
        _kept[key] = made
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return made
