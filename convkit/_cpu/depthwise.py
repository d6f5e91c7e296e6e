"""Convolutions that do not mix channels, on kernels of their own: depthwise ones, and a single channel in and out."""

from __future__ import annotations

import functools
from typing import Any

from .._geometry import ConvGeometry
from .._registry import Implementation, Plan, Problem
from . import _engine, blas, depthwise_tiles, plan
from .depthwise_tiles import DepthwiseGradientSpec, DepthwiseSpec
from .families import (
    EmptyPlan,
    EnginePlan,
    ZeroPlan,
    limit_of,
    meets_no_pixel,
    padded_sentence,
    planning_objection,
    reasons,
)
from .machine import Machine

# Filters of a channel beyond which products are faster, but for the input gradient: with 8 these kernels are twice as
# fast on an AMD EPYC 7003, with 16 half as fast.
MOST_FILTERS = 8


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> DepthwiseSpec | DepthwiseGradientSpec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    if problem.op == "conv2d":
        return depthwise_tiles.forward_spec(g, first, second, problem.out, limit, machine)
    if problem.op == "conv2d_backprop_filter":
        return depthwise_tiles.filter_gradient_spec(g, first, second, problem.out, problem.accumulate, limit, machine)
    return depthwise_tiles.gather_spec(g, first, second, problem.out, limit, machine)


def forget_specs() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()


class Depthwise(Implementation):
    """Each channel with its own filter: vectors along channels or columns, and no matrix product."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if g.group_in != 1:
            return f"a group has {g.group_in} channels in, and must have one"
        if g.group_out > plan.SUM_BLOCK:
            return f"each channel has {g.group_out} filters, more than {plan.SUM_BLOCK}"
        return planning_objection(problem, lambda: _spec(problem, machine))

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        filters = problem.geometry.group_out
        if filters > MOST_FILTERS and problem.op != "conv2d_backprop_input":
            return f"each channel has {filters} filters, enough to fill the register tiles of a product"
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return EmptyPlan()
        if meets_no_pixel(problem):
            return ZeroPlan()
        spec = _spec(problem, machine)
        if isinstance(spec, DepthwiseSpec):
            engine, copies = _engine.Depthwise(spec), _copies(spec, problem.geometry)
            return EnginePlan(spec, problem, engine, copies, blas.NO_HOLD)
        copies = _gradient_copies(spec, problem.geometry)
        return EnginePlan(spec, problem, _engine.DepthwiseGradient(spec), copies, blas.NO_HOLD)


def _copies(spec: DepthwiseSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = []
    if spec.shared_bytes:
        why = reasons(spec.filter, spec.arithmetic, g)
        sentences.append(f"filter: packed once, {spec.shared_bytes} bytes ({why})")
    if spec.scratch[0]:
        sentences.append(padded_sentence(spec.image, spec.image_plain, g, spec.arithmetic))
    if spec.scratch[1]:
        why = reasons(spec.out, spec.arithmetic, g)
        sentences.append(f"result: summed in scratch, then stored tile by tile ({why})")
    return tuple(sentences)


def _gradient_copies(spec: DepthwiseGradientSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = []
    if spec.scratch[0]:
        sentences.append(padded_sentence(spec.image, spec.image_plain, g, spec.arithmetic))
    if not spec.gradient_plain:
        sentences.append(padded_sentence(spec.gradient, False, g, spec.arithmetic))
    if spec.slices > 1:
        sentences.append(f"result: {spec.slices} partial sums over slices of the pixels, added in order")
    return tuple(sentences)
