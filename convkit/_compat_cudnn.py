"""The functions of CuPy's former cuDNN bindings that convolve, computed by convkit.

They take what the bindings of CuPy 13 took, and compute the same; an output may lie in memory in any way here, and
outputs of float16 are rounded once even where a bias is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ._arguments import as_int, show
from ._arrays import FLOATS, is_cuda, type_name
from ._errors import ArgumentError, ArgumentTypeError, BackendError, DTypeError, UnsupportedError, WorkspaceError
from ._ops import conv2d, conv2d_backprop_filter, conv2d_backprop_input
from ._ops_fused import fused_conv2d
from ._options import current, options

CUDNN_TENSOR_NCHW, CUDNN_TENSOR_NHWC = 0, 1
# What code that called the bindings catches.
CuDNNError = BackendError
# Callers of the bindings ask this before they use them.
available = True

_DATA_FORMATS = {CUDNN_TENSOR_NCHW: "NCHW", CUDNN_TENSOR_NHWC: "NHWC"}
_FILTER_FORMATS = {CUDNN_TENSOR_NCHW: "OIHW", CUDNN_TENSOR_NHWC: "OHWI"}
_MAY_USE_TENSOR_CORES = {"auto": True, "always": True, "never": False}
# The rank of arrays of volumes, which 3-D convolutions take.
_VOLUMES = 5

_max_workspace_size = 8 * 2**20


def get_max_workspace_size() -> int:
    """Return the most bytes of scratch memory that one convolution takes; 8 MiB unless it was set."""
    return _max_workspace_size


def set_max_workspace_size(size: int) -> None:
    """Set the most bytes of scratch memory that one convolution takes, for the whole process."""
    global _max_workspace_size
    _max_workspace_size = as_int("set_max_workspace_size", "size", size, least=0)


def getVersion() -> int:
    """Return the version of the cuDNN in use, such as 91002, or 0 where none can be loaded and own kernels serve."""
    from ._gpu import loader

    return loader.status()[0] or 0


class _Given(NamedTuple):
    """The arguments that all three functions take, as given."""

    pad: Any
    stride: Any
    dilation: Any
    groups: Any
    auto_tune: Any
    tensor_core: Any
    d_layout: Any
    w_layout: Any

    def keywords(self, op: str) -> dict[str, Any]:
        """Return convkit's words for them."""
        return {
            "padding": self.pad,
            "strides": self.stride,
            "dilations": 1 if self.dilation is None else self.dilation,
            "groups": self.groups,
            "data_format": _look_up(op, "d_layout", self.d_layout, _DATA_FORMATS),
            "filter_format": _look_up(op, "w_layout", self.w_layout, _FILTER_FORMATS),
        }


def _look_up(op: str, argument: str, value: Any, table: Mapping[Any, Any]) -> Any:
    """Return what stands under ``value``, or raise."""
    try:
        return table[value]
    except Exception:  # of a value's own, when it is hashed or compared
        known = ", ".join(map(repr, table))
        raise ArgumentError(f"{op}: {argument} is {show(value)}, but must be one of {known}") from None


def _flag(op: str, argument: str, value: Any) -> bool:
    """Return whether a value counts as true, or raise."""
    try:
        return bool(value)
    except Exception:  # of a value's own, or of an array
        raise ArgumentTypeError(f"{op}: {argument} is {show(value)}, but must be True or False") from None


def _check_arrays(op: str, arrays: Mapping[str, Any]) -> None:
    """Refuse what the bindings refused, and 3-D convolutions."""
    from ._gpu.arrays import as_gpu

    for role, array in arrays.items():
        if not is_cuda(array):
            raise ArgumentTypeError(f"{op}: {role} is of type {type_name(array)}, but must be a cupy.ndarray")
        as_gpu(op, role, array)
        if array.dtype.name not in FLOATS:
            parts = "; convolve real and imaginary parts one by one" if array.dtype.kind == "c" else ""
            raise DTypeError(
                f"{op}: {role} has dtype {array.dtype}, but must be one of {', '.join(sorted(FLOATS))}{parts}"
            )
        if array.ndim == _VOLUMES:
            raise UnsupportedError(
                f"{op}: {role} has {array.ndim} dimensions, as for a 3-D convolution, which convkit does not have yet; "
                "1-D and 2-D ones work"
            )


def _arrays(bias: Any, **others: Any) -> dict[str, Any]:
    """Return the arrays of a call by name, with the bias if there is one."""
    return others if bias is None else {**others, "b": bias}


