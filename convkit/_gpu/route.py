"""The GPU's implementations, special ones first; adding one is a line here."""

from __future__ import annotations

from .._arrays import FLOATS
from .._registry import Implementation, Table
from . import cache, cudnn_int8, gemm, handles, launch
from .cudnn import Cudnn
from .cudnn_int8 import CudnnInt8
from .fused import FusedFloat
from .gemm import Gemm
from .native import Direct, Im2col, Int8Direct

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")


def _floats(op: str, dtype: str) -> tuple[Implementation, ...]:
    product = (
        FusedFloat(Gemm("gpu", "gemm", "conv2d", dtype)) if op == "fused_conv2d" else Gemm("gpu", "gemm", op, dtype)
    )
    native = Direct(op, dtype), Im2col(op, dtype)
    return product, Cudnn(op, dtype, native), *native


def _int8(op: str) -> tuple[Implementation, ...]:
    native = Int8Direct(op)
    return CudnnInt8(op, (native,), judge=Int8Direct("conv2d")), native


TABLE: Table = {
    **{(op, dtype): _floats(op, dtype) for op in (*OPS, "fused_conv2d") for dtype in FLOATS},
    **{(op, "int8"): _int8(op) for op in ("conv2d", "fused_conv2d")},
}


def forget() -> None:
    """Plan, compile and tune again."""
    for module in (gemm, launch, cache, cudnn_int8, handles):
        module.forget()
