"""The CPU's implementations, special ones first; adding one is a line here."""

from __future__ import annotations

from .._arrays import FLOATS
from .._registry import Implementation, Table
from .depthwise import Depthwise
from .families import Direct, Gemm, Im2col, Reference
from .fft import Fft
from .planar import Planar

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")

FAMILIES: tuple[tuple[str, type[Implementation]], ...] = (
    ("fft", Fft),
    ("planar", Planar),
    ("depthwise", Depthwise),
    ("direct", Direct),
    ("gemm", Gemm),
    ("im2col", Im2col),
    ("reference", Reference),
)

TABLE: Table = {
    (op, dtype): tuple(kind("cpu", family, op, dtype) for family, kind in FAMILIES) for op in OPS for dtype in FLOATS
}
