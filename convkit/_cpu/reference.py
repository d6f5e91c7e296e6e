"""The operations in plain NumPy: slow, and short enough to be checked by reading.

Arrays come as views in the order N, H, W, C and H, W, I, O; those of int8 also as N, H, W, C/4, 4 and H, W, I/4, 4, O,
and their sums are exact, being whole numbers far below 2^53.  Each tap of the filter meets the pixels it covers as one
slice of the image, in float64; padding is never touched.  `einsum` without `optimize` never calls BLAS, so that the
order of every sum is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .._epilogue import Epilogue, Terms
from .._formats import VECTOR
from .._geometry import ConvGeometry
from . import epilogue as after

Array = npt.NDArray[Any]
Slices = tuple[slice, slice]
Meet = Callable[[ConvGeometry, int, int, slice], Slices | None]

# Multiplications of one step: about 10 ms, so that an interrupt is seen soon, and scratch stays near a megabyte.
STEP_WORK = 1 << 22
STEP_ELEMENTS = 1 << 16


def _blocks(size: int, block: int) -> Iterator[slice]:
    block = max(1, block)
    return (slice(start, min(start + block, size)) for start in range(0, size, block))


Piece = tuple[int, slice, slice, slice, slice]


def _pieces(g: ConvGeometry, size: tuple[int, ...], over_inputs: bool) -> Iterator[Piece]:
    """Yield image, rows, columns, the group's input channels and its filters, few enough of each for one step.

    ``size`` is the grid that is cut; of the channels, those of the result are cut, as ``over_inputs`` tells which.
    """
    taken, given = (g.group_in, g.group_out) if over_inputs else (g.group_out, g.group_in)
    block = max(1, min(taken, STEP_ELEMENTS // max(1, given)))
    pixels = max(1, min(STEP_WORK // max(1, given * block), STEP_ELEMENTS // max(1, given, block)))
    for n in range(g.batch):
        for group in range(g.groups):
            whole = slice(group * given, (group + 1) * given)
            for part in _blocks(taken, block):
                cut = slice(group * taken + part.start, group * taken + part.stop)
                inputs, filters = (cut, whole) if over_inputs else (whole, cut)
                for i in _blocks(size[0], pixels // max(1, size[1])):
                    for j in _blocks(size[1], pixels):
                        yield n, i, j, inputs, filters


def _meet(g: ConvGeometry, axis: int, tap: int, block: slice) -> Slices | None:
    """Return which outputs of a block a tap reaches inside the image, and the pixels it meets there."""
    stride, size = g.strides[axis], g.in_size[axis]
    offset = tap * g.dilations[axis] - g.pad_before[axis]
    first = max(block.start, -(offset // stride))
    last = min(block.stop - 1, (size - 1 - offset) // stride)
    if first > last:
        return None
    pixels = slice(first * stride + offset, last * stride + offset + 1, stride)
    return slice(first - block.start, last + 1 - block.start), pixels


def _meet_back(g: ConvGeometry, axis: int, tap: int, block: slice) -> Slices | None:
    """Return which outputs reach a block of pixels by a tap, and those pixels, counted from the block's start."""
    stride = g.strides[axis]
    offset = tap * g.dilations[axis] - g.pad_before[axis]
    first = max(0, -((offset - block.start) // stride))
    last = min(g.out_size[axis] - 1, (block.stop - 1 - offset) // stride)
    if first > last:
        return None
    start = first * stride + offset - block.start
    return slice(first, last + 1), slice(start, last * stride + offset - block.start + 1, stride)


def _taps(g: ConvGeometry, meet: Meet, i: slice, j: slice) -> Iterator[tuple[int, int, Slices, Slices]]:
    """Yield each tap that meets a block, with the outputs and the pixels at which it does."""
    for a in range(g.filter_size[0]):
        rows = meet(g, 0, a, i)
        if rows is None:
            continue
        for b in range(g.filter_size[1]):
            columns = meet(g, 1, b, j)
            if columns is not None:
                yield a, b, (rows[0], columns[0]), (rows[1], columns[1])


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _group_inputs(g: ConvGeometry, inputs: slice) -> slice:
    """Return where a filter keeps the given input channels, which it counts within its group."""
    start = inputs.start % g.group_in if g.group_in else 0
    return slice(start, start + inputs.stop - inputs.start)


def conv2d(g: ConvGeometry, x: Array, w: Array, out: Array) -> None:
    """Write the convolution of ``x`` with ``w`` to ``out``."""
    for n, i, j, filters, total in _sums(g, x, w, 0):
        _store(out[n, i, j], filters, _narrow(total, out.dtype))


def fused_int8(g: ConvGeometry, e: Epilogue, terms: Terms, x: Array, w: Array, side: Array | None, out: Array) -> None:
    """Write the convolution of int8 or uint8 ``x`` with int8 ``w``, and what the epilogue makes of it, to ``out``."""
    for n, i, j, filters, total in _sums(g, x, w, e.input_zero_point):
        store_integers(total, filters, e, terms, None if side is None else side[n, i, j], out[n, i, j])


def store_integers(sums: Array, part: slice, e: Epilogue, terms: Terms, side: Array | None, out: Array) -> None:
    """Write what the epilogue makes of the whole sums of some channels of a grid of pixels."""
    beside = None if side is None else channels_of(side, part)
    _store(out, part, after.of_integers(sums.astype(np.int64), part, e, terms, beside, out.dtype))


def _sums(g: ConvGeometry, x: Array, w: Array, zero_point: int) -> Iterator[tuple[int, slice, slice, slice, Array]]:
    """Yield the sums piece by piece: image, rows, columns, filters, and the sums in float64."""
    for n, i, j, inputs, filters in _pieces(g, g.out_size, over_inputs=False):
        total = np.zeros((i.stop - i.start, j.stop - j.start, filters.stop - filters.start))
        for a, b, outputs, pixels in _taps(g, _meet, i, j):
            image = _wide(channels_of(x[n][pixels], inputs))
            weights = _wide(w[a, b].reshape(g.group_in, -1)[:, filters])
            total[outputs] += np.einsum("ijc,ck->ijk", image - zero_point if zero_point else image, weights)
        yield n, i, j, filters, total


def channels_of(pixels: Array, part: slice) -> Array:
    """Return some channels of rows and columns of pixels, which may come in vectors of channels."""
    if pixels.ndim == 3:
        return pixels[..., part]
    first, last = part.start // VECTOR, -(-part.stop // VECTOR)
    whole = pixels[:, :, first:last].reshape(*pixels.shape[:2], -1)
    return whole[..., part.start - VECTOR * first : part.stop - VECTOR * first]


def _store(pixels: Array, part: slice, values: Array) -> None:
    """Write some channels of rows and columns of pixels."""
    if pixels.ndim == 3:
        pixels[..., part] = values
    else:
        channels = np.arange(part.start, part.stop)
        pixels[..., channels // VECTOR, channels % VECTOR] = values


def conv2d_backprop_filter(g: ConvGeometry, x: Array, dy: Array, out: Array, accumulate: bool) -> None:
    """Write (or add) the filter gradient to ``out``, tap by tap."""
    total = np.zeros((g.group_in, g.out_channels))
    for a in range(g.filter_size[0]):
        for b in range(g.filter_size[1]):
            total[...] = 0
            for n, i, j, inputs, filters in _pieces(g, g.out_size, over_inputs=False):
                rows, columns = _meet(g, 0, a, i), _meet(g, 1, b, j)
                if rows is not None and columns is not None:
                    pixels = _wide(x[n, rows[1], columns[1], inputs])
                    gradient = _wide(dy[n, i, j, filters][rows[0], columns[0]])
                    total[:, filters] += np.einsum("ijc,ijk->ck", pixels, gradient)
            out[a, b] = _narrow(total + _wide(out[a, b]) if accumulate else total, out.dtype)


def conv2d_backprop_input(g: ConvGeometry, w: Array, dy: Array, out: Array) -> None:
    """Write the input gradient to ``out``, one block of pixels after the other."""
    for n, i, j, inputs, filters in _pieces(g, g.in_size, over_inputs=True):
        total = np.zeros((i.stop - i.start, j.stop - j.start, inputs.stop - inputs.start))
        kept = _group_inputs(g, inputs)
        for a, b, outputs, pixels in _taps(g, _meet_back, i, j):
            gradient = _wide(dy[n][outputs][..., filters])
            total[pixels] += np.einsum("ijk,ck->ijc", gradient, _wide(w[a, b, kept, filters]))
        out[n, i, j, inputs] = _narrow(total, out.dtype)


def _narrow(total: Array, dtype: np.dtype[Any]) -> Array:
    """Round to the result's dtype; halves by way of float32, as the other families' sums are float32."""
    return total if dtype.itemsize >= 4 else total.astype(np.float32)
