"""Parts of sums, added up in order into a result of any strides and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import launch
from .products import MOST_AXES, Scratch


def add_up(sums: Any, scratch: Scratch, out: Any, accumulate: bool) -> None:
    """Write the sums of all parts to the result, or add them to it; rounded once."""
    missing = MOST_AXES - len(scratch.sizes)
    sizes = [1] * missing + list(scratch.sizes)
    strides = [0] * missing + [stride // out.itemsize for stride in scratch.strides]
    count = scratch.part_bytes // scratch.itemsize
    launch.run(
        "sum_slices",
        (("ACC", launch.TYPES[scratch.dtype]),),
        count,
        (
            *(sums, np.int64(scratch.parts), np.int64(count), out, launch.CODES[out.dtype.name]),
            *(np.int32(accumulate), np.int64(sizes[1]), np.int64(sizes[2]), np.int64(sizes[3])),
            *(np.int64(stride) for stride in strides),
        ),
    )
