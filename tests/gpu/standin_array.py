"""CuPy's array over the stand-in's memory, and the functions that make and copy arrays.

It has what convkit and its tests use, and refuses what CuPy refuses: becoming a NumPy array unasked, meeting arrays of
NumPy or of another device, dtypes that its kernels do not know.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from standin_device import WORLD, CUDARuntimeError, Device, MemoryPointer, alloc, current_stream

KNOWN = "?bBhHiIlLqQefdFD"


def _check_elementwise(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype that CuPy's own kernels know; bfloat16 since CuPy 14."""
    known = dtype.char in KNOWN or (dtype.name == "bfloat16" and WORLD.major >= 14)
    if not known or not dtype.isnative:
        raise TypeError(f"Unsupported dtype {dtype}")
    return dtype


def _contiguous_strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    strides, step = [], itemsize
    for size in shape if order == "F" else reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(strides if order == "F" else reversed(strides))


def _place(value: Any) -> Callable[[], Any]:
    """Return what finds the elements of an array, or a number, when the work is done; it keeps no memory alive."""
    if not isinstance(value, ndarray):
        return lambda: value
    ptr, dtype, shape, strides = value.data.ptr, value.dtype, value.shape, value.strides
    return lambda: WORLD.view(ptr, dtype, shape, strides) if math.prod(shape) else np.empty(shape, dtype)


class Flags:
    """The flags that CuPy's arrays have; there are no others."""

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self.c_contiguous, self.f_contiguous, self.owndata = c_contiguous, f_contiguous, owndata
        self.forc = c_contiguous or f_contiguous
        self.fnc = f_contiguous and not c_contiguous

    def __getitem__(self, name: str) -> bool:
        return {"C_CONTIGUOUS": self.c_contiguous, "F_CONTIGUOUS": self.f_contiguous, "OWNDATA": self.owndata}[name]


class _Shape:
    """Shapes and strides worked out by NumPy on memory that nobody reads."""

    def __init__(self, array: ndarray) -> None:
        self.__array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "data": (array.data.ptr or 1, False),
            "version": 3,
        }


