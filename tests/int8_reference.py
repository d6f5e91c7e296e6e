"""An independent reference of fused int8 convolutions: sums in int64, the epilogue in fractions.

Nothing here rounds but `to_float32`, which says what round half to even is in so many words.
"""

import math
from fractions import Fraction

import numpy as np
import reference

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
# From here on a number is infinite in float32: halfway from the largest one to 2^128.
OVERFLOW = Fraction(2) ** 128 - Fraction(2) ** 103


def to_float32(value: Fraction) -> float:
    """Return the float32 next to a number, the even one of two."""
    if abs(value) >= OVERFLOW:
        return math.copysign(math.inf, value)
    if value == 0:
        return 0.0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return float(round(value / unit) * unit)


def multiply_add(a: float, b: float, c: float) -> float:
    """Return a * b + c in float32, rounded once."""
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    return to_float32(Fraction(a) * Fraction(b) + Fraction(c))


def epilogue(
    acc: int,
    *,
    conv_scale: float = 1.0,
    side: float = 0.0,
    side_scale: float = 0.0,
    bias: float | np.int32 = 0.0,
    activation: str | None = None,
    output_zero_point: int = 0,
    out_dtype: str = "int8",
) -> float:
    """Return what becomes of one sum; every float given is one of float32."""
    if isinstance(bias, np.integer):
        acc, bias = (int(acc) + int(bias) + 2**31) % 2**32 - 2**31, 0.0
    t = multiply_add(to_float32(Fraction(int(acc))), conv_scale, 0.0)
    if side_scale != 0:
        t = multiply_add(side, side_scale, t)
    t = multiply_add(t, 1.0, bias)
    if out_dtype == "float32":
        return max(t, 0.0) if activation == "relu" and not math.isnan(t) else t
    low, high = RANGES[out_dtype]
    low = max(low, output_zero_point) if activation == "relu" else low
    if math.isnan(t):
        return output_zero_point
    if math.isinf(t):
        return high if t > 0 else low
    return min(max(round(Fraction(t)) + output_zero_point, low), high)


def sums(x, w, input_zero_point: int = 0, **geometry) -> np.ndarray:
    """Return the exact sums of NHWC ``x`` and HWIO ``w`` in int64; padding is the zero point."""
    return reference.conv2d(x.astype(np.int64) - input_zero_point, w.astype(np.int64), **geometry)


def fused(
    x, w, bias=None, side=None, *, conv_scale=1.0, side_scale=None, input_zero_point=0, out_dtype="int8", geometry=None,
    **more,
) -> np.ndarray:  # fmt: skip
    """Return the whole result in NHWC."""
    acc = sums(x, w, input_zero_point, **(geometry or {}))
    channels = acc.shape[3]
    scale = np.broadcast_to(np.float32(conv_scale), channels)
    if side_scale is None:
        side_scale = 0.0 if side is None else 1.0
    result = np.empty(acc.shape, out_dtype)
    for at in np.ndindex(acc.shape):
        one = np.float32(0) if bias is None else bias[at[3]]
        result[at] = epilogue(
            acc[at],
            conv_scale=float(scale[at[3]]),
            side=0.0 if side is None else float(side[at]),
            side_scale=float(np.float32(side_scale)),
            bias=one if isinstance(one, np.integer) else float(one),
            out_dtype=out_dtype,
            **more,
        )
    return result
