"""The CPU's implementations, special ones first; adding one is a line here."""

from __future__ import annotations

from .._arrays import FLOATS
from .._registry import Implementation, Table
from .depthwise import Depthwise
from .families import Direct, Gemm, Im2col, Reference
from .fft import Fft
from .fused import FusedFloat, Int8Reference
from .int8 import Int8
from .planar import Planar
from .winograd import Winograd

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")

FAMILIES: tuple[tuple[str, type[Implementation]], ...] = (
    ("fft", Fft),
    ("planar", Planar),
    ("depthwise", Depthwise),
    ("winograd", Winograd),
    ("direct", Direct),
    ("gemm", Gemm),
    ("im2col", Im2col),
    ("reference", Reference),
)

INT8_OPS = ("conv2d", "fused_conv2d")
INT8_FAMILIES: tuple[tuple[str, type[Implementation]], ...] = (("int8", Int8), ("reference", Int8Reference))


def _floats(op: str, dtype: str) -> tuple[Implementation, ...]:
    return tuple(kind("cpu", family, op, dtype) for family, kind in FAMILIES)


TABLE: Table = {
    **{(op, dtype): _floats(op, dtype) for op in OPS for dtype in FLOATS},
    **{("fused_conv2d", dtype): tuple(map(FusedFloat, _floats("conv2d", dtype))) for dtype in FLOATS},
    **{(op, "int8"): tuple(kind("cpu", name, op, "int8") for name, kind in INT8_FAMILIES) for op in INT8_OPS},
}
