"""The CPU's implementations on the native engine and in plain NumPy: what each objects to, and its plan."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._arrays import Operand
from .._errors import BackendError, WorkspaceError
from .._geometry import ConvGeometry
from .._registry import Implementation, NeedsWorkspace, Pack, Plan, Problem, Start
from . import (
    _engine,
    blas,
    depthwise_tiles,
    direct,
    direct_gradient,
    int8_tiles,
    memory,
    plan,
    planar_tiles,
    reference,
    winograd_gradient_tiles,
    winograd_tiles,
)
from .isa import has_tile, tile_for
from .layouts import Kind, conversion, pixel_layout, settle_strides
from .machine import Machine


class EmptyPlan(Plan):
    """Nothing to compute; the caller writes the zeros."""

    copies = ()

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        """Leave the result alone."""


class ZeroPlan(Plan):
    """No pixel is met by any tap."""

    copies = ()

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        out[...] = 0


class ReferencePlan(Plan):
    """The plain NumPy loops; small blocks are converted to float64 at a time."""

    copies = ("every operand: converted to float64 block by block",)
    # Blocks of float64, their conversions, and what einsum keeps between its steps.
    BYTES = 8 * 8 * reference.STEP_ELEMENTS

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def workspace(self, threads: int) -> int:
        g = self.problem.geometry
        totals = 24 * g.group_in * g.out_channels if self.problem.op == "conv2d_backprop_filter" else 0
        return self.BYTES + totals

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        g, (first, second) = self.problem.geometry, operands
        with np.errstate(all="ignore"):
            if self.problem.op == "conv2d":
                reference.conv2d(g, first, second, out)
            elif self.problem.op == "conv2d_backprop_filter":
                reference.conv2d_backprop_filter(g, first, second, out, self.problem.accumulate)
            else:
                reference.conv2d_backprop_input(g, first, second, out)


class Reference(Implementation):
    """Plain NumPy; serves everything that fits."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        need = ReferencePlan(problem).workspace(1)
        if need > (limit := limit_of(problem)):
            return NeedsWorkspace(f"it needs {need} bytes of workspace, more than the limit of {limit} bytes")
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return EmptyPlan() if problem.empty else ReferencePlan(problem)


# Below this a call runs on its own thread alone: waking a helper takes as long as a tenth of a megaFLOP and more.
LEAST_SHARED_FLOPS = 2_000_000

EngineSpec = (
    plan.Spec
    | direct.DirectSpec
    | direct_gradient.DirectGradientSpec
    | depthwise_tiles.DepthwiseSpec
    | depthwise_tiles.DepthwiseGradientSpec
    | planar_tiles.PlanarSpec
    | planar_tiles.PlanarGradientSpec
    | int8_tiles.Int8Spec
    | winograd_tiles.WinogradSpec
    | winograd_gradient_tiles.WinogradGradientSpec
)


