"""A bias added to the gradient by the images, as in transposed convolutions; the operations themselves have none."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import HALVES
from ._epilogue import Epilogue, Terms
from ._errors import DTypeError, ShapeError
from ._formats import VIEW_AXES
from ._gpu import access, constants, epilogue
from ._gpu.arrays import as_gpu, check_overlap, one_device
from ._ops import conv2d_backprop_input

# Axes of an image.
_AXES = 4


def backward_data_with_bias(op: str, w: Any, dy: Any, b: Any, y: Any, keywords: dict[str, Any]) -> None:
    """Write the gradient by the images, with a number added to each channel, to ``y``; halves are rounded once.

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If the bias does not go with ``y``, before anything is written.
    """
    y, b = as_gpu(op, "y", y), as_gpu(op, "b", b)
    axes = VIEW_AXES[keywords["data_format"]]
    if y.ndim == _AXES:  # others are refused with the geometry
        _check(op, b, y, y.shape[axes[3]])
    named = ("y", y), ("W", as_gpu(op, "W", w)), ("x", as_gpu(op, "x", dy)), ("b", b)
    one_device(op, named)
    check_overlap(op, y, named[1:])
    sums = y
    if y.dtype.name in HALVES and y.dtype == w.dtype:  # other mixtures are refused with the inputs
        sums = conv2d_backprop_input(y.shape, w, dy, out_dtype=np.float32, **keywords)
    else:
        conv2d_backprop_input(y.shape, w, dy, out=y, **keywords)
    if not y.size:
        return
    with access.failures(op, f"adding b of shape {b.shape}"), access.on_device(y.data.device_id):
        terms = Terms(None, 0.0, constants.vector(b, sums.dtype))  # type: ignore[arg-type]  # no scale
        added = Epilogue(
            per_channel=False, bias=sums.dtype.name, side=False, activation=None, alpha=0.0, input_zero_point=0,
            output_zero_point=0, onto_side=False,
        )  # fmt: skip
        epilogue.run_float(added, terms, sums.transpose(axes), None, y.transpose(axes))


def _check(op: str, b: Any, y: Any, channels: int) -> None:
    if b.size != channels:
        raise ShapeError(
            f"{op}: b has shape {b.shape}, but must have one number for each of the {channels} channels of y, whose "
            f"shape is {y.shape}"
        )
    if b.dtype != y.dtype:
        raise DTypeError(f"{op}: b has dtype {b.dtype}, but y has dtype {y.dtype}; both must be the same")
