"""Convolutions of int8 and uint8 images with int8 filters on the native engine: exact sums and a fused epilogue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .._epilogue import Epilogue, Terms
from .._errors import WorkspaceError
from .._registry import FusedPlan, FusedStart, Implementation, NeedsWorkspace, Pack, Plan, Problem, Start
from . import _engine, blas
from .families import EnginePlan, aligned_bytes, limit_of
from .fused import SumsOfNothing
from .int8_tiles import Channels, Int8Spec, int8_spec
from .machine import Machine

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
# What conv2d does with its sums: nothing.
SUMS = Epilogue(False, None, False, None, 0.0, 0, 0, False)


@functools.lru_cache(maxsize=256)
def _spec(problem: Problem, machine: Machine) -> Int8Spec:
    """Return the engine's specification for a problem, or raise WorkspaceError."""
    image, filter, *beside = problem.operands
    side = beside[0] if beside else None
    return int8_spec(problem.geometry, image, filter, side, problem.out, limit_of(problem), machine)


def forget_specs() -> None:
    """Plan again at the next call."""
    _spec.cache_clear()


def _limits(e: Epilogue, dtype: str) -> tuple[float, float]:
    """Return the least and the greatest integer result, less its zero point."""
    low, high = RANGES.get(dtype, (0, 0))
    if e.activation == "relu":
        low = e.output_zero_point
    return float(low - e.output_zero_point), float(high - e.output_zero_point)


def _copies(spec: Int8Spec, problem: Problem) -> tuple[str, ...]:
    """Say what the engine copies on the way."""
    sentences = ["input: laid down tile by tile, with its padding"] if spec.scratch[0] else []
    sentences.append(f"filter: packed once, {spec.shared_bytes} bytes")
    for what, channels in (("side_input", spec.side), ("result", spec.out)):
        if channels is not None and not channels.in_place:
            sentences.append(f"{what}: {_reason(channels, problem)} order, brought into another tile by tile")
    return tuple(sentences)


def _reason(channels: Channels, problem: Problem) -> str:
    return problem.geometry.data_format if channels.native else "byte"


class Int8Plan(EnginePlan):
    """A specification for the engine, whose filter can be kept packed from call to call."""

    def __init__(self, spec: Int8Spec, problem: Problem) -> None:
        e = problem.epilogue or SUMS
        epilogue: dict[str, Any] = {
            "per_channel": e.per_channel,
            "relu": e.activation == "relu",
            "zero_points": (e.input_zero_point, e.output_zero_point),
            "limits": _limits(e, problem.out.dtype),
        }
        super().__init__(spec, problem, _engine.Int8(spec, **epilogue), _copies(spec, problem), blas.NO_HOLD)
        self.packer = _engine.Int8Packer(spec, **epilogue)

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        self._compute(operands, None, out, threads, None)

    def run_packed(self, operands: Sequence[Any], out: Any, threads: int, pack: Pack) -> None:
        self._compute(operands, None, out, threads, pack)

    def start(self) -> Start | None:
        run = self._guarded(self._with(self.engine.run, None, None))
        packed = self._guarded(self._with(self.packer.run_packed, None, None))
        return Start(run, packed, self.spec, self.most_workers, False)

    def _compute(self, operands: Sequence[Any], terms: Terms | None, out: Any, threads: int, pack: Pack | None) -> None:
        image, weights, *beside = operands
        side = beside[0] if beside else None

        def make() -> Any:
            kept = aligned_bytes(self.spec.shared_bytes)
            self.packer.pack(weights, kept, threads)
            return kept

        run = self._with(self.engine.run if pack is None else self.packer.run_packed, side, terms)
        weights = weights if pack is None else pack(self.spec, make)
        self._run_on(self._guarded(run), image, weights, out, threads)

    @staticmethod
    def _with(run: Callable[..., None], side: Any, terms: Terms | None) -> Callable[..., None]:
        """Return the engine's ``run`` with what a plain convolution does not have."""

        def complete(image: Any, weights: Any, out: Any, threads: int, workers: int) -> None:
            run(image, weights, side, terms, out, threads, workers)

        return complete


class FusedInt8Plan(Int8Plan, FusedPlan):
    """The same with an epilogue."""

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        FusedPlan.run(self, operands, out, threads)

    def start(self) -> None:
        """Return None: terms are wanted, too."""

    def start_fused(self) -> FusedStart | None:
        if self.budgeted:
            return None
        return FusedStart(self.engine.run, self.packer.run_packed, self.spec, self.most_workers)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        self._compute(operands, terms, out, threads, pack)


class Int8(Implementation):
    """The project's own register tiles for products of bytes."""

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        try:
            _spec(problem, machine)
        except WorkspaceError as error:
            return NeedsWorkspace(error)
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        if problem.empty:
            return SumsOfNothing(problem)
        spec = _spec(problem, machine)
        return Int8Plan(spec, problem) if problem.epilogue is None else FusedInt8Plan(spec, problem)
