"""Convolutions of few channels in or out, on kernels whose vectors run along the columns of planes.

Or along the channels of the image, where only the result has few of them.
"""

from __future__ import annotations

import functools
from typing import Any

from .._geometry import ConvGeometry
from .._registry import Implementation, Plan, Problem
from . import _engine, blas, plan, planar_tiles
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
from .isa import levels, tile_for
from .machine import Machine
from .planar_tiles import PlanarGradientSpec, PlanarSpec

# With more channels both in and out the register tiles of the other families are full.
FEW_CHANNELS = 4
# Below this the depthwise kernels, which read the inside of an image in place, are as fast for one channel and filter:
# 7x7 takes 0.9 of the time with them, 9x9 1.6 times as long (measured on an AMD EPYC 7003, docs/decisions/0010).
LEAST_TAPS = 8 * 8
# As many for filter gradients with AVX-512: 5x5 takes 0.7 of the time that the depthwise kernels need, 3x3 as long (AMD
# EPYC 9004; with AVX2 they are alike up to 7x7).
LEAST_GRADIENT_TAPS = 5 * 5
# Up to so many taps, and with rows of float32 results that are nearly a multiple of so many bytes apart, these kernels
# are faster with AVX-512 all the same: 0.8 of the time of the depthwise ones, which write narrower pieces of more rows
# (1024 pixels a row under 3x3 and 5x5, AMD EPYC 9004).
CROWDED_TAPS, CROWDED_BYTES, NEARLY = 5 * 5, 4096, 128
# Smaller forward convolutions and filter gradients are done sooner by the register tiles than their images are laid out
# in planes: 8x8 pixels of 4 channels under 8 3x3 filters in 0.75 and 0.6 of the time.
LEAST_FLOPS = 50_000


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> PlanarSpec | PlanarGradientSpec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    if problem.op == "conv2d":
        return planar_tiles.forward_spec(g, first, second, problem.out, limit, machine)
    if problem.op == "conv2d_backprop_filter":
        return planar_tiles.filter_gradient_spec(g, first, second, problem.out, problem.accumulate, limit, machine)
    return planar_tiles.gather_spec(g, first, second, problem.out, limit, machine)


def forget_specs() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()


def _least_taps(problem: Problem, machine: Machine) -> int:
    """Return the taps of a filter of one channel from which on these kernels are faster than the depthwise ones."""
    g = problem.geometry
    if "avx512" not in levels(machine.isa):
        return LEAST_TAPS
    if problem.op == "conv2d_backprop_filter":
        return LEAST_GRADIENT_TAPS
    row = problem.out.shape[2] * problem.out.itemsize
    crowded = problem.dtype == "float32" and row > CROWDED_BYTES // 2 and -NEARLY <= _beyond(row) <= NEARLY
    few = g.filter_size[0] * g.filter_size[1] <= CROWDED_TAPS and g.strides == (1, 1)
    return 0 if crowded and few else LEAST_TAPS


def _beyond(row: int) -> int:
    """Return how far a row is from a multiple of CROWDED_BYTES."""
    return (row + CROWDED_BYTES // 2) % CROWDED_BYTES - CROWDED_BYTES // 2


class Planar(Implementation):
    """Few channels in or out: vectors along columns, taps broadcast, and no matrix product."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if g.groups > 1:
            return f"the channels are in {g.groups} groups, and it takes all of them together"
        if min(g.in_channels, g.out_channels) > FEW_CHANNELS:
            return (
                f"there are {g.in_channels} channels in and {g.out_channels} out, and it is for {FEW_CHANNELS} at most "
                "on either side"
            )
        return planning_objection(problem, lambda: _spec(problem, machine))

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if problem.empty:
            return None
        taps = g.filter_size[0] * g.filter_size[1]
        if g.in_channels == g.out_channels == 1 and taps < _least_taps(problem, machine):
            return f"the filter has {taps} taps only, and of one channel the depthwise kernels need no copies"
        width = tile_for(plan.arithmetic_of(problem.dtype), machine.isa).columns
        result = g.in_channels if problem.op == "conv2d_backprop_input" else g.out_channels
        if 4 * result >= 3 * width:
            return f"the result has {result} channels, which fill a register tile of {width}"
        if problem.op != "conv2d_backprop_input" and g.flops < LEAST_FLOPS and 4 * result >= width:
            return f"the call has {g.flops} multiplications and additions only, too few to lay an image out in planes"
        if problem.op == "conv2d_backprop_filter" and taps == 1:
            return "a 1x1 filter's gradient is a single matrix product"
        apart = all(k <= stride for k, stride in zip(g.filter_size, g.strides, strict=True))
        if problem.op == "conv2d_backprop_input" and apart and taps > 1:
            return "no two windows overlap, so that a single matrix product gives all of their pixels"
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return EmptyPlan()
        if meets_no_pixel(problem):
            return ZeroPlan()
        spec = _spec(problem, machine)
        if isinstance(spec, PlanarSpec):
            copies = _copies(spec, problem.geometry)
            return EnginePlan(spec, problem, _engine.Planar(spec), copies, blas.NO_HOLD)
        copies = _gradient_copies(spec, problem.geometry)
        return EnginePlan(spec, problem, _engine.PlanarGradient(spec), copies, blas.NO_HOLD)


def _copies(spec: PlanarSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = [
        f"filter: packed once, {spec.shared_bytes} bytes ({reasons(spec.filter, spec.arithmetic, g)})",
        padded_sentence(spec.image, spec.image_plain, g, spec.arithmetic),
    ]
    if not all(phase.out_in_place for phase in spec.phases):
        why = reasons(spec.out, spec.arithmetic, g)
        sentences.append(f"result: summed in scratch, then stored tile by tile ({why})")
    return tuple(sentences)


def _gradient_copies(spec: PlanarGradientSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = [
        padded_sentence(spec.image, spec.image_plain, g, spec.arithmetic),
        padded_sentence(spec.gradient, spec.gradient_plain, g, spec.arithmetic),
    ]
    if spec.slices > 1:
        sentences.append(f"result: {spec.slices} partial sums over slices of the pixels, added in order")
    return tuple(sentences)
