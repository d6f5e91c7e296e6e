"""How int8 convolutions are cut into tiles: pure arithmetic, as in `plan`."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from .._arrays import Operand
from .._errors import WorkspaceError
from .._geometry import ConvGeometry
from . import plan
from .isa import Int8Tile, int8_tile_for
from .layouts import settle_strides
from .machine import Machine
from .plan import TILES, Window

# Bytes of a filter's panel that stay in the second-level cache while all pixels of a tile pass; sums go through memory
# between the blocks of a larger panel.  A register tile takes longer over a step than the step's weights take to come
# from that cache: on an AMD EPYC Genoa (1 MiB), 16 to 256 KiB gave the same speed within 3 %, the larger the better.
PANEL_BYTES = 128 * 2**10
# A tile's pixels take this part of the second-level cache, beside the panels that stream through it.  On an AMD EPYC
# Milan (512 KiB), a quarter to the whole gave the same speed within 3 %.
CACHE_PARTS = 2
# Below this a tile is not cut further to get more of them: some 20 microseconds.
LEAST_TILE_OPERATIONS = 4e6
# Cycles to lay down a byte, of neighbouring channels and of planes, and products of a cycle: on an AMD EPYC Genoa.  A
# tile is not cut into fewer panels than keep the laying down below a fifth of the products' time.
STAGE_CYCLES = (0.1, 0.6)
CYCLE_PRODUCTS = 64.0
STAGE_SHARE = 0.2
# Pixels at a distance of a multiple of this fall into few sets of the first-level cache; then they are laid PITCH
# elements further apart.
CONFLICT_ELEMENTS = 1024
PITCH = 32
UNIT_BYTES = 4
# Bytes of a pixel's channel in each form: as a byte, and widened.
FORM_SIZES = (1, 2)
# As PIECE_BYTES in int8.c.
PIECE_BYTES = 8192
# As the size of `factors` in int8.c.
FACTOR_BYTES = 3 * 4 * 32
# As CK_DEPTHWISE_ROWS in int8_kernels.h; and the columns of a depthwise tile, so that its units stay in the first-level
# cache.
DEPTHWISE_ROWS = 6
DEPTHWISE_COLUMNS = 64
# Filters of a channel beyond which units are better shared by all of them: with 8 both ways are equally fast, with 4
# this one is 3.6 times as fast, with 16 half as fast (AMD EPYC 9004).
MOST_FILTERS = 7
# Rows of results of a depthwise tile below which it is not cut: neighbours lay the rows between them down twice.
LEAST_DEPTHWISE_ROWS = 8
# How much longer a depthwise convolution takes over an operation.
DEPTHWISE_COST = 5.0
# The most that a register tile reads beyond the last pixel.
SLACK = 64


@dataclass(frozen=True, slots=True)
class Channels:
    """As `ck_int8_image` in int8.h: where channels in blocks of four lie."""

    strides: tuple[int, int, int]
    block: int
    lane: int
    dtype: str
    native: bool

    @classmethod
    def of(cls, operand: Operand) -> Channels:
        """Describe an image of four axes, or of five in the packed formats."""
        *strides, lane = settle_strides(operand).strides
        block = strides.pop() if len(strides) == 4 else 4 * lane
        n, h, w = strides
        return cls((n, h, w), block, lane, operand.dtype, operand.native)

    @property
    def in_place(self) -> bool:
        """As `ck_int8_in_place` in int8_image.h."""
        size = 1 if self.dtype in ("int8", "uint8") else 4
        return self.block == 4 * self.lane and self.lane == size and (size == 1 or self.native)


@dataclass(frozen=True, slots=True)
class Form:
    """As `ck_int8_form` in int8.h."""

    steps: int
    block_steps: int
    packed_at: int


@dataclass(frozen=True, slots=True)
class Int8Spec:
    """As `ck_int8` in int8.h; `image_at` is the bytes from an image to the first pixel of what the window sees."""

    isa: str
    window: Window
    image: Channels
    image_at: int
    side: Channels | None
    out: Channels
    filter_strides: tuple[int, int]
    filter_block: int
    filter_lane: int
    filter_out: int
    images: int
    groups: int
    in_channels: int
    out_channels: int
    tile: tuple[int, int, int, int]
    pitch: int
    row_pitch: int
    depthwise: bool
    multiplier: int
    runs: tuple[tuple[int, int, int], ...]
    forms: tuple[Form, ...]
    sums_at: int
    peaks_at: int
    scratch: tuple[int, int, int, int, int]
    shared_bytes: int


def int8_spec(
    g: ConvGeometry, image: Operand, filter: Operand, side: Operand | None, out: Operand, limit: int, machine: Machine
) -> Int8Spec:
    """Plan a convolution of int8 or uint8 pixels with int8 weights."""
    register = int8_tile_for(machine.isa)
    *strides, filter_out = settle_strides(filter).strides
    s_a, s_b, *rest = strides
    block, lane = rest if len(rest) == 2 else (4 * rest[0], rest[0])
    taps = g.filter_size[0] * g.filter_size[1]
    # Each channel is a group of its own; the engine takes all output channels as the columns of panels.
    depthwise = g.groups > 1 and g.group_in == 1 and g.group_out <= MOST_FILTERS
    pitch = g.group_in + (PITCH if taps == 1 and g.group_in % CONFLICT_ELEMENTS == 0 else 0)
    draft = Int8Spec(
        isa=register.isa,
        window=plan.forward_window(g),
        image=Channels.of(image),
        image_at=0,
        side=None if side is None else Channels.of(side),
        out=Channels.of(out),
        filter_strides=(s_a, s_b),
        filter_block=block,
        filter_lane=lane,
        filter_out=filter_out,
        images=g.batch,
        groups=1 if depthwise else g.groups,
        in_channels=g.group_in,
        out_channels=g.out_channels if depthwise else g.group_out,
        tile=(1, 1, 1, 1),
        pitch=pitch,
        row_pitch=0,
        depthwise=depthwise,
        multiplier=g.group_out if depthwise else 1,
        runs=(),
        forms=(),
        sums_at=0,
        peaks_at=0,
        scratch=(0, 0, 0, 0, 0),
        shared_bytes=0,
    )
    return _fit(_in_one_line(_without_gaps(draft)), register, limit, machine)


def _without_gaps(spec: Int8Spec) -> Int8Spec:
    """Leave out the pixels that no tap meets, along the axes that have one tap only and no padding."""
    w, image, start = spec.window, spec.image, spec.image_at
    size, steps, at, strides = list(w.size), list(w.steps), [w.row_at, w.col_at], list(image.strides)
    for axis in (0, 1):
        first, count = at[axis][0], w.out_size[axis]
        if len(at[axis]) == 1 and first >= 0 and (count - 1) * steps[axis] + first < size[axis]:
            start += first * strides[axis + 1]
            strides[axis + 1] *= steps[axis]
            size[axis], steps[axis], at[axis] = count, 1, (0,)
    window = Window((size[0], size[1]), w.out_size, (steps[0], steps[1]), at[0], at[1])
    n, h, width = strides
    return replace(spec, window=window, image=replace(image, strides=(n, h, width)), image_at=start)


def _in_one_line(spec: Int8Spec) -> Int8Spec:
    """Take rows, and images, as one long row where a single tap meets every pixel and all arrays allow it."""
    w = spec.window
    if w.taps > 1 or w.size != w.out_size or w.steps != (1, 1) or w.row_at != (0,) or w.col_at != (0,):
        return spec
    arrays = {"image": spec.image, "out": spec.out} | ({} if spec.side is None else {"side": spec.side})
    rows, columns = w.size
    images = spec.images
    if rows > 1 and all(a.strides[1] == columns * a.strides[2] for a in arrays.values()):
        rows, columns = 1, rows * columns
    if rows == 1 and images > 1 and all(a.strides[0] == columns * a.strides[2] for a in arrays.values()):
        images, columns = 1, images * columns
    window = Window((rows, columns), (rows, columns), (1, 1), (0,), (0,))
    return replace(spec, window=window, images=images)


def _fit(draft: Int8Spec, register: Int8Tile, limit: int, machine: Machine) -> Int8Spec:
    panels = -(-draft.out_channels // register.columns)
    runs = _runs(draft)
    draft, packed = _place_packed(replace(draft, runs=runs), register, panels)
    tile = _tile(draft, panels, register, machine)
    while True:
        scratch = _scratch(draft, tile, register)
        if packed + sum(scratch) <= limit:
            break
        images, rows, columns, panel_block = tile
        if images > 1:
            tile = (-(-images // 2), rows, columns, panel_block)
        elif rows > 1:
            tile = (1, -(-rows // 2), columns, panel_block)
        elif columns > 1:
            tile = (1, 1, -(-columns // 2), panel_block)
        elif panel_block > 1:
            tile = (1, 1, 1, -(-panel_block // 2))
        else:
            raise WorkspaceError(plan.too_small(packed + sum(scratch), limit))
    wide = _reach(draft.window, *tile[1:3])[1]
    row_pitch = wide if draft.depthwise else wide * draft.pitch
    return replace(draft, tile=tile, row_pitch=row_pitch, scratch=scratch, shared_bytes=packed)


def _runs(spec: Int8Spec) -> tuple[tuple[int, int, int], ...]:
    """Return (tap row, tap column, terms) of what lies in one line: a row of neighbouring taps, or a tap."""
    cols = spec.window.col_at
    if spec.depthwise:
        return ()
    neighbours = spec.pitch == spec.in_channels and all(b - a == 1 for a, b in itertools.pairwise(cols))
    taps = 1 if neighbours else len(cols)
    terms = spec.in_channels * len(cols) // taps
    return tuple((row, col, terms) for row in range(len(spec.window.row_at)) for col in range(taps))


def _place_packed(spec: Int8Spec, register: Int8Tile, panels: int) -> tuple[Int8Spec, int]:
    """Return the specification with the places of what is packed, and the bytes of it all."""
    forms, at = [], 0
    units = spec.groups * panels
    for size in FORM_SIZES if register.pairs_saturate else FORM_SIZES[:1]:
        steps = sum(-(-terms * size // UNIT_BYTES) for _, _, terms in spec.runs)
        if spec.depthwise:
            rows, unit_rows = _unit_rows(spec.window, size)
            steps = rows * unit_rows * len(spec.window.col_at)
        forms.append(Form(steps, plan.cut(steps, PANEL_BYTES // (register.columns * UNIT_BYTES)), at))
        at += plan.aligned(units * steps * register.columns * UNIT_BYTES)
    sums_at, peaks_at = at, at + plan.aligned(units * len(spec.window.row_at) * register.columns * 4)
    total = peaks_at + (plan.aligned(units * 4) if register.pairs_saturate else 0)
    return replace(spec, forms=tuple(forms), sums_at=sums_at, peaks_at=peaks_at), total


def _reach(window: Window, rows: int, columns: int) -> tuple[int, int]:
    """Return the rows and columns of the image that a block of output pixels reaches, padding included."""
    high = (rows - 1) * window.steps[0] + max(window.row_at) - min(window.row_at) + 1
    wide = (columns - 1) * window.steps[1] + max(window.col_at) - min(window.col_at) + 1
    return high, wide


def _piece(rows: int, columns: int) -> int:
    """Return the pixels whose sums are finished together, as `piece_of` in int8.c."""
    return rows * max(1, PIECE_BYTES // (rows * columns * 4))


def _staged(spec: Int8Spec, tile: tuple[int, int, int, int], register: Int8Tile) -> int:
    """Return the bytes of a tile's pixels where they are laid down."""
    images, rows, columns, _ = tile
    high, wide = _reach(spec.window, rows, columns)
    if spec.depthwise:
        sizes = FORM_SIZES if register.pairs_saturate else FORM_SIZES[:1]
        unit_rows = max(_unit_rows(spec.window, size)[1] for size in sizes)
        return plan.aligned((unit_rows + 1) * wide * register.columns * UNIT_BYTES)
    return plan.aligned(images * high * wide * spec.pitch * (2 if register.pairs_saturate else 1) + SLACK)


