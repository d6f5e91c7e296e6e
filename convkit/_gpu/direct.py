"""The family direct on floating-point arrays: kernels without a matrix, for depthwise convolutions and narrow groups.

They need no workspace but for the filter gradient, and call no library, so that they also serve while a stream is being
captured. Neighbouring threads are neighbouring channels, or neighbouring pixels where those are neighbours in memory.
No part of this has run on a GPU yet; NARROW and the constants of slices are estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._epilogue import Terms
from .._registry import FusedPlan, Implementation, NeedsWorkspace, Plan, Problem
from . import launch, memory
from .checks import array_objection, check_addresses
from .epilogue import NO_TERMS, NOTHING, FloatFinish, pixels_fastest
from .patches import steps_of
from .products import sums_of

# As in direct.cu and direct_filter.cu.
RUN, TAPS, SIDE_BY_SIDE = 4, 9, 128
# Groups of more products per pixel and tap are better multiplied as matrices.
NARROW = 64
# Threads that fill a GPU several times over: the pixels of a filter gradient are cut until there are so many, but into
# no more than MOST_SLICES, and into none of fewer than LEAST_SLICE pixels for each thread.
MANY_THREADS, MOST_SLICES, LEAST_SLICE = 2**17, 256, 32

Numbers = tuple[np.int64, ...]


def _numbers(*values: int) -> Numbers:
    return tuple(map(np.int64, values))


def types_of(problem: Problem) -> launch.Types:
    """Return the types of the kernels."""
    return ("ELEMENT", launch.TYPES[problem.dtype]), ("ACC", launch.SUMS[problem.dtype])


class ForwardPlan(FusedPlan):
    """One launch for the convolution and its epilogue."""

    copies = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        g = problem.geometry
        image, weights, *beside = problem.operands
        rows, columns, given, taken = steps_of(weights)
        self.types = types_of(problem)
        self.items = g.batch * g.out_size[0] * -(-g.out_size[1] // RUN) * g.out_channels
        self.image = steps_of(image)
        self.rest = (
            *(rows, columns, given, taken, g.group_out * taken),
            *(np.int64(self.items), np.int32(pixels_fastest(problem.out))),
            *_numbers(*g.in_size, *g.out_size, g.out_channels, g.group_in, g.group_out),
            *_numbers(*g.filter_size, *g.strides, *g.dilations, *g.pad_before),
        )
        self.finish = FloatFinish(problem.epilogue or NOTHING, beside[0] if beside else None, problem.out)

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        self._run(operands, NO_TERMS, out)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Any) -> None:
        self._run(operands, terms, out)

    def _run(self, operands: Sequence[Any], terms: Terms, out: Any) -> None:
        check_addresses(self.problem, (*operands, out))
        image, weights, *beside = operands
        finish = self.finish.arguments(terms, beside[0] if beside else None, out)
        launch.run("direct_forward", self.types, self.items, (image, *self.image, weights, *self.rest, *finish))


class InputGradientPlan(Plan):
    """One launch: at stride 1 a convolution of the gradient with the turned filter, else a sum over windows."""

    copies = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        g = problem.geometry
        weights, gradient = problem.operands
        rows, columns, taken, given = steps_of(weights)
        self.turned = g.strides == (1, 1)
        self.kernel = "direct_forward" if self.turned else "direct_backward"
        self.types = types_of(problem)
        padding, across = g.pad_before, g.in_size[1]
        if self.turned:
            rows, columns, across = -rows, -columns, -(-across // RUN)
            padding = tuple(e - 1 - p for e, p in zip(g.effective_filter, g.pad_before, strict=True))
        self.items = g.batch * g.in_size[0] * across * g.in_channels
        self.gradient = steps_of(gradient)
        self.rest = (
            *(rows, columns, given, taken, g.group_out * given),
            *(np.int64(self.items), np.int32(pixels_fastest(problem.out))),
            *_numbers(*g.out_size, *g.in_size, g.in_channels, g.group_out, g.group_in),
            *_numbers(*g.filter_size, *g.strides, *g.dilations, *padding),
        )
        self.finish = FloatFinish(NOTHING, None, problem.out)

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        check_addresses(self.problem, (*operands, out))
        weights, gradient = operands
        if self.turned:
            weights = weights[::-1, ::-1]
        arguments = gradient, *self.gradient, weights, *self.rest, *self.finish.arguments(NO_TERMS, None, out)
        launch.run(self.kernel, self.types, self.items, arguments)


class FilterGradientPlan(Plan):
    """Sums of slices of the pixels, added up in order by a second launch."""

    copies = ("result: sums of slices of the pixels in scratch",)

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        g = problem.geometry
        image, gradient = problem.operands
        self.by_pixels = abs(gradient.strides[2]) < abs(gradient.strides[3]) and abs(image.strides[2]) < abs(
            image.strides[3]
        )
        taps = g.filter_size[0] * g.filter_size[1]
        self.sums = sums_of(problem.dtype)
        self.sum_count = taps * g.group_in * g.out_channels
        self.least = self.sum_count * self.sums.itemsize
        work = -(-taps // TAPS) * g.group_in * g.out_channels
        pixels = g.batch * g.out_size[0] * g.out_size[1]
        side_by_side = SIDE_BY_SIDE if self.by_pixels else 1
        wanted = min(MOST_SLICES, -(-MANY_THREADS // (work * side_by_side)), -(-pixels // (LEAST_SLICE * side_by_side)))
        room = problem.workspace_limit // self.least
        self.length = -(-pixels // max(1, min(wanted, room)))
        self.slices = -(-pixels // self.length)
        self.items = work * self.slices
        self.types = types_of(problem)
        self.image, self.gradient = steps_of(image), steps_of(gradient)
        self.geometry = _numbers(
            *(self.items, self.length, g.batch, *g.in_size, *g.out_size, g.out_channels, g.group_in, g.group_out),
            *(*g.filter_size, *g.strides, *g.dilations, *g.pad_before),
        )
        self.adding = (
            *(launch.CODES[problem.out.dtype], np.int32(problem.accumulate)),
            *(*_numbers(g.filter_size[1], g.group_in, g.out_channels), *steps_of(problem.out)),
        )

    def workspace(self, threads: int) -> int:
        return self.slices * self.least

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        check_addresses(self.problem, (*operands, out))
        image, gradient = operands
        sums = memory.scratch(self.problem.op, self.slices * self.least).view(self.sums)
        arguments = image, *self.image, gradient, *self.gradient, sums, *self.geometry
        if self.by_pixels:
            launch.run_blocks("filter_by_pixels", self.types, self.items, (SIDE_BY_SIDE,), arguments)
        else:
            launch.run("filter_by_channels", self.types, self.items, arguments, block=SIDE_BY_SIDE)
        arguments = sums, np.int64(self.slices), np.int64(self.sum_count), out, *self.adding
        launch.run("sum_slices", self.types[1:], self.sum_count, arguments)


PLANS: dict[str, Callable[[Problem], Plan]] = {
    "conv2d": ForwardPlan,
    "fused_conv2d": ForwardPlan,
    "conv2d_backprop_filter": FilterGradientPlan,
    "conv2d_backprop_input": InputGradientPlan,
}


class Direct(Implementation):
    """Sums in registers, straight from the arrays; serves every floating-point dtype and any groups."""

    def __init__(self, op: str, dtype: str) -> None:
        super().__init__("gpu", "direct", op, dtype)

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        refusal = array_objection(problem)
        if refusal is not None:
            return refusal
        for operand in problem.operands[:2]:
            if operand.dtype != problem.dtype:
                return f"{operand.role} has dtype {operand.dtype}, and its kernels convert no operands"
        if problem.op == "conv2d_backprop_filter":
            need = FilterGradientPlan(problem).least
            if need > problem.workspace_limit:
                return NeedsWorkspace(
                    f"it needs {need} bytes of workspace, more than the limit of {problem.workspace_limit} bytes"
                )
        return None

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if g.group_in * g.group_out > NARROW:
            return f"groups of {g.group_in} by {g.group_out} channels are multiplied faster as matrices"
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return PLANS[problem.op](problem)
