"""cuBLAS on the stand-in's memory: products in NumPy, with everything refused that the library or CuPy would refuse."""

from __future__ import annotations

import ctypes
import operator
import threading
from typing import Any

import ml_dtypes
import numpy as np
from standin_device import WORLD, Device, StandinError, current_stream

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE = 0, 1
CUBLAS_DEFAULT_MATH, CUBLAS_TENSOR_OP_MATH = 0, 1
CUBLAS_GEMM_DEFAULT, CUBLAS_GEMM_DEFAULT_TENSOR_OP = -1, 99
CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_64F = 64, 68, 69, 70
CUBLAS_COMPUTE_32I, CUBLAS_COMPUTE_32F_FAST_16F, CUBLAS_COMPUTE_32F_FAST_TF32 = 72, 74, 77
# Math modes that CuPy has no names for.
TF32_MATH, NO_REDUCED_SUMS = 3, 16

_DTYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
_NAMES = {dtype.name: code for code, dtype in _DTYPES.items()}
_SUMS_32 = (CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_PEDANTIC)
# Dtype of the factors, of the result, and what it may be computed in.
_LEGAL = {
    ("float16", "float16"): _SUMS_32,
    ("float16", "float32"): _SUMS_32,
    ("bfloat16", "bfloat16"): _SUMS_32,
    ("bfloat16", "float32"): _SUMS_32,
    ("float32", "float32"): (*_SUMS_32, CUBLAS_COMPUTE_32F_FAST_TF32),
    ("float64", "float64"): (CUBLAS_COMPUTE_64F,),
}
_STATUS = {1: "NOT_INITIALIZED", 7: "INVALID_VALUE", 13: "EXECUTION_FAILED", 15: "NOT_SUPPORTED"}


