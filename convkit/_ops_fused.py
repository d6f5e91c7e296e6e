"""The fused operation: a convolution, and what is done with its sums before they are stored.

A thin front, as `_ops`: what a call means and whether it is legal is in `_geometry` and `_fused`.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy.typing as npt

from ._arguments import PaddingLike, StridesLike
from ._calls import Settings
from ._errors import ArgumentTypeError
from ._foreign import MISSING, check_names, public_signature
from ._fused import Given, execute_fused, repeat_fused
from ._ops import CudaArray

_Cuda = TypeVar("_Cuda", bound=CudaArray)


@overload
def fused_conv2d(
    input: npt.ArrayLike,
    filter: npt.ArrayLike,
    bias: npt.ArrayLike | None = ...,
    side_input: npt.ArrayLike | None = ...,
    *,
    conv_scale: npt.ArrayLike = ...,
    side_scale: float | None = ...,
    activation: str | None = ...,
    alpha: float = ...,
    input_zero_point: int = ...,
    output_zero_point: int = ...,
    strides: StridesLike = ...,
    padding: PaddingLike = ...,
    dilations: StridesLike = ...,
    groups: int = ...,
    data_format: str = ...,
    filter_format: str | None = ...,
    out: npt.NDArray[Any] | None = ...,
    out_dtype: npt.DTypeLike | None = ...,
    algorithm: str = ...,
    num_threads: int | None = ...,
) -> npt.NDArray[Any]: ...


@overload
def fused_conv2d(
    input: _Cuda,
    filter: _Cuda,
    bias: _Cuda | None = ...,
    side_input: _Cuda | None = ...,
    *,
    conv_scale: npt.ArrayLike | _Cuda = ...,
    side_scale: float | None = ...,
    activation: str | None = ...,
    alpha: float = ...,
    input_zero_point: int = ...,
    output_zero_point: int = ...,
    strides: StridesLike = ...,
    padding: PaddingLike = ...,
    dilations: StridesLike = ...,
    groups: int = ...,
    data_format: str = ...,
    filter_format: str | None = ...,
    out: _Cuda | None = ...,
    out_dtype: npt.DTypeLike | None = ...,
    algorithm: str = ...,
    num_threads: int | None = ...,
) -> _Cuda: ...


@public_signature
def fused_conv2d(
    input: Any = MISSING,
    filter: Any = MISSING,
    bias: Any = None,
    side_input: Any = None,
    *more: Any,
    conv_scale: Any = 1.0,
    side_scale: Any = None,
    activation: Any = None,
    alpha: Any = 0.2,
    input_zero_point: Any = 0,
    output_zero_point: Any = 0,
    strides: Any = 1,
    padding: Any = "VALID",
    dilations: Any = 1,
    groups: Any = 1,
    data_format: Any = "NHWC",
    filter_format: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    algorithm: Any = "auto",
    num_threads: Any = None,
    **foreign: Any,
) -> Any:
    """Convolve, scale, add a side input and a bias, and apply an activation, in one pass.

    The result is ``activation(conv_scale * conv2d(input, filter) + side_scale * side_input + bias)``.  On int8 it is
    defined to the last bit (see Notes), and the sums are exact.

    Parameters
    ----------
    input : array_like
        Images, (N, H, W, C), (N, C, H, W) or (N, C/4, H, W, 4) as `data_format` says.  int8 or uint8 with an int8
        filter; otherwise as in `conv2d`.
    filter : array_like
        Filters in `filter_format`: int8, or a floating-point dtype.  Also a `PackedFilter` of this operation.
    bias : array_like, optional
        One number per output channel.  With int8 filters float32, in units of the result, or int32, in units of the
        products, added to the sums modulo 2^32; nested lists are float32.  Otherwise of the filter's dtype, or float32
        for halves.
    side_input : array_like, optional
        An array of the result's shape.  With int8 filters int8 or uint8, or float32 where the result is float32;
        otherwise of the filter's or the result's dtype.
    conv_scale : float or array_like of shape (K,), default 1.0
        Factor of the sums, for all or for each output channel; rounded to float32 first (float64 for float64 arrays).
    side_scale : float, optional
        Factor of the side input, rounded likewise; 1 by default.  An explicit 0 leaves the side input unread.
    activation : {None, "relu", "relu6", "elu", "leaky_relu"}, optional
        What comes last; with int8 filters None or ``"relu"``, from the output's zero point up.
    alpha : float, default 0.2
        Slope of ``"leaky_relu"`` below zero.
    input_zero_point, output_zero_point : int, default 0
        Which number stands for zero in an int8 or uint8 input and result; padding is the input's zero point.
    strides : int, pair or four ints, default 1
        Step of the window in pixels: one number, (height, width), or four in the order of `data_format` (N, C, H, W
        for ``"NCHW_VECT_C"``) with 1 for batch and channels.
    padding : str, int, pair, two pairs or four pairs, default "VALID"
        Zeros around the image.  In any case of letters: ``"VALID"`` none; ``"SAME"`` so many that the output has
        ceil(size / stride) pixels, an odd one at the bottom or right; ``"SAME_LOWER"`` the same, an odd one at the top
        or left; ``"FULL"`` (k - 1) * dilation on every side.  Or explicit: one number, (height, width),
        ((top, bottom), (left, right)), or four such pairs in the order of `data_format`.
    dilations : int, pair or four ints, default 1
        Distance of neighbouring filter taps in pixels, in the forms of `strides`.
    groups : int, default 1
        Number of groups G that the channels are split into; group g reads input channels [g*C/G, (g+1)*C/G) and
        writes output channels [g*K/G, (g+1)*K/G).  Depthwise is G = C.
    data_format : {"NHWC", "NCHW", "NCHW_VECT_C"}, default "NHWC"
        Order of the dimensions of images, side input and result; the last, for int8 filters, is (N, C/4, H, W, 4).
    filter_format : {"HWIO", "OIHW", "OHWI", "OIHW_VECT_I"}, optional
        Order of the dimensions of filters; by default HWIO with NHWC, OIHW with NCHW, OIHW_VECT_I with NCHW_VECT_C.
    out : ndarray, optional
        Where to write the result: its shape and dtype, any strides and byte order.  It may be exactly the side input;
        no other overlap with an input.
    out_dtype : dtype, optional
        With int8 filters ``"int8"`` (the default), ``"uint8"`` or ``"float32"``; ``"float32"`` for float16 and
        bfloat16 operands; otherwise the operands' own dtype.
    algorithm : {"auto", "fft", "planar", "depthwise", "winograd", "direct", "gemm", "im2col", "int8", "reference"}
        Family that must serve the call; ``"auto"`` takes the first that can and is likely to be fast (see `explain`).
        On CuPy arrays ``"gemm"``, ``"cudnn"``, ``"direct"`` or ``"im2col"``.
    num_threads : int, optional
        Most threads for this call, as in `conv2d`.  The bits of the result do not depend on it.

    Returns
    -------
    ndarray
        Of the shape that `conv2d_output_shape` tells; `out` itself if given.  A cupy.ndarray if the operands are.

    Raises
    ------
    ShapeError
        Shapes, strides, padding, dilations and groups do not go together; a bias, side input or scale of another shape.
    DTypeError
        Unsupported dtypes, or dtypes that do not go together.
    ArgumentError, ArgumentTypeError
        Other impossible values, types or names of arguments; a `side_scale` other than 0 without a side input.
    UnsupportedError
        `algorithm` cannot serve this call, or sums of int8 products are so long that an int32 might not hold them: more
        than 131071 terms, or 65793 for uint8 input or an input zero point.
    WorkspaceError
        The workspace limit or the memory there is does not suffice; the message says how many bytes are needed.

    Warns
    -----
    PerformanceWarning
        Only the slow reference implementation can serve the call, and it was not asked for.

    Notes
    -----
    With int8 filters each output is, step by step::

        acc = sum of (input - input_zero_point) * filter      exact int32, plus the bias if that is int32
        t = float32(acc) * conv_scale                         rounded to float32
        t = fma(side_input, side_scale, t)                    rounded once; only where there is a side input
        t = t + bias                                          if that is float32
        result = clip(round half to even (t) + output_zero_point)

    and clipping is to the range of the result's dtype, with ``"relu"`` from `output_zero_point` up.  A NaN gives the
    zero point, an infinity the end of the range.  A float32 result is t itself.  This is the order of TensorFlow's
    fused kernel on the CPU, bit for bit wherever that kernel's own float32 sums are exact.

    Examples
    --------
    >>> import numpy as np, convkit
    >>> x, w = np.full((1, 3, 3, 4), 3, np.int8), np.full((3, 3, 4, 2), 2, np.int8)
    >>> bias = np.array([0.25, -30], np.float32)
    >>> convkit.fused_conv2d(x, w, bias, conv_scale=0.125, activation="relu")
    array([[[[27,  0]]]], dtype=int8)
    """
    if not (foreign or more):
        result = repeat_fused(
            input, filter, bias, side_input, conv_scale, side_scale, activation, alpha, input_zero_point,
            output_zero_point, strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm,
            out, num_threads,
        )  # fmt: skip
        if result is not None:
            return result
    if foreign or more or filter is MISSING:
        given = {"input": input, "filter": filter}
        if more:
            raise ArgumentTypeError(
                f"fused_conv2d: takes 4 positional arguments (input, filter, bias, side_input), but {4 + len(more)} "
                "are given; conv_scale, strides, padding and the others go by keyword"
            )
        check_names("fused_conv2d", given, foreign, _NAMES)
    settings = Settings(strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm)
    terms = Given(conv_scale, side_scale, activation, alpha, input_zero_point, output_zero_point)
    return execute_fused((input, filter), bias, side_input, settings, terms, out, num_threads)


_NAMES = tuple(fused_conv2d.__signature__.parameters)  # type: ignore[attr-defined]
