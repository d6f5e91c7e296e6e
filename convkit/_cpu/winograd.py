"""3x3 filters at stride 1 by Winograd's F(4x4, 3x3) or F(2x2, 3x3): fewer multiplications, a few more roundings."""

from __future__ import annotations

import functools
from typing import Any

from .._geometry import ConvGeometry
from .._registry import Implementation, Plan, Problem
from . import _engine, blas, winograd_choice, winograd_gradient, winograd_tiles
from .families import (
    DirectPlan,
    EmptyPlan,
    EnginePlan,
    limit_of,
    padded_sentence,
    planning_objection,
    reasons,
)
from .machine import Machine
from .winograd_tiles import WinogradSpec


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> WinogradSpec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    tile = winograd_choice.tile_of(problem, machine)
    if problem.op == "conv2d":
        return winograd_tiles.forward_spec(g, tile, first, second, problem.out, limit, machine)
    return winograd_tiles.input_gradient_spec(g, tile, first, second, problem.out, limit, machine)


def forget_specs() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()
    winograd_gradient.spec_of.cache_clear()


class WinogradPlan(DirectPlan):
    """Products of transformed tiles, whose filter can be kept transformed from call to call."""

    def __init__(self, spec: WinogradSpec, problem: Problem, copies: tuple[str, ...]) -> None:
        EnginePlan.__init__(self, spec, problem, _engine.Winograd(spec), copies, blas.NO_HOLD)
        self.packer = _engine.WinogradPacker(spec)
        self.packed_bytes = spec.packed_bytes


class Winograd(Implementation):
    """Tiles of 4x4 output pixels, transformed so that 36 products do what takes 144, or of 2x2, and 16 for 36."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if g.filter_size != (3, 3):
            return f"the filter is {g.filter_size[0]}x{g.filter_size[1]}, and its transforms are for 3x3"
        if g.strides != (1, 1):
            return f"strides are {g.strides}, and its tiles are of neighbouring pixels"
        if g.dilations != (1, 1):
            return f"dilations are {g.dilations}, and its tiles are of neighbouring pixels"
        if problem.precision == "high":
            return "precision is 'high', and its transforms round more than a sum of products does"
        if problem.op == "conv2d_backprop_filter":
            return winograd_gradient.objection(problem, machine)
        return planning_objection(problem, lambda: _spec(problem, machine))

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        return None if problem.empty else winograd_choice.reluctance(problem, machine)

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.op == "conv2d_backprop_filter":
            return winograd_gradient.plan(problem, machine)
        if problem.empty:
            return EmptyPlan()
        spec = _spec(problem, machine)
        return WinogradPlan(spec, problem, _copies(spec, problem.geometry))


def _copies(spec: WinogradSpec, g: ConvGeometry) -> tuple[str, ...]:
    how = "once" if spec.shared_bytes == spec.transformed_bytes else "part by part"
    how += f", {spec.shared_bytes} bytes" if spec.shared_bytes else ""
    sentences = [f"filter: transformed {how} ({reasons(spec.filter, spec.arithmetic, g)})"]
    if not spec.image_plain:
        sentences.append(padded_sentence(spec.image, False, g, spec.arithmetic))
    sentences.append(winograd_tiles.tiles_sentence(spec.image, spec.tile))
    if not spec.out_plain:
        why = reasons(spec.out, spec.arithmetic, g)
        sentences.append(f"result: computed in scratch, then stored block by block ({why})")
    return tuple(sentences)
