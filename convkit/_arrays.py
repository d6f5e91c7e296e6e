"""Arrays at the door: what is accepted, under which dtype rules, and how an `out` must lie in memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arguments import is_a, show
from ._errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError

FLOATS = ("float32", "float64", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

# What goes with an int8 filter, and the results of each operation, the first one by default.
INT8_IMAGES = ("int8", "uint8")
INT8_RESULTS = {"conv2d": ("int32",), "fused_conv2d": ("int8", "uint8", "float32")}

# More levels than any array of an operation has; deeper ones are refused before NumPy walks through them.
MOST_NESTED = 6

# Steps of NumPy's search for a common byte, which can take exponential time: some tenths of a millisecond.
MOST_OVERLAP_WORK: Any = 10_000

# DLPack's device codes for memory that the CPU reads: kDLCPU and kDLCUDAHost (pinned host memory).
_DLPACK_CPU_DEVICES = (1, 3)
# Python's own numbers carry no width: a nested list takes the dtype of the array it meets.
_WEAK_DTYPES = ("float64", "int64", "bool")


# What a plan may know of an array: shape, strides in bytes, dtype, whether all elements are aligned.
Form = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any], bool]


def form_of(array: npt.NDArray[Any]) -> Form:
    """Return how an array lies in memory."""
    return array.shape, array.strides, array.dtype, array.flags.aligned


def fresh_form(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Form:
    """Return the form of a new C-contiguous array."""
    strides, step = [], dtype.itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return shape, tuple(reversed(strides)), dtype, True


@dataclass(frozen=True, slots=True)
class Operand:
    """One array of a problem, its axes in the order N, H, W, C or H, W, I, O; strides in bytes."""

    role: str
    dtype: str
    native: bool
    aligned: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, role: str, form: Form, axes: tuple[int, ...]) -> Operand:
        """Describe an array seen through a transposition."""
        shape, strides, dtype, aligned = form
        return cls(
            role,
            dtype.name,
            dtype.isnative,
            aligned,
            tuple(shape[axis] for axis in axes),
            tuple(strides[axis] for axis in axes),
            dtype.itemsize,
        )


def type_name(value: Any) -> str:
    """Return the qualified name of a value's type, without ``builtins``."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_cuda(value: Any) -> bool:
    """Tell whether ``value`` is a CuPy array (or another that lives on a GPU).

    Tensors of libraries for both devices have the attribute only when they live on a GPU.
    """
    kind = type(value)
    if not hasattr(kind, "__cuda_array_interface__"):
        return False
    try:
        # CuPy's arrays are on a GPU by type: their attribute takes microseconds, and asks CUDA, which fails in a forked
        # child, for one.
        known = getattr(sys.modules.get("cupy"), "ndarray", None)
        if known is not None and isinstance(value, known):
            return True
        return value.__cuda_array_interface__ is not None
    except Exception:  # a property of the user's own
        return False


