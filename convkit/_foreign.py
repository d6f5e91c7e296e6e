"""Keyword arguments and formats of other libraries, refused with what convkit calls them or does instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, get_overloads

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

# The same for what only fused_conv2d takes.
OURS_FUSED: Mapping[str, str] = {
    **dict.fromkeys(("b", "B", "use_bias", "biases", "bias_add"), "bias"),
    **dict.fromkeys(("side", "z", "residual", "addend", "shortcut"), "side_input"),
    **dict.fromkeys(("scale", "scales", "conv_input_scale", "alpha1", "requantize_scale"), "conv_scale"),
    **dict.fromkeys(("side_input_scale", "alpha2", "sum_scale"), "side_scale"),
    **dict.fromkeys(("activation_mode", "activation_fn", "act", "post_op", "nonlinearity"), "activation"),
    **dict.fromkeys(("negative_slope", "leakyrelu_alpha", "slope"), "alpha"),
    **dict.fromkeys(("x_zero_point", "zero_point_in", "src_zero_point"), "input_zero_point"),
    **dict.fromkeys(("y_zero_point", "zero_point", "zero_point_out", "dst_zero_point"), "output_zero_point"),
}

_ADD_BIAS = "no bias is added here; add it to the result, or use fused_conv2d"
_ACTIVATE = "apply it to the result, as np.maximum(y, 0), or use fused_conv2d"
PAD_FIRST = "padding is zeros here; for another border np.pad the image first"
_AS_OPTION = "it is an option, as in: with convkit.options({}=...)"
_TRANSPOSED = "a transposed convolution is conv2d_backprop_input"

# Names for what no argument says, with what to do instead.
RECIPES: Mapping[str, str] = {
    **dict.fromkeys(("bias", "use_bias", "b", "bias_add"), _ADD_BIAS),
    **dict.fromkeys(("activation", "activation_mode", "activation_fn"), _ACTIVATE),
    **dict.fromkeys(("padding_mode", "boundary", "fillvalue", "cval", "borderType"), PAD_FIRST),
    "output_padding": "give conv2d_backprop_input the input_shape instead",
    **dict.fromkeys(("lhs_dilation", "transposed"), _TRANSPOSED),
    **dict.fromkeys(("depth_multiplier", "channel_multiplier"), "depthwise is groups=C with C*multiplier out channels"),
    **dict.fromkeys(("name", "use_cudnn_on_gpu"), "leave it out"),
    **{option: _AS_OPTION.format(option) for option in ("workspace_limit", "precision", "deterministic", "autotune")},
}

# Borders that others offer as a mode of padding.
BORDERS = frozenset(("reflect", "symmetric", "mirror", "edge", "nearest", "replicate", "circular", "wrap"))

# Formats as others write them, in upper case, with what they are here.
_TENSOR = "'NCHW', the shape that torch tensors have in any memory format"
DATA_FORMATS_ELSEWHERE: Mapping[str, str] = {
    "CHANNELS_LAST": "'NHWC'",
    "CHANNELS_FIRST": "'NCHW'",
    **dict.fromkeys(("TORCH.CHANNELS_LAST", "TORCH.CONTIGUOUS_FORMAT", "TORCH.PRESERVE_FORMAT"), _TENSOR),
    "HWC": "'NHWC' after image[np.newaxis]",
    "CHW": "'NCHW' after image[np.newaxis]",
    "HWCN": "'NHWC' after x.transpose(3, 0, 1, 2)",
    "CHWN": "'NCHW' after x.transpose(3, 0, 1, 2)",
}
FILTER_FORMATS_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("HWCN", "HWCK", "RSCK"), "'HWIO'"),
    **dict.fromkeys(("KCHW", "KCRS", "NCHW"), "'OIHW'"),
    **dict.fromkeys(("KHWC", "KRSC", "NHWC"), "'OHWI'"),
}


class _Missing:
    """Marks an argument that was not given, so that the error can first name a foreign keyword."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()


def check_names(op: str, required: Mapping[str, Any], foreign: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise for the first unknown keyword, with ours or a recipe where there is one, or for a missing argument."""
    for name in foreign:
        ours = OURS.get(name) or OURS_FUSED.get(name)
        if ours in known:
            raise ArgumentTypeError(f"{op}: unknown argument {name!r:.60}; in convkit it is called {ours!r}")
        # The options have names of their own, and nothing to add to a result.
        if name in RECIPES and "strides" in known:
            raise ArgumentTypeError(f"{op}: unknown argument {name!r:.60}; {RECIPES[name]}")
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
    """Show a function as its first overload types it, without catch-alls and markers of missing arguments."""
    shown, typed = inspect.signature(function), inspect.signature(get_overloads(function)[0])
    parameters = [
        p.replace(
            default=inspect.Parameter.empty if p.default is MISSING else p.default,
            annotation=typed.parameters[p.name].annotation,
        )
        for p in shown.parameters.values()
        if p.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    function.__signature__ = typed.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
