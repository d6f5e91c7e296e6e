"""Runs one implementation on the stand-in, for any GPU and any limits, without the front."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from harness import NHWC, Call, Layout

from convkit import _calls
from convkit._gpu import arrays, memory
from convkit._gpu.machine import GpuMachine
from convkit._registry import Implementation, Problem

H200 = GpuMachine(0, "NVIDIA H200", (9, 0), 150_754_820_096, 132, None, "it is not there")


@dataclass
class Run:
    """One call of an operation as an implementation gets it."""

    call: Call
    layout: Layout = NHWC
    dtype: Any = np.float32
    out_dtype: Any = None
    limit: int = 2**30
    precision: str = "default"
    accumulate: bool = False
    # What an array is stored as: the arrays on the device, given those of NumPy.
    store: Any = None
    out: Any = None
    machine: GpuMachine = H200
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        import cupy

        store = self.store or cupy.asarray
        given = self.call.in_layout(self.layout, np.dtype(self.dtype))
        self.arrays = [store(a) for a in given if isinstance(a, np.ndarray)]
        shape = next((a for a in given if not isinstance(a, np.ndarray)), None)
        keywords = {"strides": 1, "padding": "VALID", "dilations": 1, "groups": 1, **self.call.geometry}
        settings = _calls.Settings(
            **keywords, **self.layout.keywords, out_dtype=self.out_dtype, algorithm="auto"
        )  # fmt: skip
        self.checked = _calls.check(
            self.call.op,
            tuple(map(arrays.form_of, self.arrays)),
            shape,
            settings,
            None if self.out is None else arrays.form_of(self.out),
            self.accumulate,
            _calls.Limits(self.limit, self.precision),
        )
        self.problem = self.checked.problem

    def by(self, implementation: Implementation) -> np.ndarray:
        """Return the result of an implementation that has no objection, as NHWC or HWIO."""
        objection = implementation.objection(self.problem, self.machine)
        assert objection is None, objection
        plan = implementation.plan(self.problem, self.machine)
        out = self.out
        if out is None:
            out = memory.new(self.call.op, self.checked.shape, self.checked.dtype)
        views = [array.transpose(axes) for array, axes in zip(self.arrays, self.checked.axes, strict=True)]
        plan.run(views, out.transpose(self.checked.out_axes), 1)
        self.plan = plan
        return self.call.result_from(out.get(), self.layout)
