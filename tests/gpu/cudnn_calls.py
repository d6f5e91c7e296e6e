"""Calls that the family `cudnn` carries out on the stand-ins for CuPy and cuDNN, said in NHWC and HWIO."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import fake_cudnn
import int8_cases
import numpy as np
import reference

from convkit._arrays import Operand
from convkit._calls import SIGNATURES, Limits, Settings, check, planned, seen_by_plans
from convkit._epilogue import Epilogue, Terms
from convkit._formats import VIEW_AXES
from convkit._gpu import cache, constants, cudnn_int8, handles, loader, memory
from convkit._gpu.arrays import form_of
from convkit._gpu.cudnn import Cudnn
from convkit._gpu.cudnn_int8 import CudnnInt8
from convkit._gpu.machine import GpuMachine
from convkit._registry import FusedPlan, Implementation, Plan, Problem

MIB = 2**20
MACHINE = GpuMachine(
    device=0, name="Stand-in", capability=(9, 0), memory=4 * 2**30, processors=132, cudnn=fake_cudnn.VERSION,
    no_cudnn="",
)  # fmt: skip
PLAIN = Epilogue(
    per_channel=False, bias=None, side=False, activation=None, alpha=0.0, input_zero_point=0, output_zero_point=0,
    onto_side=False,
)  # fmt: skip


def forget() -> None:
    """Forget what convkit keeps of cuDNN."""
    handles.forget()
    for module in (cache, constants, cudnn_int8, loader):
        module.forget()


@contextmanager
def installed(**settings: Any) -> Iterator[fake_cudnn.Script]:
    """Install the stand-in for cuDNN; the value is its script."""
    with fake_cudnn.installed(**settings) as script:
        forget()
        try:
            yield script
        finally:
            forget()


class BystanderPlan(FusedPlan):
    """Computes with the tests' own reference on the host."""

    copies = ()

    def __init__(self, owner: "Bystander", problem: Problem) -> None:
        self.owner, self.problem = owner, problem

    def workspace(self, threads: int) -> int:
        return 0

    def _sums(self, operands: Any) -> np.ndarray:
        self.owner.runs += 1
        g = self.problem.geometry
        pads = tuple(zip(g.pad_before, g.pad_after, strict=True))
        keywords = {"strides": g.strides, "dilations": g.dilations, "groups": g.groups, "padding": pads}
        first, second = (_four(array.get()) for array in operands[:2])
        op = "conv2d" if g.op == "fused_conv2d" else g.op
        given = {
            "conv2d": (first, second),
            "conv2d_backprop_filter": (first, (*g.filter_size, g.group_in, g.out_channels), second),
            "conv2d_backprop_input": ((g.batch, *g.in_size, g.in_channels), first, second),
        }
        return reference.OPS[op](*given[op], **keywords)

    def run(self, operands: Any, out: Any, threads: int) -> None:
        sums = self._sums(operands)
        values = out.get() + sums if self.problem.accumulate else sums.reshape(out.shape)
        put(out, values)

    def run_fused(self, operands: Any, terms: Any, out: Any, threads: int, pack: Any) -> None:
        put(out, self._sums(operands) * terms.conv_scale.get())


class Bystander(Implementation):
    """What serves when cuDNN does not."""

    def __init__(self, op: str = "conv2d", dtype: str = "float32", objection: str | None = None) -> None:
        super().__init__("gpu", "direct", op, dtype)
        self.runs, self.told = 0, objection

    def objection(self, problem: Problem, machine: Any) -> str | None:
        return self.told

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return BystanderPlan(self, problem)


def _four(array: np.ndarray) -> np.ndarray:
    """Return an array of the packed formats with four axes."""
    if array.ndim == 4:
        return array
    if array.shape[3] == 4:  # H, W, I/4, 4, O
        return array.reshape(*array.shape[:2], -1, array.shape[4])
    return array.reshape(*array.shape[:3], -1)


def put(target: Any, values: np.ndarray) -> None:
    """Write values to an array on the device, whatever its strides."""
    import cupy

    target[...] = cupy.asarray(np.ascontiguousarray(values.reshape(target.shape).astype(target.dtype)))


def problem_of(
    op: str,
    arrays: Any,
    shape: Any,
    out: Any = None,
    accumulate: bool = False,
    limits: Limits | None = None,
    **keywords: Any,
) -> tuple[Problem, Any]:
    """Return the problem of arrays on the device, and the checked call."""
    limits = limits or Limits(workspace_limit=256 * MIB, precision="default")
    settings = Settings(
        **{
            **dict.fromkeys(("filter_format", "out_dtype")), "strides": 1, "padding": "VALID", "dilations": 1,
            "groups": 1, "data_format": "NHWC", "algorithm": "auto", **keywords,
        }
    )  # fmt: skip
    form = None if out is None else form_of(out)
    checked = check(op, tuple(map(form_of, arrays)), shape, settings, form, accumulate, limits)
    return checked.problem, checked


