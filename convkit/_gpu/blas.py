"""Matrix products by cuBLAS, through CuPy's handle: of matrices that lie in memory almost anyhow, singly or in batches.

cuBLAS takes matrices stored column by column, or their transposes; what it calls for is worked out here from shapes and
strides alone (`arrange`), so that a plan knows before any call whether a product is possible.  Sums of halves are kept
in float32 and rounded once; float32 is never multiplied in TF32 unless that is asked for, whatever the handle's mode.

CuPy refuses cuBLAS while a stream is being captured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import access

# cuBLAS counts in 32 bits, but for the distances between the matrices of a batch.
LARGEST = 2**31 - 1

# cudaDataType_t, cublasComputeType_t, cublasGemmAlgo_t and cublasMath_t; CuPy 13 has no name for bfloat16's.
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 68, 70, 77
_DEFAULT_ALGORITHM = -1
_DEFAULT_MATH, _DISALLOW_REDUCED_PRECISION_REDUCTION = 0, 16
_PLAIN, _TRANSPOSED = 0, 1

HALVES = ("float16", "bfloat16")
# What cuBLAS multiplies bfloat16 on.
BFLOAT16_CAPABILITY = (8, 0)

# The scalars of a product, which cuBLAS reads from the host during the call: 1 and 0.
_ONE_ZERO = {dtype: np.array([1, 0], dtype) for dtype in (np.float32, np.float64)}
_SCALARS = {
    name: (array.ctypes.data, array.ctypes.data + array.itemsize)
    for name in _TYPES
    for array in [_ONE_ZERO[np.float64 if name == "float64" else np.float32]]
}


class Matrix(NamedTuple):
    """A matrix, or a batch of them; strides in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int


class Product(NamedTuple):
    """A product in the terms of cuBLAS, which writes matrices column by column."""

    # Whether the product of the transposes is computed, in exchanged order: the result lies row by row.
    exchanged: bool
    transposed: tuple[int, int]
    m: int
    n: int
    k: int
    leading: tuple[int, int, int]
    # Elements from one matrix of a batch to the next.
    distances: tuple[int, int, int]
    batch: int
    dtype: str
    out_dtype: str


def matrix_of(array: Any) -> Matrix:
    """Return the form of an array with two or three axes."""
    return Matrix(array.shape, array.strides, array.dtype.name, array.itemsize)


def arrange(a: Matrix, b: Matrix, out: Matrix) -> Product | str:
    """Return how cuBLAS computes ``a @ b`` into ``out``, or a sentence saying why it cannot.

    Parameters
    ----------
    a, b, out : Matrix
        (M, K), (K, N) and (M, N), or all three with the same batch axis before; no size is zero. One matrix may stand
        for a whole batch by a stride of 0. The dtypes are float16, bfloat16, float32 or float64, the same for ``a`` and
        ``b``; ``out`` has the same, or float32 for products of halves.
    """
    if a.dtype not in _TYPES or b.dtype != a.dtype:
        return f"cuBLAS does not multiply {a.dtype} by {b.dtype}"
    if out.dtype != a.dtype and (a.dtype not in HALVES or out.dtype != "float32"):
        return f"cuBLAS does not multiply {a.dtype} into {out.dtype}"
    three = [_in_elements(matrix) for matrix in (a, b, out)]
    if None in three:
        return "a stride is no whole number of elements"
    batch = out.shape[0] if len(out.shape) == 3 else 1
    (m, n), k = out.shape[-2:], a.shape[-1]
    if max(batch, m, n, k) > LARGEST:
        return f"the product of {m} x {k} and {k} x {n} elements, {batch} times, is beyond cuBLAS's 32-bit sizes"
    # Columns of the result first; then rows, as the product of the transposes.
    first, second, target = (matrix for matrix in three if matrix is not None)
    for exchanged in (False, True):
        rows, columns = (n, m) if exchanged else (m, n)
        left, right = (second.T, first.T) if exchanged else (first, second)
        result = target.T if exchanged else target
        written = _stored(rows, columns, result)
        if written is None or written[0] == _TRANSPOSED:
            continue
        ways = _stored(rows, k, left), _stored(k, columns, right)
        if ways[0] is None or ways[1] is None:
            return "a matrix lies in memory with no axis of adjacent elements"
        if max(ways[0][1], ways[1][1], written[1]) > LARGEST:
            return "the rows of a matrix are farther apart than cuBLAS's 32-bit sizes reach"
        distances = left.distance, right.distance, result.distance
        if batch == 1:
            distances = 0, 0, 0
        elif min(distances) < 0 or distances[2] == 0:
            return "the matrices of a batch lie in descending order, or in one place"
        return Product(
            exchanged=exchanged,
            transposed=(ways[0][0], ways[1][0]),
            m=rows,
            n=columns,
            k=k,
            leading=(ways[0][1], ways[1][1], written[1]),
            distances=distances,
            batch=batch,
            dtype=a.dtype,
            out_dtype=out.dtype,
        )
    return "the result lies in memory with no axis of adjacent elements"


