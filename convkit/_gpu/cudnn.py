"""The family `cudnn`: convolutions by cuDNN's graphs, the rest of a call by the project's own kernels.

A plan has one or more ways to go, each a graph and what follows it; where cuDNN refuses or fails, the next way is
taken, and after the last one an implementation that needs no cuDNN.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._arrays import HALVES
from .._epilogue import Epilogue, Terms
from .._errors import BackendError, WorkspaceError
from .._registry import FusedPlan, Implementation, NeedsWorkspace, Pack, Plan, Problem
from . import constants, epilogue, layout, memory
from .arrays import ALIGNMENT
from .cudnn_arrays import Placed, channels_last, tensor_of
from .cudnn_graph import ACTIVATION_NODES, BIAS, COMPUTED, SCALE, NoPlanError, Spec, pad_after
from .cudnn_run import Runner
from .machine import GpuMachine

logger = logging.getLogger("convkit")

# cuDNN's kernels index elements with 32 bits.
MOST_ELEMENTS = 2**31 - 1

# What adds sums to what a result holds.
_ADDING = Epilogue(
    per_channel=False, bias=None, side=True, activation=None, alpha=0.0, input_zero_point=0, output_zero_point=0,
    onto_side=True,
)  # fmt: skip
_AS_THEY_ARE = Terms(None, 1.0, None)  # type: ignore[arg-type]


def _address(array: Any) -> int:
    pointer: int = array.data.ptr
    return pointer


def _aligned(op: str, vector: Any) -> Any:
    """Return a dense vector, or a copy of it whose address cuDNN can use."""
    if vector.data.ptr % ALIGNMENT == 0:
        return vector
    copied = memory.scratch(op, vector.nbytes).view(vector.dtype)
    layout.copy(vector, copied)
    return copied


class Refused(Exception):
    """A way cannot be gone; the reason in words."""


@dataclass(frozen=True, slots=True)
class Way:
    """One graph, how the arrays are brought to it, and what follows it."""

    spec: Spec
    inputs: tuple[Placed, ...]
    result: Placed
    # Whether the graph gives what the call asks for, or sums for the epilogue (of a fused call, or that adds).
    whole: bool

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copies of arrays, and of sums that the result has no room for."""
        return sum(placed.copied_bytes for placed in (*self.inputs, self.result))


def ways(problem: Problem, unit: bool = False) -> tuple[Way, ...]:
    """Return the ways to serve a problem, the best one first.

    Parameters
    ----------
    unit : bool
        Whether the scale of a fused call is known to be 1.
    """
    found = [*_whole(problem, unit)]
    for dtype in dict.fromkeys((problem.dtype, COMPUTED[problem.dtype] if problem.dtype in HALVES else problem.dtype)):
        summed = problem.epilogue is not None or problem.accumulate
        if not summed and problem.out.dtype != COMPUTED[problem.dtype]:
            break
        found.append(_way(problem, dtype, COMPUTED[problem.dtype], {}, whole=not summed))
    return tuple(found)


def _whole(problem: Problem, unit: bool) -> list[Way]:
    """Return the way by a graph that rounds to the dtype of a result of halves, or holds the whole epilogue."""
    e = problem.epilogue
    if problem.accumulate or problem.dtype == "int8":
        return []
    if e is None:
        return [_way(problem, problem.dtype, problem.out.dtype, {})] if problem.out.dtype in HALVES else []
    # With a side input a graph may meet an engine that is known to end the process; float64 has no engine that does
    # more than convolve.
    if e.side or problem.dtype == "float64" or problem.out.dtype != problem.dtype:
        return []
    # cuDNN's own activations lose a NaN.
    if e.activation is not None and not (problem.precision == "fast" and e.activation in ACTIVATION_NODES):
        return []
    scale = None if unit else problem.geometry.out_channels if e.per_channel else 1
    # Kernels for a scale have to be compiled; on float32, the epilogue's pass over the result costs less.
    if scale and problem.dtype == "float32":
        return []
    after = {"scale": scale, "bias": e.bias is not None, "activation": e.activation}
    return [_way(problem, problem.dtype, problem.out.dtype, after)]


def _way(problem: Problem, dtype: str, out_dtype: str, after: dict[str, Any], whole: bool = True) -> Way:
    g, op = problem.geometry, problem.op
    arrays = problem.operands[:2]
    last = channels_last(g, op, (*arrays, problem.out))
    inputs = tuple(Placed.of(array, tensor_of(op, array.role), dtype, last) for array in arrays)
    result = Placed.of(problem.out, tensor_of(op, "out"), out_dtype, last)
    if problem.accumulate or (problem.epilogue is not None and problem.epilogue.onto_side):
        result = replace(result, in_place=False)
    spec = Spec.of(
        g, "conv2d" if op == "fused_conv2d" else op, dtype, out_dtype, last,
        precision=problem.precision, deterministic=problem.deterministic, halves=dtype != problem.dtype, **after,
    )  # fmt: skip
    return Way(spec, inputs, result, whole)