def _unit_rows(window: Window, size: int) -> tuple[int, int]:
    """Return the rows of results that share units, and the rows of units that they meet, as `ck_int8_columns_of`."""
    rows = window.row_at
    together = 2 if len(rows) > 1 and rows[1] - rows[0] == window.steps[0] else 1
    return together, -(-(len(rows) + together - 1) * size // UNIT_BYTES)


def _rows(spec: Int8Spec, register: Int8Tile) -> tuple[int, int]:
    """Return the rows of the register tiles of bytes and of words."""
    return (DEPTHWISE_ROWS, DEPTHWISE_ROWS) if spec.depthwise else register.rows


def _reads_in_place(spec: Int8Spec, register: Int8Tile) -> bool:
    """Tell whether pixels need not be laid down, as `reads_in_place` in int8.c."""
    w, image = spec.window, spec.image
    alone = (w.row_at, w.col_at, w.steps) == ((0,), (0,), (1, 1)) and w.size == w.out_size
    return alone and not register.pairs_saturate and spec.in_channels % UNIT_BYTES == 0 and image.in_place


def _scratch(spec: Int8Spec, tile: tuple[int, int, int, int], register: Int8Tile) -> tuple[int, int, int, int, int]:
    """Return the bytes of a tile's pixels and sums, of side inputs and results of a piece, and of factors."""
    images, rows, columns, panel_block = tile
    piece = min(columns, max(_piece(r, register.columns) for r in _rows(spec, register) if r)) * register.columns
    kept = piece
    if not spec.depthwise and any(form.steps > form.block_steps for form in spec.forms):
        kept = images * rows * columns * register.columns

    def dense(channels: Channels | None) -> int:
        if channels is None or channels.in_place:
            return 0
        return plan.aligned(piece * (1 if channels.dtype in ("int8", "uint8") else 4))

    return (
        0 if _reads_in_place(spec, register) else _staged(spec, tile, register),
        plan.aligned(kept * 4),
        dense(spec.side),
        dense(spec.out),
        panel_block * FACTOR_BYTES,
    )


def _tile(spec: Int8Spec, panels: int, register: Int8Tile, machine: Machine) -> tuple[int, int, int, int]:
    """Return images, rows, columns and panels of a tile, by the cache and by how many tiles there are."""
    w, cache = spec.window, machine.l2_bytes // CACHE_PARTS
    rows, columns = w.out_size

    if spec.depthwise:
        return _depthwise_tile(spec, panels)

    def taken(images: int, high: int, wide: int) -> int:
        tile = (images, high, wide, 1)
        return _staged(spec, tile, register) + sum(_scratch(spec, tile, register)[1:])

    while taken(1, rows, columns) > cache and rows > 1:
        rows = -(-rows // 2)
    while taken(1, rows, columns) > cache and columns > 4 * max(register.rows):
        columns = -(-columns // 2)
    rows, columns = plan.cut(w.out_size[0], rows), plan.cut(w.out_size[1], columns)
    images = 1
    if (rows, columns) == w.out_size:
        images = max(1, min(spec.images, cache // taken(1, rows, columns)))
    per_pixel = 2.0 * w.taps * spec.in_channels * register.columns
    panel_block = panels

    def tiles() -> int:
        across = -(-w.out_size[0] // rows) * -(-w.out_size[1] // columns)
        return -(-spec.images // images) * across * -(-panels // panel_block) * spec.groups

    while tiles() < TILES and images * rows * columns * panel_block * per_pixel > LEAST_TILE_OPERATIONS:
        if images > 1:
            images = -(-images // 2)
        elif rows * columns > 8 * max(register.rows) and rows > 1:
            rows = -(-rows // 2)
        elif columns > 16 * max(register.rows):
            columns = -(-columns // 2)
        elif panel_block > _least_panels(spec, rows, columns, register):
            panel_block = -(-panel_block // 2)
        else:
            break
    return images, rows, columns, panel_block


def _depthwise_tile(spec: Int8Spec, panels: int) -> tuple[int, int, int, int]:
    """Return a tile of all channels, so that memory is walked through in order, by how many tiles there are."""
    rows, columns = spec.window.out_size
    columns = plan.cut(columns, DEPTHWISE_COLUMNS)
    per_row = 2.0 * spec.window.taps * columns * spec.out_channels * DEPTHWISE_COST
    while rows > LEAST_DEPTHWISE_ROWS and rows * per_row > LEAST_TILE_OPERATIONS:
        if spec.images * -(-spec.window.out_size[0] // rows) * -(-spec.window.out_size[1] // columns) >= TILES:
            break
        rows = 2 * -(-rows // 4)
    return 1, rows, columns, panels


def _least_panels(spec: Int8Spec, rows: int, columns: int, register: Int8Tile) -> int:
    """Return how many panels are worth laying pixels down for."""
    if _reads_in_place(spec, register):
        return 1
    high, wide = _reach(spec.window, rows, columns)
    staged = high * wide * STAGE_CYCLES[not spec.image.in_place]
    return math.ceil(staged * CYCLE_PRODUCTS / (STAGE_SHARE * rows * columns * spec.window.taps * register.columns))
