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


def usable() -> str:
    """Return the highest level that is built in, that the CPU has, and that CONVKIT_MAX_ISA does not exclude."""
    best = _engine.ISA_LEVELS.index(_engine.BEST_ISA)
    cap = os.environ.get("CONVKIT_MAX_ISA", "").strip().lower()
    if not cap:
        return _engine.BEST_ISA
    if cap not in _engine.ISA_LEVELS:
        raise ArgumentError(
            f"convkit: environment variable CONVKIT_MAX_ISA is {show(cap)}, but must be one of "
            f"{', '.join(map(repr, _engine.ISA_LEVELS))}"
        )
    return _engine.ISA_LEVELS[min(best, _engine.ISA_LEVELS.index(cap))]


def levels(highest: str) -> tuple[str, ...]:
    """Return the levels up to ``highest``, lowest first."""
    return _engine.ISA_LEVELS[: _engine.ISA_LEVELS.index(highest) + 1]


TILES = tuple(Tile(*kernel) for kernel in _engine.dot_kernels())


def tile_for(arithmetic: str, isa: str) -> Tile:
    """Return the register tile of the highest level up to ``isa``, as `ck_dot_kernel_for` in kernels.h."""
    usable_levels = levels(isa)
    return [tile for tile in TILES if tile.arithmetic == arithmetic and tile.isa in usable_levels][-1]
