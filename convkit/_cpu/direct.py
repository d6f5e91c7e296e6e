"""How the direct convolutions are cut into tiles: pure arithmetic, as in `plan`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import plan
from .isa import Tile, tile_for
from .layouts import Kind, is_plain, pixel_layout, settle_strides
from .machine import Machine
from .plan import LEAST_TILE_FLOPS, TILES, Phase, Window

# A tile's pixels and sums take this part of the second-level cache, beside the filter's panels that stream through it.
# Tuned on an AMD EPYC 9004 (1 MiB).
CACHE_PARTS = 2
# Distances between pixels that are a multiple of this conflict in a first-level cache of 32 KiB in 8 ways; PITCH
# elements more move each pixel to other sets.  On an AMD EPYC 9004 that made 1x1 layers 1.2 to 1.3 times as fast.
CONFLICT_BYTES = 2048
PITCH = 16
# Most terms that a register tile sums at a time.  The panel of so many takes all of a first-level cache of 32 KiB, but
# streams from the second level at full speed; 256 and 384 were 0 to 10 % slower.  This and the constants below were
# tuned on an AMD EPYC Milan with AVX2 (L2 512 KiB): docs/decisions/0009-gathered-patches.md.
TERM_BLOCK = 512
# Patches that are gathered take this part of the second-level cache, twice as much where one tile then holds all
# pixels, and the panels that such a tile packs for itself this part; panels come first if all of them fit the last.
PATCH_PARTS = 4
PACKED_PARTS = 4
STRIPS_FIRST_PARTS = 2
# Gathering copies a pixel once per tap, which pays when so many panels share the copy.
GATHERED_PANELS = 8
# Where images are read tap by tap, to leave out products with padding, a tap has so many pairs of channels or more, and
# at most this share of all products is inside the image.  Tuned on an AMD EPYC 9004 with AVX512_BF16.
CLIPPED_CHANNELS = 64
CLIPPED_SHARE = 0.97
# A tile is not cut below so many panels and pixels only to get more tiles than the last.
LEAST_PANELS = 4
LEAST_PIXELS = 96
GATHERED_TILES = 16


@dataclass(frozen=True, slots=True)
class DirectPhase:
    """As `ck_direct_phase` in direct.h."""

    window: Window
    out_strides: tuple[int, ...]
    out_at: int
    row_tap: tuple[int, ...]
    col_tap: tuple[int, ...]
    in_place: bool
    clipped: bool
    out_in_place: bool
    rounded: bool


class DirectTile(NamedTuple):
    """The blocks of `ck_direct` in direct.h."""

    pixels: int  # 0: walking
    images: int
    rows: int
    columns: int
    panels: int
    terms: int


@dataclass(frozen=True, slots=True)
class DirectSpec:
    """As `ck_direct` in direct.h."""

    arithmetic: str
    isa: str
    image: Operand
    image_plain: bool
    pitch: int
    filter: Operand
    filter_strides: tuple[int, int, int, int]
    out: Operand
    group_bytes: tuple[int, int, int]
    images: int
    groups: int
    in_channels: int
    paired: int
    out_channels: int
    phases: tuple[DirectPhase, ...]
    strips_first: bool
    tile: DirectTile
    scratch: tuple[int, int, int]
    packed_bytes: int
    shared_bytes: int
    fills_all: bool


def forward_spec(
    g: ConvGeometry, image: Operand, filter: Operand, out: Operand, arithmetic: str, limit: int, machine: Machine
) -> DirectSpec:
    """Plan a forward convolution."""
    image, filter, out = map(settle_strides, (image, filter, out))
    s_a, s_b, s_i, s_o = filter.strides
    group_bytes = (g.group_in * image.strides[3], g.group_out * s_o, g.group_out * out.strides[3])
    products = plan.products_of(arithmetic)
    image = in_pairs(image) if products == 2 else image
    draft = DirectSpec(
        arithmetic=arithmetic,
        isa=tile_for(arithmetic, machine.isa).isa,
        image=image,
        image_plain=is_plain(image, arithmetic) and g.group_in % products == 0,
        pitch=_pitch(image, -(-g.group_in // products), g.strides[1], g.filter_size),
        filter=filter,
        filter_strides=(s_a, s_b, s_i * products, s_o),
        out=out,
        group_bytes=group_bytes,
        images=g.batch,
        groups=g.groups,
        in_channels=-(-g.group_in // products),
        paired=g.group_in if products == 2 else 0,
        out_channels=g.group_out,
        phases=(),
        strips_first=False,
        tile=DirectTile(0, 1, 1, 1, 1, 1),
        scratch=(0, 0, 0),
        packed_bytes=0,
        shared_bytes=0,
        fills_all=True,
    )
    return _fit(draft, (plan.forward_phase(g, out, plan.arithmetic_of(arithmetic)),), limit, machine)


def gather_spec(
    g: ConvGeometry, filter: Operand, gradient: Operand, out: Operand, arithmetic: str, limit: int, machine: Machine
) -> DirectSpec:
    """Plan an input gradient, phase by phase of the strides."""
    gradient, filter, out = map(settle_strides, (gradient, filter, out))
    phases = plan.stride_phases(g, out, plan.arithmetic_of(arithmetic))
    s_a, s_b, s_i, s_o = filter.strides
    group_bytes = (g.group_out * gradient.strides[3], g.group_out * s_o, g.group_in * out.strides[3])
    products = plan.products_of(arithmetic)
    gradient = in_pairs(gradient) if products == 2 else gradient
    draft = DirectSpec(
        arithmetic=arithmetic,
        isa=tile_for(arithmetic, machine.isa).isa,
        image=gradient,
        image_plain=is_plain(gradient, arithmetic) and g.group_out % products == 0,
        pitch=_pitch(gradient, -(-g.group_out // products), 1, g.filter_size),
        filter=filter,
        filter_strides=(s_a, s_b, s_o * products, s_i),
        out=out,
        group_bytes=group_bytes,
        images=g.batch,
        groups=g.groups,
        in_channels=-(-g.group_out // products),
        paired=g.group_out if products == 2 else 0,
        out_channels=g.group_in,
        phases=(),
        strips_first=False,
        tile=DirectTile(0, 1, 1, 1, 1, 1),
        scratch=(0, 0, 0),
        packed_bytes=0,
        shared_bytes=0,
        fills_all=plan.fills_all(g, phases),
    )
    return _fit(draft, phases, limit, machine)


def in_pairs(image: Operand) -> Operand:
    """Return an array of bfloat16 numbers seen as elements of two channels each, as in pairs.h."""
    *shape, channels = image.shape
    *strides, step = image.strides
    return replace(image, shape=(*shape, -(-channels // 2)), strides=(*strides, 2 * step), itemsize=2 * image.itemsize)


def _pitch(image: Operand, channels: int, step: int, taps: tuple[int, ...]) -> int:
    """Return how far apart 1x1 convolutions lay pixels down, or 0 where they need not be moved.

    Pixels at a distance of a power of two of bytes fall into the same few sets of the first-level cache, and the rows
    of a register tile throw each other out.  Filters of several taps read runs of neighbouring pixels instead.
    """
    apart = abs(image.strides[2]) * step
    return channels + PITCH if taps == (1, 1) and channels > 1 and apart and apart % CONFLICT_BYTES == 0 else 0


def stays_inside(window: Window) -> bool:
    """Tell whether no tap of any output pixel leaves the image."""
    return all(
        min(at) >= 0 and (out - 1) * step + max(at) < size
        for at, out, step, size in zip(
            (window.row_at, window.col_at), window.out_size, window.steps, window.size, strict=True
        )
    )


def _reach(window: Window, rows: int, columns: int) -> int:
    """Return the pixels of the image that a block of output pixels reaches, padding included."""
    high = (rows - 1) * window.steps[0] + max(window.row_at) - min(window.row_at) + 1
    wide = (columns - 1) * window.steps[1] + max(window.col_at) - min(window.col_at) + 1
    return high * wide


def _fit(draft: DirectSpec, phases: tuple[Phase, ...], limit: int, machine: Machine) -> DirectSpec:
    register = tile_for(draft.arithmetic, machine.isa)
    size, width = plan.size_of(draft.arithmetic), register.columns
    panels = -(-draft.out_channels // width)
    taps = sum(phase.window.taps for phase in phases)
    packed = taps * draft.in_channels * draft.groups * panels * width * size
    window = max((phase.window for phase in phases), key=lambda w: w.taps * w.grid)
    gathers = not _clips(draft, window) and _gathers(draft, window, panels)
    whole = draft.out_channels % width == 0
    place = _gathered_phase if gathers else _walked_phase
    draft = replace(
        draft,
        phases=tuple(place(draft, phase, whole) for phase in phases),
        packed_bytes=packed,
        strips_first=gathers
        and panels * _term_block(draft, window, machine) * width * size <= machine.l2_bytes // STRIPS_FIRST_PARTS,
    )
    tile = (_gathered_tile if gathers else _walked_tile)(draft, window, panels, register, machine)
    while True:
        # Where one tile holds all pixels, nobody else would use what it packs.
        once = _pixel_tiles(draft, window, tile) == 1
        for shared in (0,) if once else (packed, 0):
            scratch = _scratch(draft, tile, width, shared == 0)
            if shared <= limit // 2 and shared + sum(scratch) <= limit:
                return replace(draft, tile=tile, scratch=scratch, shared_bytes=shared)
        smaller = _smaller(tile)
        if smaller is None:
            raise WorkspaceError(plan.too_small(sum(scratch), limit))
        tile = smaller


def _smaller(tile: DirectTile) -> DirectTile | None:
    """Return a tile that takes about half the scratch memory, or None; blocks of terms stay, and so do all bits."""
    for name in ("pixels", "images", "rows", "panels", "columns"):
        if (length := getattr(tile, name)) > 1:
            return tile._replace(**{name: -(-length // 2)})
    return None


def _gathers(spec: DirectSpec, window: Window, panels: int) -> bool:
    """Tell whether copying patches is better than copying the image: see `ck_direct`."""
    image = spec.image
    if image.strides[3] != image.itemsize or (spec.paired and not spec.image_plain):
        return False
    return window.taps == 1 or panels >= GATHERED_PANELS


def _clips(spec: DirectSpec, window: Window) -> bool:
    """Tell whether pixels are read where they lie, tap by tap, to leave out the products with padding.

    Each tap then loads and stores the sums once more, which pays where it has many terms and many pixels have none.
    """
    if spec.in_channels < CLIPPED_CHANNELS or not spec.paired or not spec.image_plain or spec.pitch:
        return False
    inside = math.prod(
        sum(0 <= i * step + at < size for at in places for i in range(out))
        for places, out, step, size in zip(
            (window.row_at, window.col_at), window.out_size, window.steps, window.size, strict=True
        )
    )
    return inside < CLIPPED_SHARE * window.taps * window.grid


def _rounds(spec: DirectSpec, phase: Phase, whole: bool, gathers: bool) -> bool:
    """Tell whether register tiles can round their last sums into the result."""
    images, rows, columns, channels = phase.out_strides
    high, wide = phase.window.out_size
    even = (high == 1 or rows == wide * columns) and (spec.images == 1 or images == high * wide * columns)
    halves = spec.paired and spec.out.dtype == "bfloat16" and spec.out.native and channels == spec.out.itemsize
    return bool(halves and whole and (even or not gathers))


def _walked_phase(spec: DirectSpec, phase: Phase, whole: bool) -> DirectPhase:
    clipped = _clips(spec, phase.window)
    return DirectPhase(
        window=phase.window,
        out_strides=phase.out_strides,
        out_at=phase.out_at,
        row_tap=phase.row_tap,
        col_tap=phase.col_tap,
        in_place=clipped or (spec.image_plain and not spec.pitch and stays_inside(phase.window)),
        clipped=clipped,
        out_in_place=whole and is_plain(spec.out, plan.arithmetic_of(spec.arithmetic)),
        rounded=not clipped and _rounds(spec, phase, whole, gathers=False),
    )


def _gathered_phase(spec: DirectSpec, phase: Phase, whole: bool) -> DirectPhase:
    layout, across = pixel_layout(spec.image, spec.arithmetic)
    even = spec.image_plain and layout.kind is Kind.ROWS and (across or spec.images == 1)
    strides = phase.out_strides
    out_even = whole and phase.out_layout.kind is Kind.ROWS and (phase.out_uniform or spec.images == 1)
    if out_even:
        strides = (strides[0], strides[1], phase.out_layout.ld * spec.out.itemsize, strides[3])
    return DirectPhase(
        window=phase.window,
        out_strides=strides,
        out_at=phase.out_at,
        row_tap=phase.row_tap,
        col_tap=phase.col_tap,
        in_place=even and not spec.pitch and plan.is_whole_image(phase.window),
        clipped=False,
        out_in_place=out_even,
        rounded=_rounds(spec, phase, whole, gathers=True),
    )


def _pixel_tiles(spec: DirectSpec, window: Window, tile: DirectTile) -> int:
    """Return how many tiles of pixels a phase is cut into."""
    if tile.pixels:
        return -(-spec.images * window.grid // tile.pixels)
    across = -(-window.out_size[0] // tile.rows) * -(-window.out_size[1] // tile.columns)
    return -(-spec.images // tile.images) * across


def _scratch(spec: DirectSpec, tile: DirectTile, width: int, packs: bool) -> tuple[int, int, int]:
    """Return the bytes of pixels, of packed filter and of sums that the largest tile of any phase takes."""
    size = plan.size_of(spec.arithmetic)
    staged, filters, sums = 0, 0, 0
    for phase in spec.phases:
        window = phase.window
        terms = min(tile.terms, window.taps * spec.in_channels)
        if tile.pixels:
            pixels = min(tile.pixels, spec.images * window.grid)
            numbers = terms * (min(pixels, tile_for(spec.arithmetic, spec.isa).rows) if spec.strips_first else pixels)
        else:
            high, wide = min(tile.rows, window.out_size[0]), min(tile.columns, window.out_size[1])
            pixels = tile.images * high * wide
            numbers = tile.images * _reach(window, high, wide) * (spec.pitch or spec.in_channels)
        if not phase.in_place:
            staged = max(staged, numbers * size)
        if not phase.out_in_place:
            sums = max(sums, pixels * tile.panels * width * size)
        if packs:
            filters = max(filters, terms * tile.panels * width * size)
    return plan.aligned(staged), plan.aligned(filters), plan.aligned(sums)


def _term_block(spec: DirectSpec, window: Window, machine: Machine) -> int:
    """Return how many terms a register tile sums at a time: whole taps, or equal parts of one."""
    channels, most = spec.in_channels, TERM_BLOCK // plan.products_of(spec.arithmetic)
    patches = spec.images * window.grid * most * plan.size_of(spec.arithmetic)
    if machine.l2_bytes // PATCH_PARTS < patches <= machine.l2_bytes:
        most //= 2  # so that one tile can hold all pixels
    if channels > most:
        return plan.cut(channels, most)
    return plan.cut(window.taps, most // channels) * channels


def _gathered_tile(spec: DirectSpec, window: Window, panels: int, register: Tile, machine: Machine) -> DirectTile:
    """Return the blocks of a tile whose patches, a block of terms of them, stay in the second-level cache."""
    size, pixels = plan.size_of(spec.arithmetic), spec.images * window.grid
    total, block, terms = pixels, panels, _term_block(spec, window, machine)
    if not spec.strips_first and total * terms * size > 2 * machine.l2_bytes // PATCH_PARTS:
        pixels = plan.cut(total, max(register.rows, machine.l2_bytes // PATCH_PARTS // (terms * size)))
    elif not spec.strips_first:
        most = machine.l2_bytes // PACKED_PARTS // (terms * register.columns * size)
        block = plan.cut(panels, max(LEAST_PANELS, most))
    least = TILES if spec.strips_first else GATHERED_TILES
    per_pixel = 2.0 * window.taps * spec.in_channels * register.columns

    def tiles() -> int:
        return -(-total // pixels) * -(-panels // block) * spec.groups * len(spec.phases)

    while tiles() < least and pixels * block * per_pixel > LEAST_TILE_FLOPS:
        if block > LEAST_PANELS and not spec.strips_first:
            block = -(-block // 2)
        elif pixels > LEAST_PIXELS:
            pixels = plan.cut(total, -(-pixels // 2))
        else:
            break
    return DirectTile(pixels, 1, 1, 1, block, terms)


def _walked_tile(spec: DirectSpec, window: Window, panels: int, register: Tile, machine: Machine) -> DirectTile:
    """Return the blocks of a tile whose pixels stay in the second-level cache."""
    size = plan.size_of(spec.arithmetic)
    elements = machine.l2_bytes // CACHE_PARTS // size
    rows, columns = window.out_size

    def numbers(images: int, high: int, wide: int) -> int:
        return images * (_reach(window, high, wide) * spec.in_channels + high * wide * panels * register.columns)

    while numbers(1, rows, columns) > elements and rows > 1:
        rows = -(-rows // 2)
    while numbers(1, rows, columns) > elements and columns > 4 * register.rows:
        columns = -(-columns // 2)
    rows, columns = plan.cut(window.out_size[0], rows), plan.cut(window.out_size[1], columns)
    images = 1
    if (rows, columns) == window.out_size:
        images = max(1, min(spec.images, elements // numbers(1, rows, columns)))
    tile = DirectTile(0, images, rows, columns, panels, _term_block(spec, window, machine))
    per_pixel = 2.0 * window.taps * spec.in_channels * register.columns

    def tiles() -> int:
        return _pixel_tiles(spec, window, tile) * -(-panels // tile.panels) * spec.groups * len(spec.phases)

    def flops() -> float:
        return tile.images * tile.rows * tile.columns * tile.panels * per_pixel

    while tiles() < TILES and flops() > LEAST_TILE_FLOPS:
        if tile.images > 1:
            tile = tile._replace(images=-(-tile.images // 2))
        elif tile.rows * tile.columns > 8 * register.rows and tile.rows > 1:
            tile = tile._replace(rows=-(-tile.rows // 2))
        elif tile.panels > 1:
            tile = tile._replace(panels=-(-tile.panels // 2))
        else:
            break
    return tile
