"""How arrays lie for cuDNN: dense, in one layout, from multiples of 16 bytes on; as they are, or in copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays import Operand
from .._geometry import ConvGeometry
from . import layout, memory
from .arrays import ALIGNMENT
from .cudnn_graph import FILTER, IMAGE, OUTPUT

# The numbers of a graph's tensors by the names of arrays; `out` is what is left.
_TENSORS = {"input": IMAGE, "filter": FILTER, "out_backprop": OUTPUT}
_RESULTS = {"conv2d_backprop_filter": FILTER, "conv2d_backprop_input": IMAGE}


def tensor_of(op: str, role: str) -> int:
    """Return which tensor of the graph an array is."""
    return _TENSORS[role] if role in _TENSORS else _RESULTS.get(op, OUTPUT)


def _order(tensor: int, channels_last: bool, axes: int) -> tuple[int, ...]:
    """Return the axes of a problem's array from the outermost in memory to the innermost.

    Pixels have the axes N, H, W, C; filters H, W, I, O.  The packed formats have C and I in two parts.
    """
    if tensor != FILTER:
        return tuple(range(axes)) if channels_last else (0, 3, 1, 2)
    return (axes - 1, *range(axes - 1)) if channels_last else (3, 2, 0, 1)


@dataclass(frozen=True, slots=True)
class Placed:
    """One array as cuDNN sees it, its axes in the order of the problem's."""

    tensor: int
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    # Whether the caller's array can be used as it is, if its address allows it.
    in_place: bool

    @classmethod
    def of(cls, operand: Operand, tensor: int, dtype: str, channels_last: bool) -> Placed:
        """Decide about an array of a problem."""
        order = _order(tensor, channels_last, len(operand.shape))
        fits = operand.dtype == dtype and operand.native and operand.aligned and _is_dense(operand, order)
        return cls(tensor, operand.shape, dtype, order, fits)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copy, 0 where there is none."""
        return 0 if self.in_place else self.nbytes

    def fresh(self, op: str) -> Any:
        """Return a new array that lies as cuDNN wants it, without values."""
        return self.seen(memory.scratch(op, self.nbytes))

    def seen(self, data: Any) -> Any:
        """Return bytes as the array."""
        sizes = [self.shape[axis] for axis in self.order]
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return data[: self.nbytes].view(np.dtype(self.dtype)).reshape(sizes).transpose(back)

    def entered(self, op: str, array: Any) -> Any:
        """Return the array itself, or a copy of it that lies as cuDNN wants it."""
        if self.usable(array):
            return array
        copied = self.fresh(op)
        layout.copy(array, copied)
        return copied

    def usable(self, array: Any) -> bool:
        """Tell whether an array can be used as it is."""
        return self.in_place and array.data.ptr % ALIGNMENT == 0


def _is_dense(operand: Operand, order: tuple[int, ...]) -> bool:
    step = operand.itemsize
    for axis in reversed(order):
        if operand.shape[axis] > 1 and operand.strides[axis] != step:
            return False
        step *= operand.shape[axis]
    return True


def channels_last(g: ConvGeometry, op: str, arrays: tuple[Operand, ...]) -> bool:
    """Return the layout to compute in: the data format's, but the other one if all pixels lie in that.

    Pixels of one channel, and images of one pixel, lie in both; the packed formats are nearer to channels last.
    """
    if g.data_format == "NCHW_VECT_C":
        return True
    own = g.data_format == "NHWC"
    pixels = [array for array in arrays if tensor_of(op, array.role) != FILTER]
    for last in (own, not own):
        if all(_is_dense(array, _order(IMAGE, last, 4)) for array in pixels):
            return last
    return own
