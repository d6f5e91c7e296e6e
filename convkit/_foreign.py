"""Keyword arguments of other libraries, refused with the name that convkit uses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from ._errors import ArgumentTypeError

# Names that PyTorch, TensorFlow, JAX, SciPy, OpenCV, CuPy and ONNX use for what convkit's arguments say.
OURS: Mapping[str, str] = {
    **dict.fromkeys(("stride", "window_strides", "subsample", "step"), "strides"),
    **dict.fromkeys(("dilation", "rhs_dilation", "dilation_rate", "rate", "rates", "dilate"), "dilations"),
    **dict.fromkeys(("pad", "pads", "paddings", "explicit_paddings", "border", "border_mode", "mode"), "padding"),
    **dict.fromkeys(("weight", "weights", "kernel", "filters", "W", "w", "rhs", "in2", "k"), "filter"),
    **dict.fromkeys(("x", "X", "image", "images", "lhs", "in1", "src", "a", "inputs", "data"), "input"),
    **dict.fromkeys(("dy", "gy", "grad", "grad_output", "out_grad", "gradient", "loss"), "out_backprop"),
    **dict.fromkeys(("filter_sizes", "filter_size", "kernel_size", "kernel_shape", "weight_size"), "filter_shape"),
    **dict.fromkeys(("input_sizes", "input_size", "output_shape"), "input_shape"),
    **dict.fromkeys(("group", "feature_group_count", "num_groups", "n_groups"), "groups"),
    **dict.fromkeys(("layout", "format", "memory_format", "dimension_numbers", "d_layout"), "data_format"),
    **dict.fromkeys(("w_layout", "kernel_layout", "weight_format"), "filter_format"),
    **dict.fromkeys(("output", "dst", "y"), "out"),
    **dict.fromkeys(("dtype", "preferred_element_type", "output_dtype"), "out_dtype"),
    **dict.fromkeys(("threads", "n_jobs", "workers", "nthreads", "n_threads"), "num_threads"),
    **dict.fromkeys(("method", "algo", "backend", "impl"), "algorithm"),
}


class _Missing:
    """Marks an argument that was not given, so that the error can first name a foreign keyword."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()


def check_names(op: str, required: Mapping[str, Any], foreign: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise for the first unknown keyword, with ours named where it is known, or for a missing argument."""
    for name in foreign:
        ours = OURS.get(name)
        if ours in known:
            raise ArgumentTypeError(f"{op}: unknown argument {name!r:.60}; in convkit it is called {ours!r}")
        raise ArgumentTypeError(f"{op}: unknown argument {name!r:.60}; the arguments are {', '.join(known)}")
    for name, value in required.items():
        if value is MISSING:
            raise ArgumentTypeError(f"{op}: argument {name!r} is missing; the arguments are {', '.join(known)}")


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def own_names_only(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Refuse unknown keywords as `check_names` does, and missing arguments as Python does, but as a ConvkitError."""
    signature = inspect.signature(function)
    known = tuple(signature.parameters)

    @functools.wraps(function)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if not signature.parameters.keys() >= kwargs.keys():
            check_names(function.__name__, {}, {name: None for name in kwargs if name not in known}, known)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(f"{function.__name__}: {error}; the arguments are {', '.join(known)}") from None
        return function(*args, **kwargs)

    return checked


_Function = TypeVar("_Function", bound=Callable[..., Any])


def public_signature(function: _Function) -> _Function:
    """Show a function without its catch-all for foreign names and without the markers of missing arguments."""
    shown = inspect.signature(function)
    parameters = [
        p.replace(default=inspect.Parameter.empty) if p.default is MISSING else p
        for p in shown.parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    function.__signature__ = shown.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
