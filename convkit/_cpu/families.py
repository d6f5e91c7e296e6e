"""The CPU's implementations as a table: family, what it objects to, and its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import FLOATS
from .._registry import Implementation, NeedsWorkspace, Plan, Problem, Table
from . import reference

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")


class ReferencePlan(Plan):
    """The plain NumPy loops; whole taps of small blocks are converted to float64 at a time."""

    copies = ("every operand: converted to float64 block by block",)
    # Three blocks of float64, their conversions, and what einsum keeps between its steps.
    BYTES = 8 * 8 * reference.STEP_ELEMENTS

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def workspace(self, threads: int) -> int:
        g = self.problem.geometry
        totals = 16 * g.group_in * g.out_channels if self.problem.op == "conv2d_backprop_filter" else 0
        return self.BYTES + totals

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        g = self.problem.geometry
        with np.errstate(all="ignore"):
            if self.problem.op == "conv2d":
                reference.conv2d(g, *operands, out)
            elif self.problem.op == "conv2d_backprop_filter":
                reference.conv2d_backprop_filter(g, *operands, out, self.problem.accumulate)
            else:
                reference.conv2d_backprop_input(g, *operands, out)


class Reference(Implementation):
    """Plain NumPy; serves everything that fits."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        need = ReferencePlan(problem).workspace(1)
        if need > problem.workspace_limit:
            return NeedsWorkspace(
                f"it needs {need} bytes of workspace, more than the limit of {problem.workspace_limit} bytes"
            )
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return ReferencePlan(problem)


def _table() -> Table:
    families = (("reference", Reference),)
    return {
        (op, dtype): tuple(kind("cpu", family, op, dtype) for family, kind in families) for op in OPS for dtype in FLOATS
    }


TABLE = _table()