class ndarray:
    """An array on a device."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: tuple[int, ...] | None = None,
        order: str = "C",
    ) -> None:
        shape = (shape,) if isinstance(shape, (int, np.integer)) else shape
        self.shape = tuple(map(operator.index, shape))
        if any(n < 0 for n in self.shape):
            raise ValueError("Negative dimensions are not allowed")
        self.dtype = np.dtype(dtype)
        self.strides = _contiguous_strides(self.shape, self.itemsize, order) if strides is None else tuple(strides)
        self.data = alloc(self.nbytes) if memptr is None else memptr
        self.base: ndarray | None = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def device(self) -> Device:
        """Where it is."""
        return self.data.device

    @property
    def flags(self) -> Flags:
        """How it lies in memory."""
        flags = self._shapes().flags
        return Flags(flags.c_contiguous, flags.f_contiguous, self.base is None)

    @property
    def T(self) -> ndarray:
        """The transpose."""
        return self.transpose()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        WORLD.need_driver()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": [("", self.dtype.str)],
            "stream": current_stream().ptr or 1,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr, False),
        }

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        raise TypeError("the stand-in has no ufuncs")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError("the stand-in has no functions of NumPy")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"standin.ndarray({self.shape}, {self.dtype})"

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous.")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def _shapes(self) -> np.ndarray:
        return np.asarray(_Shape(self)) if self.size else np.empty(self.shape, f"|V{self.itemsize}")

    def _like(self, shapes: np.ndarray, dtype: Any = None) -> ndarray:
        """Return a view with the place and shape that NumPy has worked out."""
        offset = shapes.__array_interface__["data"][0] - (self.data.ptr or 1) if self.size and shapes.size else 0
        made = type(self)(shapes.shape, dtype or self.dtype, self.data + offset, shapes.strides)
        made.base = self if self.base is None else self.base
        return made

    def _memory(self) -> np.ndarray:
        """Return the elements as a NumPy array, for work that runs on the device."""
        return _place(self)()

    def __getitem__(self, key: Any) -> ndarray:
        for part in key if isinstance(key, tuple) else (key,):
            if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))):
                raise NotImplementedError("the stand-in has basic indexing only")
        shapes = self._shapes()[(*key, Ellipsis) if isinstance(key, tuple) and Ellipsis not in key else key]
        return self._like(np.asarray(shapes) if isinstance(shapes, np.ndarray) else self._scalar(key))

    def _scalar(self, key: Any) -> np.ndarray:
        return self._shapes()[(*(key if isinstance(key, tuple) else (key,)), Ellipsis)]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("an array of NumPy cannot be assigned; the stand-in is strict")
        target = self[key]
        elementwise("copy", lambda a, b: b, target, value, out=target)

    def transpose(self, *axes: Any) -> ndarray:
        """Return a view with other axes."""
        return self._like(self._shapes().transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        """Return a view with two axes exchanged."""
        return self._like(self._shapes().swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> ndarray:
        """Return a view without axes of size one."""
        return self._like(self._shapes().squeeze(axis))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        """Return a view of another shape, or a copy where there is none."""
        shapes = self._shapes()
        reshaped = shapes.reshape(*shape, order=order)
        if not self.size or np.shares_memory(reshaped, shapes):
            return self._like(reshaped)
        return self.copy(order).reshape(*shape, order=order)

    def ravel(self, order: str = "C") -> ndarray:
        """Return one axis."""
        return self.reshape(-1, order=order)

    def view(self, dtype: Any = None, type: Any = None) -> ndarray:
        """Return the same memory as another dtype or class; either may come first."""
        if inspect.isclass(dtype) and issubclass(dtype, ndarray):
            dtype, type = None, dtype
        kind = self.__class__ if type is None else type
        shapes = self._shapes()
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        if dtype.itemsize != self.itemsize:
            shapes = shapes.view(f"|V{dtype.itemsize}")
        made = kind(shapes.shape, dtype, self.data, shapes.strides)
        made.base = self if self.base is None else self.base
        return made

    def fill(self, value: Any) -> None:
        """Set all elements."""
        if isinstance(value, (int, float)) and value == 0 and self.flags.forc:
            self.data.memset_async(0, self.nbytes)
        else:
            elementwise("fill", lambda a, b: b, self, value, out=self)

    def __reduce__(self) -> tuple[Any, ...]:
        return array, (self.get(),)

    def copy(self, order: str = "C") -> ndarray:
        """Return a copy."""
        return self.astype(self.dtype, order)

    def astype(
        self, dtype: Any, order: str = "K", casting: str | None = None, subok: bool | None = None, copy: bool = True
    ) -> ndarray:
        """Return a copy of another dtype."""
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        made = ndarray(self.shape, dtype, order="F" if order in "FK" and self.flags.fnc else "C")
        if dtype == self.dtype and self.flags.c_contiguous and made.flags.c_contiguous:
            made.data.copy_from_device_async(self.data, self.nbytes)
        else:
            elementwise("astype", lambda a, b: b, made, self, out=made)
        return made

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray:
        """Return a copy as a NumPy array, and wait for it."""
        with Device(self.data.device_id):
            WORLD.wait(stream)
            result = self._memory().copy(order)
        if out is not None:
            out[...] = result
            return out
        return result

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        """Copy a NumPy array into this one."""
        if not isinstance(arr, np.ndarray) or arr.dtype != self.dtype or arr.shape != self.shape:
            raise TypeError("only an array of NumPy of the same dtype and shape can be set")
        with Device(self.data.device_id):
            if current_stream()._capturing is not None:
                raise CUDARuntimeError(900)
            self._memory()[...] = arr

    def item(self) -> Any:
        """Return the one element, and wait for it."""
        return self.get().item()

    def __add__(self, other: Any) -> Any:
        return elementwise("add", operator.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return elementwise("subtract", operator.sub, self, other)

    def __mul__(self, other: Any) -> Any:
        return elementwise("multiply", operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return elementwise("multiply", operator.mul, other, self)

    def __iadd__(self, other: Any) -> Any:
        return elementwise("add", operator.add, self, other, out=self)

    def __isub__(self, other: Any) -> Any:
        return elementwise("subtract", operator.sub, self, other, out=self)

    def __eq__(self, other: object) -> Any:
        return elementwise("equal", operator.eq, self, other)

    def __ne__(self, other: object) -> Any:
        return elementwise("not_equal", operator.ne, self, other)

    def _part(self, place: int) -> ndarray:
        if self.dtype.kind != "c":
            return self if place == 0 else zeros(self.shape, self.dtype)
        half = np.dtype(f"f{self.itemsize // 2}")
        made = type(self)(self.shape, half, self.data + place * half.itemsize, self.strides)
        made.base = self if self.base is None else self.base
        return made

    @property
    def real(self) -> ndarray:
        """The real parts."""
        return self._part(0)

    @real.setter
    def real(self, value: Any) -> None:
        self._part(0)[...] = value

    @property
    def imag(self) -> ndarray:
        """The imaginary parts."""
        return self._part(1)

    @imag.setter
    def imag(self, value: Any) -> None:
        self._part(1)[...] = value


def elementwise(name: str, work: Callable[..., Any], *operands: Any, out: ndarray | None = None) -> ndarray:
    """Run one of CuPy's kernels on arrays and numbers."""
    arrays = [operand for operand in operands if isinstance(operand, ndarray)]
    for operand in operands:
        if isinstance(operand, np.ndarray) and operand.ndim:
            raise TypeError(f"Unsupported type {type(operand)}")
    for array in arrays:
        _check_elementwise(array.dtype)
        if array.size and array.data.device_id != WORLD.device:
            raise ValueError(f"Array device must be same as the current device: {array.device} is not {WORLD.device}")
    if out is None:
        like = [np.empty(a.shape, a.dtype) if isinstance(a, ndarray) else a for a in operands]
        shape = work(*like)
        out = ndarray(shape.shape, shape.dtype)

    places, target = [_place(operand) for operand in operands], _place(out)

    def run() -> None:
        with np.errstate(all="ignore"):
            target()[...] = work(*(place() for place in places))

    if out.size:
        WORLD.do(name, run)
    return out


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return an array without values."""
    return ndarray(shape, dtype, order=order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Return an array of one value."""
    made = ndarray(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order=order)
    elementwise("fill", lambda a, b: b, made, fill_value, out=made)
    return made


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return an array of zeros."""
    made = ndarray(shape, dtype, order=order)
    made.data.memset_async(0, made.nbytes)
    return made


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return an array of ones."""
    return full(shape, 1, dtype, order)


