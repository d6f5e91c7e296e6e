"""How the direct filter gradient is cut into tiles, slices and blocks: pure arithmetic, as in `plan`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import plan
from .direct import stays_inside
from .isa import Tile, tile_for
from .layouts import is_plain, settle_strides
from .machine import Machine
from .plan import LEAST_TILE_FLOPS, Window

# Output pixels of a block: one panel of its gradients (64 bytes a pixel with AVX2) and one strip of its image stay in a
# first-level cache of 32 KiB.  Tuned on an AMD EPYC 7003.  At most SUM_BLOCK / 2: pairs take two blocks at once.
BLOCK_PIXELS = 256
# The second-level cache holds a tile's panels of a block in one such part, and the strips laid down at once in another.
PANEL_PARTS = 2
STRIP_PARTS = 4
# Pixels of so few register tiles' rows lie near enough to each other to be read as they are, and so do gradients of so
# few panels, if so few rows meet them that laying them down does not pay.  Tuned on an AMD EPYC 7003.
FEW_STRIPS = 4
FEW_PANELS = 2
FEW_ROWS = 64
# The least number of tiles and slices that a large problem is cut into; each lays down its operands once more.
UNITS = 32
# Blocks of a slice, so that adding up the slices is little work beside summing them.
SLICE_BLOCKS = 3
# Tiles of fewer rows than this, or fewer columns times taps, lay down their operands for too few products.
LEAST_ROWS = 192
LEAST_COLUMNS = 128
# Pixels of a strip begin at a multiple of so many bytes, so that no store of a vector crosses lines of the cache.
VECTOR_BYTES = 16
# No more slices than have partial sums in so many bytes; constants, since the order of sums must not follow the limit.
MOST_PARTIAL_BYTES = 24 * 2**20


@dataclass(frozen=True, slots=True)
class DirectGradientSpec:
    """As `ck_direct_gradient` in direct_gradient.h."""

    arithmetic: str
    isa: str
    window: Window
    image: Operand
    image_plain: bool
    image_in_place: bool
    gradient: Operand
    gradient_plain: bool
    gradient_in_place: bool
    out: Operand
    out_in_place: bool
    group_bytes: tuple[int, int, int]
    accumulate: bool
    images: int
    groups: int
    in_channels: int
    out_channels: int
    block: tuple[int, int, int]
    strip: int
    tile: tuple[int, int, int]
    strips_at_once: int
    slices: int
    slice_blocks: int
    scratch: tuple[int, int]
    shared_bytes: int


def filter_gradient_spec(
    g: ConvGeometry,
    image: Operand,
    gradient: Operand,
    out: Operand,
    accumulate: bool,
    arithmetic: str,
    limit: int,
    machine: Machine,
) -> DirectGradientSpec:
    """Plan a filter gradient."""
    image, gradient, out = map(settle_strides, (image, gradient, out))
    register = tile_for(arithmetic, machine.isa)
    window = plan.forward_window(g)
    products = plan.products_of(arithmetic)
    image_plain = products == 1 and is_plain(image, arithmetic)
    gradient_plain = products == 1 and is_plain(gradient, arithmetic)
    panels = -(-g.group_out // register.columns)
    whole = g.group_out % register.columns == 0
    most = FEW_STRIPS * register.rows * plan.size_of(arithmetic)
    near = abs(image.strides[2]) * g.strides[1] <= most
    few_panels = panels == 1 or (panels <= FEW_PANELS and window.taps * g.group_in <= FEW_ROWS)
    near_panels = abs(gradient.strides[2]) <= FEW_PANELS * register.columns * plan.size_of(arithmetic)
    few = g.group_in <= FEW_STRIPS * register.rows
    block = _block(*_regions(products, g.batch, window)[0])
    pixels = block[0] * block[1] * block[2]
    draft = DirectGradientSpec(
        arithmetic=arithmetic,
        isa=register.isa,
        window=window,
        image=image,
        image_plain=image_plain,
        image_in_place=image_plain and few and near and stays_inside(window),
        gradient=gradient,
        gradient_plain=gradient_plain,
        gradient_in_place=gradient_plain and whole and few_panels and near_panels,
        out=out,
        out_in_place=False,
        group_bytes=(g.group_in * image.strides[3], g.group_out * gradient.strides[3], g.group_out * out.strides[3]),
        accumulate=accumulate,
        images=g.batch,
        groups=g.groups,
        in_channels=g.group_in,
        out_channels=g.group_out,
        block=block,
        strip=g.group_in if few else min(g.group_in, _strip(register.rows, arithmetic)),
        tile=(1, 1, 1),
        strips_at_once=1,
        slices=1,
        slice_blocks=1,
        scratch=(0, 0),
        shared_bytes=0,
    )
    draft = _cut(draft, pixels, register, machine)
    plain = is_plain(out, plan.arithmetic_of(arithmetic))
    return _fit(
        replace(draft, out_in_place=whole and plain and not accumulate and draft.slices == 1),
        register,
        limit,
        machine,
    )


def _strip(rows: int, arithmetic: str) -> int:
    """Return the channels of a strip: one register tile's rows, or two tiles' where only these are whole vectors."""
    return rows * (1 if rows * plan.size_of(arithmetic) % VECTOR_BYTES == 0 else 2)


def _block(images: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Return images, rows and columns of at most BLOCK_PIXELS output pixels, in equal parts."""
    if columns > BLOCK_PIXELS:
        return 1, 1, plan.cut(columns, BLOCK_PIXELS)
    if rows * columns > BLOCK_PIXELS:
        return 1, plan.cut(rows, BLOCK_PIXELS // columns), columns
    return plan.cut(images, BLOCK_PIXELS // (rows * columns)), rows, columns


def _regions(products: int, images: int, window: Window) -> list[tuple[int, int, int]]:
    """Return images, rows and columns of the output pixels that are cut into blocks, as in direct_gradient.h."""
    rows, columns = window.out_size
    if products == 1:
        return [(images, rows, columns)]
    pairs = [
        (images // 2, rows, columns),
        (images % 2, rows // 2, columns),
        (images % 2, rows % 2, columns // 2),
        (images % 2, rows % 2, columns % 2),
    ]
    return [region for region in pairs if math.prod(region)]


def _cut(spec: DirectGradientSpec, pixels: int, register: Tile, machine: Machine) -> DirectGradientSpec:
    """Cut the result into tiles and the pixels into slices.

    Slices of many blocks cost next to nothing; then the result is cut, as long as its tiles stay large; and then the
    slices again.
    """
    size, columns = plan.size_of(spec.arithmetic), register.columns
    window, tap_columns = spec.window, len(spec.window.col_at)
    tap_rows, strips, panels = len(window.row_at), -(-spec.in_channels // spec.strip), -(-spec.out_channels // columns)
    blocks = sum(
        math.prod(-(-length // block) for length, block in zip(region, spec.block, strict=True))
        for region in _regions(plan.products_of(spec.arithmetic), spec.images, window)
    )
    numbers = window.taps * spec.in_channels * panels * columns * spec.groups
    by_work = int(2.0 * numbers * spec.images * window.grid / LEAST_TILE_FLOPS)
    wanted = max(1, min(UNITS, by_work))
    by_memory = max(1, MOST_PARTIAL_BYTES // (numbers * size))

    taps, strip_block = tap_rows, strips
    panel_block = plan.cut(panels, machine.l2_bytes // PANEL_PARTS // (pixels * columns * size))

    def tiles() -> int:
        return spec.groups * -(-tap_rows // taps) * -(-strips // strip_block) * -(-panels // panel_block)

    slices = max(1, min(-(-wanted // tiles()), blocks // SLICE_BLOCKS, by_memory))
    while tiles() * slices < wanted:
        if taps * tap_columns * strip_block * spec.strip >= 2 * LEAST_ROWS and taps * strip_block > 1:
            if taps > 1:
                taps = plan.cut(tap_rows, taps // 2)
            else:
                strip_block = plan.cut(strips, -(-strip_block // 2))
        elif panel_block > 1 and panel_block * columns * tap_columns >= 2 * LEAST_COLUMNS:
            panel_block = plan.cut(panels, -(-panel_block // 2))
        else:
            break
    if tiles() * slices < wanted:
        slices = max(1, min(-(-wanted // tiles()), blocks, by_memory))
    slice_blocks = -(-blocks // slices)
    return replace(
        spec, tile=(taps, strip_block, panel_block), slices=-(-blocks // slice_blocks), slice_blocks=slice_blocks
    )


def _fit(spec: DirectGradientSpec, register: Tile, limit: int, machine: Machine) -> DirectGradientSpec:
    """Size what is laid down at once by the cache, and then by the limit; neither changes the order of a sum."""
    size, columns = plan.size_of(spec.arithmetic), register.columns
    taps, strip_block, panel_block = spec.tile
    window = replace(spec.window, row_at=spec.window.row_at[:taps])
    images, rows, cols = spec.block
    reach = images * _met(window.row_at, rows, window.steps[0]) * _met(window.col_at, cols, window.steps[1])
    strip_bytes, panel_bytes = reach * spec.strip * size, images * rows * cols * columns * size
    tap_rows, strips, panels = (
        len(spec.window.row_at),
        -(-spec.in_channels // spec.strip),
        -(-spec.out_channels // columns),
    )
    at_once = max(1, min(strip_block, machine.l2_bytes // STRIP_PARTS // strip_bytes))
    while True:
        tiles = spec.groups * -(-tap_rows // taps) * -(-strips // strip_block) * -(-panels // panel_block)
        in_channels = min(strip_block * spec.strip, spec.in_channels)
        sums = taps * len(window.col_at) * in_channels * panel_block * columns * size
        scratch = (
            0 if spec.image_in_place else plan.aligned(at_once * strip_bytes),
            0 if spec.gradient_in_place else plan.aligned(panel_block * panel_bytes),
        )
        partial = 0 if spec.out_in_place else tiles * spec.slices * sums
        if partial + sum(scratch) <= limit:
            return replace(
                spec,
                tile=(taps, strip_block, panel_block),
                strips_at_once=at_once,
                scratch=scratch,
                shared_bytes=partial,
            )
        if at_once > 1:
            at_once = -(-at_once // 2)
        elif panel_block > 1:
            panel_block = plan.cut(panels, panel_block // 2)
        else:
            raise WorkspaceError(plan.too_small(partial + sum(scratch), limit))


def _met(at: tuple[int, ...], count: int, step: int) -> int:
    """Return how many rows or columns are laid down for as many output pixels, as `ck_lay_strips` does."""
    every = step if all((a - at[0]) % step == 0 for a in at) else 1
    return ((count - 1) * step + max(at) - min(at)) // every + 1
