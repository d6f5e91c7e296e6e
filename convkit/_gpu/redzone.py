"""Buffers with red zones around them, for code that is tried out and may write where it must not."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import launch, memory

# Bytes before and after each buffer; a multiple of what CuPy's pool aligns to.
ZONE = 64 * 1024


class Guarded:
    """Bytes on the current device, between two red zones.

    Attributes
    ----------
    array : cupy.ndarray
        The bytes, as a vector of uint8 that begins at a multiple of 256.
    """

    def __init__(self, op: str, nbytes: int) -> None:
        self._memory = memory.scratch(op, nbytes + 2 * ZONE)
        self._size = np.int64(nbytes)
        self._damaged = memory.scratch(op, 4).view(np.uint32)
        self.array: Any = self._memory[ZONE : ZONE + nbytes]
        self.mend()

    def mend(self) -> None:
        """Make the red zones as they were, whatever has been written there."""
        launch.run("fill_zones", (), 2 * ZONE, (self._memory, np.int64(ZONE), self._size))

    def intact(self) -> bool:
        """Wait for the current stream, and tell whether the red zones are as they were."""
        memory.clear(self._damaged)
        arguments = self._memory, np.int64(ZONE), self._size, self._damaged
        launch.run("count_damage", (), 2 * ZONE, arguments)
        return int(self._damaged.get()[0]) == 0