class _Steps(NamedTuple):
    """Strides in elements."""

    row: int
    column: int
    distance: int

    @property
    def T(self) -> _Steps:
        return _Steps(self.column, self.row, self.distance)


def _in_elements(matrix: Matrix) -> _Steps | None:
    """Return the strides in elements, or None if they are no whole numbers."""
    if any(stride % matrix.itemsize for stride in matrix.strides):
        return None
    distance, row, column = (stride // matrix.itemsize for stride in ((0, *matrix.strides)[-3:]))
    return _Steps(row, column, distance)


def _stored(rows: int, columns: int, steps: _Steps) -> tuple[int, int] | None:
    """Return whether a matrix is stored transposed, and its leading dimension; None if it is neither way.

    The stride of an axis of one element means nothing.
    """
    if (rows == 1 or steps.row == 1) and (columns == 1 or steps.column >= rows):
        return _PLAIN, rows if columns == 1 else steps.column
    if (columns == 1 or steps.column == 1) and (rows == 1 or steps.row >= columns):
        return _TRANSPOSED, columns if rows == 1 else steps.row
    return None


def dtype_objection(dtype: str, capability: tuple[int, int]) -> str | None:
    """Return why cuBLAS does not multiply a dtype on GPUs of a capability, or None."""
    if dtype == "bfloat16" and capability < BFLOAT16_CAPABILITY:
        return "cuBLAS multiplies bfloat16 on GPUs of compute capability 8.0 and later only"
    return None


def capture_objection() -> str | None:
    """Return why cuBLAS cannot be called now, or None; the one answer that differs from call to call."""
    return "CuPy refuses cuBLAS while a stream is being captured" if access.is_capturing() else None


def run(product: Product, a: int, b: int, out: int, *, accumulate: bool = False, tf32: bool = False) -> None:
    """Multiply matrices at three addresses of the current device, on the current stream.

    With ``accumulate`` the product is added to what is in the result.
    """
    cuda = access.cupy().cuda
    blas, handle = cuda.cublas, cuda.get_cublas_handle()
    dtype = product.dtype
    kind, out_kind = _TYPES[dtype], _TYPES[product.out_dtype]
    one, zero = _SCALARS[dtype]
    beta = one if accumulate else zero
    left, right = (b, a) if product.exchanged else (a, b)
    compute = _COMPUTE_32F_FAST_TF32 if tf32 and dtype == "float32" else _COMPUTE_32F
    if dtype == "float64":
        compute = _COMPUTE_64F
    wanted = _DISALLOW_REDUCED_PRECISION_REDUCTION if dtype in HALVES else _DEFAULT_MATH
    (lda, ldb, ldc), (da, db, dc) = product.leading, product.distances
    before = blas.getMathMode(handle)
    if before != wanted:
        blas.setMathMode(handle, wanted)
    try:
        sizes = (handle, *product.transposed, product.m, product.n, product.k)
        if product.batch == 1:
            blas.gemmEx(
                *(*sizes, one, left, kind, lda, right, kind, ldb, beta),
                *(out, out_kind, ldc, compute, _DEFAULT_ALGORITHM),
            )
        else:
            blas.gemmStridedBatchedEx(
                *(*sizes, one, left, kind, lda, da, right, kind, ldb, db, beta),
                *(out, out_kind, ldc, dc, product.batch, compute, _DEFAULT_ALGORITHM),
            )
    finally:
        if before != wanted:
            blas.setMathMode(handle, before)


def can_multiply(a: Any, b: Any, out: Any) -> bool:
    """Tell whether `product` takes these arrays."""
    return isinstance(arrange(matrix_of(a), matrix_of(b), matrix_of(out)), Product)


def product(a: Any, b: Any, out: Any, *, accumulate: bool = False, tf32: bool = False) -> None:
    """Write ``a @ b`` to ``out``, or add it to what is there.

    Parameters
    ----------
    a, b, out : cupy.ndarray
        As for `arrange`, on the current device; ``out`` overlaps neither of the others.
    accumulate : bool
        Add to ``out``.
    tf32 : bool
        Allow float32 to be rounded to TF32 before it is multiplied.
    """
    arranged = arrange(matrix_of(a), matrix_of(b), matrix_of(out))
    if isinstance(arranged, str):
        raise ValueError(arranged)
    run(arranged, a.data.ptr, b.data.ptr, out.data.ptr, accumulate=accumulate, tf32=tf32)
