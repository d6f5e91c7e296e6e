"""ISA levels: what is built in, what this CPU can run, and the cap by CONVKIT_MAX_ISA."""

from __future__ import annotations

import os
from typing import NamedTuple

from .._arguments import show
from .._errors import ArgumentError
from . import _engine


class Tile(NamedTuple):
    """A register tile of the direct kernels: its level, dtype, and its size in rows and columns."""

    name: str
    isa: str
    arithmetic: str
    rows: int
    columns: int


class Int8Tile(NamedTuple):
    """A level's register tiles of int8 convolutions; rows are those of bytes and of words, 0 where it has no words."""

    name: str
    isa: str
    rows: tuple[int, int]
    columns: int
    pairs_saturate: bool


def usable() -> str:
    """Return the last level that the CPU has and that does not come after CONVKIT_MAX_ISA."""
    cap = os.environ.get("CONVKIT_MAX_ISA", "").strip().lower()
    if not cap:
        return _engine.BEST_ISA
    if cap not in _engine.ISA_LEVELS:
        raise ArgumentError(
            f"convkit: environment variable CONVKIT_MAX_ISA is {show(cap)}, but must be one of "
            f"{', '.join(map(repr, _engine.ISA_LEVELS))}"
        )
    allowed = _engine.ISA_LEVELS[: _engine.ISA_LEVELS.index(cap) + 1]
    return [level for level in _engine.ISA_RUNS if level in allowed][-1]


def levels(highest: str) -> tuple[str, ...]:
    """Return the levels whose code runs wherever that of ``highest`` does, lowest first."""
    return _engine.ISA_PARTS[highest]


TILES = tuple(Tile(*kernel) for kernel in _engine.dot_kernels())


def has_tile(arithmetic: str, isa: str) -> bool:
    """Tell whether some level that ``isa`` includes has a register tile of this arithmetic."""
    return any(tile.arithmetic == arithmetic and tile.isa in levels(isa) for tile in TILES)


def tile_for(arithmetic: str, isa: str) -> Tile:
    """Return the register tile of the highest level that ``isa`` includes, as `ck_dot_kernel_for` in kernels.h."""
    usable_levels = levels(isa)
    return [tile for tile in TILES if tile.arithmetic == arithmetic and tile.isa in usable_levels][-1]


INT8_TILES = tuple(Int8Tile(*kernel) for kernel in _engine.int8_kernels())


def int8_tile_for(isa: str) -> Int8Tile:
    """Return the best register tile that level ``isa`` has, as `ck_int8_kernel_for` in int8_kernels.h."""
    return [tile for tile in INT8_TILES if tile.isa in levels(isa)][-1]
