"""The epilogue of fused convolutions: in plain NumPy on int8, exact to the bit; natively on floating-point sums.

Who calls the former has silenced NumPy's floating-point warnings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._epilogue import ACTIVATIONS, Epilogue, Terms
from . import _engine

Array = npt.NDArray[Any]


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


class FloatEpilogue:
    """What a fused convolution does with floating-point sums, for one `Epilogue`."""

    def __init__(self, e: Epilogue) -> None:
        self.per_channel = e.per_channel
        self.engine = _engine.FloatEpilogue(ACTIVATIONS.index(e.activation), e.alpha, e.per_channel)

    def run(self, sums: Array, terms: Terms, side: Array | None, out: Array | None, threads: int) -> None:
        """Change sums in N, H, W, C order in place, or write what becomes of them to ``out``.

        ``out`` may be the side input.
        """
        if not sums.size:
            return
        scale = terms.conv_scale if self.per_channel or terms.conv_scale[0] != 1 else None
        self.engine.run(sums, side, out, scale, terms.side_scale, terms.bias, threads)


def _scale(e: Epilogue, terms: Terms, part: slice) -> Array:
    return terms.conv_scale[part] if e.per_channel else terms.conv_scale