class CudnnPlan(FusedPlan):
    """Ways to go, and what to do when none of them can be gone."""

    def __init__(self, problem: Problem, machine: GpuMachine, others: Sequence[Implementation]) -> None:
        self.problem, self.machine, self.others = problem, machine, others
        self._runners = {unit: [(way, self._runner(way)) for way in ways(problem, unit)] for unit in (False, True)}
        self._native: Plan | None = None
        self._warned = False
        first = self._runners[False][0][0]
        arrays = zip((*problem.operands, problem.out), (*first.inputs, first.result), strict=False)
        self.copies = tuple(
            f"{array.role}: {'computed' if array is problem.out else 'copied'} as dense {placed.dtype}, "
            f"channels {'last' if first.spec.channels_last else 'first'}"
            for array, placed in arrays
            if not placed.in_place
        )

    def _runner(self, way: Way) -> Runner:
        p = self.problem
        limit = max(0, p.workspace_limit - way.copied_bytes)
        return Runner(p.op, way.spec, self.machine, limit, p.autotune, way.result.tensor, way.result.nbytes)

    def workspace(self, threads: int) -> int:
        return max(way.copied_bytes + runner.workspace for way, runner in self._runners[False])

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        self._run(operands, None, out)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        self._run(operands, terms, out)

    def _run(self, operands: Sequence[Any], terms: Terms | None, out: Any) -> None:
        unit = False
        if terms is not None and terms.conv_scale.size == 1:
            # The front keeps single numbers, so that the same number is the same array.
            unit = terms.conv_scale is constants.vector(1.0, terms.conv_scale.dtype)
        reasons = []
        for way, runner in self._runners[unit]:
            try:
                self._go(way, runner, operands, terms, out)
                return
            except (NoPlanError, Refused, WorkspaceError) as error:
                reasons.append(str(error))
        self._without_cudnn(operands, terms, out, "; ".join(reasons))

    def _go(self, way: Way, runner: Runner, operands: Sequence[Any], terms: Terms | None, out: Any) -> None:
        op = self.problem.op
        arrays = [placed.entered(op, array) for placed, array in zip(way.inputs, operands, strict=False)]
        result = out if way.result.usable(out) else way.result.fresh(op)
        pointers = {placed.tensor: _address(array) for placed, array in zip(way.inputs, arrays, strict=True)}
        pointers[way.result.tensor] = _address(result)
        if terms is not None and way.whole:
            if way.spec.scale:
                arrays.append(_aligned(op, terms.conv_scale))
                pointers[SCALE] = _address(arrays[-1])
            if terms.bias is not None:
                arrays.append(_aligned(op, terms.bias))
                pointers[BIAS] = _address(arrays[-1])
        name = runner.run(pointers)
        self._check(way, name, arrays, result)
        if not way.whole:
            self._finish(operands, terms, result, out)
        elif result is not out:
            layout.copy(result, out)

    def _check(self, way: Way, name: str, arrays: list[Any], result: Any) -> None:
        """Raise Refused if the result of a plan is wrong; floating-point ones are taken as they are."""

    def _finish(self, operands: Sequence[Any], terms: Terms | None, sums: Any, out: Any) -> None:
        """Bring sums to the result: through the epilogue, or by adding them to what is there."""
        if terms is None:
            epilogue.run_float(_ADDING, _AS_THEY_ARE, sums, out, out)
            return
        assert self.problem.epilogue is not None
        side = operands[2] if self.problem.epilogue.side else None
        epilogue.run_float(self.problem.epilogue, terms, sums, side, out)

    def _without_cudnn(self, operands: Sequence[Any], terms: Terms | None, out: Any, why: str) -> None:
        """Compute by the first of the other implementations that can."""
        p = self.problem
        if not self._warned:
            self._warned = True
            logger.info("%s: cuDNN does not serve %s (%s); other kernels do", p.op, p.geometry, why)
        if self._native is None:
            objections = []
            for other in self.others:
                objection = other.objection(p, self.machine)
                if objection is None:
                    self._native = other.plan(p, self.machine)
                    break
                objections.append(f"{other.name}: {objection}")
            else:
                raise BackendError(f"{p.op}: cuDNN does not serve {p.geometry} ({'; '.join([why, *objections])})")
        if terms is None:
            self._native.run(operands, out, 1)
        else:
            assert isinstance(self._native, FusedPlan)
            self._native.run_fused(operands, terms, out, 1, None)


class Cudnn(Implementation):
    """Convolutions of floating-point numbers by cuDNN."""

    def __init__(self, op: str, dtype: str, others: Sequence[Implementation]) -> None:
        """Take the implementations to turn to when cuDNN refuses or fails, the best one first."""
        super().__init__("gpu", "cudnn", op, dtype)
        self.others = tuple(others)

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if machine.cudnn is None:
            return str(machine.no_cudnn)
        g = problem.geometry
        if min(*g.pad_before, *pad_after(g)) < 0:
            return "cuDNN takes no negative padding, which stands for taps left out"
        arrays = {array.role: array.shape for array in (*problem.operands, problem.out)}
        for role, shape in arrays.items():
            if int(np.prod(shape, dtype=object)) > MOST_ELEMENTS:
                return f"{role} has more than the {MOST_ELEMENTS} elements that cuDNN's kernels can count"
        # The ways are in order of preference, and the copies of each are known.
        least = min(way.copied_bytes for way in ways(problem))
        if least > problem.workspace_limit:
            return NeedsWorkspace(
                f"its copies take {least} bytes, more than the {problem.workspace_limit} bytes of workspace"
            )
        return None

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return CudnnPlan(problem, machine, self.others)
