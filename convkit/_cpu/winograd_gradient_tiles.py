"""How Winograd filter gradients are cut into parts, blocks of tiles and slices: pure arithmetic, as in `plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import plan
from .direct_gradient import DirectGradientSpec
from .direct_gradient import filter_gradient_spec as direct_spec
from .isa import tile_for
from .layouts import is_plain, settle_strides
from .machine import Machine
from .winograd_tiles import BORDER, elements, step, tiled

# Tiles of a block, at the most and about at the least; a sum is read and written once for each block.  From 56 to 112
# the speed is the same within 4 % on an AMD EPYC 9004.
BLOCK_TILES = 112
FEWER_TILES = 84
# Channels in, and out, of a part, in bytes; each part transforms its tiles once more.  Parts are cut further, down to
# so many channels of both kinds, where there is one alone, and to leave room for as many workers.
PART_BYTES = 512
LEAST_PART_BYTES = 512
WORKERS = 8
# Parts and slices that a problem is cut into: a large one, whose slices have so many tiles that adding them up is
# little work beside summing them; and a small one, whose slices have so many at the least.
UNITS = 32
SLICE_TILES = 384
FEW_UNITS = 4
LEAST_SLICE_TILES = 96
# No more slices than have partial sums in so many bytes; constants, since the order of sums must not follow the limit.
MOST_PARTIAL_BYTES = 24 * 2**20
# Numbers of a piece of the result, which one worker finishes: a few dozen microseconds of work.
PIECE_NUMBERS = 1 << 9


@dataclass(frozen=True, slots=True)
class WinogradGradientSpec:
    """As `ck_winograd_gradient` in winograd_gradient.h."""

    tile: int  # output pixels along a side of one
    arithmetic: str
    isa: str
    image: Operand
    image_plain: bool
    gradient: Operand
    gradient_plain: bool
    out: Operand
    group_bytes: tuple[int, int, int]
    accumulate: bool
    images: int
    groups: int
    in_channels: int
    out_channels: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    pads: tuple[int, int]
    block: tuple[int, int, int]  # images, rows and columns of tiles
    channel_block: int
    panel_block: int
    piece_block: int
    slices: int
    slice_blocks: int
    again: tuple[tuple[DirectGradientSpec | None, ...], ...]
    piece_bytes: int
    scratch: tuple[int, ...]
    shared_bytes: int


def filter_gradient_spec(
    g: ConvGeometry,
    tile: int,
    image: Operand,
    gradient: Operand,
    out: Operand,
    accumulate: bool,
    limit: int,
    machine: Machine,
) -> WinogradGradientSpec:
    """Plan a filter gradient."""
    image, gradient, out = map(settle_strides, (image, gradient, out))
    arithmetic = plan.arithmetic_of(gradient.dtype)
    register = tile_for(arithmetic, machine.isa)
    piece = min(g.group_in, max(1, PIECE_NUMBERS // register.columns))
    draft = WinogradGradientSpec(
        tile=tile,
        arithmetic=arithmetic,
        isa=register.isa,
        image=image,
        image_plain=is_plain(image, arithmetic),
        gradient=gradient,
        gradient_plain=is_plain(gradient, arithmetic),
        out=out,
        group_bytes=(g.group_in * image.strides[3], g.group_out * gradient.strides[3], g.group_out * out.strides[3]),
        accumulate=accumulate,
        images=g.batch,
        groups=g.groups,
        in_channels=g.group_in,
        out_channels=g.group_out,
        size=(g.in_size[0], g.in_size[1]),
        out_size=(g.out_size[0], g.out_size[1]),
        pads=(g.pad_before[0], g.pad_before[1]),
        block=(1, 1, 1),
        channel_block=1,
        panel_block=1,
        piece_block=piece,
        slices=1,
        slice_blocks=1,
        again=(),
        piece_bytes=0,
        scratch=(),
        shared_bytes=0,
    )
    again = _again(draft, g, register.columns, limit, machine)
    return _fit(replace(_cut(draft, register.columns), again=again), register.columns, limit)


def _again(
    spec: WinogradGradientSpec, g: ConvGeometry, columns: int, limit: int, machine: Machine
) -> tuple[tuple[DirectGradientSpec | None, ...], ...]:
    """Plan how a piece is computed again, by whether it has fewer channels in or out than others."""

    def piece(channels: int, filters: int) -> DirectGradientSpec | None:
        if not channels or not filters:
            return None
        sizes = replace(g, in_channels=channels, out_channels=filters, groups=1)
        image = replace(spec.image, shape=(*spec.image.shape[:3], channels))
        gradient = replace(spec.gradient, shape=(*spec.gradient.shape[:3], filters))
        out = replace(spec.out, shape=(*spec.out.shape[:2], channels, filters))
        return direct_spec(sizes, image, gradient, out, spec.accumulate, spec.arithmetic, limit, machine)

    filters = (columns if spec.out_channels >= columns else 0, spec.out_channels % columns)
    channels = (spec.piece_block, spec.in_channels % spec.piece_block)
    return tuple(tuple(piece(many, wide) for wide in filters) for many in channels)


def _cut(spec: WinogradGradientSpec, columns: int) -> WinogradGradientSpec:
    """Cut the result into parts, and the tiles into slices and blocks, as far as speed decides them."""
    size, panels = plan.size_of(spec.arithmetic), -(-spec.out_channels // columns)
    most = PART_BYTES // size
    channel_block = _in_pieces(plan.cut(spec.in_channels, most), spec)
    panel_block = plan.cut(panels, max(1, most // columns))
    spec = replace(spec, channel_block=channel_block, panel_block=panel_block)
    parts = _parts(spec, columns)
    rows, cols = (-(-pixels // spec.tile) for pixels in spec.out_size)
    tiles = spec.images * rows * cols
    partial = spec.groups * panels * elements(spec.tile) * step(spec.in_channels * columns, size) * size
    many = min(-(-UNITS // parts), tiles // SLICE_TILES)
    few = min(-(-FEW_UNITS // parts), tiles // LEAST_SLICE_TILES)
    slices = max(1, min(max(many, few), MOST_PARTIAL_BYTES // partial))
    spec = _sliced(spec, slices, (rows, cols))
    smaller = _smaller(spec, columns)
    alone = parts * spec.slices == 1 and not _is_small(spec, columns)
    return smaller if alone and smaller is not None else spec


def _parts(spec: WinogradGradientSpec, columns: int) -> int:
    panels = -(-spec.out_channels // columns)
    return spec.groups * -(-spec.in_channels // spec.channel_block) * -(-panels // spec.panel_block)


def _is_small(spec: WinogradGradientSpec, columns: int) -> bool:
    """Tell whether smaller parts would transform tiles for too few products."""
    return spec.channel_block + spec.panel_block * columns <= LEAST_PART_BYTES // plan.size_of(spec.arithmetic)


def _sliced(spec: WinogradGradientSpec, slices: int, grid: tuple[int, int]) -> WinogradGradientSpec:
    """Return the plan in so many slices, or fewer, of the blocks that make the longest slice shortest."""

    def longest(block: tuple[int, int, int]) -> int:
        return -(-_blocks(spec.images, grid, block) // slices) * block[0] * block[1] * block[2]

    blocks = dict.fromkeys(tiled((spec.images, *grid), tiles) for tiles in range(BLOCK_TILES, FEWER_TILES, -1))
    block = min(blocks, key=longest)
    count = _blocks(spec.images, grid, block)
    slice_blocks = -(-count // slices)
    return replace(spec, block=block, slices=-(-count // slice_blocks), slice_blocks=slice_blocks)


def _blocks(images: int, grid: tuple[int, int], block: tuple[int, int, int]) -> int:
    """Return the number of blocks of tiles."""
    return -(-images // block[0]) * -(-grid[0] // block[1]) * -(-grid[1] // block[2])


def _in_pieces(channels: int, spec: WinogradGradientSpec) -> int:
    """Return a number of channels rounded up to whole pieces, or to all of them."""
    return min(spec.in_channels, -(-channels // spec.piece_block) * spec.piece_block)


def _fit(spec: WinogradGradientSpec, columns: int, limit: int) -> WinogradGradientSpec:
    """Bring the workspace below the limit: by smaller parts, then by fewer slices."""
    while True:
        spec = _sized(spec, columns)
        need = spec.shared_bytes + sum(spec.scratch)
        if need <= limit and (_is_small(spec, columns) or spec.shared_bytes + sum(spec.scratch) * WORKERS <= limit):
            return spec
        smaller = _smaller(spec, columns)
        if smaller is None and need <= limit:
            return spec
        if smaller is not None:
            spec = smaller
        elif spec.slices > 1:
            spec = replace(spec, slices=-(-spec.slices // 2), slice_blocks=2 * spec.slice_blocks)
        else:
            raise WorkspaceError(plan.too_small(need, limit))


def _smaller(spec: WinogradGradientSpec, columns: int) -> WinogradGradientSpec | None:
    """Return the plan with smaller parts, the longer side cut, or None if they are pieces already."""
    channels = spec.channel_block > spec.piece_block
    if spec.panel_block > 1 and (not channels or spec.panel_block * columns > spec.channel_block):
        return replace(spec, panel_block=-(-spec.panel_block // 2))
    if channels:
        return replace(spec, channel_block=_in_pieces(-(-spec.channel_block // 2), spec))
    return None


def _sized(spec: WinogradGradientSpec, columns: int) -> WinogradGradientSpec:
    """Return the plan with the bytes of its scratch: staged pixels, both transformed, and sums; and what is shared."""
    size, images, rows, cols = plan.size_of(spec.arithmetic), *spec.block
    tiles, width = images * rows * cols, spec.panel_block * columns
    parts = _parts(spec, columns)
    count = elements(spec.tile)
    sums = spec.panel_block * count * step(spec.channel_block * columns, size)
    staged = 0
    for plain, border, channels in (
        (spec.image_plain, BORDER, spec.channel_block),
        (spec.gradient_plain, 0, min(width, spec.out_channels)),
    ):
        high, wide = (number * spec.tile + border for number in (rows, cols))
        staged = max(staged, 0 if plain else images * high * wide * channels)
    numbers = (
        step(max(spec.channel_block, width), size) + staged,
        count * step(tiles * step(spec.channel_block, size), size),
        count * step(tiles * step(width, size), size),
        sums if spec.slices == 1 else 0,
    )
    scratch = tuple(plan.aligned(number * size) for number in numbers)
    pieces = plan.aligned(parts * spec.panel_block * -(-spec.channel_block // spec.piece_block))
    partials = spec.slices * parts * sums * size if spec.slices > 1 else 0
    again = [each for line in spec.again for each in line if each is not None]
    spare = max(sum(each.scratch) for each in again) - sum(scratch)
    return replace(
        spec,
        piece_bytes=pieces,
        scratch=(*scratch, max(0, spare)),
        shared_bytes=pieces + max(partials, *(each.shared_bytes for each in again)),
    )