class Carried:
    """One call, prepared by the family cudnn; it can be run several times."""

    def __init__(
        self, op: str, arrays: Any, shape: Any = None, out: Any = None, accumulate: bool = False,
        limits: Limits | None = None, others: Any = (), machine: GpuMachine = MACHINE, judge: Any = None,
        **keywords: Any,
    ) -> None:  # fmt: skip
        import cupy

        self.arrays = [cupy.asarray(array) if isinstance(array, np.ndarray) else array for array in arrays]
        self.problem, checked = problem_of(op, self.arrays, shape, out, accumulate, limits, **keywords)
        self.checked = checked
        self.out = cupy.empty(checked.shape, checked.dtype) if out is None else out
        if checked.taps is not None and out is None:
            # As callers of plans do: what idle taps give is not theirs to write.
            memory.clear(self.out)
        made = (
            CudnnInt8(op, others, judge or Bystander("conv2d", "int8"))
            if self.problem.dtype == "int8"
            else Cudnn(op, self.problem.dtype, others)
        )
        self.objection = made.objection(self.problem, machine)
        self.plan = None if self.objection else made.plan(self.problem, machine)

    def run(self) -> np.ndarray:
        """Carry it out, and return the result as it is in its format."""
        assert self.plan is not None, self.objection
        self.plan.run(*self.views(), 1)
        return self.out.get()

    def views(self) -> tuple[list[Any], Any]:
        """Return the arrays and the result as plans see them."""
        return seen_by_plans(planned(self.checked, None, self.plan, False), self.arrays, self.out)


def carried(call: Any, layout: Any, *dtypes: Any, **more: Any) -> Carried:
    """Return a call of `harness`."""
    arguments = call.in_layout(layout, *dtypes)
    signature = SIGNATURES[call.op]
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    shape = next((argument for argument in arguments if not isinstance(argument, np.ndarray)), None)
    assert len(arrays) == len(signature.arrays)
    return Carried(call.op, arrays, shape, **call.geometry, **layout.keywords, **more)


class Fused:
    """One fused call on arrays in a layout."""

    def __init__(
        self, arrays: Any, epilogue: Epilogue, out_dtype: Any, layout: Any, side: Any = None,
        limits: Limits | None = None, others: Any = (), judge: Any = None, onto_side: bool = False, **geometry: Any,
    ) -> None:  # fmt: skip
        import cupy

        self.arrays = [cupy.asarray(array) for array in arrays]
        integers = arrays[1].dtype == np.int8
        problem, checked = problem_of(
            "conv2d", self.arrays, None, limits=limits, **layout.keywords,
            out_dtype="int32" if integers else None, **geometry,
        )  # fmt: skip
        data, weights = VIEW_AXES[layout.data], VIEW_AXES[layout.filter]
        self.side = None if side is None else cupy.asarray(side)
        self.out = self.side if onto_side else cupy.empty(checked.shape, np.dtype(out_dtype))
        self.out_axes = data
        self.axes = (data, weights, *([data] if side is not None else []))
        operands = problem.operands
        if side is not None:
            operands = (*operands, Operand.of("side_input", form_of(self.side), data))
        self.problem = replace(
            problem, geometry=replace(problem.geometry, op="fused_conv2d"), operands=operands,
            out=Operand.of("out", form_of(self.out), data), epilogue=replace(epilogue, onto_side=onto_side),
        )  # fmt: skip
        made = (
            CudnnInt8("fused_conv2d", others, judge or Bystander("conv2d", "int8"))
            if integers
            else Cudnn("fused_conv2d", problem.dtype, others)
        )
        self.objection = made.objection(self.problem, MACHINE)
        self.plan = None if self.objection else made.plan(self.problem, MACHINE)

    def run(self, scale: Any = 1.0, bias: Any = None, side_scale: float = 0.0) -> np.ndarray:
        """Carry it out, and return the result in NHWC."""
        computed = np.dtype(np.float64 if self.problem.dtype == "float64" else np.float32)
        e = self.problem.epilogue
        terms = Terms(
            constants.vector(scale, computed),
            side_scale,
            None if bias is None else constants.vector(bias, np.dtype(e.bias)),
        )
        arrays = [*self.arrays, *([] if self.side is None else [self.side])]
        views = [array.transpose(axes) for array, axes in zip(arrays, self.axes, strict=True)]
        assert self.plan is not None, self.objection
        self.plan.run_fused(views, terms, self.out.transpose(self.out_axes), 1, None)
        return int8_cases.from_layout(self.out.get(), self.problem.geometry.data_format)


__all__ = [
    *("MACHINE", "MIB", "PLAIN", "Bystander", "Carried", "Cudnn", "Fused", "cache", "carried"),
    *("cudnn_int8", "installed"),
]
