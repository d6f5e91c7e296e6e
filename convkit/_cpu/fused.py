"""Fused convolutions without kernels of their own: a floating-point family and then the epilogue; NumPy on int8.

Where the result's memory can hold the sums, they are written there and changed in place.  Where it cannot (halves,
which are rounded once, and a result that takes the side input's place), the convolution is done part by part into
scratch: some images at a time, or some rows of one.  The parts are cut by geometry alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._arrays import HALVES, Operand, fresh_form
from .._epilogue import Terms
from .._formats import DATA_AXES, arrange
from .._geometry import ConvGeometry
from .._registry import FusedPlan, Implementation, NeedsWorkspace, Pack, Plan, Problem
from . import epilogue, reference
from .families import Reference, ReferencePlan, limit_of

# Bytes of sums in scratch: enough work for every thread, and a part of the last-level cache.
PART_BYTES = 4 * 2**20


def has_room(problem: Problem) -> bool:
    """Tell whether the result can hold the sums."""
    assert problem.epilogue is not None
    return problem.out.dtype == _computed(problem) and not problem.epilogue.onto_side


def _computed(problem: Problem) -> str:
    return "float32" if problem.dtype in HALVES else problem.dtype


@dataclass(frozen=True, slots=True)
class Cut:
    """Images and output rows that are convolved at a time."""

    images: int
    rows: int


def cut(problem: Problem) -> Cut:
    """Return how a problem is cut into parts."""
    g = problem.geometry
    if has_room(problem):
        return Cut(g.batch, g.out_size[0])
    row = g.out_size[1] * g.out_channels * np.dtype(_computed(problem)).itemsize
    if row * g.out_size[0] <= PART_BYTES:
        return Cut(min(g.batch, max(1, PART_BYTES // (row * g.out_size[0]))), g.out_size[0])
    return Cut(1, max(1, PART_BYTES // row))


def _rows_of(g: ConvGeometry, first: int, rows: int) -> tuple[slice, tuple[int, int]]:
    """Return the pixel rows that some output rows look at, and the padding before and after them."""
    start = first * g.strides[0] - g.pad_before[0]
    stop = start + (rows - 1) * g.strides[0] + g.effective_filter[0]
    inside = slice(min(max(0, start), g.in_size[0]), max(0, min(stop, g.in_size[0])))
    if inside.start >= inside.stop:
        return slice(0, 0), (rows, rows)
    return inside, (inside.start - start, stop - inside.stop)


def part_problem(problem: Problem, images: int, first: int, rows: int) -> Problem:
    """Return the plain convolution of some images and rows, its result in place or in dense scratch."""
    g = problem.geometry
    inside, padding = (slice(0, g.in_size[0]), (g.pad_before[0], g.pad_after[0]))
    if rows < g.out_size[0]:
        inside, padding = _rows_of(g, first, rows)
    geometry = replace(
        g,
        op="conv2d",
        batch=images,
        in_size=(inside.stop - inside.start, g.in_size[1]),
        out_size=(rows, g.out_size[1]),
        pad_before=(padding[0], g.pad_before[1]),
        pad_after=(padding[1], g.pad_after[1]),
    )
    image, weights = problem.operands[:2]
    image = replace(image, shape=(images, *geometry.in_size, g.in_channels))
    out, staged = problem.out, 0
    if not has_room(problem):
        computed = np.dtype(_computed(problem))
        form = fresh_form(_part_shape(geometry), computed)
        out = Operand.of("out", form, DATA_AXES[g.data_format])
        staged = math.prod(form[0]) * computed.itemsize
    return replace(
        problem,
        geometry=geometry,
        operands=(image, weights),
        out=out,
        epilogue=None,
        workspace_limit=max(0, problem.workspace_limit - staged),
    )


def _part_shape(g: ConvGeometry) -> tuple[int, ...]:
    return arrange(g.data_format, g.batch, g.out_channels, g.out_size)


def part_problems(problem: Problem) -> dict[tuple[int, int], Problem]:
    """Return the different parts, by their number of images and their first row."""
    g, size = problem.geometry, cut(problem)
    images = {size.images, g.batch % size.images or size.images}
    found = {}
    for count in images:
        for first in range(0, g.out_size[0], size.rows):
            rows = min(size.rows, g.out_size[0] - first)
            found[count, first] = part_problem(problem, count, first, rows)
    return found


class FusedFloatPlan(FusedPlan):
    """A plan for each kind of part, and the epilogue."""

    def __init__(self, problem: Problem, plans: dict[tuple[int, int], Plan]) -> None:
        self.problem = problem
        self.plans = plans
        self.size = cut(problem)
        self.scratch = 0
        sentence = "result: the epilogue runs over it in place, block by block"
        if not has_room(problem):
            g = problem.geometry
            per_row = self.size.images * g.out_size[1] * g.out_channels
            self.scratch = per_row * self.size.rows * np.dtype(_computed(problem)).itemsize
            sentence = f"result: summed in scratch, {self.size.images} images and {self.size.rows} rows at a time"
        self.copies = (*dict.fromkeys(s for plan in plans.values() for s in plan.copies), sentence)

    def workspace(self, threads: int) -> int:
        return self.scratch + max(plan.workspace(threads) for plan in self.plans.values())

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        e, g = self.problem.epilogue, self.problem.geometry
        assert e is not None
        image, weights, *beside = operands
        scratch = np.empty(self.scratch, np.uint8)
        with np.errstate(all="ignore"):
            for images, first, rows in self._parts():
                place = images, slice(first, first + rows)
                inside = slice(0, g.in_size[0]) if rows == g.out_size[0] else _rows_of(g, first, rows)[0]
                target = out[place] if not self.scratch else self._target(scratch, images.stop - images.start, rows)
                plan = self.plans[images.stop - images.start, first]
                _run(plan, [image[images, inside], weights], target, threads, pack)
                side = beside[0][place] if beside else None
                epilogue.of_floats(target, e, terms, side, out[place] if self.scratch else None)

    def _parts(self) -> Iterator[tuple[slice, int, int]]:
        g = self.problem.geometry
        for start in range(0, g.batch, self.size.images):
            for first in range(0, g.out_size[0], self.size.rows):
                images = slice(start, min(start + self.size.images, g.batch))
                yield images, first, min(self.size.rows, g.out_size[0] - first)

    def _target(self, scratch: Any, images: int, rows: int) -> Any:
        g = self.problem.geometry
        shape = arrange(g.data_format, images, g.out_channels, (rows, g.out_size[1]))
        computed = np.dtype(_computed(self.problem))
        dense = scratch[: math.prod(shape) * computed.itemsize].view(computed).reshape(shape)
        return dense.transpose(DATA_AXES[g.data_format])


class _Zeros(Plan):
    """A part whose windows hold padding only."""

    copies = ()

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        out[...] = 0


def _run(plan: Plan, operands: list[Any], out: Any, threads: int, pack: Pack | None) -> None:
    if pack is None:
        plan.run(operands, out, threads)
    else:
        plan.run_packed(operands, out, threads, pack)


class FusedFloat(Implementation):
    """A family of plain convolutions, followed by the epilogue."""

    def __init__(self, plain: Implementation) -> None:
        super().__init__(plain.device, plain.family, "fused_conv2d", plain.dtype)
        self.plain = plain

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        for part in part_problems(problem).values():
            if part.empty:
                continue
            if part.workspace_limit == 0:
                return NeedsWorkspace(f"its scratch for sums takes all of the {limit_of(problem)} bytes of workspace")
            objection = self.plain.objection(part, machine)
            if objection is not None:
                return objection
        return None

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        return self.plain.reluctance(next(iter(part_problems(problem).values())), machine)

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return SumsOfNothing(problem)
        made: dict[Problem, Plan] = {}
        plans = {}
        for key, part in part_problems(problem).items():
            if part not in made:
                made[part] = _Zeros() if part.empty else self.plain.plan(part, machine)
            plans[key] = made[part]
        return FusedFloatPlan(problem, plans)


class SumsOfNothing(FusedPlan):
    """Every sum is zero: there are no channels, or only padding is met."""

    copies = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def workspace(self, threads: int) -> int:
        return 0

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        g, e = self.problem.geometry, self.problem.epilogue
        assert e is not None
        side = operands[2] if e.side else None
        every, shape = slice(0, g.out_channels), (1, 1, g.out_size[1], g.out_channels)
        with np.errstate(all="ignore"):
            for n, i in np.ndindex(g.batch, g.out_size[0]):
                row = slice(n, n + 1), slice(i, i + 1)
                beside = None if side is None else side[row]
                zeros = np.zeros(shape, terms.conv_scale.dtype)
                if self.problem.dtype == "int8":
                    first = None if beside is None else beside[0]
                    reference.store_integers(zeros[0], every, e, terms, first, out[row][0])
                else:
                    epilogue.of_floats(zeros, e, terms, beside, out[row])


class Int8ReferencePlan(ReferencePlan, FusedPlan):
    """Exact sums in plain NumPy, with or without an epilogue."""

    copies = ("every operand: converted to float64 block by block, in which the sums are exact",)

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        ReferencePlan.run(self, operands, out, threads)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        image, weights, *beside = operands
        e = self.problem.epilogue
        assert e is not None
        with np.errstate(all="ignore"):
            side = beside[0] if beside else None
            reference.fused_int8(self.problem.geometry, e, terms, image, weights, side, out)


class Int8Reference(Reference):
    """Plain NumPy; serves every int8 convolution that fits."""

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return SumsOfNothing(problem) if problem.empty else Int8ReferencePlan(problem)
