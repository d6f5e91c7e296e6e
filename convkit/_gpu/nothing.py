"""Convolutions with nothing to sum: there are no images, no channels, or only padding is met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._epilogue import Terms
from .._registry import FusedPlan, Pack, Plan, Problem
from . import access, epilogue, memory
from .products import sums_of


class Nothing(Plan):
    """The front writes the zeros, if there are any."""

    copies = ()

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        """Leave the result alone."""


class SumsOfNothing(FusedPlan):
    """The epilogue over one zero, which stands for all sums."""

    copies = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.dtype = np.dtype(np.int32) if problem.dtype == "int8" else sums_of(problem.dtype)

    def workspace(self, threads: int) -> int:
        return int(self.dtype.itemsize)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        e = self.problem.epilogue
        assert e is not None
        zero = memory.scratch(self.problem.op, self.dtype.itemsize).view(self.dtype)
        memory.clear(zero)
        sums = access.cupy().ndarray(out.shape, self.dtype, memptr=zero.data, strides=(0,) * out.ndim)
        run = epilogue.run_int8 if self.problem.dtype == "int8" else epilogue.run_float
        run(e, terms, sums, operands[2] if e.side else None, out)
