"""How a product is cut into tiles: pure arithmetic on the problem and the machine.

Nothing here knows how many threads there are, so that neither the cuts nor the order of any sum depend on it.  The
workspace limit lowers the number of tiles in flight first, then the pixels of a tile, then its channels; the order of
the sums stays the same.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._arrays import HALVES, Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from .layouts import COPY, Kind, Layout, filter_layout, is_plain, pixel_layout, settle_strides
from .machine import Machine

# As CK_SUM_BLOCK in multiply.h.
SUM_BLOCK = 512

# A shard's patches, filter and result together take this part of the last-level cache that a core can count on.  Tuned
# on an AMD EPYC 9004 with OpenBLAS 0.3: from an eighth to a half the speed is the same within 3 %.
CACHE_PARTS = 4
# Below this a tile is not cut further to get more of them.
LEAST_TILE_FLOPS = 2e6
# The least number of tiles that a large problem is cut into, for load balance on up to about as many cores.
TILES = 48
MOST_CHANNELS = 512
# Fewer rows than this make a product slow, whatever the cache.
LEAST_ROWS = 64
# Most bytes of converted image that a tile keeps; beyond, each patch converts its own pixels again.
MOST_STAGED = 2 * 2**20
# When an input gradient is scattered and not gathered (measured: docs/decisions/0004-input-gradient.md): gathering
# multiplies more than MOST_WASTE times as often; there are more than MOST_PHASES stride phases, each a product of its
# own; or so few channels in, and so many taps and channels out, that a gathered product is too narrow for BLAS.
MOST_WASTE = 2.0
MOST_PHASES = 256
FEW_CHANNELS = 8
MANY_TAPS = 16
MANY_FILTERS = 16

# Bytes of a run below which copying it from where it lies is slower than converting the image first.
SHORT_RUN = 64

SCRATCH_ALIGN = 64


class Run(enum.IntEnum):
    """As `ck_run` in product.h."""

    ALL = 0
    IMAGE = 1
    ROW = 2


@dataclass(frozen=True, slots=True)
class Window:
    """As `ck_window` in patches.h."""

    size: tuple[int, int]
    out_size: tuple[int, int]
    steps: tuple[int, int]
    row_at: tuple[int, ...]
    col_at: tuple[int, ...]

    @property
    def taps(self) -> int:
        return len(self.row_at) * len(self.col_at)

    @property
    def grid(self) -> int:
        return self.out_size[0] * self.out_size[1]


@dataclass(frozen=True, slots=True)
class Phase:
    """As `ck_phase` in product.h."""

    window: Window
    out_strides: tuple[int, ...]
    out_at: int
    row_tap: tuple[int, ...]
    col_tap: tuple[int, ...]
    out_layout: Layout
    out_uniform: bool


@dataclass(frozen=True, slots=True)
class ProductSpec:
    """As `ck_product` in product.h."""

    arithmetic: str
    image: Operand
    image_plain: bool
    filter: Operand
    filter_strides: tuple[int, int, int, int]
    out: Operand
    group_bytes: tuple[int, int, int]
    images: int
    groups: int
    in_channels: int
    out_channels: int
    phases: tuple[Phase, ...]
    image_layout: Layout
    filter_layout: Layout
    run: Run
    within_image: bool
    pixel_block: int
    channel_block: int
    scratch: tuple[int, int, int, int]
    packed_bytes: int
    fills_all: bool

    @property
    def shared_bytes(self) -> int:
        return self.packed_bytes


@dataclass(frozen=True, slots=True)
class FilterGradientSpec:
    """As `ck_filter_gradient` in filter_gradient.h."""

    arithmetic: str
    window: Window
    image: Operand
    image_plain: bool
    gradient: Operand
    out: Operand
    group_bytes: tuple[int, int, int]
    accumulate: bool
    images: int
    groups: int
    in_channels: int
    out_channels: int
    image_layout: Layout
    gradient_layout: Layout
    out_layout: Layout
    patch_block: int
    channel_block: int
    slices: int
    slice_pixels: int
    pixel_block: int
    within_image: bool
    tiles_at_once: int
    scratch: tuple[int, int, int, int]
    partial_bytes: int

    @property
    def shared_bytes(self) -> int:
        return self.partial_bytes


@dataclass(frozen=True, slots=True)
class ScatterSpec:
    """As `ck_scatter` in scatter.h."""

    arithmetic: str
    window: Window
    gradient: Operand
    filter: Operand
    out: Operand
    group_bytes: tuple[int, int, int]
    images: int
    groups: int
    in_channels: int
    out_channels: int
    image_block: int
    channel_block: int
    pixel_block: int
    tap_block: int
    scratch: tuple[int, int, int, int, int]

    @property
    def shared_bytes(self) -> int:
        return 0


Spec = ProductSpec | FilterGradientSpec | ScatterSpec


def arithmetic_of(dtype: str) -> str:
    """Return the dtype that sums are kept in."""
    return "float32" if dtype in HALVES else dtype


def products_of(arithmetic: str) -> int:
    """Return the products that an element of both operands adds to a sum, as `ck_products` in kernels.h."""
    return 2 if arithmetic == "bfloat16" else 1


def _copies_plainly(image: Operand, arithmetic: str, channels: int, columns: int) -> bool:
    """Tell whether patches are best copied from the image itself, and not from a converted piece of it.

    Where the channels of a tap are few, and not neighbours in memory of those of the next tap, runs are too short to
    copy; a piece with the group's channels side by side has runs of a whole row of taps.
    """
    plain = is_plain(image, arithmetic)
    merges = image.strides[2] == channels * image.strides[3] or columns == 1
    return plain and (merges or channels * image.itemsize >= SHORT_RUN)


def size_of(arithmetic: str) -> int:
    """Return the bytes of an element of the arithmetic and of a sum; both are 4 for pairs of bfloat16 numbers."""
    return 8 if arithmetic == "float64" else 4


def aligned(count: int) -> int:
    """Return a number of bytes rounded up, so that the parts of a scratch block stay aligned."""
    return -(-count // SCRATCH_ALIGN) * SCRATCH_ALIGN


def cut(total: int, most: int) -> int:
    """Return the size of the equal pieces, the last one perhaps smaller, when none may exceed ``most``."""
    pieces = -(-total // max(1, most))
    return -(-total // pieces) if pieces else 1


def sum_block(terms: int) -> int:
    """Return the terms that one product sums, as `ck_sum_block` in multiply.h."""
    return cut(terms, SUM_BLOCK)


def forward_window(g: ConvGeometry) -> Window:
    """Return where the output's pixels look in the input."""
    offsets = [
        tuple(tap * d - before for tap in range(k))
        for k, d, before in zip(g.filter_size, g.dilations, g.pad_before, strict=True)
    ]
    return Window(_pair(g.in_size), _pair(g.out_size), _pair(g.strides), offsets[0], offsets[1])


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes[0], sizes[1]


