"""Fused convolutions without kernels of their own: a floating-point family and then the epilogue; NumPy on int8.

Where the result's memory can hold the sums, they are written there and changed in place.  Where it cannot (halves,
which are rounded once, and a result that takes the side input's place), the convolution is done part by part into
scratch: some images at a time, or some rows of one.  The parts are cut by geometry alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .._arrays import HALVES, Operand, fresh_form
from .._epilogue import Terms
from .._formats import DATA_AXES, arrange
from .._geometry import ConvGeometry
from .._registry import FusedPlan, Implementation, NeedsWorkspace, Pack, Plan, Problem
from . import epilogue, memory, reference
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


class Rows(NamedTuple):
    """What some output rows look at: how many rows of pixels, and how much padding before and after them."""

    rows: int
    pixels: int
    padding: tuple[int, int]


def _rows_of(g: ConvGeometry, first: int, rows: int) -> tuple[int, Rows]:
    """Return the first row of pixels that some output rows look at, and the rest of it."""
    if rows == g.out_size[0]:
        return 0, Rows(rows, g.in_size[0], (g.pad_before[0], g.pad_after[0]))
    start = first * g.strides[0] - g.pad_before[0]
    stop = start + (rows - 1) * g.strides[0] + g.effective_filter[0]
    inside = max(0, start), min(stop, g.in_size[0])
    if inside[0] >= inside[1]:
        return 0, Rows(rows, 0, (0, 0))
    return inside[0], Rows(rows, inside[1] - inside[0], (inside[0] - start, stop - inside[1]))


def part_problem(problem: Problem, images: int, part: Rows) -> Problem:
    """Return the plain convolution of some images and rows, its result in place or in dense scratch."""
    g = problem.geometry
    geometry = replace(
        g,
        op="conv2d",
        batch=images,
        in_size=(part.pixels, g.in_size[1]),
        out_size=(part.rows, g.out_size[1]),
        pad_before=(part.padding[0], g.pad_before[1]),
        pad_after=(part.padding[1], g.pad_after[1]),
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


Kind = tuple[int, Rows]


def part_problems(problem: Problem) -> dict[Kind, Problem]:
    """Return the different kinds of parts, by their images and rows: those at the borders, and all others."""
    g, size = problem.geometry, cut(problem)
    starts = range(0, g.out_size[0], size.rows)
    rows = dict.fromkeys(_rows_of(g, first, min(size.rows, g.out_size[0] - first))[1] for first in starts)
    images = dict.fromkeys((size.images, g.batch % size.images or size.images))
    return {(count, part): part_problem(problem, count, part) for count in images for part in rows}


class FusedFloatPlan(FusedPlan):
    """A plan for each kind of part, and the epilogue."""

    def __init__(self, problem: Problem, plans: dict[Kind, Plan]) -> None:
        self.problem = problem
        self.plans = plans
        self.size = cut(problem)
        assert problem.epilogue is not None
        self.epilogue = epilogue.FloatEpilogue(problem.epilogue)
        self.scratch = 0
        sentence = "result: the epilogue runs over it in place, line by line"
        if not has_room(problem):
            g = problem.geometry
            per_row = self.size.images * g.out_size[1] * g.out_channels
            self.scratch = per_row * self.size.rows * np.dtype(_computed(problem)).itemsize
            sentence = f"result: summed in scratch, {self.size.images} images and {self.size.rows} rows at a time"
        self.copies = (*dict.fromkeys(s for plan in plans.values() for s in plan.copies), sentence)

    def workspace(self, threads: int) -> int:
        return self.scratch + max(plan.workspace(threads) for plan in self.plans.values())

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        if memory.process_limit() is None:
            self._run(operands, terms, out, threads, pack)
            return
        # All that a call takes at once: calls that wait for more while they hold some might wait for each other.
        least = self.workspace(1)
        each = max(1, self.workspace(2) - least)
        with memory.reserved_ahead(max(0, least - each), each, threads):
            self._run(operands, terms, out, threads, pack)

    def _run(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        g = self.problem.geometry
        image, weights, *beside = operands
        scratch = np.empty(self.scratch, np.uint8)
        with np.errstate(all="ignore"):
            for images, first in self._parts():
                rows, count = min(self.size.rows, g.out_size[0] - first), images.stop - images.start
                start, part = _rows_of(g, first, rows)
                place = images, slice(first, first + rows)
                target = self._target(scratch, count, rows) if self.scratch else out[place]
                pixels = image[images, start : start + part.pixels]
                _run(self.plans[count, part], [pixels, weights], target, threads, pack)
                side = beside[0][place] if beside else None
                self.epilogue.run(target, terms, side, out[place] if self.scratch else None, threads)

    def _parts(self) -> Iterator[tuple[slice, int]]:
        """Yield images and the first output row."""
        g = self.problem.geometry
        for start in range(0, g.batch, self.size.images):
            for first in range(0, g.out_size[0], self.size.rows):
                yield slice(start, min(start + self.size.images, g.batch)), first

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
        parts = part_problems(problem)
        plans = {kind: _Zeros() if part.empty else self.plain.plan(part, machine) for kind, part in parts.items()}
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
                    epilogue.FloatEpilogue(e).run(zeros, terms, beside, out[row], 1)


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
