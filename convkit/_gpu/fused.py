"""Fused convolutions by families that only convolve: sums in float32 or float64, then the epilogue's kernel.

Where the result has room for the sums, they are written there and changed in place.  Where it has not (halves, which
are rounded once, and a result that takes the side input's place), they go to scratch memory, some images at a time if
there is no memory for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._arrays import Operand
from .._epilogue import Terms
from .._registry import FusedPlan, Implementation, NeedsWorkspace, Pack, Plan, Problem
from . import access, epilogue, memory
from .products import SUMS


def has_room(problem: Problem) -> bool:
    """Tell whether the result can hold the sums."""
    assert problem.epilogue is not None
    return problem.out.dtype == SUMS[problem.dtype][0] and not problem.epilogue.onto_side


def _image_bytes(problem: Problem) -> int:
    return math.prod(problem.out.shape[1:]) * SUMS[problem.dtype][1]


def images_at_a_time(problem: Problem) -> int:
    """Return how many images' sums are kept; half of the workspace is left to the family that makes them."""
    batch = problem.geometry.batch
    return batch if has_room(problem) else min(batch, problem.workspace_limit // 2 // _image_bytes(problem))


def part_of(problem: Problem, images: int) -> Problem:
    """Return the plain convolution of some images, its result in place or in dense scratch."""
    out, scratch = problem.out, 0
    if not has_room(problem):
        dtype, itemsize = SUMS[problem.dtype]
        strides, scratch = [0, 0, 0, 0], itemsize
        # In the order of the result, so that both are walked through alike.
        for axis in sorted(range(4), key=lambda axis: (axis > 0, -abs(out.strides[axis])), reverse=True):
            strides[axis] = scratch
            scratch *= images if axis == 0 else out.shape[axis]
        out = Operand("out", dtype, True, True, out.shape, tuple(strides), itemsize)
    shape = (images, *out.shape[1:])
    image, weights = problem.operands[:2]
    return replace(
        problem,
        geometry=replace(problem.geometry, batch=images),
        operands=(replace(image, shape=(images, *image.shape[1:])), weights),
        out=replace(out, shape=shape),
        epilogue=None,
        workspace_limit=problem.workspace_limit - scratch * (not has_room(problem)),
    )


class FusedFloatPlan(FusedPlan):
    """A plan for some images, one for those that are left, and the epilogue."""

    def __init__(self, problem: Problem, parts: dict[int, tuple[Problem, Plan]]) -> None:
        assert problem.epilogue is not None
        self.problem, self.epilogue, self.parts = problem, problem.epilogue, parts
        self.images = next(iter(parts))
        self.room = has_room(problem)
        said = "the epilogue runs over it in place"
        if not self.room:
            said = f"summed in scratch, {self.images} images at a time"
        self.copies = (*dict.fromkeys(s for _, plan in parts.values() for s in plan.copies), f"result: {said}")

    def _scratch(self) -> int:
        return 0 if self.room else self.images * _image_bytes(self.problem)

    def workspace(self, threads: int) -> int:
        return self._scratch() + max(plan.workspace(threads) for _, plan in self.parts.values())

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        whole = None if self.room else memory.scratch(self.problem.op, self._scratch())
        for first in range(0, self.problem.geometry.batch, self.images):
            part = slice(first, first + self.images)
            image, result = operands[0][part], out[part]
            problem, plan = self.parts[image.shape[0]]
            sums = result
            if whole is not None:
                form = problem.out
                sums = access.cupy().ndarray(form.shape, np.dtype(form.dtype), whole.data, form.strides)
            plan.run((image, operands[1]), sums, threads)
            side = operands[2][part] if self.epilogue.side else None
            epilogue.run_float(self.epilogue, terms, sums, side, result)


class FusedFloat(Implementation):
    """A family that only convolves, and the epilogue."""

    def __init__(self, plain: Implementation) -> None:
        super().__init__(plain.device, plain.family, "fused_conv2d", plain.dtype)
        self.plain = plain

    def _parts(self, problem: Problem) -> dict[int, Problem]:
        """Return the plain convolutions of the usual number of images, and of what is left of the batch."""
        images, batch = images_at_a_time(problem), problem.geometry.batch
        return {count: part_of(problem, count) for count in dict.fromkeys((images, batch % images or images))}

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        if not images_at_a_time(problem):
            need = 2 * _image_bytes(problem)
            return NeedsWorkspace(
                f"its sums take {need} bytes of workspace, more than the limit of {problem.workspace_limit} bytes"
            )
        objections = (self.plain.objection(part, machine) for part in self._parts(problem).values())
        return next((objection for objection in objections if objection is not None), None)

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        return self.plain.reluctance(problem, machine)

    def plan(self, problem: Problem, machine: Any) -> Plan:
        parts = self._parts(problem).items()
        return FusedFloatPlan(problem, {count: (part, self.plain.plan(part, machine)) for count, part in parts})
