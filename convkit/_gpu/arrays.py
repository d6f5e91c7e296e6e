"""CuPy arrays at the door: what is accepted, on which device, and how it lies in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .._arguments import is_a
from .._arrays import Form, is_cuda, shares_memory, type_name
from .._errors import ArgumentError, ArgumentTypeError, DTypeError, UnsupportedError
from . import access

# Pointers below this alignment cost a library most of its kernels.
ALIGNMENT = 16

Array = Any
Named = tuple[str, Array]


def check_one_kind(op: str, values: Sequence[tuple[str, Any]]) -> None:
    """Raise if NumPy arrays are mixed with arrays on a GPU; needs no CuPy to say so."""
    on_cpu = next((pair for pair in values if is_a(pair[1], np.ndarray) and pair[1].ndim), None)
    if on_cpu is None:
        return
    on_gpu = next((pair for pair in values if is_cuda(pair[1])), None)
    if on_gpu:
        (host, array), (role, other) = on_cpu, on_gpu
        raise ArgumentTypeError(
            f"{op}: {host} is of type {type_name(array)}, on the CPU, but {role} is of type {type_name(other)}, on a "
            f"GPU; all arrays must be on one device, so copy one, e.g. cupy.asarray({host})"
        )


def as_gpu(op: str, role: str, value: Any) -> Array:
    """Return ``value`` if it is a CuPy array; nothing is ever copied to a GPU unasked.

    Raises
    ------
    ArgumentTypeError
        For arrays on the CPU, and for those of other libraries.
    DTypeError
        For bytes in the order of other machines.
    UnsupportedError
        For strides that are no whole numbers of elements.
    """
    if is_a(value, access.cupy().ndarray):
        if not value.dtype.isnative:
            raise DTypeError(
                f"{op}: {role} has dtype {value.dtype.str}, whose bytes are in the order of other machines; GPUs read "
                "their own order only, so convert it on the CPU"
            )
        if any(size > 1 and step % value.itemsize for size, step in zip(value.shape, value.strides, strict=True)):
            raise UnsupportedError(
                f"{op}: {role} has strides {value.strides}, which are no multiples of its {value.itemsize} bytes per "
                "element; GPUs read whole elements only, so copy it first"
            )
        return value if type(value) is access.cupy().ndarray else value.view(access.cupy().ndarray)
    if hasattr(type(value), "__cuda_array_interface__"):
        raise ArgumentTypeError(
            f"{op}: {role} is of type {type_name(value)}, an array on a GPU, but must be a cupy.ndarray; "
            f"cupy.asarray({role}) makes one of it without copying"
        )
    raise ArgumentTypeError(
        f"{op}: {role} is of type {type_name(value)}, but must be a cupy.ndarray, since other arguments are on a GPU"
    )


def as_gpu_out(op: str, out: Any) -> Array:
    """Return ``out`` if it is a CuPy array."""
    if is_a(out, access.cupy().ndarray):
        return as_gpu(op, "out", out)
    raise ArgumentTypeError(
        f"{op}: out is of type {type_name(out)}, but must be a cupy.ndarray, since the inputs are on a GPU"
    )


def form_of(array: Array) -> Form:
    """Return how an array lies in memory; aligned means that its address is a multiple of 16."""
    return array.shape, array.strides, array.dtype, array.data.ptr % ALIGNMENT == 0


def one_device(op: str, arrays: Iterable[Named]) -> int:
    """Return the device that all arrays are on.

    Raises
    ------
    ArgumentError
        If they are on several.
    """
    first_role, device = "", -1
    for role, array in arrays:
        here: int = array.data.device_id
        if device < 0:
            first_role, device = role, here
        elif here != device:
            raise ArgumentError(
                f"{op}: {role} is on device {here}, but {first_role} is on device {device}; all arrays must be on one "
                "device"
            )
    return device


class _Place:
    """Where a device array lies, in the words of NumPy's array interface."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.dtype.itemsize}",
            "data": (array.data.ptr, False),
            "version": 3,
        }


def overlap(a: Array, b: Array) -> bool:
    """Tell whether two arrays of one device have a byte in common."""
    if not a.size or not b.size:
        return False
    if a.flags.c_contiguous and b.flags.c_contiguous:
        first, second = a.data.ptr, b.data.ptr
        return bool(first < second + b.nbytes and second < first + a.nbytes)
    # NumPy compares addresses and strides, and reads nothing of what is there.
    return shares_memory(np.asarray(_Place(a)), np.asarray(_Place(b)))


def check_overlap(op: str, out: Array, inputs: Iterable[Named]) -> None:
    """Raise if ``out`` has a byte in common with an input."""
    for role, array in inputs:
        if overlap(out, array):
            raise ArgumentError(f"{op}: out shares memory with {role}, but must not overlap any input")


def same_place(a: Array, b: Array) -> bool:
    """Tell whether two arrays are the same elements of memory."""
    same: bool = a.data.ptr == b.data.ptr and a.shape == b.shape and a.strides == b.strides and a.dtype == b.dtype
    return same