def _phases_along(g: ConvGeometry, axis: int) -> dict[int, list[tuple[int, int]]]:
    """Return, for each remainder of the input's coordinate by the stride, the (offset, tap) that reach it.

    Input pixel h = phase + i*s meets output pixel i + offset at a tap with (phase + before - tap*d) = s*offset.
    """
    stride, found = g.strides[axis], defaultdict(list)
    for tap in reversed(range(g.filter_size[axis])):
        phase = (tap * g.dilations[axis] - g.pad_before[axis]) % stride
        if phase < g.in_size[axis]:
            found[phase].append(((phase + g.pad_before[axis] - tap * g.dilations[axis]) // stride, tap))
    return found


def count_phases(g: ConvGeometry) -> int:
    """Return the number of stride phases of an input gradient that any tap reaches."""
    return math.prod(len(_phases_along(g, axis)) for axis in (0, 1))


def forward_spec(
    g: ConvGeometry, image: Operand, filter: Operand, out: Operand, limit: int, machine: Machine
) -> ProductSpec:
    """Plan a forward convolution."""
    arithmetic = arithmetic_of(filter.dtype)
    image, filter, out = map(settle_strides, (image, filter, out))
    phase = forward_phase(g, out, arithmetic)
    s_a, s_b, s_i, s_o = filter.strides
    return _product_spec(
        arithmetic,
        (phase,),
        image,
        filter,
        (s_a, s_b, s_i, s_o),
        out,
        group_bytes=(g.group_in * image.strides[3], g.group_out * s_o, g.group_out * out.strides[3]),
        channels=(g.group_in, g.group_out),
        images_and_groups=(g.batch, g.groups),
        out_uniform=phase.out_uniform,
        limit=limit,
        machine=machine,
        fills_all=True,
    )


def stride_phases(g: ConvGeometry, out: Operand, arithmetic: str) -> tuple[Phase, ...]:
    """Return the phases of an input gradient: pixels of ``out`` that see the same taps at the same distances."""
    phases = []
    for row_phase, row_taps in sorted(_phases_along(g, 0).items()):
        for col_phase, col_taps in sorted(_phases_along(g, 1).items()):
            size = (
                -(-(g.in_size[0] - row_phase) // g.strides[0]),
                -(-(g.in_size[1] - col_phase) // g.strides[1]),
            )
            s_n, s_h, s_w, s_c = out.strides
            seen = replace(
                out,
                shape=(g.batch, *size, g.in_channels),
                strides=(s_n, s_h * g.strides[0], s_w * g.strides[1], s_c),
            )
            layout, across = pixel_layout(settle_strides(seen), arithmetic)
            phases.append(
                Phase(
                    window=Window(
                        size=_pair(g.out_size),
                        out_size=size,
                        steps=(1, 1),
                        row_at=tuple(offset for offset, _ in row_taps),
                        col_at=tuple(offset for offset, _ in col_taps),
                    ),
                    out_strides=seen.strides,
                    out_at=row_phase * s_h + col_phase * s_w,
                    row_tap=tuple(tap for _, tap in row_taps),
                    col_tap=tuple(tap for _, tap in col_taps),
                    out_layout=layout,
                    out_uniform=across,
                )
            )
    return tuple(phases)


def forward_phase(g: ConvGeometry, out: Operand, arithmetic: str) -> Phase:
    """Return a forward convolution as one phase."""
    layout, across = pixel_layout(out, arithmetic)
    return Phase(
        window=forward_window(g),
        out_strides=out.strides,
        out_at=0,
        row_tap=tuple(range(g.filter_size[0])),
        col_tap=tuple(range(g.filter_size[1])),
        out_layout=layout,
        out_uniform=across,
    )


def phases_objection(g: ConvGeometry) -> str | None:
    """Return why an input gradient cannot be gathered phase by phase, or None."""
    phases = count_phases(g)
    return f"the strides make {phases} phases of the pixels, more than {MOST_PHASES}" if phases > MOST_PHASES else None


def fills_all(g: ConvGeometry, phases: tuple[Phase, ...]) -> bool:
    """Tell whether every pixel of an input gradient is in one of the phases."""
    return len(phases) == math.prod(min(stride, size) for stride, size in zip(g.strides, g.in_size, strict=True))


def gather_spec(
    g: ConvGeometry, filter: Operand, gradient: Operand, out: Operand, limit: int, machine: Machine
) -> ProductSpec:
    """Plan an input gradient as products of output gradients with the filter, phase by phase of the strides."""
    arithmetic = arithmetic_of(filter.dtype)
    gradient, filter, out = map(settle_strides, (gradient, filter, out))
    phases = stride_phases(g, out, arithmetic)
    s_a, s_b, s_i, s_o = filter.strides
    return _product_spec(
        arithmetic,
        phases,
        gradient,
        filter,
        (s_a, s_b, s_o, s_i),
        out,
        group_bytes=(g.group_out * gradient.strides[3], g.group_out * s_o, g.group_in * out.strides[3]),
        channels=(g.group_out, g.group_in),
        images_and_groups=(g.batch, g.groups),
        out_uniform=all(phase.out_uniform for phase in phases),
        limit=limit,
        machine=machine,
        fills_all=fills_all(g, phases),
    )


def is_whole_image(window: Window) -> bool:
    """Tell whether each output pixel sees exactly the input pixel at its place."""
    return (
        window.taps == 1
        and window.size == window.out_size
        and window.steps == (1, 1)
        and not any(window.row_at + window.col_at)
    )


def _product_spec(
    arithmetic: str,
    phases: tuple[Phase, ...],
    image: Operand,
    filter: Operand,
    filter_strides: tuple[int, int, int, int],
    out: Operand,
    *,
    group_bytes: tuple[int, int, int],
    channels: tuple[int, int],
    images_and_groups: tuple[int, int],
    out_uniform: bool,
    limit: int,
    machine: Machine,
    fills_all: bool,
) -> ProductSpec:
    n_in, n_out = channels
    images, groups = images_and_groups
    window = max((phase.window for phase in phases), key=lambda w: w.taps * w.grid)
    taps = sum(phase.window.taps for phase in phases)
    image_layout, image_uniform = pixel_layout(image, arithmetic)
    if len(phases) != 1 or not is_whole_image(window):
        image_layout, image_uniform = COPY, True
    if image_layout.kind is not Kind.COLUMNS:
        # BLAS spends more on packing patches for a transposed result than storing a finished tile transposed takes.
        phases = tuple(
            replace(phase, out_layout=COPY) if phase.out_layout.kind is Kind.COLUMNS else phase for phase in phases
        )
    out_uniform = out_uniform or all(phase.out_layout.kind is Kind.COPY for phase in phases)
    ordered = len(phases) == 1 and phases[0].row_tap == tuple(range(len(phases[0].row_tap)))
    ordered = ordered and phases[0].col_tap == tuple(range(len(phases[0].col_tap)))
    sizes = (len(phases[0].row_tap), len(phases[0].col_tap), n_in, n_out)
    weights = filter_layout(filter, filter_strides, sizes, arithmetic) if ordered else COPY
    draft = ProductSpec(
        arithmetic=arithmetic,
        image=image,
        image_plain=_copies_plainly(image, arithmetic, n_in, len(window.col_at)),
        filter=filter,
        filter_strides=filter_strides,
        out=out,
        group_bytes=group_bytes,
        images=images,
        groups=groups,
        in_channels=n_in,
        out_channels=n_out,
        phases=phases,
        image_layout=image_layout,
        filter_layout=weights,
        run=Run.ALL,
        within_image=not (out_uniform and image_uniform),
        pixel_block=1,
        channel_block=1,
        scratch=(0, 0, 0, 0),
        packed_bytes=0,
        fills_all=fills_all,
    )
    packed = taps * n_in * n_out * groups * size_of(arithmetic) if weights.kind is Kind.COPY else 0
    pixels, n = _tile(draft, window, machine)
    # Equal blocks of fewer terms can be larger: 576 are two of 288, 384 are one.
    block = max(sum_block(phase.window.taps * n_in) for phase in phases)
    while True:
        for shared in (packed, 0) if packed else (0,):
            spec = _fit_product(draft, window, block, pixels, n, shared)
            if shared <= limit // 2 and shared + sum(spec.scratch) <= limit:
                return spec
        if pixels > 1:
            pixels = -(-pixels // 2)
        elif n > 1:
            n = -(-n // 2)
        else:
            raise WorkspaceError(too_small(spec.shared_bytes + sum(spec.scratch), limit))


def too_small(need: int, limit: int) -> str:
    """Return the sentence for a workspace limit below the least that a plan needs."""
    return f"it needs {need} bytes of workspace at the least, more than the limit of {limit} bytes"


def _tile(spec: ProductSpec, window: Window, machine: Machine) -> tuple[int, int]:
    """Return the pixels and channels of a tile, as far as cache and number of tiles decide them."""
    terms, size = window.taps * spec.in_channels, size_of(spec.arithmetic)
    block = sum_block(terms)
    n = cut(spec.out_channels, MOST_CHANNELS)
    total = spec.images * window.grid
    pixels = min(total, _beside(block, n, size, machine))

    def tiles() -> int:
        return -(-total // pixels) * -(-spec.out_channels // n) * spec.groups * len(spec.phases)

    def flops() -> float:
        return 2.0 * pixels * terms * n

    while tiles() < TILES and pixels > LEAST_ROWS and flops() > LEAST_TILE_FLOPS:
        pixels = -(-pixels // 2)
    while tiles() < TILES and n > 32 and flops() > LEAST_TILE_FLOPS:
        n = -(-n // 2)
    return pixels, n


def _beside(block: int, n: int, size: int, machine: Machine) -> int:
    """Return how many rows of a matrix of ``block`` columns, and of its product with n columns, fit a shard's cache."""
    elements = machine.llc_share // CACHE_PARTS // size
    return max(LEAST_ROWS, (elements - block * n) // (block + n))


def _fit_product(spec: ProductSpec, window: Window, block: int, pixels: int, n: int, packed: int) -> ProductSpec:
    """Return the specification with a tile's pixels brought into line with rows and images, and its scratch."""
    size = size_of(spec.arithmetic)
    run, pixels = _align(window, spec.images, pixels, spec.within_image)
    patch = pixels * block * size if spec.image_layout.kind is Kind.COPY else 0
    weights = block * n * size if spec.filter_layout.kind is Kind.COPY and not packed else 0
    copied = any(phase.out_layout.kind is Kind.COPY for phase in spec.phases)
    tile = pixels * n * size if copied else 0
    staged = 0
    if patch and not spec.image_plain:
        staged = _staged_bytes(window, pixels, spec.in_channels, size)
    return replace(
        spec,
        run=run,
        pixel_block=pixels,
        channel_block=n,
        scratch=(aligned(patch), aligned(weights), aligned(tile), aligned(staged)),
        packed_bytes=packed,
    )


def _align(window: Window, images: int, pixels: int, within_image: bool) -> tuple[Run, int]:
    """Cut along rows: parts of one row, whole rows, or whole images."""
    rows, columns = window.out_size
    if pixels < columns:
        return Run.ROW, cut(columns, pixels)
    if pixels < window.grid or within_image:
        return Run.IMAGE, cut(rows, pixels // columns) * columns
    return Run.ALL, cut(images, pixels // window.grid) * window.grid


def _staged_bytes(window: Window, pixels: int, channels: int, size: int) -> int:
    """Return the bytes of the image region that a tile of so many pixels reaches, or 0 if it is too large to keep."""
    columns = window.out_size[1]
    images = max(1, pixels // window.grid)
    rows = min(window.out_size[0], -(-pixels // columns))
    across = columns if pixels >= columns else pixels
    reach_h = (rows - 1) * window.steps[0] + max(window.row_at) - min(window.row_at) + 1
    reach_w = (across - 1) * window.steps[1] + max(window.col_at) - min(window.col_at) + 1
    region = images * min(reach_h, window.size[0]) * min(reach_w, window.size[1]) * channels * size
    return region if region <= MOST_STAGED else 0


def filter_gradient_spec(
    g: ConvGeometry,
    image: Operand,
    gradient: Operand,
    out: Operand,
    accumulate: bool,
    limit: int,
    machine: Machine,
) -> FilterGradientSpec:
    """Plan a filter gradient: tiles of the result first, slices of the pixels only where there are too few tiles."""
    arithmetic = arithmetic_of(gradient.dtype)
    size = size_of(arithmetic)
    image, gradient, out = map(settle_strides, (image, gradient, out))
    window = forward_window(g)
    image_layout, image_uniform = pixel_layout(image, arithmetic)
    if not is_whole_image(window):
        image_layout, image_uniform = COPY, True
    gradient_layout, gradient_uniform = pixel_layout(gradient, arithmetic)
    if window.grid < SUM_BLOCK // 2:
        # Products within one small image would be short, and the second-level sums long.
        if not image_uniform:
            image_layout, image_uniform = COPY, True
        if not gradient_uniform:
            gradient_layout, gradient_uniform = COPY, True
    sizes = (*_pair(g.filter_size), g.group_in, g.group_out)
    s_a, s_b, s_i, s_o = out.strides
    out_layout = filter_layout(out, (s_a, s_b, s_i, s_o), sizes, arithmetic)
    if accumulate or out_layout.kind is not Kind.ROWS:
        out_layout = COPY
    plain = _copies_plainly(image, arithmetic, g.group_in, len(window.col_at))
    # A block of converted pixels that spans two images would hold all of both.
    within_image = not (image_uniform and gradient_uniform) or (not plain and window.grid >= SUM_BLOCK // 2)
    patch, n = window.taps * g.group_in, g.group_out
    total = g.batch * window.grid
    pixels = _gradient_pixels(window, total, within_image)
    channel_block = cut(n, MOST_CHANNELS // 2)
    patch_block = cut(patch, _beside(pixels, channel_block, size, machine))
    tiles = -(-patch // patch_block) * -(-n // channel_block) * g.groups
    slices, slice_pixels = _slices(tiles, patch_block, channel_block, total, pixels)
    while True:
        tiles = -(-patch // patch_block) * -(-n // channel_block) * g.groups
        tile_bytes = patch_block * channel_block * size
        scratch = (
            aligned(pixels * patch_block * size if image_layout.kind is Kind.COPY else 0),
            aligned(pixels * channel_block * size if gradient_layout.kind is Kind.COPY else 0),
            aligned(tile_bytes if slices == 1 and out_layout.kind is Kind.COPY else 0),
            aligned(0 if plain else _staged_bytes(window, pixels, g.group_in, size)),
        )
        at_once = 1
        if slices > 1:
            at_once = max(1, min(tiles, (limit - sum(scratch)) // 2 // (slices * tile_bytes)))
        partial = slices * tile_bytes * at_once if slices > 1 else 0
        if partial + sum(scratch) <= limit:
            break
        if patch_block > 32 or (patch_block > 1 and channel_block == 1):
            patch_block = -(-patch_block // 2)
        elif channel_block > 1:
            channel_block = -(-channel_block // 2)
        elif pixels > 1:
            pixels = -(-pixels // 2)
        else:
            raise WorkspaceError(too_small(partial + sum(scratch), limit))
    return FilterGradientSpec(
        arithmetic=arithmetic,
        window=window,
        image=image,
        image_plain=plain,
        gradient=gradient,
        out=out,
        group_bytes=(g.group_in * image.strides[3], g.group_out * gradient.strides[3], g.group_out * s_o),
        accumulate=accumulate,
        images=g.batch,
        groups=g.groups,
        in_channels=g.group_in,
        out_channels=n,
        image_layout=image_layout,
        gradient_layout=gradient_layout,
        out_layout=out_layout,
        patch_block=patch_block,
        channel_block=channel_block,
        slices=slices,
        slice_pixels=slice_pixels,
        pixel_block=pixels,
        within_image=within_image,
        tiles_at_once=at_once,
        scratch=scratch,
        partial_bytes=partial,
    )


def _gradient_pixels(window: Window, total: int, within_image: bool) -> int:
    """Return the pixels of one product: at most SUM_BLOCK, whole rows or equal parts of one."""
    columns = window.out_size[1]
    most = min(SUM_BLOCK, window.grid if within_image else total)
    return cut(columns, most) if columns > most else most // columns * columns


def _slices(tiles: int, patch_block: int, channel_block: int, total: int, pixels: int) -> tuple[int, int]:
    """Return into how many slices the pixels are cut, and the pixels of one."""
    wanted = 1
    if tiles < TILES // 2:
        by_work = int(2.0 * patch_block * channel_block * total / LEAST_TILE_FLOPS)
        wanted = max(1, min(-(-TILES // tiles), by_work))
    blocks = -(-total // pixels)
    slice_pixels = -(-blocks // wanted) * pixels
    return -(-total // slice_pixels), slice_pixels


def scatter_spec(g: ConvGeometry, filter: Operand, gradient: Operand, out: Operand, limit: int) -> ScatterSpec:
    """Plan an input gradient as products that are added to the pixels they came from (col2im)."""
    arithmetic = arithmetic_of(filter.dtype)
    size = size_of(arithmetic)
    gradient, filter, out = map(settle_strides, (gradient, filter, out))
    window = forward_window(g)
    area = window.size[0] * window.size[1]
    images = max(1, min(g.batch, 128 // window.grid))
    n = g.group_in
    while images > 1 and images * area * n * size > MOST_STAGED:
        images = -(-images // 2)
    while n > 16 and -(-g.batch // images) * g.groups * -(-g.group_in // n) < TILES:
        n = -(-n // 2)
    pixels = min(SUM_BLOCK, images * window.grid)
    while True:
        taps = max(1, min(len(window.col_at), 256 // n)) if n == g.group_in else 1
        scratch = (
            aligned(pixels * g.group_out * size),
            aligned(taps * n * g.group_out * size),
            aligned(pixels * taps * n * size),
            aligned(images * area * n * size),
            # Second-level sums, where more taps than SUM_BLOCK can meet in a pixel.
            aligned(images * area * n * size) if window.taps > SUM_BLOCK else 0,
        )
        if sum(scratch) <= limit:
            break
        if images > 1:
            images = -(-images // 2)
        elif n > 1:
            n = -(-n // 2)
        elif pixels > 1:
            pixels = -(-pixels // 2)
        else:
            raise WorkspaceError(too_small(sum(scratch), limit))
    return ScatterSpec(
        arithmetic=arithmetic,
        window=window,
        gradient=gradient,
        filter=filter,
        out=out,
        group_bytes=(g.group_out * gradient.strides[3], g.group_out * filter.strides[3], g.group_in * out.strides[3]),
        images=g.batch,
        groups=g.groups,
        in_channels=g.group_in,
        out_channels=g.group_out,
        image_block=images,
        channel_block=n,
        pixel_block=pixels,
        tap_block=taps,
        scratch=scratch,
    )


def scatters(g: ConvGeometry) -> bool:
    """Tell whether an input gradient is better scattered than gathered."""
    phases, taps = count_phases(g), math.prod(g.filter_size)
    narrow = g.group_in <= FEW_CHANNELS and taps >= MANY_TAPS and g.group_out >= MANY_FILTERS
    return phases == 0 or phases > MOST_PHASES or narrow or gathering_waste(g) > MOST_WASTE


def gathering_waste(g: ConvGeometry) -> float:
    """Return how many times as many multiplications gathering takes as scattering, those with padding included."""
    rows, columns = _phases_along(g, 0), _phases_along(g, 1)

    def work(axis: int, phases: dict[int, list[tuple[int, int]]]) -> int:
        return sum(-(-(g.in_size[axis] - phase) // g.strides[axis]) * len(taps) for phase, taps in phases.items())

    return work(0, rows) * work(1, columns) / (math.prod(g.out_size) * math.prod(g.filter_size))
