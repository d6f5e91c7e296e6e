"""How convolutions of few channels are cut into tiles: pure arithmetic, as in `plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import _engine, plan
from .layouts import computes_as_is, settle_strides
from .machine import Machine
from .plan import SUM_BLOCK, TILES, Phase, Window
from .vectors import Kernels

# A tile's pixels and results take this part of the second-level cache.
CACHE_PARTS = 2
# Below this a tile is not cut further to get more of them: 20 to 50 microseconds.
LEAST_TILE_FLOPS = 5e5
# Filters that the kernels sum at a time: CK_PLANAR_LINES in planar_kernels.h.
LINES = 4
# Terms of a sum from which on the second-level sum costs nothing; fewer terms leave a tile more pixels ...
ENOUGH_TERMS = 128
# ... and up to so many terms in all, a sum has no more additions than in blocks of SUM_BLOCK.
MOST_IN_SHORT_BLOCKS = 65536
# Vectors across and rows of a gradient's block, together SUM_BLOCK: pixels and gradients fit the first-level cache.
BLOCK_VECTORS, BLOCK_ROWS = 16, 32
# Vectors run along the channels of the image if there are so many, and few filters.
LEAST_VECTORS = 1
# No more slices than have partial sums in so many bytes; a constant, since the order of sums must not follow the limit.
MOST_PARTIAL_BYTES = 16 * 2**20


KERNELS = Kernels.of(_engine.planar_kernels())


@dataclass(frozen=True, slots=True)
class PlanarPhase:
    """As `ck_planar_phase` in planar.h."""

    window: Window
    out_strides: tuple[int, ...]
    out_at: int
    row_tap: tuple[int, ...]
    col_tap: tuple[int, ...]
    out_in_place: bool
    sum_block: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class PlanarSpec:
    """As `ck_planar` in planar.h."""

    arithmetic: str
    isa: str
    interleaved: bool
    image: Operand
    image_plain: bool
    filter: Operand
    filter_strides: tuple[int, int, int, int]
    out: Operand
    out_plain: bool
    images: int
    channels: int
    filters: int
    filter_block: int
    phases: tuple[PlanarPhase, ...]
    tile: tuple[int, int]
    scratch: tuple[int, int]
    shared_bytes: int
    fills_all: bool


@dataclass(frozen=True, slots=True)
class PlanarGradientSpec:
    """As `ck_planar_gradient` in planar_gradient.h."""

    arithmetic: str
    isa: str
    window: Window
    image: Operand
    image_plain: bool
    gradient: Operand
    gradient_plain: bool
    out: Operand
    accumulate: bool
    images: int
    channels: int
    filters: int
    block: tuple[int, int]
    filter_block: int
    slices: int
    slice_blocks: int
    scratch: tuple[int, int]
    shared_bytes: int


def forward_spec(
    g: ConvGeometry, image: Operand, filter: Operand, out: Operand, limit: int, machine: Machine
) -> PlanarSpec:
    """Plan a forward convolution."""
    image, filter, out = map(settle_strides, (image, filter, out))
    phases = (plan.forward_phase(g, out, plan.arithmetic_of(filter.dtype)),)
    s_a, s_b, s_i, s_o = filter.strides
    channels = g.in_channels, g.out_channels
    return _spec(g, image, filter, (s_a, s_b, s_i, s_o), out, channels, phases, True, limit, machine)


def gather_spec(
    g: ConvGeometry, filter: Operand, gradient: Operand, out: Operand, limit: int, machine: Machine
) -> PlanarSpec:
    """Plan an input gradient, phase by phase of the strides."""
    gradient, filter, out = map(settle_strides, (gradient, filter, out))
    phases = plan.stride_phases(g, out, plan.arithmetic_of(filter.dtype))
    s_a, s_b, s_i, s_o = filter.strides
    channels = g.out_channels, g.in_channels
    fills_all = plan.fills_all(g, phases)
    return _spec(g, gradient, filter, (s_a, s_b, s_o, s_i), out, channels, phases, fills_all, limit, machine)


def _lies_in_planes(operand: Operand, strides: tuple[int, ...], arithmetic: str) -> bool:
    """Tell whether vectors of columns can be read or written where they lie."""
    return computes_as_is(replace(operand, strides=strides), arithmetic) and strides[2] == operand.itemsize


def _channel_numbers(window: Window, rows: int, columns: int, lanes: int) -> int:
    """Return the numbers of one staged plane, as `ck_planar_reach` in planar_stage.c."""
    high = (rows - 1) * window.steps[0] + max(window.row_at) - min(window.row_at) + 1
    pitch = -(-columns // lanes) * lanes + (max(window.col_at) - min(window.col_at)) // window.steps[1]
    return high * pitch * window.steps[1]


def _sum_block(window: Window, channels: int) -> tuple[int, int, int]:
    """Return the channels, tap rows and tap columns that one sum over planes runs over."""
    rows, columns = len(window.row_at), len(window.col_at)
    if window.taps > SUM_BLOCK:
        return 1, plan.cut(rows, SUM_BLOCK // columns), plan.cut(columns, SUM_BLOCK)
    terms = ENOUGH_TERMS if window.taps * channels <= MOST_IN_SHORT_BLOCKS else SUM_BLOCK
    most = min(SUM_BLOCK // window.taps, -(-terms // window.taps))
    return plan.cut(channels, most), rows, columns


def _inner_sum_block(window: Window, channels: int, lanes: int) -> tuple[int, int, int]:
    """Return the channels, tap rows and tap columns that one sum runs over where lanes are channels."""
    vectors = min(-(-channels // lanes), SUM_BLOCK)
    taps = SUM_BLOCK // vectors
    rows, columns = len(window.row_at), len(window.col_at)
    if columns > taps:
        return min(channels, vectors * lanes), 1, plan.cut(columns, taps)
    return min(channels, vectors * lanes), plan.cut(rows, taps // columns), columns


def _half(count: int, unit: int = 1) -> int:
    """Return about half of a number, as a multiple of ``unit``."""
    return -(-count // (2 * unit)) * unit


def _spec(
    g: ConvGeometry,
    image: Operand,
    filter: Operand,
    filter_strides: tuple[int, int, int, int],
    out: Operand,
    channels: tuple[int, int],
    phases: tuple[Phase, ...],
    fills_all: bool,
    limit: int,
    machine: Machine,
) -> PlanarSpec:
    arithmetic = plan.arithmetic_of(filter.dtype)
    kernel, size = KERNELS.best(arithmetic, machine.isa), plan.size_of(arithmetic)
    n_in, n_out = channels
    dense = image.strides[3] == image.itemsize
    interleaved = dense and n_in >= LEAST_VECTORS * kernel.lanes and n_out <= LINES
    step = kernel.lanes if interleaved else 1
    packed = sum(phase.window.taps for phase in phases) * -(-n_in // step) * step * n_out * size
    out_plain = computes_as_is(out, arithmetic) and out.strides[3] == out.itemsize
    draft = PlanarSpec(
        arithmetic=arithmetic,
        isa=kernel.isa,
        interleaved=interleaved,
        image=image,
        image_plain=computes_as_is(image, arithmetic),
        filter=filter,
        filter_strides=filter_strides,
        out=out,
        out_plain=out_plain,
        images=g.batch,
        channels=n_in,
        filters=n_out,
        filter_block=plan.cut(n_out, LINES),
        phases=tuple(
            PlanarPhase(
                window=phase.window,
                out_strides=phase.out_strides,
                out_at=phase.out_at,
                row_tap=phase.row_tap,
                col_tap=phase.col_tap,
                out_in_place=out_plain if interleaved else _lies_in_planes(out, phase.out_strides, arithmetic),
                sum_block=_inner_sum_block(phase.window, n_in, kernel.lanes)
                if interleaved
                else _sum_block(phase.window, n_in),
            )
            for phase in phases
        ),
        tile=(1, 1),
        scratch=(0, 0),
        shared_bytes=packed,
        fills_all=fills_all,
    )
    rows, columns = _tile(draft, kernel.lanes, machine)
    while True:
        scratch = _scratch(draft, (rows, columns), kernel.lanes)
        if packed + sum(scratch) <= limit:
            return replace(draft, tile=(rows, columns), scratch=scratch)
        if rows > 1:
            rows = _half(rows)
        elif columns > 1:
            columns = _half(columns)
        else:
            raise WorkspaceError(plan.too_small(packed + sum(scratch), limit))


def _scratch(spec: PlanarSpec, tile: tuple[int, int], lanes: int) -> tuple[int, int]:
    """Return the bytes of pixels and of results that the largest tile of any phase takes."""
    staged, sums, size = 0, 0, plan.size_of(spec.arithmetic)
    for phase in spec.phases:
        rows, columns = (min(most, count) for most, count in zip(tile, phase.window.out_size, strict=True))
        reach = _channel_numbers(phase.window, rows, columns, 1 if spec.interleaved else lanes)
        staged = max(staged, phase.sum_block[0] * reach * size)
        if not phase.out_in_place:
            sums = max(sums, rows * columns * spec.filters * size)
    return plan.aligned(staged), plan.aligned(sums)


def _tile(spec: PlanarSpec, lanes: int, machine: Machine) -> tuple[int, int]:
    """Return the rows and columns of a tile, by the cache and by how many tiles there are."""
    heaviest = max((phase.window for phase in spec.phases), key=lambda window: window.taps * window.grid)
    rows, columns = heaviest.out_size
    columns = plan.cut(columns, 64 * lanes)

    def tiles() -> int:
        across = -(-heaviest.out_size[0] // rows) * -(-heaviest.out_size[1] // columns)
        return spec.images * across * len(spec.phases)

    def flops() -> float:
        return 2.0 * heaviest.taps * spec.channels * spec.filters * rows * columns

    while sum(_scratch(spec, (rows, columns), lanes)) > machine.l2_bytes // CACHE_PARTS and rows > LINES:
        rows = _half(rows, LINES)
    while tiles() < TILES and flops() > LEAST_TILE_FLOPS and rows > LINES:
        rows = _half(rows, LINES)
    return rows, columns


def filter_gradient_spec(
    g: ConvGeometry,
    image: Operand,
    gradient: Operand,
    out: Operand,
    accumulate: bool,
    limit: int,
    machine: Machine,
) -> PlanarGradientSpec:
    """Plan a filter gradient."""
    arithmetic = plan.arithmetic_of(gradient.dtype)
    image, gradient, out = map(settle_strides, (image, gradient, out))
    kernel, size, window = KERNELS.best(arithmetic, machine.isa), plan.size_of(arithmetic), plan.forward_window(g)
    lanes, n_in, n_out = kernel.lanes, g.in_channels, g.out_channels
    columns = plan.cut(-(-window.out_size[1] // lanes), BLOCK_VECTORS) * lanes
    columns = min(columns, window.out_size[1])
    rows = plan.cut(window.out_size[0], max(BLOCK_ROWS, SUM_BLOCK // 2 // -(-columns // lanes)))
    blocks = g.batch * -(-window.out_size[0] // rows) * -(-window.out_size[1] // columns)
    sums = window.taps * n_in * lanes
    filter_block = plan.cut(n_out, max(1, machine.l2_bytes // CACHE_PARTS // (sums * size)))
    tiles = -(-n_out // filter_block)
    by_work = int(2.0 * window.taps * n_in * filter_block * g.batch * window.grid / LEAST_TILE_FLOPS)
    by_memory = MOST_PARTIAL_BYTES // (tiles * filter_block * sums * size)
    slices = max(1, min(-(-TILES // tiles), blocks, by_work, by_memory))
    slice_blocks = -(-blocks // slices)
    slices = -(-blocks // slice_blocks)
    scratch = (
        plan.aligned(n_in * _channel_numbers(window, rows, columns, 1) * size),
        plan.aligned(filter_block * rows * columns * size),
    )
    partial = tiles * slices * filter_block * sums * size
    if partial + sum(scratch) > limit:
        raise WorkspaceError(plan.too_small(partial + sum(scratch), limit))
    return PlanarGradientSpec(
        arithmetic=arithmetic,
        isa=kernel.isa,
        window=window,
        image=image,
        image_plain=computes_as_is(image, arithmetic),
        gradient=gradient,
        gradient_plain=computes_as_is(gradient, arithmetic),
        out=out,
        accumulate=accumulate,
        images=g.batch,
        channels=n_in,
        filters=n_out,
        block=(rows, columns),
        filter_block=filter_block,
        slices=slices,
        slice_blocks=slice_blocks,
        scratch=scratch,
        shared_bytes=partial,
    )