class EnginePlan(Plan):
    """A specification handed to the native engine."""

    def __init__(
        self, spec: EngineSpec, problem: Problem, engine: Any, copies: tuple[str, ...], hold: blas.Hold
    ) -> None:
        self.spec = spec
        self.op = problem.op
        self.engine = engine
        self.copies = copies
        self.hold = hold
        self.each = sum(spec.scratch)
        self.most_workers = max(1, (limit_of(problem) - spec.shared_bytes) // max(1, self.each))
        if problem.geometry.flops < LEAST_SHARED_FLOPS:
            self.most_workers = 1
        self.budgeted = memory.process_limit() is not None
        self.zero_first = not getattr(spec, "fills_all", True)
        self.filter_first = problem.op == "conv2d_backprop_input"

    def _workers(self, threads: int) -> int:
        return min(threads, self.most_workers)

    def workspace(self, threads: int) -> int:
        return self.spec.shared_bytes + self.each * self._workers(threads)

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        first, second = reversed(operands) if self.filter_first else operands
        self._run_on(self._guarded(self.engine.run), first, second, out, threads)

    def _run_on(self, run: Callable[..., None], first: Any, second: Any, out: Any, threads: int) -> None:
        workers = self._workers(threads)
        try:
            run(first, second, out, 1 if workers == 1 else threads, workers)
        except (MemoryError, RuntimeError) as error:
            raise self.failure(error, workers) from error

    def _guarded(self, run: Callable[..., None]) -> Callable[..., None]:
        """Return the engine's ``run`` with what has to be done around it; itself, where that is nothing."""
        if not (self.zero_first or self.budgeted or self.hold is not blas.NO_HOLD):
            return run

        def guarded(first: Any, second: Any, out: Any, threads: int, workers: int) -> None:
            if self.zero_first:
                out[...] = 0
            if not self.budgeted:
                self._held(run, first, second, out, threads, workers)
                return
            with memory.reserved(self.spec.shared_bytes, self.each, workers) as granted:
                self._held(run, first, second, out, 1 if granted == 1 else threads, granted)

        return guarded

    def _held(self, run: Callable[..., None], first: Any, second: Any, out: Any, threads: int, workers: int) -> None:
        entered = self.hold.enter()
        try:
            run(first, second, out, threads, workers)
        finally:
            self.hold.leave(entered)

    def start(self) -> Start | None:
        return Start(self._guarded(self.engine.run), None, None, self.most_workers, self.filter_first)

    def failure(self, error: Exception, workers: int) -> Exception:
        if isinstance(error, MemoryError):
            need = self.workspace(workers)
            return WorkspaceError(f"{self.op}: scratch memory of {need} bytes cannot be allocated")
        return BackendError(f"{self.op}: {error}")


class DirectPlan(EnginePlan):
    """Direct products, whose filter can be kept packed from call to call."""

    def __init__(self, spec: direct.DirectSpec, problem: Problem, copies: tuple[str, ...]) -> None:
        super().__init__(spec, problem, _engine.Direct(spec), copies, blas.NO_HOLD)
        self.packer: Any = _engine.Packer(spec)
        self.packed_bytes = spec.packed_bytes

    def run_packed(self, operands: Sequence[Any], out: Any, threads: int, pack: Pack) -> None:
        image, weights = reversed(operands) if self.filter_first else operands

        def make() -> Any:
            kept = aligned_bytes(self.packed_bytes)
            self.packer.pack(weights, kept, threads)
            return kept

        self._run_on(self._guarded(self.packer.run_packed), image, pack(self.spec, make), out, threads)

    def start(self) -> Start | None:
        packed = self._guarded(self.packer.run_packed)
        started = super().start()
        assert started is not None
        return started._replace(run_packed=packed, pack_for=self.spec)


def aligned_bytes(count: int) -> Any:
    """Return an array of bytes that starts at a multiple of 64, as packed panels are read fastest."""
    whole = np.empty(count + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + count]


_BLAS_ENGINES: dict[type, Any] = {
    plan.ProductSpec: _engine.Product,
    plan.FilterGradientSpec: _engine.FilterGradient,
    plan.ScatterSpec: _engine.Scatter,
}


def limit_of(problem: Problem) -> int:
    """Return the most bytes of scratch memory that a call may take."""
    process = memory.process_limit()
    return problem.workspace_limit if process is None else min(problem.workspace_limit, process)


def _copies(spec: plan.Spec, g: ConvGeometry) -> tuple[str, ...]:
    """Say what the engine converts or copies on the way."""
    pixels = functools.partial(_pixels_sentence, g=g, arithmetic=spec.arithmetic)
    stored = f"result: summed in scratch, then stored tile by tile ({reasons(spec.out, spec.arithmetic, g)})"
    sentences = []
    if isinstance(spec, plan.ProductSpec):
        if spec.image_layout.kind is Kind.COPY:
            sentences.append(pixels(spec.image, spec.image_plain))
        if spec.filter_layout.kind is Kind.COPY:
            how = f"packed once, {spec.packed_bytes} bytes" if spec.packed_bytes else "packed again for every tile"
            sentences.append(f"filter: {how} ({reasons(spec.filter, spec.arithmetic, g)})")
        if any(phase.out_layout.kind is Kind.COPY for phase in spec.phases):
            sentences.append(stored)
    elif isinstance(spec, plan.FilterGradientSpec):
        if spec.image_layout.kind is Kind.COPY:
            sentences.append(pixels(spec.image, spec.image_plain))
        if spec.gradient_layout.kind is Kind.COPY:
            sentences.append(pixels(spec.gradient, False))
        if spec.slices > 1:
            sentences.append(f"result: {spec.slices} partial sums over slices of the pixels, added in order")
        elif spec.out_layout.kind is Kind.COPY:
            sentences.append(stored)
    else:
        sentences.append(pixels(spec.gradient, False))
        sentences.append(f"filter: packed tap by tap ({reasons(spec.filter, spec.arithmetic, g)})")
        sentences.append(stored)
    return tuple(sentences)


def reasons(operand: Operand, arithmetic: str, g: ConvGeometry) -> str:
    """Say why an array is not used as it is: its elements, or else the order they lie in."""
    is_filter = operand.role == "filter" or (operand.role == "out" and g.op == "conv2d_backprop_filter")
    order = g.filter_format if is_filter else g.data_format
    return ", ".join(filter(None, (conversion(operand, arithmetic), f"{order} order")))


def _pixels_sentence(operand: Operand, plain: bool, g: ConvGeometry, arithmetic: str) -> str:
    if plain:
        return f"{operand.role}: patches copied tile by tile (im2col)"
    return f"{operand.role}: converted tile by tile ({reasons(operand, arithmetic, g)})"


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> plan.Spec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    if problem.op == "conv2d":
        return plan.forward_spec(g, first, second, problem.out, limit, machine)
    if problem.op == "conv2d_backprop_filter":
        return plan.filter_gradient_spec(g, first, second, problem.out, problem.accumulate, limit, machine)
    ways: list[Callable[[], plan.Spec]] = [lambda: plan.scatter_spec(g, first, second, problem.out, limit)]
    if 0 < plan.count_phases(g) <= plan.MOST_PHASES:
        gather = functools.partial(plan.gather_spec, g, first, second, problem.out, limit, machine)
        ways.insert(int(plan.scatters(g)), gather)
    error = None
    for way in ways:
        try:
            return way()
        except WorkspaceError as reason:
            error = error or reason
    assert error is not None
    raise error


def forget_specs() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()
    _direct_spec.cache_clear()


class Im2col(Implementation):
    """Patches copied tile by tile and multiplied by BLAS; the general path."""

    def _translate(self, problem: Problem) -> Problem:
        return problem

    def _refusal(self, problem: Problem) -> str | None:
        return None

    def objection(self, problem: Problem, machine: Any) -> str | None:
        refusal = self._refusal(problem)
        if refusal is not None or problem.empty:
            return refusal
        try:
            _spec(self._translate(problem), machine)
        except WorkspaceError as error:
            return NeedsWorkspace(error)
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return EmptyPlan()
        spec = _spec(self._translate(problem), machine)
        engine = _BLAS_ENGINES[type(spec)](spec, blas.products())
        return EnginePlan(spec, problem, engine, _copies(spec, problem.geometry), blas.hold())


def direct_arithmetic(problem: Problem, machine: Machine) -> str:
    """Return the numbers that are multiplied: bfloat16 in pairs where the CPU can, else the dtype of the sums.

    Pairs of channels, or of pixels in a filter gradient, are of no use where there is only one.
    """
    g = problem.geometry
    channels = {"conv2d": g.group_in, "conv2d_backprop_input": g.group_out}
    terms = channels.get(problem.op, g.batch * math.prod(g.out_size))
    pairs = (
        terms > 1
        and all(operand.dtype == "bfloat16" for operand in problem.operands)
        and problem.precision != "high"
        and has_tile("bfloat16", machine.isa)
    )
    return "bfloat16" if pairs else plan.arithmetic_of(problem.dtype)


@functools.lru_cache(maxsize=256)
def _direct_spec(problem: Problem, machine: Machine) -> direct.DirectSpec | direct_gradient.DirectGradientSpec:
    """Return the direct engine's specification for a problem, or raise WorkspaceError."""
    g, (first, second), limit = problem.geometry, problem.operands, limit_of(problem)
    arithmetic = direct_arithmetic(problem, machine)
    if problem.op == "conv2d":
        return direct.forward_spec(g, first, second, problem.out, arithmetic, limit, machine)
    if problem.op == "conv2d_backprop_filter":
        return direct_gradient.filter_gradient_spec(
            g, first, second, problem.out, problem.accumulate, arithmetic, limit, machine
        )
    return direct.gather_spec(g, first, second, problem.out, arithmetic, limit, machine)


# Filter gradients over fewer pixels are left to one matrix product: 25 pixels of 512 channels are 1.2 times as fast
# here, and 16 pixels 0.75 times (AMD EPYC 7003).  With fewer pixels per image, planes (NCHW) are worth converting even
# for 1x1 filters; measured on an AMD EPYC 9004 over the layers of ResNet-50.
LEAST_PIXELS = 24
LEAST_COLUMNS = 128
# Smaller products are left to nobody: holding BLAS to one thread takes longer than they.  Measured on an AMD EPYC 7003.
LEAST_PRODUCT_FLOPS = 50_000
# Groups of fewer channels than this part of a register tile's columns fill too little of it; and with half tiles, so do
# those of a few channels more than a whole number of halves.  With AVX-512, an AMD EPYC 9004 multiplied 7 channels of
# 32 at 1.2 times the speed of BLAS, 5 of a filter gradient at 1.35 times, and 17 or 33 at 0.75 to 0.82 of it.
NARROW, NARROW_TALL, NARROW_TALL_GRADIENT = 4, 5, 8
MOST_EMPTY = 1.4
# Rows of the result that are shorter fill too little of a register tile (14 pixels with AVX-512, 6 with AVX2).
LEAST_ACROSS = 4


def meets_no_pixel(problem: Problem) -> bool:
    """Tell whether no tap of an input gradient meets a pixel, so that there is nothing to plan."""
    return problem.op == "conv2d_backprop_input" and plan.count_phases(problem.geometry) == 0


def planning_objection(problem: Problem, spec_of: Callable[[], object]) -> str | None:
    """Return why a family that gathers input gradients phase by phase cannot plan a problem, or None."""
    if problem.empty or meets_no_pixel(problem):
        return None
    if problem.op == "conv2d_backprop_input":
        refusal = plan.phases_objection(problem.geometry)
        if refusal is not None:
            return refusal
    try:
        spec_of()
    except WorkspaceError as error:
        return NeedsWorkspace(error)
    return None


class Direct(Implementation):
    """The project's own register tiles, walking over the image itself."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        return planning_objection(problem, lambda: _direct_spec(problem, machine))

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty or meets_no_pixel(problem):
            return None
        g = problem.geometry
        register = tile_for(plan.arithmetic_of(problem.dtype), machine.isa)
        width, tall = register.columns, register.rows >= direct.TALL_ROWS
        channels = g.group_in if problem.op == "conv2d_backprop_input" else g.group_out
        narrow = NARROW if not tall else NARROW_TALL_GRADIENT if problem.op == "conv2d_backprop_filter" else NARROW_TALL
        if narrow * channels < width:
            return f"its register tile is {width} channels wide, and a group has {channels} only"
        halves = -(-2 * channels // width)
        if (
            tall
            and problem.op != "conv2d_backprop_filter"
            and halves > 1
            and width * halves >= MOST_EMPTY * 2 * channels
        ):
            return f"its register tiles take {width * halves // 2} channels for the {channels} of a group"
        across = g.in_size[1] // g.strides[1] if problem.op == "conv2d_backprop_input" else g.out_size[1]
        if across < LEAST_ACROSS and problem.op != "conv2d_backprop_filter" and not self._gathers(problem, machine):
            return f"its register tiles lie along rows, and the result has {across} pixels in one only"
        grid = g.out_size[0] * g.out_size[1]
        few = grid == 1 or g.batch * grid < LEAST_PIXELS
        if problem.op == "conv2d_backprop_filter" and few and g.flops >= LEAST_PRODUCT_FLOPS:
            return f"the sums are of {g.batch * grid} terms only, so that a single matrix product gives them"
        if grid >= LEAST_COLUMNS and Gemm.meets_every_pixel(g) and self._lies_in_planes(problem):
            return "a 1x1 filter over planes of pixels is a matrix product in place, which needs no conversion"
        if problem.op == "conv2d_backprop_input" and plan.scatters(g):
            return "scattering output gradients multiplies less than gathering them"
        return None

    @staticmethod
    def _gathers(problem: Problem, machine: Machine) -> bool:
        """Tell whether register tiles cross the rows of the result."""
        spec = _direct_spec(problem, machine)
        return isinstance(spec, direct.DirectSpec) and spec.tile.pixels > 0

    @staticmethod
    def _lies_in_planes(problem: Problem) -> bool:
        """Tell whether the pixels that a product reads are those of channels first, usable where they lie."""
        image = problem.operands[1 if problem.op == "conv2d_backprop_input" else 0]
        return pixel_layout(settle_strides(image), plan.arithmetic_of(problem.dtype))[0].kind is Kind.COLUMNS

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return EmptyPlan()
        if meets_no_pixel(problem):
            return ZeroPlan()
        spec = _direct_spec(problem, machine)
        if isinstance(spec, direct.DirectSpec):
            return DirectPlan(spec, problem, _direct_copies(spec, problem.geometry))
        copies = _gradient_copies(spec, problem.geometry)
        return EnginePlan(spec, problem, _engine.DirectGradient(spec), copies, blas.NO_HOLD)


def _direct_copies(spec: direct.DirectSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = []
    if not spec.filter_in_place:
        how = f"packed once, {spec.packed_bytes} bytes" if spec.shared_bytes else "packed tile by tile"
        how += ", in pairs of channels in" if spec.paired else ""
        sentences.append(f"filter: {how} ({reasons(spec.filter, spec.arithmetic, g)})")
    if not all(phase.in_place for phase in spec.phases):
        sentences.append(padded_sentence(spec.image, spec.image_plain, g, spec.arithmetic))
    if not all(phase.out_in_place for phase in spec.phases):
        why = reasons(spec.out, spec.arithmetic, g)
        sentences.append(f"result: summed in scratch, then stored tile by tile ({why})")
    return tuple(sentences)


def _gradient_copies(spec: direct_gradient.DirectGradientSpec, g: ConvGeometry) -> tuple[str, ...]:
    sentences = []
    if not spec.image_in_place:
        sentences.append(padded_sentence(spec.image, spec.image_plain, g, spec.arithmetic))
    if not spec.gradient_in_place:
        sentences.append(padded_sentence(spec.gradient, False, g, spec.arithmetic))
    if spec.slices > 1:
        sentences.append(f"result: {spec.slices} partial sums over slices of the pixels, added in order")
    return tuple(sentences)


def padded_sentence(operand: Operand, plain: bool, g: ConvGeometry, arithmetic: str) -> str:
    how = "copied with its padding" if plain else "laid down in pairs" if arithmetic == "bfloat16" else "converted"
    return f"{operand.role}: {how} tile by tile ({reasons(operand, arithmetic, g)})"


class Gemm(Im2col):
    """A single matrix product without patches: filters of one pixel, and filters as large as the image."""

    @staticmethod
    def meets_every_pixel(g: ConvGeometry) -> bool:
        """Tell whether every output pixel is the product of the pixel at its place."""
        return g.filter_size == (1, 1) and g.strides == (1, 1) and not any(g.pad_before + g.pad_after)

    def _refusal(self, problem: Problem) -> str | None:
        g = problem.geometry
        padded = any(g.pad_before + g.pad_after)
        if g.filter_size == (1, 1):
            if padded:
                return "the image is padded, so that its pixels are not those of the output"
            return None if g.strides == (1, 1) else f"strides are {g.strides}, and only (1, 1) reads every pixel"
        if g.filter_size != g.in_size or padded:
            return (
                f"the filter is {g.filter_size[0]}x{g.filter_size[1]}, neither 1x1 nor, without padding, as large as "
                f"the image, {g.in_size[0]}x{g.in_size[1]}"
            )
        if g.groups > 1:
            return f"the channels are in {g.groups} groups, so that a filter does not meet a whole image"
        if problem.empty or self._flatten(problem) is not None:
            return None
        return "image and filter do not both lie in memory as one dense run in the same order"

    def _flatten(self, problem: Problem) -> Problem | None:
        """Return a full-image problem as one with 1x1 filters, each image a single pixel with many channels."""
        g = problem.geometry
        by_role = {operand.role: operand for operand in problem.operands}
        result = {"conv2d": "output", "conv2d_backprop_filter": "filter", "conv2d_backprop_input": "input"}[problem.op]
        by_role[result] = problem.out
        for order in ((0, 1, 2), (2, 0, 1)):
            image = _merge_axes(by_role["input"], [1 + axis for axis in order], 3)
            weights = _merge_axes(by_role["filter"], list(order), 2)
            if image is not None and weights is not None:
                merged = {**by_role, "input": image, "filter": weights}
                pixels = g.in_size[0] * g.in_size[1]
                flat = replace(
                    g,
                    in_size=(1, 1),
                    filter_size=(1, 1),
                    out_size=(1, 1),
                    in_channels=g.in_channels * pixels,
                    strides=(1, 1),
                    dilations=(1, 1),
                )
                return replace(
                    problem,
                    geometry=flat,
                    operands=tuple(merged[operand.role] for operand in problem.operands),
                    out=merged[result],
                )
        return None

    def _translate(self, problem: Problem) -> Problem:
        if problem.geometry.filter_size == (1, 1):
            return problem
        flat = self._flatten(problem)
        assert flat is not None
        return flat


def _merge_axes(operand: Operand, order: list[int], channel_axis: int) -> Operand | None:
    """Return the operand with three axes, slowest first, as one long channel axis, if they are one run in memory."""
    dense = [axis for axis in order if operand.shape[axis] > 1]
    for outer, inner in itertools.pairwise(dense):
        if operand.strides[outer] != operand.shape[inner] * operand.strides[inner]:
            return None
    shape, strides = list(operand.shape), list(operand.strides)
    count = 1
    for axis in order:
        count *= shape[axis]
        shape[axis] = 1
    shape[channel_axis] = count
    strides[channel_axis] = operand.strides[dense[-1]] if dense else operand.itemsize
    return settle_strides(replace(operand, shape=tuple(shape), strides=tuple(strides)))
