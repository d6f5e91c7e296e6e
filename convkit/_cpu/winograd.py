"""3x3 filters at stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications, a few more roundings."""

from __future__ import annotations

import functools
from typing import Any

from .._geometry import ConvGeometry
from .._registry import Implementation, Plan, Problem
from . import _engine, blas, winograd_gradient, winograd_tiles
from .families import (
    DirectPlan,
    EmptyPlan,
    EnginePlan,
    direct_arithmetic,
    limit_of,
    padded_sentence,
    planning_objection,
    reasons,
)
from .machine import Machine
from .winograd_tiles import TILE, WinogradSpec

# With fewer channels on either side transforms take longer than they save.  Of fewer pixels, transforming the filter or
# the sums back does; of pixels that fill too little of their tiles, too many products are of zeros.  Dot products of
# bfloat16 pairs multiply twice as much in the same time.  A filter gradient that takes some microseconds is left as
# exact as it can be.  Measured on an AMD EPYC 9004: docs/decisions/0013.
LEAST_CHANNELS, LEAST_CHANNELS_OF_PAIRS = 8, 16
LEAST_PIXELS, LEAST_GRADIENT_PIXELS, LEAST_PIXELS_OF_PAIRS = 49, 98, 144
MOST_WASTE, MOST_WASTE_OF_PAIRS = 2.6, 1.25
# Filters so large are then rather read where they lie: 7x7 pixels of 512 channels take `direct` 0.4 of the time, of 384
# channels 0.9 to 1.4.
LARGE_FILTER, LEAST_PIXELS_OF_LARGE = 400 * 400, 64
LEAST_GRADIENT_FLOPS = 2_000_000


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> WinogradSpec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    if problem.op == "conv2d":
        return winograd_tiles.forward_spec(g, first, second, problem.out, limit, machine)
    return winograd_tiles.input_gradient_spec(g, first, second, problem.out, limit, machine)


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
    """Tiles of 4x4 output pixels, transformed so that 36 products do what takes 144."""

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
        g = problem.geometry
        if problem.empty:
            return None
        few, pairs = min(g.group_in, g.group_out), direct_arithmetic(problem, machine) == "bfloat16"
        if few < (LEAST_CHANNELS_OF_PAIRS if pairs else LEAST_CHANNELS):
            return f"a group has {few} channels on one side, too few to pay for transforming them"
        out = g.in_size if problem.op == "conv2d_backprop_input" else g.out_size
        pixels = g.batch * out[0] * out[1]
        in_tiles = g.batch * TILE * TILE * -(-out[0] // TILE) * -(-out[1] // TILE)
        least = LEAST_GRADIENT_PIXELS if problem.op == "conv2d_backprop_filter" else LEAST_PIXELS
        if g.group_in * g.group_out >= LARGE_FILTER:
            least = max(least, LEAST_PIXELS_OF_LARGE)
        if pixels < (LEAST_PIXELS_OF_PAIRS if pairs else least):
            return f"there are {pixels} pixels, too few to pay for transforming what all of them share"
        if problem.op == "conv2d_backprop_filter" and g.flops < LEAST_GRADIENT_FLOPS:
            return f"the call has {g.flops} multiplications and additions only, too few to be worth larger roundings"
        if in_tiles > (MOST_WASTE_OF_PAIRS if pairs else MOST_WASTE) * pixels:
            return f"its tiles of {TILE}x{TILE} have room for {in_tiles} pixels, and there are {pixels}"
        return None

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
    sentences.append(f"{spec.image.role}: transformed tile by tile")
    if not spec.out_plain:
        why = reasons(spec.out, spec.arithmetic, g)
        sentences.append(f"result: computed in scratch, then stored block by block ({why})")
    return tuple(sentences)
