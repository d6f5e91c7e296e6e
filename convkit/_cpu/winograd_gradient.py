"""Winograd's filter gradient: both operands are transformed tile by tile, and the sums over tiles back once."""

from __future__ import annotations

import functools

from .._geometry import ConvGeometry
from .._registry import Plan, Problem
from . import _engine, blas, winograd_choice, winograd_gradient_tiles
from .families import EmptyPlan, EnginePlan, limit_of, padded_sentence, planning_objection
from .machine import Machine
from .winograd_gradient_tiles import WinogradGradientSpec
from .winograd_tiles import tiles_sentence


@functools.lru_cache(maxsize=256)
def spec_of(problem: Problem, machine: Machine) -> WinogradGradientSpec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (image, gradient), limit = problem.geometry, problem.operands, limit_of(problem)
    return winograd_gradient_tiles.filter_gradient_spec(
        g, winograd_choice.tile_of(problem, machine), image, gradient, problem.out, problem.accumulate, limit, machine
    )


def objection(problem: Problem, machine: Machine) -> str | None:
    """Return why a filter gradient of 3x3 taps cannot be planned, or None."""
    return planning_objection(problem, lambda: spec_of(problem, machine))


def plan(problem: Problem, machine: Machine) -> Plan:
    """Return what computes a filter gradient."""
    if problem.empty:
        return EmptyPlan()
    spec = spec_of(problem, machine)
    engine = _engine.WinogradGradient(spec)
    return EnginePlan(spec, problem, engine, _copies(spec, problem.geometry), blas.NO_HOLD)


def _copies(spec: WinogradGradientSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = []
    for operand, plain in ((spec.image, spec.image_plain), (spec.gradient, spec.gradient_plain)):
        if not plain:
            sentences.append(padded_sentence(operand, False, g, spec.arithmetic))
        sentences.append(tiles_sentence(operand, spec.tile))
    if spec.slices > 1:
        sentences.append(f"result: {spec.slices} partial sums over slices of the tiles, added in order")
    return tuple(sentences)
