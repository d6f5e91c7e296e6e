"""The epilogue of fused convolutions in plain NumPy: exact to the bit on int8, in place on floating-point results.

Who calls has silenced NumPy's floating-point warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._epilogue import Epilogue, Terms

Array = npt.NDArray[Any]

# Numbers of one step: temporaries of some hundred kilobytes, which stay in the second-level cache.
BLOCK = 1 << 15


def fma(a: Array, b: Any, c: Array) -> Array:
    """Return a * b + c in float32, rounded once.

    The product of two float32 is exact in float64.  The sum is rounded to odd there, which keeps more than two bits
    below float32's last one and never lies on a tie that is not one, so that the second rounding is right.
    """
    product, addend = a.astype(np.float64) * np.float64(b), c.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & even & (error != 0)
    odd = np.nextafter(total, np.copysign(np.inf, error))
    return np.where(inexact, odd, total).astype(np.float32)


def of_integers(sums: Array, part: slice, e: Epilogue, terms: Terms, side: Array | None, dtype: np.dtype[Any]) -> Array:
    """Return what becomes of exact int64 sums of int8 products; ``part`` are the output channels they belong to."""
    if e.bias == "int32":
        assert terms.bias is not None
        sums = sums + terms.bias[part]
    t = sums.astype(np.int32).astype(np.float32) * _scale(e, terms, part)
    if side is not None:
        t = fma(side.astype(np.float32), terms.side_scale, t)
    if e.bias == "float32":
        assert terms.bias is not None
        t = t + terms.bias[part]
    if dtype.kind == "f":
        return np.maximum(t, 0, out=t) if e.activation == "relu" else t
    zero = e.output_zero_point
    limits = np.iinfo(dtype)
    low = zero if e.activation == "relu" else limits.min
    rounded = np.clip(np.rint(t), low - zero, limits.max - zero)
    return (np.where(np.isnan(rounded), 0, rounded).astype(np.int16) + zero).astype(dtype)


def _relu6(t: Array, alpha: float) -> None:
    np.minimum(np.maximum(t, 0, out=t), 6, out=t)


def _elu(t: Array, alpha: float) -> None:
    np.expm1(t, out=t, where=~(t > 0))


def _leaky_relu(t: Array, alpha: float) -> None:
    np.multiply(t, t.dtype.type(alpha), out=t, where=~(t > 0))


# What each activation does to the sums, to NaN nothing.
_ACTIVATIONS: dict[str, Callable[[Array, float], Any]] = {
    "relu": lambda t, alpha: np.maximum(t, 0, out=t),
    "relu6": _relu6,
    "elu": _elu,
    "leaky_relu": _leaky_relu,
}


def of_floats(sums: Array, e: Epilogue, terms: Terms, side: Array | None, out: Array | None) -> None:
    """Change sums in N, H, W, C order in place, and copy what becomes of them to ``out``, if it is given.

    ``out`` may be the side input.
    """
    scales = bool(e.per_channel or terms.conv_scale[0] != 1)
    side_scale = terms.conv_scale.dtype.type(terms.side_scale)
    rows = max(1, BLOCK // max(1, sums.shape[2] * sums.shape[3]))
    columns = max(1, BLOCK // max(1, sums.shape[3]))
    for n in range(sums.shape[0]):
        for i in range(0, sums.shape[1], rows):
            for j in range(0, sums.shape[2], columns):
                place = n, slice(i, i + rows), slice(j, j + columns)
                t = sums[place]
                if scales:
                    t *= terms.conv_scale
                if side is not None:
                    t += side[place] if side_scale == 1 else side[place].astype(t.dtype) * side_scale
                if terms.bias is not None:
                    t += terms.bias
                if e.activation is not None:
                    _ACTIVATIONS[e.activation](t, e.alpha)
                if out is not None:
                    out[place] = t


def _scale(e: Epilogue, terms: Terms, part: slice) -> Array:
    return terms.conv_scale[part] if e.per_channel else terms.conv_scale
