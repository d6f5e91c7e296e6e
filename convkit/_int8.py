"""How many int8 products an int32 sum is sure to hold."""

from __future__ import annotations

from ._errors import UnsupportedError
from ._geometry import ConvGeometry

# 2^31 - 1 over the largest product: (-128) * (-128), or 255 * (-128) for uint8 and for differences to a zero point.
MOST_TERMS, MOST_WIDE_TERMS = 131071, 65793


def check_terms(g: ConvGeometry, image: str, zero_point: int) -> None:
    """Raise unless every sum of the convolution fits an int32, whatever the values."""
    terms = g.filter_size[0] * g.filter_size[1] * g.group_in
    wide = image == "uint8" or zero_point != 0
    most = MOST_WIDE_TERMS if wide else MOST_TERMS
    if terms > most:
        why = f"input_zero_point {zero_point}" if image == "int8" and wide else f"{image} input"
        raise UnsupportedError(
            f"{g.op}: each output is a sum of {terms} = {g.filter_size[0]}*{g.filter_size[1]}*{g.group_in} products, "
            f"but with {why} an int32 sum is sure to hold {most} only"
        )
