"""How convolutions that do not mix channels are cut into tiles: pure arithmetic, as in `plan`."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import _engine, plan
from .layouts import computes_as_is, settle_strides
from .machine import Machine
from .plan import SUM_BLOCK, TILES, Phase, Window
from .vectors import Kernels

# A tile's pixels and results take this part of the second-level cache; arrays that together are more than this part of
# the last one are fetched ahead, and stored past it: 1.2 times as fast with 19 MB of 32, 0.95 times with 14 (Zen 4).
CACHE_PARTS = 2
# Channels last, where nothing is copied, memory is walked through row by row, and a tile may take this many times that
# cache: 100 microseconds of memory traffic.
WALKED_CACHES = 4
# Below this a tile is not cut further to get more of them: 10 to 50 microseconds.
LEAST_TILE_FLOPS = 1e6
# Vectors of channels side by side below which a tile is not narrowed: shorter runs of memory are slow to fetch.
LEAST_VECTORS = 4
# Rows below which a tile gets fewer channels before it gets fewer rows: neighbours read the rows between them twice.
LEAST_ROWS = 8
# A line of the cache, in numbers, and those of any vector.
LEAST_LANES = 16
# Sums of a filter gradient that are kept at a time: 64 KiB of them, read and written once for some hundred pixels.
MOST_SUMS = 16384
# Rows of a plane that share vectors of pixels: a multiple of DW_GRID of every level (depthwise_body.inc).
GRID_ROWS = 8
# With fewer channels than this side by side, vectors run along the columns.
FEW_CHANNELS = 4
# Rows and columns of taps, and steps, for which kernels read planes where they lie, as `ck_depthwise_plane_fn` in
# depthwise_kernels.h; gradients of the filter may have any number of rows.
PLANE_TAPS = (3, 5, 7)
PLANE_STEPS = ((1, 1), (2, 2))
# Those kernels go down a plane one vector of columns after the other. Large filters over longer rows are faster laid
# down first and summed row by row: 1.2 times with 7x7 taps and 256 to 1024 columns (Zen 4).
FAR_TAPS, FAR_COLUMNS = 7, 128
# As NEAR_PIXELS in depthwise_gradient.c.
NEAR_PIXELS = 192
# No more slices than have partial sums in so many bytes; a constant, since the order of sums must not follow the limit.
MOST_PARTIAL_BYTES = 16 * 2**20

# Rows, columns and channels: those that are as many as groups.
Tile = tuple[int, int, int]


KERNELS = Kernels.of(_engine.depthwise_kernels())


@dataclass(frozen=True, slots=True)
class DepthwisePhase:
    """As `ck_depthwise_phase` in depthwise.h."""

    window: Window
    out_strides: tuple[int, ...]
    out_at: int
    row_tap: tuple[int, ...]
    col_tap: tuple[int, ...]
    out_in_place: bool
    unpadded: bool
    flat: bool = False
    pairs: bool = False
    head: bool = False
    tail: bool = False


@dataclass(frozen=True, slots=True)
class DepthwiseSpec:
    """As `ck_depthwise` in depthwise.h."""

    arithmetic: str
    isa: str
    planes: bool
    gathers: bool
    image: Operand
    image_plain: bool
    filter: Operand
    filter_in_place: bool
    streams: bool
    out: Operand
    images: int
    groups: int
    multiplier: int
    phases: tuple[DepthwisePhase, ...]
    tile: Tile
    scratch: tuple[int, int]
    shared_bytes: int
    fills_all: bool


@dataclass(frozen=True, slots=True)
class DepthwiseGradientSpec:
    """As `ck_depthwise_gradient` in depthwise_gradient.h."""

    arithmetic: str
    isa: str
    planes: bool
    unpadded: bool
    window: Window
    image: Operand
    image_plain: bool
    gradient: Operand
    gradient_plain: bool
    out: Operand
    accumulate: bool
    streams: bool
    images: int
    channels: int
    multiplier: int
    block: Tile
    slices: int
    slice_blocks: int
    scratch: tuple[int, int]
    shared_bytes: int


def forward_spec(
    g: ConvGeometry, image: Operand, filter: Operand, out: Operand, limit: int, machine: Machine
) -> DepthwiseSpec:
    """Plan a forward convolution."""
    image, filter, out = map(settle_strides, (image, filter, out))
    phases = (plan.forward_phase(g, out, plan.arithmetic_of(filter.dtype)),)
    return _spec(g, image, filter, out, phases, False, True, limit, machine)


def gather_spec(
    g: ConvGeometry, filter: Operand, gradient: Operand, out: Operand, limit: int, machine: Machine
) -> DepthwiseSpec:
    """Plan an input gradient, phase by phase of the strides."""
    gradient, filter, out = map(settle_strides, (gradient, filter, out))
    phases = plan.stride_phases(g, out, plan.arithmetic_of(filter.dtype))
    return _spec(g, gradient, filter, out, phases, True, plan.fills_all(g, phases), limit, machine)


def _along_columns(image: Operand, columns: int) -> bool:
    """Tell whether vectors run along the columns of planes, and not along the channels of pixels."""
    channels = image.shape[3]
    if channels == 1:
        return True
    if image.strides[3] == image.itemsize:
        return channels < min(FEW_CHANNELS, columns)
    return columns >= min(FEW_CHANNELS, channels)


def _is_plain(operand: Operand, strides: tuple[int, ...], arithmetic: str, planes: bool) -> bool:
    """Tell whether vectors can be read or written where they lie."""
    seen = replace(operand, strides=strides)
    return computes_as_is(seen, arithmetic) and strides[2 if planes else 3] == operand.itemsize


def _side_by_side(at: tuple[int, ...]) -> bool:
    """Tell whether taps lie at neighbouring pixels."""
    return all(b - a == 1 for a, b in itertools.pairwise(at))


def _has_plane(window: Window) -> bool:
    """Tell whether there are kernels for sums of filter gradients that read planes where they lie."""
    beside = _side_by_side(window.row_at) and _side_by_side(window.col_at)
    far = len(window.col_at) >= FAR_TAPS and window.size[1] > FAR_COLUMNS
    return beside and len(window.col_at) in PLANE_TAPS and window.steps in PLANE_STEPS and not far


def _bytes(*operands: Operand) -> int:
    """Return what arrays take in memory."""
    return sum(math.prod(operand.shape) * operand.itemsize for operand in operands)


def _across(window: Window, columns: int) -> int:
    """Return the columns of the image that a block reaches, padding included."""
    return (columns - 1) * window.steps[1] + max(window.col_at) - min(window.col_at) + 1


def _reach(window: Window, rows: int, columns: int) -> int:
    """Return the pixels of the image that a block reaches, padding included, columns filled up to the window's step."""
    high = (rows - 1) * window.steps[0] + max(window.row_at) - min(window.row_at) + 1
    return high * -(-_across(window, columns) // window.steps[1]) * window.steps[1]


def _multiple(count: int, unit: int) -> int:
    """Return the number rounded up to a multiple of ``unit``."""
    return -(-count // unit) * unit


def _half(count: int, unit: int = 1) -> int:
    """Return about half of a number, as a multiple of ``unit``."""
    return _multiple(-(-count // 2), unit)


def _spec(
    g: ConvGeometry,
    image: Operand,
    filter: Operand,
    out: Operand,
    phases: tuple[Phase, ...],
    gathers: bool,
    fills_all: bool,
    limit: int,
    machine: Machine,
) -> DepthwiseSpec:
    arithmetic = plan.arithmetic_of(filter.dtype)
    kernel, size = KERNELS.best(arithmetic, machine.isa), plan.size_of(arithmetic)
    planes = _along_columns(image, max(phase.window.out_size[1] for phase in phases))
    in_place = not planes and _is_plain(filter, filter.strides, arithmetic, False)
    plain_image = _is_plain(image, image.strides, arithmetic, planes)
    own = tuple(
        DepthwisePhase(
            window=phase.window,
            out_strides=phase.out_strides,
            out_at=phase.out_at,
            row_tap=phase.row_tap,
            col_tap=phase.col_tap,
            out_in_place=_is_plain(out, phase.out_strides, arithmetic, planes),
            unpadded=False,
        )
        for phase in phases
    )
    walks = plain_image and not planes and g.group_out == 1 and all(phase.out_in_place for phase in own)
    if gathers and walks and in_place:
        own = _in_pairs(own)
    if planes and plain_image:
        own = _unpadded(own, out, arithmetic)
    unpadded = all(phase.unpadded for phase in own)
    in_place = in_place or (unpadded and computes_as_is(filter, arithmetic))
    packed = 0 if in_place else sum(phase.window.taps for phase in phases) * g.out_channels * size
    window = max((phase.window for phase in own), key=lambda w: w.taps * w.grid)
    draft = DepthwiseSpec(
        arithmetic=arithmetic,
        isa=kernel.isa,
        planes=planes,
        gathers=gathers,
        image=image,
        image_plain=plain_image,
        filter=filter,
        filter_in_place=in_place,
        streams=(walks or unpadded) and _bytes(image, out) > machine.llc_bytes // CACHE_PARTS,
        out=out,
        images=g.batch,
        groups=g.groups,
        multiplier=g.group_out,
        phases=own,
        tile=(1, 1, 1),
        scratch=(0, 0),
        shared_bytes=packed,
        fills_all=fills_all,
    )
    tile = _tile(draft, window, kernel.lanes, machine.l2_bytes * WALKED_CACHES if walks else machine.l2_bytes)
    while True:
        draft = replace(draft, phases=tuple(_flatten(phase, planes, tile, kernel.lanes) for phase in draft.phases))
        scratch = _scratch(draft, tile)
        if packed + sum(scratch) <= limit:
            return replace(draft, tile=tile, scratch=scratch)
        rows, columns, count = tile
        if count > 1:
            tile = rows, columns, _half(count)
        elif rows > 1:
            tile = _half(rows), columns, 1
        elif columns > 1:
            tile = 1, _half(columns), 1
        else:
            raise WorkspaceError(plan.too_small(packed + sum(scratch), limit))


def _in_pairs(phases: tuple[DepthwisePhase, ...]) -> tuple[DepthwisePhase, ...]:
    """Return phases two by two as pairs of output pixels, where three tap columns lie two output pixels apart.

    As they come from the plan, phases of the same rows follow each other.
    """
    merged = []
    if len(phases) % 2:
        return phases
    for one, two in zip(phases[::2], phases[1::2], strict=True):
        pair = _as_pair(*((one, two) if len(one.window.col_at) == 1 else (two, one)))
        if pair is None:
            return phases
        merged.append(pair)
    return tuple(merged)


def _unpadded(phases: tuple[DepthwisePhase, ...], out: Operand, arithmetic: str) -> tuple[DepthwisePhase, ...]:
    """Return the phases with planes left where they lie, in those or all of the pairs that there are kernels for."""
    pairs = _in_pairs(phases)
    if pairs is not phases:
        beside = all(_side_by_side(pair.window.row_at) for pair in pairs)
        dense = all(_is_plain(out, _of_a_pixel(pair), arithmetic, True) for pair in pairs)
        return tuple(replace(pair, unpadded=True) for pair in pairs) if beside and dense else phases

    def is_served(phase: DepthwisePhase) -> bool:
        square = len(phase.window.row_at) == len(phase.window.col_at)
        return phase.out_in_place and square and _has_plane(phase.window)

    return tuple(replace(phase, unpadded=is_served(phase)) for phase in phases)


def _of_a_pixel(pair: DepthwisePhase) -> tuple[int, ...]:
    """Return the strides of a result whose pixels come in pairs."""
    n, h, w, c = pair.out_strides
    return n, h, w // 2, c


def _as_pair(one: DepthwisePhase, two: DepthwisePhase) -> DepthwisePhase | None:
    """Return pixels that meet one tap column and the next ones, if they meet two, as one phase, or else None."""
    a, b = one.window, two.window
    if (one.col_tap, two.col_tap) != ((1,), (2, 0)) or (a.row_at, one.row_tap) != (b.row_at, two.row_tap):
        return None
    if b.col_at[1] != b.col_at[0] + 1 or a.out_size[0] != b.out_size[0] or b.taps > SUM_BLOCK // 2:
        return None
    column = min(a.col_at[0], b.col_at[0])
    before_one, before_two = a.col_at[0] - column, b.col_at[0] - column
    pixel = one.out_strides[2] // 2
    first = one.out_at - before_one * 2 * pixel
    if before_two or first + pixel != two.out_at:
        return None
    pairs = max(before_one + a.out_size[1], b.out_size[1])
    if before_one + a.out_size[1] != pairs or column < -1 or pairs + column > b.size[1]:
        return None
    window = replace(b, out_size=(b.out_size[0], pairs), col_at=(column, column + 1))
    tail = b.out_size[1] < pairs
    return replace(two, window=window, out_at=first, pairs=True, head=before_one > 0, tail=tail)


def _pitch(window: Window, columns: int) -> int:
    """Return the columns that a block of so many output columns reaches at a step of 1."""
    return columns + max(window.col_at) - min(window.col_at)


def _flatten(phase: DepthwisePhase, planes: bool, tile: Tile, lanes: int) -> DepthwisePhase:
    """Return the phase with its planes as one row each, where that takes fewer vectors."""
    rows, columns = min(tile[0], phase.window.out_size[0]), min(tile[1], phase.window.out_size[1])
    run = (rows - 1) * _pitch(phase.window, columns) + columns
    fewer = -(-run // lanes) < rows * -(-columns // lanes)
    return replace(phase, flat=planes and not phase.unpadded and phase.window.steps == (1, 1) and fewer)


def _scratch(spec: DepthwiseSpec, tile: Tile) -> tuple[int, int]:
    """Return the bytes of pixels and of results that the largest tile of any phase takes."""
    staged, sums, size, filters = 0, 0, plan.size_of(spec.arithmetic), tile[2] * spec.multiplier
    folds = not spec.planes and spec.gathers and spec.multiplier > 1
    stages = spec.planes or not spec.image_plain or (spec.multiplier > 1 and not spec.gathers)
    results = tile[2] if spec.planes and spec.gathers else filters
    for phase in spec.phases:
        if phase.unpadded:
            continue
        rows, columns = min(tile[0], phase.window.out_size[0]), min(tile[1], phase.window.out_size[1])
        if stages:
            pixels = tile[2] if spec.planes and not spec.gathers else filters
            staged = max(staged, _reach(phase.window, rows, columns) * pixels * size)
        if phase.flat:
            sums = max(sums, rows * _pitch(phase.window, columns) * results * size)
        elif folds or not phase.out_in_place:
            sums = max(sums, rows * columns * results * size)
    return plan.aligned(staged), plan.aligned(sums)


def _shrink(tile: Tile, planes: bool, lanes: int, least_rows: int = LEAST_ROWS) -> Tile | None:
    """Return about half a tile, or None if that would not pay."""
    rows, columns, channels = tile
    if planes:
        if channels > 1:
            return rows, columns, _half(channels)
        if rows > 1:
            return _half(rows, GRID_ROWS if rows > 2 * GRID_ROWS else 1), columns, 1
        return (1, _half(columns, lanes), 1) if columns > 16 * lanes else None
    if rows > least_rows:
        return _half(rows), columns, channels
    if channels > LEAST_VECTORS * lanes:
        return rows, columns, _half(channels, lanes)
    if rows > 1:
        return _half(rows), columns, channels
    return (1, _half(columns), channels) if columns > 16 else None


def _numbers(window: Window, tile: Tile) -> int:
    """Return how many numbers of the image and the other array a tile touches."""
    rows, columns, channels = tile
    return (_reach(window, rows, columns) + rows * columns) * channels


def _flops(window: Window, tile: Tile) -> float:
    return 2.0 * window.taps * tile[0] * tile[1] * tile[2]


def _tile(spec: DepthwiseSpec, window: Window, lanes: int, cache: int) -> Tile:
    """Return a tile, by the cache and by how many tiles there are."""
    ways = spec.multiplier * len(spec.phases)
    elements = cache // CACHE_PARTS // plan.size_of(spec.arithmetic) // ways
    tile = (*window.out_size, spec.groups)

    def tiles() -> int:
        across = -(-window.out_size[0] // tile[0]) * -(-window.out_size[1] // tile[1])
        return spec.images * across * -(-spec.groups // tile[2])

    while _numbers(window, tile) > elements and (smaller := _shrink(tile, spec.planes, lanes)):
        tile = smaller
    while tiles() < TILES and ways * _flops(window, tile) > LEAST_TILE_FLOPS:
        smaller = _shrink(tile, spec.planes, lanes)
        if smaller is None:
            break
        tile = smaller
    return tile


def _borders(window: Window, axis: int) -> tuple[int, int]:
    """Return how many output pixels along an axis meet all taps, and how many only some of them."""
    at, step = (window.row_at, window.col_at)[axis], window.steps[axis]
    size, count = window.size[axis], window.out_size[axis]
    whole = sum(at[0] + i * step >= 0 and at[-1] + i * step < size for i in range(count))
    return whole, count - whole


def _patches(window: Window) -> int:
    """Return about how many sums of neighbouring pixels are added up for an image, channels last."""
    (rows, above), (columns, beside) = (_borders(window, axis) for axis in (0, 1))
    near = max(1, NEAR_PIXELS // window.steps[0] // max(1, columns))
    return (above + -(-rows // near)) * (beside + min(1, columns))


def filter_gradient_spec(
    g: ConvGeometry,
    image: Operand,
    gradient: Operand,
    out: Operand,
    accumulate: bool,
    limit: int,
    machine: Machine,
) -> DepthwiseGradientSpec:
    """Plan a filter gradient."""
    arithmetic = plan.arithmetic_of(gradient.dtype)
    image, gradient, out = map(settle_strides, (image, gradient, out))
    kernel, size, window = KERNELS.best(arithmetic, machine.isa), plan.size_of(arithmetic), plan.forward_window(g)
    lanes, planes = kernel.lanes, _along_columns(image, window.out_size[1])
    gradient_plain = _is_plain(gradient, gradient.strides, arithmetic, planes)
    image_plain = _is_plain(image, image.strides, arithmetic, planes)
    elements, times = machine.l2_bytes // CACHE_PARTS // size, g.group_out
    most_columns = SUM_BLOCK * (lanes if planes else 1)
    most_groups = max(1, (g.out_channels if planes else MOST_SUMS // window.taps) // times)
    unit = 1 if planes else LEAST_LANES
    most_groups = min(g.groups, _multiple(plan.cut(g.groups, most_groups), unit))
    block = (window.out_size[0], plan.cut(window.out_size[1], most_columns), most_groups)
    while times * _numbers(window, block) > elements and (smaller := _shrink(block, planes, lanes, 1)):
        block = smaller
    work = 2.0 * window.taps * window.grid * g.batch * g.out_channels
    wanted = int(min(TILES, work / LEAST_TILE_FLOPS))

    def blocks() -> int:
        return g.batch * -(-window.out_size[0] // block[0]) * -(-window.out_size[1] // block[1])

    least_groups = max(2 * LEAST_VECTORS * lanes, unit + 1)
    while blocks() * -(-g.groups // block[2]) < wanted and block[2] >= least_groups:
        block = block[0], block[1], _half(block[2], unit)
    tiles = -(-g.groups // block[2])
    wanted = max(1, wanted // tiles)
    if not planes:
        wanted = max(wanted, min(TILES, -(-g.batch * _patches(window) // SUM_BLOCK)))
    while blocks() < wanted and block[0] > 1:
        block = _half(block[0]), block[1], block[2]
    block = block[0], block[1], block[2] * times
    unpadded = planes and image_plain and gradient_plain and _has_plane(window)
    side_by_side = 1 if unpadded else lanes
    sums = window.taps * (block[2] * side_by_side if planes else _multiple(block[2], lanes))
    slices = max(1, min(wanted, blocks(), MOST_PARTIAL_BYTES // (tiles * sums * size)))
    slice_blocks = -(-blocks() // slices)
    slices = -(-blocks() // slice_blocks)
    staged = block[2] // times if planes else block[2]
    in_place = image_plain and gradient_plain and not planes and times == 1
    scratch = (
        0
        if unpadded or (image_plain and not planes and times == 1)
        else plan.aligned(_reach(window, block[0], block[1]) * staged * size),
        0 if gradient_plain else plan.aligned(block[0] * block[1] * block[2] * size),
    )
    partial = tiles * slices * sums * size
    if partial + sum(scratch) > limit:
        raise WorkspaceError(plan.too_small(partial + sum(scratch), limit))
    return DepthwiseGradientSpec(
        arithmetic=arithmetic,
        isa=kernel.isa,
        planes=planes,
        unpadded=unpadded,
        window=window,
        image=image,
        image_plain=image_plain,
        gradient=gradient,
        gradient_plain=gradient_plain,
        out=out,
        accumulate=accumulate,
        streams=(in_place or unpadded) and _bytes(image, gradient) > machine.llc_bytes // CACHE_PARTS,
        images=g.batch,
        channels=g.out_channels,
        multiplier=times,
        block=block,
        slices=slices,
        slice_blocks=slice_blocks,
        scratch=scratch,
        shared_bytes=partial,
    )
