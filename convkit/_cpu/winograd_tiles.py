"""How Winograd convolutions are cut into blocks of tiles: pure arithmetic, as in `plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import plan
from .isa import tile_for
from .layouts import is_plain, settle_strides
from .machine import Machine

# Output pixels along a side of a tile; it meets BORDER pixels more.
TILES = (4, 2)
BORDER = 2
# As CK_TAPS in winograd_kernels.h.
TAPS = 9
# As CHANNELS_AT_ONCE in winograd.c.
CHANNELS_AT_ONCE = plan.SUM_BLOCK // TAPS

# Tiles of a block: so many that the transformed filter, read once for each block, does not hold the products up.  From
# 56 to 112 the speed is the same within 5 % on an AMD EPYC 9004.
BLOCK_TILES = 112
# Blocks are cut further, down to so many tiles and channels out, to get as many units as this, and to leave room for as
# many workers.
LEAST_TILES = 28
LEAST_CHANNELS = 128
UNITS = 16
WORKERS = 8
# Where one block holds all tiles, units transform the filter themselves, for so many channels in at a time: it is then
# still in a cache when it is multiplied.  14x14 pixels, 256 channels: 1.2 times as fast as transforming it before; 512
# channels at 7x7: 1.4 times.
ALONE_CHANNELS_IN = 128
ALONE_CHANNELS = 64


class WinogradBlock(NamedTuple):
    """The blocks of `ck_winograd` in winograd.h."""

    images: int
    rows: int
    columns: int
    panels: int

    @property
    def tiles(self) -> int:
        return self.images * self.rows * self.columns


@dataclass(frozen=True, slots=True)
class WinogradSpec:
    """As `ck_winograd` in winograd.h."""

    tile: int  # output pixels along a side of one
    arithmetic: str
    isa: str
    image: Operand
    image_plain: bool
    filter: Operand
    turned: bool  # the taps are met in reverse, and channels in are the filter's last axis
    out: Operand
    out_plain: bool
    group_bytes: tuple[int, int, int]
    images: int
    groups: int
    in_channels: int
    out_channels: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    pads: tuple[int, int]
    block: WinogradBlock
    channel_block: int
    panels_at_once: int
    scratch: tuple[int, int, int, int, int, int]
    transformed_bytes: int  # of the whole filter
    shared_bytes: int

    @property
    def elements(self) -> int:
        """Return the numbers of a transformed tile, as many as the pixels that it meets."""
        return elements(self.tile)

    @property
    def packed_bytes(self) -> int:
        """What is kept of a packed filter: transformed, and as it is for tiles that are computed again."""
        taps = TAPS * self.groups * self.in_channels * self.out_channels
        return self.transformed_bytes + taps * plan.size_of(self.arithmetic)


def forward_spec(
    g: ConvGeometry, tile: int, image: Operand, filter: Operand, out: Operand, limit: int, machine: Machine
) -> WinogradSpec:
    """Plan a forward convolution."""
    return _spec(g, tile, (image, filter, out), False, limit, machine)


def input_gradient_spec(
    g: ConvGeometry, tile: int, filter: Operand, gradient: Operand, out: Operand, limit: int, machine: Machine
) -> WinogradSpec:
    """Plan an input gradient: a forward convolution of the output gradient, padded the other way round."""
    return _spec(g, tile, (gradient, filter, out), True, limit, machine)


def _spec(
    g: ConvGeometry, tile: int, operands: tuple[Operand, Operand, Operand], turned: bool, limit: int, machine: Machine
) -> WinogradSpec:
    image, filter, out = map(settle_strides, operands)
    arithmetic = plan.arithmetic_of(filter.dtype)
    n_in, n_out = (g.group_out, g.group_in) if turned else (g.group_in, g.group_out)
    size, out_size = (g.out_size, g.in_size) if turned else (g.in_size, g.out_size)
    draft = WinogradSpec(
        tile=tile,
        arithmetic=arithmetic,
        isa=tile_for(arithmetic, machine.isa).isa,
        image=image,
        image_plain=is_plain(image, arithmetic),
        filter=filter,
        turned=turned,
        out=out,
        out_plain=is_plain(out, arithmetic),
        group_bytes=(n_in * image.strides[3], g.group_out * filter.strides[3], n_out * out.strides[3]),
        images=g.batch,
        groups=g.groups,
        in_channels=n_in,
        out_channels=n_out,
        size=(size[0], size[1]),
        out_size=(out_size[0], out_size[1]),
        pads=(2 - g.pad_before[0], 2 - g.pad_before[1]) if turned else (g.pad_before[0], g.pad_before[1]),
        block=WinogradBlock(1, 1, 1, 1),
        channel_block=plan.sum_block(n_in),
        panels_at_once=1,
        scratch=(0, 0, 0, 0, 0, 0),
        transformed_bytes=0,
        shared_bytes=0,
    )
    return _fit(draft, limit, machine)


def tiles_sentence(operand: Operand, tile: int) -> str:
    """Say how an operand is transformed."""
    return f"{operand.role}: transformed tile by tile, of {tile}x{tile} outputs"


def elements(tile: int) -> int:
    """Return the numbers of a transformed tile."""
    return (tile + BORDER) ** 2


def step(numbers: int, size: int) -> int:
    """Return the numbers from one element to the next, as `ck_winograd_step` in winograd.h."""
    return (-(-numbers * size // 64) | 1) * 64 // size


def _fit(draft: WinogradSpec, limit: int, machine: Machine) -> WinogradSpec:
    size, columns = plan.size_of(draft.arithmetic), tile_for(draft.arithmetic, machine.isa).columns
    panels = -(-draft.out_channels // columns)
    per_panel = draft.groups * draft.elements * step(draft.in_channels * columns, size) * size
    rows, across = _grid(draft)
    alone = per_panel * panels > machine.l2_bytes and draft.images * rows * across <= BLOCK_TILES
    at_once = panels if alone else plan.cut(panels, max(1, limit // 2 // per_panel))
    shared = 0 if alone else per_panel * at_once
    draft = replace(draft, transformed_bytes=per_panel * panels, shared_bytes=shared, panels_at_once=at_once)
    block = _block(draft, at_once, columns, per_panel * panels > machine.l2_bytes)
    channels = plan.cut(draft.in_channels, ALONE_CHANNELS_IN) if alone else draft.channel_block
    while True:
        scratch = _scratch(draft, block, channels, columns, alone)
        enough = sum(scratch) * WORKERS <= limit - shared
        if enough or (block.tiles <= LEAST_TILES and shared + sum(scratch) <= limit):
            return replace(draft, block=block, channel_block=channels, scratch=scratch)
        if block.tiles > 1:
            block = _smaller(block)
        elif block.panels > 1:
            block = block._replace(panels=-(-block.panels // 2))
        elif channels > 1:
            channels = -(-channels // 2)
        else:
            raise WorkspaceError(plan.too_small(shared + sum(scratch), limit))


def _grid(spec: WinogradSpec) -> tuple[int, int]:
    """Return the rows and columns of tiles of an image."""
    return -(-spec.out_size[0] // spec.tile), -(-spec.out_size[1] // spec.tile)


def tiled(grid: tuple[int, int, int], most: int) -> tuple[int, int, int]:
    """Return images, rows and columns of a block of at most so many tiles, of a grid of as many tiles in all."""
    images, rows, columns = grid
    if rows * columns <= most:
        return plan.cut(images, most // (rows * columns)), rows, columns
    if columns <= most:
        return 1, plan.cut(rows, most // columns), columns
    return 1, 1, plan.cut(columns, most)


def _smaller(block: WinogradBlock) -> WinogradBlock:
    for name in ("images", "rows", "columns"):
        if (length := getattr(block, name)) > 1:
            return block._replace(**{name: -(-length // 2)})
    return block


def _block(spec: WinogradSpec, panels: int, width: int, far: bool) -> WinogradBlock:
    """Return the blocks as far as speed decides them; ``far`` tells that the filter does not stay in the L2 cache.

    Panels that are cut make tiles be transformed once more, tiles that are cut make the filter be read once more.
    """
    rows, columns = _grid(spec)
    block = WinogradBlock(*tiled((spec.images, rows, columns), BLOCK_TILES), panels)
    per_tile = 2.0 * spec.elements * spec.in_channels * width
    alone = spec.shared_bytes == 0
    least = max(1, (ALONE_CHANNELS if alone else LEAST_CHANNELS) // width)

    def units() -> int:
        images = -(-spec.images // block.images)
        return images * -(-rows // block.rows) * -(-columns // block.columns) * -(-panels // block.panels) * spec.groups

    while units() < UNITS and block.tiles * block.panels * per_tile > plan.LEAST_TILE_FLOPS:
        if block.panels > least and far:
            block = block._replace(panels=-(-block.panels // 2))
        elif block.tiles > LEAST_TILES and not alone:
            block = _smaller(block)
        else:
            break
    return block


def _scratch(
    spec: WinogradSpec, block: WinogradBlock, channels: int, columns: int, alone: bool
) -> tuple[int, int, int, int, int, int]:
    """Return the bytes of pixels, of pixels, sums and filter transformed, of results, and of loaded taps."""
    size, elements, outputs = plan.size_of(spec.arithmetic), spec.elements, spec.tile**2
    staged = step(channels, size)
    if not spec.image_plain:
        high, wide = (count * spec.tile + BORDER for count in (block.rows, block.columns))
        staged += block.images * high * wide * channels
    image = elements * step(block.tiles * step(channels, size), size)
    sums = elements * step(block.tiles * step(block.panels * columns, size), size)
    weights = elements * step(channels * columns, size) if alone else 0
    out = 0 if spec.out_plain else block.tiles * outputs * block.panels * columns
    loaded = min(CHANNELS_AT_ONCE, spec.in_channels)
    again = loaded * (elements + TAPS * columns) + outputs * columns
    parts = (plan.aligned(count * size) for count in (staged, image, sums, weights, out, again))
    staged, image, sums, weights, out, again = parts
    return staged, image, sums, weights, out, again
