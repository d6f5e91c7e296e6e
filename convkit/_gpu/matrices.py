"""Arrays seen as the matrices of a convolution's products, one per group: in place, or in dense scratch memory.

An image or a result becomes (groups, pixels, channels), a filter (groups, taps and channels, channels out).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import memory


def joins(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Tell whether neighbouring axes lie one in the other, so that they are one axis."""
    axes = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(axes))


def step_of(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the stride of axes that join; 0 where they have one element."""
    return next((stride for size, stride in reversed(list(zip(sizes, strides, strict=True))) if size > 1), 0)


def is_matrix(rows: int, row: int, columns: int, column: int) -> bool:
    """Tell whether cuBLAS takes a matrix with these strides, in elements: adjacent one way, apart the other."""
    plain = (columns == 1 or column == 1) and (rows == 1 or row >= columns)
    turned = (rows == 1 or row == 1) and (columns == 1 or column >= rows)
    return plain or turned


def pixels_in_place(sizes: Sequence[int], strides: Sequence[int], groups: int, itemsize: int) -> bool:
    """Tell whether N, H, W, C pixels are a matrix per group where they lie; strides in bytes."""
    channels = sizes[3] // groups
    if not joins(sizes[:3], strides[:3]) or (groups > 1 and strides[3] <= 0):
        return False
    row = step_of(sizes[:3], strides[:3]) // itemsize
    return is_matrix(math.prod(sizes[:3]), row, channels, strides[3] // itemsize)


def of_pixels(array: Any, groups: int) -> Any:
    """Return an N, H, W, C array whose pixels join as (groups, pixels, channels)."""
    return by_groups(array.reshape(-1, array.shape[3]), groups)


def by_groups(array: Any, groups: int) -> Any:
    """Return a matrix with its last axis cut into groups, which come first."""
    rows, columns = array.shape
    return array.reshape(rows, groups, columns // groups).transpose(1, 0, 2)


class Room:
    """Scratch memory that is taken when it is first needed, and used by one piece after the other."""

    def __init__(self, op: str, nbytes: int) -> None:
        self._op, self._nbytes = op, nbytes
        self._memory: Any = None

    def flat(self, count: int, dtype: np.dtype[Any]) -> Any:
        """Return so many numbers, the same memory every time."""
        if self._memory is None:
            self._memory = memory.scratch(self._op, self._nbytes)
        return self._memory[: count * dtype.itemsize].view(dtype)

    def dense(self, sizes: Sequence[int], dtype: np.dtype[Any], turned: bool) -> Any:
        """Return an array N, H, W, C whose channels are neighbours, or with ``turned`` its pixels."""
        flat = self.flat(math.prod(sizes), dtype)
        if turned:
            return flat.reshape(sizes[3], *sizes[:3]).transpose(1, 2, 3, 0)
        return flat.reshape(*sizes)