def array(
    obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", subok: bool = False, ndmin: int = 0, *,
    blocking: bool = False,
) -> ndarray:  # fmt: skip
    """Return an array with the values of another one, on the device or on the host."""
    if isinstance(obj, ndarray):
        return obj.astype(obj.dtype if dtype is None else dtype, copy=copy)
    host = np.array(obj, dtype=dtype, order=order, ndmin=ndmin)
    if not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    if not (host.dtype.char in KNOWN or (host.dtype.name == "bfloat16" and WORLD.major >= 14)):
        raise ValueError(f"Unsupported dtype {host.dtype}")
    made = ndarray(host.shape, host.dtype, order="F" if host.flags.fnc else "C")
    made.set(host)
    return made


def asarray(a: Any, dtype: Any = None, order: str | None = None, *, blocking: bool = False) -> ndarray:
    """Return an array, the same one where it is one already."""
    return array(a, dtype, copy=False, order=order or "K")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> np.ndarray:
    """Return a copy on the host."""
    return a.get(stream, order, out) if isinstance(a, ndarray) else np.asarray(a)


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    """Return an array in C order."""
    dtype = a.dtype if dtype is None else np.dtype(dtype)
    return a if a.flags.c_contiguous and a.dtype == dtype else a.astype(dtype, "C")


def broadcast_to(array: ndarray, shape: Any) -> ndarray:
    """Return a view whose new axes have stride 0."""
    return array._like(np.broadcast_to(array._shapes(), shape))


def as_strided(x: ndarray, shape: Any = None, strides: Any = None) -> ndarray:
    """Return a view with any shape and strides."""
    made = ndarray(x.shape if shape is None else shape, x.dtype, x.data, x.strides if strides is None else strides)
    made.base = x if x.base is None else x.base
    return made


def may_share_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    """Tell whether the bounds of two arrays overlap."""
    return bool(np.may_share_memory(a._shapes(), b._shapes()))


def get_array_module(*args: Any) -> Any:
    """Return the module of the stand-in if any argument is an array of it, else NumPy."""
    import sys

    return sys.modules["cupy"] if any(isinstance(a, ndarray) for a in args) else np