@contextmanager
def _translated(
    op: str, given: _Given, arrays: Mapping[str, Any], deterministic: Any = False
) -> Iterator[dict[str, Any]]:
    """Yield convkit's keywords for a call, under the options that the call stands for."""
    _check_arrays(op, arrays)
    keywords = given.keywords(op)
    tf32_allowed = _look_up(op, "tensor_core", given.tensor_core, _MAY_USE_TENSOR_CORES)
    repeatable = _flag(op, "deterministic", deterministic)
    ours, limit = current(), _max_workspace_size
    with options(
        workspace_limit=limit,
        # The bindings did not tune what had to be deterministic.
        autotune=_flag(op, "auto_tune", given.auto_tune) and not repeatable,
        deterministic=repeatable or ours.deterministic,
        precision=ours.precision if tf32_allowed or ours.precision != "fast" else "default",
    ):
        try:
            yield keywords
        except WorkspaceError as error:
            raise WorkspaceError(
                f"{op}: {error}; here the limit is what cupy.cudnn.set_max_workspace_size was given last, {limit} bytes"
            ) from error


def convolution_forward(
    x: Any,
    W: Any,
    b: Any,
    y: Any,
    pad: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:
    """Convolve (without flipping the filter), add a bias where one is given, and write the result to ``y``.

    Parameters
    ----------
    x, W : cupy.ndarray
        Images (N, C, H, W) and filters (K, C/groups, kh, kw); with a layout of 1, (N, H, W, C) and
        (K, kh, kw, C/groups).  float16, float32 or float64.
    b : cupy.ndarray or None
        A bias per output channel.
    y : cupy.ndarray
        Where to write the result.
    pad, stride, dilation : pair of ints
        Zeros on both sides, steps and distances of taps, of height and width; no dilation is None, too.
    groups : int
        Number of groups of channels.
    auto_tune : bool
        Time several plans at the first call of a geometry and keep the fastest.
    tensor_core : {"auto", "always", "never"}
        ``"never"`` keeps TF32 out even under ``convkit.options(precision="fast")``; nothing else allows it.
    d_layout, w_layout : {0, 1}
        Order of the dimensions of images and filters.

    Raises
    ------
    UnsupportedError
        For 3-D convolutions.
    """
    op = "cudnn.convolution_forward"
    given = _Given(pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout)
    with _translated(op, given, _arrays(b, x=x, W=W, y=y)) as keywords:
        if b is None:
            conv2d(x, W, out=y, **keywords)
        else:
            fused_conv2d(x, W, b.reshape(-1), out=y, **keywords)


def convolution_backward_data(
    W: Any,
    x: Any,
    b: Any,
    y: Any,
    pad: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:
    """Write to ``y`` the gradient by the images, of a convolution with ``W`` whose result has the gradient ``x``.

    Parameters
    ----------
    W, x : cupy.ndarray
        Filters and the gradient by the result, as `convolution_forward` takes filters and images.
    b : cupy.ndarray or None
        A bias per channel of ``y``, added to it (a transposed convolution has one).
    y : cupy.ndarray
        Where to write the result; its shape is that of the images.
    pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout
        As in `convolution_forward`.
    deterministic : bool
        Take only plans whose results are the same bits each time, and do not tune.
    """
    op = "cudnn.convolution_backward_data"
    given = _Given(pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout)
    with _translated(op, given, _arrays(b, W=W, x=x, y=y), deterministic) as keywords:
        if b is None:
            conv2d_backprop_input(y.shape, W, x, out=y, **keywords)
            return
        from ._compat_bias import backward_data_with_bias

        backward_data_with_bias(op, W, x, b, y, keywords)


def convolution_backward_filter(
    x: Any,
    gy: Any,
    gW: Any,
    pad: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *,
    deterministic: bool,
    auto_tune: bool,
    tensor_core: str,
    d_layout: int = CUDNN_TENSOR_NCHW,
    w_layout: int = CUDNN_TENSOR_NCHW,
) -> None:
    """Write to ``gW`` the gradient by the filters, of a convolution of ``x`` whose result has the gradient ``gy``.

    Parameters
    ----------
    x, gy : cupy.ndarray
        Images and the gradient by the result.
    gW : cupy.ndarray
        Where to write the result; its shape is that of the filters.
    pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout
        As in `convolution_forward`.
    deterministic : bool
        As in `convolution_backward_data`.
    """
    op = "cudnn.convolution_backward_filter"
    given = _Given(pad, stride, dilation, groups, auto_tune, tensor_core, d_layout, w_layout)
    with _translated(op, given, {"x": x, "gy": gy, "gW": gW}, deterministic) as keywords:
        conv2d_backprop_filter(x, gW.shape, gy, out=gW, **keywords)
