"""3x3 filters at stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications, a few more roundings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._geometry import ConvGeometry
from .._registry import Implementation, Plan, Problem, Start
from . import _engine, blas, winograd_tiles
from .families import (
    Direct,
    DirectPlan,
    EmptyPlan,
    EnginePlan,
    Reference,
    direct_arithmetic,
    limit_of,
    padded_sentence,
    planning_objection,
    reasons,
)
from .machine import Machine
from .winograd_tiles import TILE, WinogradGradientSpec, WinogradSpec

# With fewer channels on either side transforms take longer than they save.  Of fewer pixels, transforming the filter or
# the sums back does; of pixels that fill too little of their tiles, too many products are of zeros.  Dot products of
# bfloat16 pairs multiply twice as much in the same time.  Measured on an AMD EPYC 9004: docs/decisions/0013.
LEAST_CHANNELS = 8
LEAST_PIXELS, LEAST_GRADIENT_PIXELS, LEAST_PIXELS_OF_PAIRS = 49, 98, 144
MOST_WASTE, MOST_WASTE_OF_PAIRS = 2.6, 1.25
LEAST_GRADIENT_FLOPS = 2_000_000


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> WinogradSpec | WinogradGradientSpec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    if problem.op == "conv2d":
        return winograd_tiles.forward_spec(g, first, second, problem.out, limit, machine)
    if problem.op == "conv2d_backprop_filter":
        return winograd_tiles.filter_gradient_spec(g, first, second, problem.out, problem.accumulate, limit, machine)
    return winograd_tiles.input_gradient_spec(g, first, second, problem.out, limit, machine)


def forget_specs() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()


class WinogradPlan(DirectPlan):
    """Products of transformed tiles, whose filter can be kept transformed from call to call."""

    def __init__(self, spec: WinogradSpec, problem: Problem, copies: tuple[str, ...]) -> None:
        EnginePlan.__init__(self, spec, problem, _engine.Winograd(spec), copies, blas.NO_HOLD)
        self.packer = _engine.WinogradPacker(spec)
        self.packed_bytes = spec.packed_bytes


class WinogradGradientPlan(EnginePlan):
    """Sums of products of transformed tiles; those that are not finite are computed again, by another family."""

    def __init__(self, spec: WinogradGradientSpec, problem: Problem, machine: Machine, copies: tuple[str, ...]) -> None:
        super().__init__(spec, problem, _engine.WinogradGradient(spec), copies, blas.NO_HOLD)
        self.of_panel = spec.panel_of
        self.panels = spec.parts * spec.panel_block
        self.problem = problem
        self.machine = machine

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        (first, second), failed = operands, np.zeros(self.panels, np.uint8)

        def marking(first: Any, second: Any, out: Any, threads: int, workers: int) -> None:
            self.engine.run(first, second, out, failed, threads, workers)

        self._run_on(self._guarded(marking), first, second, out, threads)
        for number in np.flatnonzero(failed):
            self._compute_again(int(number), operands, out, threads)

    def _compute_again(self, number: int, operands: Sequence[Any], out: Any, threads: int) -> None:
        """Compute the gradient of some filters in some channels from all pixels, with nothing transformed."""
        g = self.problem.geometry
        group, channels, filters = self.of_panel(number)
        into, out_of = (
            slice(part.start + group * per_group, part.stop + group * per_group)
            for part, per_group in ((channels, g.group_in), (filters, g.group_out))
        )
        image, gradient = operands[0][..., into], operands[1][..., out_of]
        place = out[:, :, channels, out_of]
        forms = [
            replace(form, shape=array.shape)
            for form, array in zip((*self.problem.operands, self.problem.out), (image, gradient, place), strict=True)
        ]
        part = replace(
            self.problem,
            geometry=replace(g, in_channels=image.shape[3], out_channels=gradient.shape[3], groups=1),
            operands=tuple(forms[:2]),
            out=forms[2],
        )
        direct = Direct("cpu", "direct", part.op, part.dtype)
        able = direct.objection(part, self.machine) is None
        family = direct if able else Reference("cpu", "reference", part.op, part.dtype)
        family.plan(part, self.machine).run((image, gradient), place, threads)

    def start(self) -> Start | None:
        return None


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
        return planning_objection(problem, lambda: _spec(problem, machine))

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        g = problem.geometry
        if problem.empty:
            return None
        few = min(g.group_in, g.group_out)
        if few < LEAST_CHANNELS:
            return f"a group has {few} channels on one side, too few to pay for transforming them"
        out = g.in_size if problem.op == "conv2d_backprop_input" else g.out_size
        pixels = g.batch * out[0] * out[1]
        in_tiles = g.batch * TILE * TILE * -(-out[0] // TILE) * -(-out[1] // TILE)
        pairs = direct_arithmetic(problem, machine) == "bfloat16"
        least = LEAST_GRADIENT_PIXELS if problem.op == "conv2d_backprop_filter" else LEAST_PIXELS
        if pixels < (LEAST_PIXELS_OF_PAIRS if pairs else least):
            return f"there are {pixels} pixels, too few to pay for transforming what all of them share"
        if problem.op == "conv2d_backprop_filter" and g.flops < LEAST_GRADIENT_FLOPS:
            return f"the call has {g.flops} multiplications and additions only, too few to look for what is not finite"
        if in_tiles > (MOST_WASTE_OF_PAIRS if pairs else MOST_WASTE) * pixels:
            return f"its tiles of {TILE}x{TILE} have room for {in_tiles} pixels, and there are {pixels}"
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return EmptyPlan()
        spec = _spec(problem, machine)
        if isinstance(spec, WinogradGradientSpec):
            return WinogradGradientPlan(spec, problem, machine, _gradient_copies(spec, problem.geometry))
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


def _gradient_copies(spec: WinogradGradientSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = []
    for operand, plain in ((spec.image, spec.image_plain), (spec.gradient, spec.gradient_plain)):
        if not plain:
            sentences.append(padded_sentence(operand, False, g, spec.arithmetic))
        sentences.append(f"{operand.role}: transformed tile by tile")
    if spec.slices > 1:
        sentences.append(f"result: {spec.slices} partial sums over slices of the tiles, added in order")
    return tuple(sentences)
