"""Large filters at few channels by way of NumPy's Fourier transforms, tile by tile.

The forward convolution and the input gradient are correlations of an image with filters; overlapping patches of one
size are read, and of each the windows that lie inside it are kept.  A filter gradient is a sum over such patches, kept
as spectra until the end.  One thread does it all.  `fft_tiles` has the arithmetic and its error bounds.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Operand, form_of
from .._geometry import ConvGeometry
from .._registry import Implementation, NeedsWorkspace, Plan, Problem
from . import memory
from .families import Im2col, Reference, limit_of
from .fft_tiles import FEW, LEAST_GAP, Filters, Pair, Real, TapSums, Transform, doubtful, write

Array = npt.NDArray[Any]
Block = tuple[slice, slice]
# Padding above and below, left and right.
Sides = tuple[Pair, Pair]

# Below this the other families are faster whatever the channels, in all three operations and on any number of threads.
LEAST_TAPS = 11 * 11
# Sides of transforms beyond which they fall out of the caches, unless the filter asks for more.
MOST_SIDE = 400
# What the pieces that are computed in another way may take, however small the tiles are.
LEAST_WORKSPACE = 8 * 2**20

# Nanoseconds on one core of an AMD EPYC 9004 with NumPy 2.4 (docs/decisions/0005-fft.md): of a transform per point and
# level; of reading, checking and writing per point of a plane; of one product per point of a plane, which is half a
# complex number; of the calls for one plane; and per multiplication or addition of a direct way, where one of several
# groups has few pairs of channels, and elsewhere.  On an AMD EPYC 7003 with AVX2 all are some 1.6 times as long.
FEW_PAIRS = 16
NS_LEVEL, NS_PASS, NS_PRODUCT, NS_CALLS, NS_DIRECT_FEW, NS_DIRECT = 0.18, 2.5, 0.8, 20e3, 0.022, 0.010


@dataclass(frozen=True, slots=True)
class Tiling:
    """The sizes of transforms and blocks, how many filters share a pass, what that takes, and how long."""

    size: Pair
    block: Pair
    filters: int
    bytes: int
    ns: float


def _smooth_sizes(most: int) -> list[int]:
    """Return the even numbers without prime factors beyond 5."""
    found = set()
    for two in range(1, most.bit_length() + 1):
        for three in range(most.bit_length()):
            for five in range(most.bit_length()):
                number = 2**two * 3**three * 5**five
                if number <= most:
                    found.add(number)
    return sorted(found)


def _side(taps: int, outputs: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the sizes of transforms along one axis, and how many tiles each takes."""
    whole, widest = outputs + taps - 1, max(MOST_SIDE, 2 * taps)
    sizes = _smooth_sizes(2 * widest)
    most = min(widest, next((n for n in sizes if n >= whole), widest))
    array = np.array([n for n in sizes if taps <= n <= most], np.int64)
    return array, -(-outputs // (array - taps + 1))


@functools.lru_cache(maxsize=256)
def tiling(g: ConvGeometry, limit: int) -> Tiling:
    """Return the cheapest tiling that the limit allows; if there is none, the smallest, as taking for ever."""
    gradient = g.op == "conv2d_backprop_filter"
    channels, filters = (g.group_out, g.group_in) if g.op == "conv2d_backprop_input" else (g.group_in, g.group_out)
    grid = g.in_size if g.op == "conv2d_backprop_input" else g.out_size
    (rows, row_tiles), (columns, column_tiles) = (_side(k, n) for k, n in zip(g.filter_size, grid, strict=True))
    points = rows[:, None] * (columns + 2)
    # Planes in use: of each filter and channel two (values and spectrum, or what the sums become); of each channel the
    # patch and its spectrum, twice where magnitudes are looked at; and some on their way.
    fixed, each = (2 * channels + 8, 3 * channels + 4) if gradient else (5 * channels + 10, 2 * channels)
    at_once = (limit // (8 * points) - fixed) // each
    held = np.minimum(at_once, filters)
    passes = -(-filters // np.maximum(held, 1))
    plane = points * NS_LEVEL * np.log2(points) + NS_CALLS
    per_tile = passes * channels * plane + filters * plane + filters * channels * points * NS_PRODUCT
    per_tile += (passes * channels + filters) * points * NS_PASS
    tiles = row_tiles[:, None] * column_tiles
    ns = g.groups * (g.batch * tiles * per_tile + filters * channels * plane)
    ns = np.where(at_once >= 1, ns, math.inf)
    best = ns if np.isfinite(ns).any() else points
    i, j = divmod(int(best.argmin()), len(columns))
    size = (int(rows[i]), int(columns[j]))
    # Equal blocks; they need not fill the transform.
    block = (-(-grid[0] // int(row_tiles[i])), -(-grid[1] // int(column_tiles[j])))
    number = max(1, int(held[i, j]))
    return Tiling(size, block, number, 8 * int(points[i, j]) * (fixed + each * number), float(ns[i, j]))


class Fft(Implementation):
    """Spectra in double precision, for results in float32 or shorter, every element checked."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if problem.dtype == "float64":
            return "the error of a transform is relative to a whole tile, which is too much for each float64 element"
        for name, values in (("strides", g.strides), ("dilations", g.dilations)):
            if values != (1, 1):
                return f"{name} are {values}, and transforms give the results of (1, 1) only"
        if problem.empty:
            return "there is nothing to compute"
        rows, columns = g.filter_size
        if rows * columns < LEAST_TAPS:
            return f"the filter is {rows}x{columns}, and below {LEAST_TAPS} taps transforms are slower than sums"
        found, limit = tiling(g, limit_of(problem)), limit_of(problem)
        need = max(found.bytes, LEAST_WORKSPACE)
        if need > limit:
            return NeedsWorkspace(f"it needs {need} bytes of workspace, more than the limit of {limit} bytes")
        return None

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        rows, columns = g.filter_size
        found = tiling(g, limit_of(problem))
        pairs = g.group_in * g.group_out
        direct = g.flops * (NS_DIRECT_FEW if g.groups > 1 and 1 < pairs < FEW_PAIRS else NS_DIRECT)
        if found.ns > direct:
            return (
                f"it would take some {found.ns / direct:.1f} times as long as the sums over a {rows}x{columns} filter"
            )
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return FftPlan(problem, machine, tiling(problem.geometry, limit_of(problem)))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the call to be computed directly: its geometry, operands and result."""

    geometry: ConvGeometry
    operands: tuple[Array, Array]
    out: Array


class FftPlan(Plan):
    """Tiles one after the other on the calling thread; other families compute what spectra cannot give."""

    def __init__(self, problem: Problem, machine: Any, sizes: Tiling) -> None:
        self.problem = problem
        self.machine = machine
        self.sizes = sizes
        self.whole_filter = (slice(0, problem.geometry.filter_size[0]), slice(0, problem.geometry.filter_size[1]))
        self.bytes = max(sizes.bytes, LEAST_WORKSPACE)
        self.copies = (
            f"both operands: converted to float64 and transformed in tiles of {sizes.size[0]}x{sizes.size[1]}, on one "
            "thread",
        )

    def workspace(self, threads: int) -> int:
        return self.bytes

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        budgeted = memory.process_limit() is not None
        pieces = self._gradient if self.problem.op == "conv2d_backprop_filter" else self._correlation
        with memory.reserved(self.bytes, 0, 1) if budgeted else contextlib.nullcontext(), np.errstate(all="ignore"):
            left = list(pieces(operands[0], operands[1], out))
        for piece in left:
            self._direct(piece, threads)

    def _direct(self, piece: Piece, threads: int) -> None:
        """Compute a piece by another family, in the same workspace."""
        g = piece.geometry
        names = ("input", "filter" if g.op == "conv2d" else "out_backprop")
        axes = (0, 1, 2, 3)
        problem = replace(
            self.problem,
            geometry=g,
            operands=tuple(Operand.of(name, form_of(a), axes) for name, a in zip(names, piece.operands, strict=True)),
            out=Operand.of("out", form_of(piece.out), axes),
            workspace_limit=self.bytes,
        )
        families = [kind("cpu", kind.__name__.lower(), g.op, problem.dtype) for kind in (Im2col, Reference)]
        if problem.empty:
            # Windows that hold padding only.
            if not problem.accumulate:
                piece.out[...] = 0
            return
        able = next(family for family in families if family.objection(problem, self.machine) is None)
        able.plan(problem, self.machine).run(piece.operands, piece.out, threads)

    def _correlation(self, first: Array, second: Array, out: Array) -> Iterator[Piece]:
        """Write the forward convolution or the input gradient; yield what is left to do."""
        g, forward = self.problem.geometry, self.problem.op == "conv2d"
        image, filters = (first, second) if forward else (second, first)
        taken, given = (g.group_in, g.group_out) if forward else (g.group_out, g.group_in)
        before = [p if forward else k - 1 - p for p, k in zip(g.pad_before, g.filter_size, strict=True)]
        transform, patch = Transform(self.sizes.size), np.empty((taken, *self.sizes.size))
        for group in range(g.groups):
            channels = slice(group * taken, (group + 1) * taken)
            taps = filters[..., group * g.group_out : (group + 1) * g.group_out]
            taps = taps if forward else taps[::-1, ::-1].swapaxes(2, 3)
            for part in _blocks(given, self.sizes.filters):
                these, results = taps[..., part], out[..., group * given : (group + 1) * given][..., part]
                held = Filters(transform, these)
                for n in range(g.batch):
                    for block in _grid(out.shape[1:3], self.sizes.block):
                        pixels, sides = _seen(image[n : n + 1, ..., channels], block, before, g.filter_size)
                        _load(patch, pixels[0], sides)
                        results_here = results[n : n + 1, block[0], block[1]]
                        for k in held.correlate(patch, results_here[0]):
                            result = results_here[..., k : k + 1]
                            yield _convolution(g, pixels, these[..., k : k + 1], result, sides)

    def _gradient(self, x: Array, dy: Array, out: Array) -> Iterator[Piece]:
        """Write the filter gradient, or add it; yield what is left to do."""
        g, transform = self.problem.geometry, Transform(self.sizes.size)
        for group in range(g.groups):
            pixels = x[..., group * g.group_in : (group + 1) * g.group_in]
            for part in _blocks(g.group_out, self.sizes.filters):
                filters = slice(group * g.group_out + part.start, group * g.group_out + part.stop)
                gradient, result = dy[..., filters], out[..., filters]
                read = functools.partial(self._tap_sums, transform, pixels, gradient)
                sums, errors, whole = read(np.positive)
                if not np.isfinite(errors).all():
                    yield _taps_gradient(g, pixels, gradient, result, self.whole_filter)
                    continue
                again = doubtful(sums, errors)
                if whole and errors.max() < LEAST_GAP:
                    np.rint(sums, out=sums)
                    again[...] = False
                if np.count_nonzero(again) > FEW:
                    magnitudes, their_errors, _ = read(np.absolute)
                    again &= doubtful(magnitudes, np.maximum(errors, their_errors))
                places = np.argwhere(again).tolist()
                if len(places) > FEW:
                    yield _taps_gradient(g, pixels, gradient, result, self.whole_filter)
                    continue
                write(result.transpose(2, 3, 0, 1), sums, ~again, self.problem.accumulate)
                for c, k, a, b in places:
                    tap = slice(a, a + 1), slice(b, b + 1)
                    one = result[(*tap, slice(c, c + 1), slice(k, k + 1))]
                    yield _taps_gradient(g, pixels[..., c : c + 1], gradient[..., k : k + 1], one, tap)

    def _tap_sums(self, transform: Transform, x: Array, dy: Array, of: Callable[..., Real]) -> tuple[Real, Real, bool]:
        """Return the sums, their errors, and whether they are whole numbers; or the same of absolute values."""
        g = self.problem.geometry
        sums = TapSums(transform, x.shape[3], dy.shape[3])
        patch = np.empty((x.shape[3], *self.sizes.size))
        part = np.empty((dy.shape[3], self.sizes.block[0], self.sizes.size[1]))
        for n in range(g.batch):
            for block in _grid(g.out_size, self.sizes.block):
                pixels, sides = _seen(x[n : n + 1], block, g.pad_before, g.filter_size)
                _load(patch, pixels[0], sides)
                _load(part, dy[n][block], ((0, 0), (0, 0)))
                sums.add(of(patch, out=patch), of(part, out=part))
        return *sums.read((g.filter_size[0], g.filter_size[1])), sums.whole


def _blocks(size: int, block: int) -> Iterator[slice]:
    return (slice(start, min(start + block, size)) for start in range(0, size, block))


def _grid(size: Sequence[int], block: Pair) -> Iterator[Block]:
    return itertools.product(_blocks(size[0], block[0]), _blocks(size[1], block[1]))


def _seen(image: Array, block: Block, before: Sequence[int], taps: Sequence[int]) -> tuple[Array, Sides]:
    """Return the pixels that the windows of a block of outputs hold, and the padding around them."""
    places, sides = [], []
    for part, pad, k, size in zip(block, before, taps, image.shape[1:3], strict=True):
        first, last = part.start - pad, part.stop - pad + k - 1
        start = min(max(0, first), size)
        stop = max(start, min(last, size))
        places.append(slice(start, stop))
        sides.append((max(0, start - first), max(0, last - stop)))
    return image[:, places[0], places[1]], (sides[0], sides[1])


def _load(patch: Real, pixels: Array, sides: Sides) -> Real:
    """Fill a patch, channels first, with pixels amid zeros."""
    height, width = pixels.shape[:2]
    (top, _), (left, _) = sides
    inside = patch[:, top : top + height, left : left + width]
    if inside.shape != patch.shape:
        patch[...] = 0
    inside[...] = pixels.transpose(2, 0, 1)
    return patch


def _convolution(g: ConvGeometry, pixels: Array, filters: Array, out: Array, sides: Sides) -> Piece:
    """Return a block of a convolution."""
    part = replace(
        g,
        op="conv2d",
        batch=1,
        in_channels=pixels.shape[3],
        out_channels=out.shape[3],
        groups=1,
        in_size=pixels.shape[1:3],
        out_size=out.shape[1:3],
        pad_before=(sides[0][0], sides[1][0]),
        pad_after=(sides[0][1], sides[1][1]),
    )
    return Piece(part, (pixels, filters), out)


def _taps_gradient(g: ConvGeometry, x: Array, dy: Array, out: Array, taps: Block) -> Piece:
    """Return the filter gradient of some taps, channels and filters."""
    size = out.shape[:2]
    before = [p - tap.start for p, tap in zip(g.pad_before, taps, strict=True)]
    whole = slice(0, g.out_size[0]), slice(0, g.out_size[1])
    pixels, sides = _seen(x, whole, before, size)
    # Padding that is beyond the filter's reach holds nothing to sum.
    part = replace(
        g,
        in_channels=x.shape[3],
        out_channels=dy.shape[3],
        groups=1,
        in_size=pixels.shape[1:3],
        filter_size=size,
        pad_before=(sides[0][0], sides[1][0]),
        pad_after=(sides[0][1], sides[1][1]),
    )
    return Piece(part, (pixels, dy), out)
