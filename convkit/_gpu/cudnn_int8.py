"""Convolutions of int8 by cuDNN: exact sums, checked once against the project's own, and the project's own epilogue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._arrays import Operand
from .._epilogue import Terms
from .._registry import Implementation, Plan, Problem
from . import access, epilogue
from .cache import Recent
from .cudnn import Cudnn, CudnnPlan, Refused, Way
from .machine import GpuMachine

logger = logging.getLogger("convkit")

# Whether a plan's sums were right, by what may decide about that: everything but the numbers of images and pixels.
_verdicts: Recent[Any, str] = Recent(4096)
RIGHT, WRONG = "right", "wrong"


def forget() -> None:
    """Check every family of geometries again."""
    _verdicts.clear()


class CudnnInt8Plan(CudnnPlan):
    """cuDNN's sums in int32, and what becomes of them."""

    def __init__(
        self, problem: Problem, machine: GpuMachine, others: Sequence[Implementation], judge: Implementation
    ) -> None:
        super().__init__(problem, machine, others)
        self.judge = judge

    def _check(self, way: Way, name: str, arrays: list[Any], result: Any) -> None:
        """Compare a plan's first sums of a family of geometries with those of the project's own kernel."""
        family = replace(way.spec, batch=0, in_size=(), out_size=())
        key = family, name, self.machine.name, self.machine.cudnn
        verdict = _verdicts.get(key)
        if verdict is None:
            if access.is_capturing():
                raise Refused("cuDNN's sums of int8 have not been checked, which takes waiting for them")
            verdict = RIGHT if self._same(way, arrays, result) else WRONG
            _verdicts.put(key, verdict)
            if verdict == WRONG:
                logger.warning(
                    "%s: cuDNN's plan %s gives wrong sums of int8, and is not used for the like of %s any more",
                    self.problem.op, name, way.spec,
                )  # fmt: skip
        if verdict == WRONG:
            raise Refused(f"cuDNN's plan {name} gives wrong sums of int8")

    def _same(self, way: Way, arrays: list[Any], result: Any) -> bool:
        p = self.problem
        wanted = way.result.fresh(p.op)
        image, weights = (
            Operand.of(operand.role, (a.shape, a.strides, a.dtype, True), tuple(range(len(a.shape))))
            for operand, a in zip(p.operands, arrays, strict=False)
        )
        out = Operand.of("out", (wanted.shape, wanted.strides, wanted.dtype, True), tuple(range(len(wanted.shape))))
        plain = replace(
            p, geometry=replace(p.geometry, op="conv2d"), operands=(image, weights), out=out, epilogue=None
        )  # fmt: skip
        objection = self.judge.objection(plain, self.machine)
        if objection is not None:
            raise Refused(f"cuDNN's sums of int8 cannot be checked: {objection}")
        self.judge.plan(plain, self.machine).run(arrays, wanted, 1)
        both = (array.transpose(way.result.order).get() for array in (result, wanted))
        return np.array_equal(*both)

    def _finish(self, operands: Sequence[Any], terms: Terms | None, sums: Any, out: Any) -> None:
        e = self.problem.epilogue
        assert e is not None and terms is not None
        epilogue.run_int8(e, terms, sums, operands[2] if e.side else None, out)


class CudnnInt8(Cudnn):
    """Convolutions of int8 by cuDNN, and the epilogue."""

    def __init__(self, op: str, others: Sequence[Implementation], judge: Implementation) -> None:
        """Take the implementations to turn to, and the one of ``conv2d`` on int8 that cuDNN is compared with."""
        super().__init__(op, "int8", others)
        self.judge = judge

    def objection(self, problem: Problem, machine: Any) -> str | None:
        image = problem.operands[0].dtype
        if image != "int8":
            return f"cuDNN multiplies int8 by int8, and the input is {image}"
        if problem.epilogue is not None and problem.epilogue.input_zero_point:
            return f"cuDNN pads with 0, and the input's zero is {problem.epilogue.input_zero_point}"
        return super().objection(problem, machine)

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return CudnnInt8Plan(problem, machine, self.others, self.judge)