class CUBLASError(RuntimeError):
    """An error of cuBLAS."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUBLAS_STATUS_{_STATUS[status]}")


def _whole(value: Any, bits: int, signed: bool = True) -> int:
    """Return an argument as a C integer, as Cython converts it."""
    number = operator.index(value)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    if not low <= number < high:
        raise OverflowError("value too large to convert to int" if bits == 32 else "can't convert value to size_t")
    return number


def _check_handle(handle: int) -> None:
    device, thread = WORLD.handles.get(handle, (-1, -1))
    if device < 0:
        raise CUBLASError(1)
    if device != WORLD.device or thread != threading.get_ident():
        raise StandinError("a handle of cuBLAS is used on another device or thread than its own")


def _modes() -> dict[int, int]:
    modes: dict[int, int] = WORLD.local.__dict__.setdefault("math_modes", {})
    return modes


def getMathMode(handle: int) -> int:
    """Return the math mode of a handle."""
    _check_handle(handle)
    return _modes().get(handle, CUBLAS_DEFAULT_MATH)


def setMathMode(handle: int, mode: int) -> None:
    """Set the math mode of a handle."""
    _check_handle(handle)
    _modes()[handle] = _whole(mode, 32)


def getPointerMode(handle: int) -> int:
    """Return where alpha and beta are."""
    _check_handle(handle)
    return CUBLAS_POINTER_MODE_HOST


def setStream(handle: int, stream: int) -> None:
    """Set the stream of a handle."""
    _check_handle(handle)
    if stream == current_stream().ptr and current_stream()._capturing is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")


def _scalar(ptr: int, compute: int) -> float:
    """Return alpha or beta, read from host memory."""
    for block in list(WORLD.blocks.values()):
        if block.ptr <= ptr < block.ptr + block.size:
            raise StandinError("a scalar in device memory is given, but the pointer mode is that of host memory")
    kind = ctypes.c_double if compute == CUBLAS_COMPUTE_64F else ctypes.c_float
    return float(kind.from_address(ptr).value)


def _matrix(
    ptr: int, code: int, rows: int, columns: int, ld: int, stride: int, count: int, transposed: int
) -> np.ndarray:  # fmt: skip
    """Return matrices stored column by column, after their transposition, as (count, rows, columns)."""
    dtype = _DTYPES[code]
    stored = (columns, rows) if transposed else (rows, columns)
    if ld < max(1, stored[0]):
        raise CUBLASError(7)
    if ptr % dtype.itemsize:
        raise CUBLASError(13)
    size = dtype.itemsize
    matrix = WORLD.view(ptr, dtype, (count, *stored), (stride * size, size, ld * size))
    return matrix.transpose(0, 2, 1) if transposed else matrix


def _tf32(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers rounded to the ten bits of fraction that TF32 has."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def _product(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: tuple[int, int, int, int],
    b: tuple[int, int, int, int], beta: int, c: tuple[int, int, int, int], count: int, compute: int, algo: int,
) -> None:  # fmt: skip
    handle = _whole(handle, 64)
    transa, transb, m, n, k, count, compute, algo = (
        _whole(v, 32) for v in (transa, transb, m, n, k, count, compute, algo)
    )
    for ptr, code, ld, stride in (a, b, c):
        _whole(ptr, 64, signed=False), _whole(code, 32), _whole(ld, 32), _whole(stride, 64)
    _whole(alpha, 64, signed=False), _whole(beta, 64, signed=False)
    _check_handle(handle)
    setStream(handle, current_stream().ptr)
    if min(m, n, k, count) < 0 or transa not in (0, 1) or transb not in (0, 1) or a[1] != b[1]:
        raise CUBLASError(7)
    if a[1] not in _DTYPES or c[1] not in _DTYPES:
        raise CUBLASError(15)
    names = _DTYPES[a[1]].name, _DTYPES[c[1]].name
    if compute not in _LEGAL.get(names, ()) or algo != CUBLAS_GEMM_DEFAULT:
        raise CUBLASError(15)
    if names[0] == "bfloat16" and Device()._card.capability < (8, 0):
        raise CUBLASError(15)
    if not (m and n and count):
        return
    if count > 1 and c[3] == 0:
        raise StandinError("all results of a batch are written to one place")
    mode = getMathMode(handle)
    if names[0] in ("float16", "bfloat16") and not mode & NO_REDUCED_SUMS:
        raise StandinError("cuBLAS may add parts of a sum in 16 bits in this math mode")
    if mode & 3 == TF32_MATH and compute != CUBLAS_COMPUTE_32F_PEDANTIC and names[0] == "float32":
        compute = CUBLAS_COMPUTE_32F_FAST_TF32
    scale, keep = _scalar(alpha, compute), _scalar(beta, compute)

    def run() -> None:
        wide = np.float64 if compute == CUBLAS_COMPUTE_64F else np.float32
        left = _matrix(*a[:2], m, k, a[2], a[3], count, transa).astype(wide)
        right = _matrix(*b[:2], k, n, b[2], b[3], count, transb).astype(wide)
        if compute == CUBLAS_COMPUTE_32F_FAST_TF32:
            left, right = _tf32(left), _tf32(right)
        out = _matrix(*c[:2], m, n, c[2], c[3], count, 0)
        with np.errstate(all="ignore"):
            sums = (left @ right) * wide(scale)
            if keep:
                sums = sums + out.astype(wide) * wide(keep)
            out[...] = sums.astype(out.dtype)

    WORLD.do(f"gemm {names[0]}->{names[1]} {m}x{n}x{k} batch {count} compute {compute}", run)


def gemmEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, Atype: int, lda: int, B: int,
    Btype: int, ldb: int, beta: int, C: int, Ctype: int, ldc: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    """Multiply two matrices."""
    a, b, c = (A, Atype, lda, 0), (B, Btype, ldb, 0), (C, Ctype, ldc, 0)
    _product(handle, transa, transb, m, n, k, alpha, a, b, beta, c, 1, computeType, algo)


def gemmStridedBatchedEx(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, A: int, Atype: int, lda: int,
    strideA: int, B: int, Btype: int, ldb: int, strideB: int, beta: int, C: int, Ctype: int, ldc: int, strideC: int,
    batchCount: int, computeType: int, algo: int,
) -> None:  # fmt: skip
    """Multiply many matrices at fixed distances."""
    a, b, c = (A, Atype, lda, strideA), (B, Btype, ldb, strideB), (C, Ctype, ldc, strideC)
    _product(handle, transa, transb, m, n, k, alpha, a, b, beta, c, batchCount, computeType, algo)