def as_array(op: str, role: str, value: Any) -> tuple[npt.NDArray[Any], bool]:
    """Return ``value`` as a plain ndarray without copying, and whether its dtype is only Python's default.

    Raises
    ------
    ArgumentTypeError, DTypeError, UnsupportedError
        For masked arrays, arrays on a GPU, and whatever NumPy cannot read as an array.
    """
    if type(value) is np.ndarray:
        return value, False
    try:
        return _convert(op, role, value)
    except (ArgumentTypeError, UnsupportedError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise ArgumentTypeError(
            f"{op}: {role} is of type {type_name(value)}, which cannot be read as an array ({reason})"
        ) from error


def _convert(op: str, role: str, value: Any) -> tuple[npt.NDArray[Any], bool]:
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeError(
            f"{op}: {role} is a masked array, whose mask a convolution cannot respect; "
            "pass the data with the masked values filled in, e.g. array.filled(0)"
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value), False
    if is_cuda(value):
        raise ArgumentTypeError(
            f"{op}: {role} is of type {type_name(value)}, an array on a GPU, but must be on the CPU here, so copy "
            f"it, e.g. cupy.asnumpy({role})"
        )
    if value is None or isinstance(value, (str, bytes, dict, set, frozenset)):
        raise ArgumentTypeError(f"{op}: {role} is of type {type_name(value)}, but must be an array")
    if hasattr(type(value), "__dlpack__") and hasattr(type(value), "__dlpack_device__"):
        device = value.__dlpack_device__()
        if device[0] not in _DLPACK_CPU_DEVICES:
            raise UnsupportedError(
                f"{op}: {role} is of type {type_name(value)} on DLPack device {tuple(device)}, but only CPU memory "
                f"(device types {_DLPACK_CPU_DEVICES}) can be read"
            )
        if not hasattr(type(value), "__array__"):
            return np.from_dlpack(value), False
    if type(value) in (list, tuple):
        _check_nested(value, MOST_NESTED)
        array = np.asarray(value)
        return array, array.dtype.name in _WEAK_DTYPES
    if isinstance(value, (bool, int, float, complex, np.generic)) or _exports_memory(value):
        return np.asarray(value), False
    raise ArgumentTypeError(
        f"{op}: {role} is of type {type_name(value)}, but must be an array, a nested list of numbers, or export its "
        "memory (buffer protocol, __array__ or DLPack)"
    )


def _exports_memory(value: Any) -> bool:
    if hasattr(type(value), "__array__") or hasattr(type(value), "__array_interface__"):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _check_nested(value: Any, depth: int) -> None:
    """Raise unless a nested list holds numbers or arrays only; sequences of other types may have no end."""
    for item in value:
        if type(item) in (list, tuple):
            if depth == 0:
                raise ValueError(f"it is nested more than {MOST_NESTED} levels deep")
            _check_nested(item, depth - 1)
        elif not isinstance(item, (bool, int, float, complex, np.generic, np.ndarray)):
            raise TypeError(f"it holds an object of type {type_name(item)}")


def settle_weak(arrays: list[tuple[npt.NDArray[Any], bool]]) -> list[npt.NDArray[Any]]:
    """Give nested lists the dtype of the floating-point arrays beside them, else float64, as NumPy 2 treats scalars."""
    if not any(weak for _, weak in arrays):
        return [array for array, _ in arrays]
    strong = [array.dtype for array, weak in arrays if not weak and array.dtype.name in FLOATS]
    dtype = strong[0].newbyteorder("=") if strong else np.dtype(np.float64)
    with np.errstate(all="ignore"):
        return [array.astype(dtype) if weak else array for array, weak in arrays]


def check_dtypes(op: str, image: tuple[str, np.dtype[Any]] | None, others: list[tuple[str, np.dtype[Any]]]) -> str:
    """Return the name of the floating-point dtype that a call computes with.

    ``image`` may be of an integer dtype, where the cast to the others' dtype is safe; ``others`` must all be of one
    floating-point dtype.
    """
    for role, dtype in [*([image] if image else []), *others]:
        if dtype.name not in FLOATS and dtype.name not in INTEGERS:
            raise DTypeError(
                f"{op}: {role} has dtype {dtype!s:.80}, but must be one of {', '.join(FLOATS)}"
                + (", or an integer dtype that casts to the filter's safely" if image and role == image[0] else "")
            )
    role, float_dtype = others[0]
    if op in INT8_RESULTS and float_dtype.name == "int8":
        assert image is not None
        if image[1].name not in INT8_IMAGES:
            raise DTypeError(
                f"{op}: {image[0]} has dtype {image[1].name}, but {role} has dtype int8, which goes with "
                f"{' and '.join(INT8_IMAGES)} only; cast one of them first, e.g. {role}.astype('float32')"
            )
        return "int8"
    if float_dtype.name not in FLOATS:
        what = f" and {image[0]} {image[1].name}" if image else ""
        if op not in INT8_RESULTS:
            raise DTypeError(
                f"{op}: {role} has dtype {float_dtype.name}{what}, but integers have no gradients, not those of int8 "
                f"convolutions either; cast {role} to a floating-point dtype, e.g. {role}.astype('float32')"
            )
        raise DTypeError(
            f"{op}: {role} has dtype {float_dtype.name}{what}, but of convolutions of integers only those of int8 or "
            f"uint8 with an int8 filter are supported; cast {role} to a floating-point dtype, e.g. "
            f"{role}.astype('float32')"
        )
    for other_role, dtype in others[1:]:
        if dtype.name != float_dtype.name:
            raise DTypeError(_mixed(op, other_role, dtype, role, float_dtype))
    if image and image[1].name != float_dtype.name:
        if image[1].name in FLOATS:
            raise DTypeError(_mixed(op, image[0], image[1], role, float_dtype))
        if not np.can_cast(image[1], float_dtype, "safe"):
            raise DTypeError(
                f"{op}: {image[0]} has dtype {image[1].name}, which does not cast safely to {role}'s dtype "
                f"{float_dtype.name}; cast one of them first, e.g. {image[0]}.astype('{float_dtype.name}')"
            )
    return float_dtype.name


def _mixed(op: str, role: str, dtype: np.dtype[Any], other_role: str, other: np.dtype[Any]) -> str:
    return (
        f"{op}: {role} has dtype {dtype.name}, but {other_role} has dtype {other.name}; both must be the same, "
        f"so cast one, e.g. {role}.astype('{other.name}')"
    )


def check_out_dtype(op: str, value: Any, computed: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the result of operands with the dtype ``computed``."""
    results = INT8_RESULTS.get(op, ()) if computed.name == "int8" else ()
    if value is None:
        return np.dtype(results[0]) if results else computed
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except Exception:
        raise DTypeError(f"{op}: out_dtype is {show(value)}, which is no dtype") from None
    allowed = set(results) or {computed.name} | ({"float32"} if computed.name in HALVES else set())
    if dtype.name not in allowed or not dtype.isnative:
        raise DTypeError(
            f"{op}: out_dtype is {dtype!s:.60}, but with inputs of dtype {computed.name} it must be "
            f"{' or '.join(sorted(allowed))}"
        )
    return dtype


def as_out(op: str, out: Any) -> npt.NDArray[Any]:
    """Return ``out`` as a plain ndarray, if it is an array that can be written to at all."""
    if is_cuda(out):
        raise ArgumentTypeError(f"{op}: out is of type {type_name(out)}, on a GPU, but the inputs are on the CPU")
    if not is_a(out, np.ndarray) or is_a(out, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{op}: out is of type {type_name(out)}, but must be a numpy.ndarray")
    plain = np.asarray(out)  # of a subclass, the memory without its methods
    if not plain.flags.writeable:
        raise ArgumentError(f"{op}: out is read-only, but must be writeable")
    return plain


def check_out_form(op: str, out: Form, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise unless ``out`` has the result's shape and dtype, and no two elements at one place."""
    out_shape, strides, out_dtype, _ = out
    if out_shape != shape:
        raise ShapeError(f"{op}: out has shape {out_shape}, but the result has shape {shape}")
    if out_dtype.name != dtype.name:
        raise DTypeError(f"{op}: out has dtype {out_dtype!s:.60}, but the result has dtype {dtype.name}")
    if 0 not in shape and _overlaps_itself(out_shape, strides, dtype.itemsize):
        raise ArgumentError(
            f"{op}: out has shape {out_shape} and strides {strides}, so that several of its elements share memory"
        )


def check_overlap(op: str, out: npt.NDArray[Any], inputs: tuple[tuple[str, npt.NDArray[Any]], ...]) -> None:
    """Raise if ``out`` has a byte in common with an input."""
    for role, array in inputs:
        if shares_memory(out, array):
            raise ArgumentError(f"{op}: out shares memory with {role}, but must not overlap any input")


def _overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Tell whether two elements may share memory; exact for arrays made by slicing and transposing."""
    reach = itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


def shares_memory(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Tell whether two arrays have a byte in common; where that is too hard to decide, say that they have."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=MOST_OVERLAP_WORK))
    except Exception:  # NumPy raises its TooHardError where the bounded search does not end.
        return True
