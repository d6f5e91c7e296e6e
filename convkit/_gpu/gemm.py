"""The family gemm: convolutions that are matrix products as they lie, by cuBLAS."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from .._arrays import Operand
from .._registry import Implementation, Plan, Problem
from . import blas, memory, products, slices
from .machine import GpuMachine

# Matrices of fewer rows or columns than that use too little of a GPU; the family direct is made for narrow groups.
NARROW = 8


class GemmPlan(Plan):
    """Some calls of cuBLAS, and the sum of their results where there are several."""

    def __init__(self, problem: Problem, spec: products.ProductSpec) -> None:
        self.op = problem.op
        self.spec = spec
        self.accumulate = problem.accumulate
        self.tf32 = problem.precision == "fast"
        self.copies: tuple[str, ...] = ()
        if spec.scratch is not None:
            self.copies = (f"result: {spec.scratch.parts} parts of every sum are kept in scratch, then added in order",)

    def workspace(self, threads: int) -> int:
        return 0 if self.spec.scratch is None else self.spec.scratch.nbytes

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        scratch = self.spec.scratch
        if scratch is None:
            self._multiply(operands, out, self.accumulate)
            return
        sums = memory.scratch(self.op, scratch.nbytes)
        self._multiply(operands, sums, False)
        slices.add_up(sums, scratch, out, self.accumulate)

    def _multiply(self, operands: Sequence[Any], target: Any, accumulate: bool) -> None:
        # The input gradient multiplies by the filter, which that operation names first.
        first, second = (operand.data.ptr for operand in operands[:2])
        a, b = (second, first) if self.op == "conv2d_backprop_input" else (first, second)
        out = target.data.ptr
        for call in self.spec.calls:
            adds = call.adds or accumulate
            blas.run(call.product, a + call.a, b + call.b, out + call.out, accumulate=adds, tf32=self.tf32)


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: GpuMachine) -> products.ProductSpec | str:
    return products.plan(problem, machine)


def forget() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()


def array_objection(operands: Sequence[Operand], dtype: str) -> str | None:
    """Return why cuBLAS cannot read or write arrays where they lie, or None."""
    for operand in operands:
        sums = operand.role == "out" and operand.dtype == "float32" and dtype in blas.HALVES
        if operand.dtype != dtype and not sums:
            return f"{operand.role} has dtype {operand.dtype}, and cuBLAS converts nothing"
        if not operand.native:
            return f"{operand.role} has bytes in the order of other machines, and cuBLAS converts nothing"
        if not operand.aligned:
            return f"{operand.role} begins at an address that is no multiple of 16"
    return None


class Gemm(Implementation):
    """One matrix product per group and image, or a batch of them; no patches, no copies."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        refusal = products.shape_objection(problem)
        if refusal is None:
            refusal = array_objection((*problem.operands[:2], problem.out), problem.dtype)
        if refusal is None:
            refusal = blas.dtype_objection(problem.dtype, machine.capability)
        if refusal is None:
            spec = _spec(problem, machine)
            refusal = spec if isinstance(spec, str) else None
        return blas.capture_objection() if refusal is None else refusal

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if g.groups > 1 and min(g.group_in, g.group_out) < NARROW:
            return f"its matrices of {g.group_in} by {g.group_out} channels fill little of a GPU"
        spec = _spec(problem, machine)
        if machine.cudnn is not None and isinstance(spec, products.ProductSpec) and spec.scratch is not None:
            arrays = sum(math.prod(o.shape) * o.itemsize for o in (*problem.operands, problem.out))
            if spec.scratch.nbytes > arrays:
                return f"its parts of sums take {spec.scratch.nbytes} bytes, more than the arrays' {arrays}"
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        spec = _spec(problem, machine)
        assert isinstance(spec, products.ProductSpec)
        return GemmPlan(problem, spec)
