"""Copies between arrays of any strides and dtypes on the GPU: layouts, permuted filters, packed formats, padding.

Axes that lie one in the other on both sides become one first.  Neighbouring threads write neighbours; where the source
has its neighbours along another axis, squares pass through shared memory, so that both sides move whole lines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays import FLOATS
from . import launch, memory

MOST_AXES = 6
# Bytes that one thread moves at most.
WIDEST = 16
# Edges of the squares that pass through shared memory; sides shorter than LEAST_SIDE would leave most of them empty.
TILE, TILE_ROWS, LEAST_SIDE = 32, 8, 8


@dataclass(frozen=True, slots=True)
class Axes:
    """Sizes and, in elements, strides of source and target, from the outermost axis of the target to the innermost."""

    sizes: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]

    def widened(self, by: int) -> Axes | None:
        """Return the same of elements that are ``by`` times as large, or None if they do not lie so."""
        if not self.sizes or self.source[-1] != 1 or self.target[-1] != 1 or self.sizes[-1] % by:
            return None
        if any(stride % by for stride in (*self.source[:-1], *self.target[:-1])):
            return None
        return Axes(
            (*self.sizes[:-1], self.sizes[-1] // by),
            (*(stride // by for stride in self.source[:-1]), 1),
            (*(stride // by for stride in self.target[:-1]), 1),
        )

    def six(self) -> tuple[np.int64, ...]:
        """Return the arguments of the kernels, which have six axes."""
        missing = MOST_AXES - len(self.sizes)
        parts = [1] * missing + list(self.sizes), [0] * missing + list(self.source), [0] * missing + list(self.target)
        return tuple(np.int64(value) for part in parts for value in part)


@dataclass(frozen=True, slots=True)
class Copy:
    """One launch, but for the two arrays."""

    kernel: str
    types: launch.Types
    blocks: int
    block: tuple[int, ...]
    arguments: tuple[Any, ...]


def joined(sizes: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Axes:
    """Return the axes in the target's order, without those of one element, and joined where both sides allow."""
    order = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: -abs(target[axis]))
    found: list[tuple[int, int, int]] = []
    for axis in order:
        size, near, to = sizes[axis], source[axis], target[axis]
        if found and found[-1][1] == near * size and found[-1][2] == to * size:
            found[-1] = found[-1][0] * size, near, to
        else:
            found.append((size, near, to))
    return Axes(*zip(*found, strict=True)) if found else Axes((), (), ())


def conversion(source: str, target: str) -> tuple[launch.Types, tuple[np.int32, np.int32]]:
    """Return the types of a kernel that converts numbers, and their codes; the target is floating-point.

    By way of float64 where one of the two is float64, else of float32: what float32 does not hold are then integers
    that become float32, or halves, as NumPy makes them.
    """
    if target not in FLOATS:
        raise ValueError(f"{source} is not converted to {target}")
    number = "double" if "float64" in (source, target) else "float"
    return (("NUMBER", number),), (launch.CODES[source], launch.CODES[target])


@functools.lru_cache(maxsize=1024)
def plan(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    dtypes: tuple[str, str],
    itemsizes: tuple[int, int],
    alignment: int,
) -> Copy:
    """Return how to copy between arrays with these strides, in bytes, at addresses that are multiples of so many."""
    both = zip((source, target), itemsizes, strict=True)
    if any(n > 1 and s % size for strides, size in both for n, s in zip(shape, strides, strict=True)):
        raise ValueError("the strides are no whole numbers of elements")
    axes = joined(shape, *([s // size for s in part] for part, size in zip((source, target), itemsizes, strict=True)))
    count = math.prod(axes.sizes)
    if dtypes[0] != dtypes[1]:
        types, codes = conversion(*dtypes)
        return _flat("copy_values", types, count, codes, axes)
    size = itemsizes[0]
    if (tiles := _tiles(axes)) is not None:
        across, along = tiles.sizes[-2:]
        squares = -(-across // TILE) * -(-along // TILE) * math.prod(tiles.sizes[:-2])
        types = (("ELEMENT", launch.BITS[size]),)
        return Copy("copy_tiles", types, squares, (TILE, TILE_ROWS), (np.int64(squares), *tiles.six()))
    while size * 2 <= min(WIDEST, alignment) and (wider := axes.widened(2)) is not None:
        axes, size, count = wider, size * 2, count // 2
    return _flat("copy_bits", (("ELEMENT", launch.BITS[size]),), count, (), axes)


def _flat(kernel: str, types: launch.Types, count: int, codes: tuple[Any, ...], axes: Axes) -> Copy:
    blocks = -(-count // launch.THREADS)
    return Copy(kernel, types, blocks, (launch.THREADS,), (*codes, np.int64(count), *axes.six()))


def _tiles(axes: Axes) -> Axes | None:
    """Return the axes with that of the source's neighbours next to the last, or None if squares would not help."""
    if len(axes.sizes) < 2 or abs(axes.source[-1]) == 1 or axes.sizes[-1] < LEAST_SIDE:
        return None
    near = [axis for axis, step in enumerate(axes.source[:-1]) if abs(step) == 1 and axes.sizes[axis] >= LEAST_SIDE]
    if not near:
        return None
    order = [axis for axis in range(len(axes.sizes)) if axis != near[0]]
    order.insert(-1, near[0])
    return Axes(*(tuple(part[axis] for axis in order) for part in (axes.sizes, axes.source, axes.target)))


def copy(source: Any, target: Any) -> None:
    """Write the elements of one array to another of the same shape, which it does not overlap, in its dtype.

    Numbers are rounded to the nearest, the even one of two; targets of another dtype than the source's are
    floating-point.
    """
    if not source.size:
        return
    alignment = math.gcd(source.data.ptr, target.data.ptr, WIDEST)
    itemsizes = source.itemsize, target.itemsize
    dtypes = source.dtype.name, target.dtype.name
    found = plan(source.shape, source.strides, target.strides, dtypes, itemsizes, alignment)
    launch.run_blocks(found.kernel, found.types, found.blocks, found.block, (source, target, *found.arguments))


def pad(source: Any, target: Any, before: Sequence[int]) -> None:
    """Write an array into a larger one, ``before`` elements from its start along each axis, and zeros around it."""
    memory.clear(target)
    copy(source, target[tuple(slice(first, first + size) for first, size in zip(before, source.shape, strict=True))])
