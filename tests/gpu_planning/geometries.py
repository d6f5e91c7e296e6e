"""The convolutions that plans are asked for: the golden data and ResNet-50, as problems of the GPU's table."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np

from convkit._arrays import fresh_form
from convkit._calls import Limits, Settings, check
from convkit._epilogue import Epilogue
from convkit._registry import Problem

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS.parent / "benchmarks")]

import cases  # noqa: E402 - beside the tests
import problems  # noqa: E402 - beside the benchmarks

GIB = 2**30
OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
FORMATS = ("NHWC", "NCHW")
DTYPES = {name: np.dtype(name) for name in ("float16", "float32", "float64", "int8")}
DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)

# Shapes NHWC and HWIO, and the keywords of the geometry.
Layer = tuple[tuple[int, ...], tuple[int, ...], dict]


def golden() -> Iterator[Layer]:
    """Yield TensorFlow's float cases, each geometry once."""
    seen = set()
    for name in cases.golden_ids():
        case = cases.golden(name)
        key = case.x.shape, case.w.shape, repr(case.geometry)
        if key not in seen and case.y.size:
            seen.add(key)
            yield case.x.shape, case.w.shape, case.geometry


def resnet50() -> Iterator[Layer]:
    """Yield ResNet-50's convolutions, for one image and for sixteen."""
    lines = (Path(problems.__file__).parent / "problems" / "resnet50.txt").read_text(encoding="utf-8").splitlines()
    seen = dict.fromkeys(
        case.problem for line in lines if line and not line.startswith("#") for case in problems.Case.parse(line)
    )
    for problem in seen:
        x, w, _ = problem.shapes
        yield x, w, {"strides": problem.s, "padding": problem.pads, "dilations": problem.d, "groups": problem.g}


def problem_of(
    op: str, layer: Layer, dtype: str, data_format: str = "NHWC", out_dtype: str | None = None, **limits: object
) -> Problem:
    """Return one operation on a layer, its arrays C-contiguous in the data format."""
    (n, h, w, c), (r, s, i, k), keywords = layer
    kind = DTYPES[dtype]
    out = {"int8": "int32"}.get(dtype, out_dtype)
    x, f = ((n, h, w, c), (r, s, i, k)) if data_format == "NHWC" else ((n, c, h, w), (k, i, r, s))
    settings = Settings(
        **{"strides": 1, "padding": "VALID", "dilations": 1, "groups": 1, **keywords},
        data_format=data_format, filter_format=None, out_dtype=out, algorithm="auto",
    )  # fmt: skip
    given = Limits(**{"workspace_limit": GIB, "precision": "default", **limits})
    forward = check("conv2d", (fresh_form(x, kind), fresh_form(f, kind)), None, settings, None, False, given)
    y = forward.geometry.output_shape
    if op == "conv2d":
        return forward.problem
    first, shape = (x, f) if op == "conv2d_backprop_filter" else (f, x)
    return check(op, (fresh_form(first, kind), fresh_form(y, kind)), shape, settings, None, False, given).problem


def fused(problem: Problem, activation: str | None, per_channel: bool, bias: bool = True) -> Problem:
    """Return a convolution with an epilogue after it."""
    epilogue = Epilogue(
        per_channel=per_channel, bias="float32" if bias else None, side=False, activation=activation, alpha=0.0,
        input_zero_point=0, output_zero_point=0, onto_side=False,
    )  # fmt: skip
    return replace(problem, geometry=replace(problem.geometry, op="fused_conv2d"), epilogue=epilogue)
