"""The public operations.

Each is a thin front: what a call means and whether it is legal is in `_geometry`, how it is served in `_calls`.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, overload

import numpy.typing as npt

from ._arguments import PaddingLike, ShapeLike, StridesLike
from ._calls import Settings, execute, repeat
from ._errors import ArgumentTypeError
from ._foreign import MISSING, check_names, public_signature


class CudaArray(Protocol):
    """What marks a ``cupy.ndarray`` for a type checker."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


_Cuda = TypeVar("_Cuda", bound=CudaArray)


@overload
def conv2d(
    input: npt.ArrayLike,
    filter: npt.ArrayLike,
    *,
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
def conv2d(
    input: _Cuda,
    filter: _Cuda,
    *,
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
def conv2d(
    input: Any = MISSING,
    filter: Any = MISSING,
    *more: Any,
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
    """Convolve images with filters (cross-correlation: the filter is not flipped).

    Parameters
    ----------
    input : array_like
        Images, (N, H, W, C) or (N, C, H, W) as `data_format` says.  float32, float64, float16, bfloat16, or an integer
        dtype that casts safely to the filter's; int8 or uint8 with an int8 filter.
    filter : array_like
        Filters, (kh, kw, C/groups, K) in HWIO, (K, C/groups, kh, kw) in OIHW, (K, kh, kw, C/groups) in OHWI.
        float32, float64, float16, bfloat16 or int8.  Also a `PackedFilter` of this operation.
    strides : int, pair or four ints, default 1
        Step of the window in pixels: one number, (height, width), or four in the order of `data_format` with 1 for
        batch and channels.
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
        Order of the dimensions of images; the last, for int8 filters, is (N, C/4, H, W, 4).
    filter_format : {"HWIO", "OIHW", "OHWI", "OIHW_VECT_I"}, optional
        Order of the dimensions of filters; by default HWIO with NHWC, OIHW with NCHW, and with NCHW_VECT_C
        OIHW_VECT_I, (K, C/groups/4, kh, kw, 4).
    out : ndarray, optional
        Where to write the result: its shape and dtype, any strides and byte order; no overlap with an input.
        It is never read.
    out_dtype : dtype, optional
        ``"float32"`` for float16 and bfloat16 operands keeps the float32 sums; otherwise the operands' own dtype,
        and int32 for int8 filters.
    algorithm : {"auto", "fft", "planar", "depthwise", "winograd", "direct", "gemm", "im2col", "int8", "reference"}
        Family that must serve the call; ``"auto"`` takes the first that can and is likely to be fast (see `explain`).
        On CuPy arrays ``"gemm"``, ``"cudnn"``, ``"direct"`` or ``"im2col"``.
    num_threads : int, optional
        Most threads for this call, 1 to 1024; by default from `options`, `set_options`, the environment variables
        CONVKIT_NUM_THREADS or OMP_NUM_THREADS, or the CPUs that the process may use, the first that is set;
        threadpoolctl's ``threadpool_limits`` caps them all.  The bits of the result do not depend on it.

    Returns
    -------
    ndarray
        (N, OH, OW, K) or (N, K, OH, OW), of the filter's dtype, int32 for int8 filters, or `out_dtype`; `out` itself
        if given.  A cupy.ndarray if the operands are.

    Raises
    ------
    ShapeError
        Shapes, strides, padding, dilations and groups do not go together; a filter larger than the padded image.
    DTypeError
        Unsupported dtypes, or dtypes that do not go together.
    ArgumentError, ArgumentTypeError
        Other impossible values, types or names of arguments.
    UnsupportedError
        `algorithm` cannot serve this call, or sums of int8 products are so long that an int32 might not hold them (see
        `fused_conv2d`).
    WorkspaceError
        The workspace limit or the memory there is does not suffice; the message says how many bytes are needed.

    Warns
    -----
    PerformanceWarning
        Only the slow reference implementation can serve the call, and it was not asked for.

    Notes
    -----
    With s the stride, d the dilation and p the padding before::

        output[n, i, j, k] = sum over a, b, c of input[n, i*s + a*d - p, j*s + b*d - p, c] * filter[a, b, c, k]

    as in TensorFlow's ``Conv2D``, PyTorch's ``conv2d`` and ONNX's ``Conv``.  OH and OW are those of
    `conv2d_output_shape`.

    Sums of float16, bfloat16 and float32 are kept in float32 in blocks of at most 512 terms, those of float64 in
    float64; halves are rounded once, at the end.  3x3 filters at stride 1 may be served by the family
    ``winograd``, whose errors are larger where pixels differ by orders of magnitude; `options` with
    ``precision="high"`` leaves it out.  Sums of int8 products are exact.

    Examples
    --------
    >>> import numpy as np, convkit
    >>> x = np.ones((1, 4, 4, 1), np.float32)
    >>> convkit.conv2d(x, np.ones((3, 3, 1, 1), np.float32), padding="SAME")[0, :, :, 0]
    array([[4., 6., 6., 4.],
           [6., 9., 9., 6.],
           [6., 9., 9., 6.],
           [4., 6., 6., 4.]], dtype=float32)
    """
    if not (foreign or more):
        result = repeat(
            "conv2d", input, filter, None,
            strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm,
            out, num_threads, False,
        )  # fmt: skip
        if result is not None:
            return result
    if foreign or more or filter is MISSING:
        given = {"input": input, "filter": filter}
        _check_positions("conv2d", tuple(given), more)
        check_names("conv2d", given, foreign, _NAMES["conv2d"])
    settings = Settings(strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm)
    return execute("conv2d", (input, filter), None, settings, out, num_threads)


@overload
def conv2d_backprop_filter(
    input: npt.ArrayLike,
    filter_shape: ShapeLike,
    out_backprop: npt.ArrayLike,
    *,
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
    accumulate: bool = ...,
) -> npt.NDArray[Any]: ...


@overload
def conv2d_backprop_filter(
    input: _Cuda,
    filter_shape: ShapeLike,
    out_backprop: _Cuda,
    *,
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
    accumulate: bool = ...,
) -> _Cuda: ...


@public_signature
def conv2d_backprop_filter(
    input: Any = MISSING,
    filter_shape: Any = MISSING,
    out_backprop: Any = MISSING,
    *more: Any,
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
    accumulate: Any = False,
    **foreign: Any,
) -> Any:
    """Gradient of a convolution with respect to its filter.

    Parameters
    ----------
    input : array_like
        Images that went into `conv2d`, (N, H, W, C) or (N, C, H, W); an integer dtype that casts safely will do too.
    filter_shape : sequence of four ints
        Shape of the filter in `filter_format`.
    out_backprop : array_like
        Gradient with respect to the output, of the output's shape; float32, float64, float16 or bfloat16.
    strides : int, pair or four ints, default 1
        Step of the window in pixels: one number, (height, width), or four in the order of `data_format` with 1 for
        batch and channels.
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
    data_format : {"NHWC", "NCHW"}, default "NHWC"
        Order of the dimensions of images and output gradients.
    filter_format : {"HWIO", "OIHW", "OHWI"}, optional
        Order of the dimensions of filters; by default HWIO with NHWC and OIHW with NCHW.
    out : ndarray, optional
        Where to write the result: its shape and dtype, any strides and byte order; no overlap with an input.
        It is never read, unless `accumulate` is true.
    out_dtype : dtype, optional
        ``"float32"`` for float16 and bfloat16 operands keeps the float32 sums; otherwise the operands' own dtype.
    algorithm : {"auto", "fft", "planar", "depthwise", "winograd", "direct", "gemm", "im2col", "reference"}
        Family that must serve the call; ``"auto"`` takes the first that can and is likely to be fast (see `explain`).
        On CuPy arrays ``"gemm"``, ``"cudnn"``, ``"direct"`` or ``"im2col"``.
    num_threads : int, optional
        Most threads for this call, 1 to 1024; by default from `options`, `set_options`, the environment variables
        CONVKIT_NUM_THREADS or OMP_NUM_THREADS, or the CPUs that the process may use, the first that is set;
        threadpoolctl's ``threadpool_limits`` caps them all.  The bits of the result do not depend on it.
    accumulate : bool, default False
        Add the gradient to `out`, which must be given, instead of overwriting it: start from zeros to sum the
        gradients of several batches.

    Returns
    -------
    ndarray
        Of shape `filter_shape` and of out_backprop's dtype or `out_dtype`; `out` itself if given.  Zeros for an empty
        batch.  A cupy.ndarray if the operands are.

    Raises
    ------
    ShapeError
        Shapes, strides, padding, dilations and groups do not go together; a filter larger than the padded image.
    DTypeError
        Unsupported dtypes, or dtypes that do not go together.
    ArgumentError, ArgumentTypeError
        Other impossible values, types or names of arguments.
    UnsupportedError
        `algorithm` cannot serve this call.
    WorkspaceError
        The workspace limit or the memory there is does not suffice; the message says how many bytes are needed.

    Warns
    -----
    PerformanceWarning
        Only the slow reference implementation can serve the call, and it was not asked for.

    Notes
    -----
    With s the stride, d the dilation and p the padding before::

        gradient[a, b, c, k] = sum over n, i, j of input[n, i*s + a*d - p, j*s + b*d - p, c] * out_backprop[n, i, j, k]

    which is the derivative of sum(output * out_backprop) by the filter, as TensorFlow's ``Conv2DBackpropFilter``.

    Sums of float16, bfloat16 and float32 are kept in float32 in blocks of at most 512 terms, those of float64 in
    float64; halves are rounded once, at the end.  3x3 filters at stride 1 may be served by the family
    ``winograd``, whose errors are larger where pixels differ by orders of magnitude; `options` with
    ``precision="high"`` leaves it out.

    Examples
    --------
    >>> import numpy as np, convkit
    >>> x, dy = np.ones((2, 8, 8, 3), np.float32), np.ones((2, 8, 8, 5), np.float32)
    >>> convkit.conv2d_backprop_filter(x, (3, 3, 3, 5), dy, padding="SAME")[1, 1, 0, 0]
    np.float32(128.0)
    """
    if not (foreign or more):
        result = repeat(
            "conv2d_backprop_filter", input, out_backprop, filter_shape,
            strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm,
            out, num_threads, accumulate,
        )  # fmt: skip
        if result is not None:
            return result
    if foreign or more or out_backprop is MISSING:
        given = {"input": input, "filter_shape": filter_shape, "out_backprop": out_backprop}
        _check_positions("conv2d_backprop_filter", tuple(given), more)
        check_names("conv2d_backprop_filter", given, foreign, _NAMES["conv2d_backprop_filter"])
    settings = Settings(strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm)
    return execute(
        "conv2d_backprop_filter", (input, out_backprop), filter_shape, settings, out, num_threads, accumulate
    )


@overload
def conv2d_backprop_input(
    input_shape: ShapeLike,
    filter: npt.ArrayLike,
    out_backprop: npt.ArrayLike,
    *,
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
def conv2d_backprop_input(
    input_shape: ShapeLike,
    filter: _Cuda,
    out_backprop: _Cuda,
    *,
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
def conv2d_backprop_input(
    input_shape: Any = MISSING,
    filter: Any = MISSING,
    out_backprop: Any = MISSING,
    *more: Any,
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
    """Gradient of a convolution with respect to its input (a transposed convolution).

    Parameters
    ----------
    input_shape : sequence of four or two ints
        Shape of the input in `data_format`, or its (height, width) alone.
    filter : array_like
        Filters, in `filter_format`; float32, float64, float16 or bfloat16.  Also a `PackedFilter` of this operation.
    out_backprop : array_like
        Gradient with respect to the output, of the output's shape and the filter's dtype.
    strides : int, pair or four ints, default 1
        Step of the window in pixels: one number, (height, width), or four in the order of `data_format` with 1 for
        batch and channels.
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
    data_format : {"NHWC", "NCHW"}, default "NHWC"
        Order of the dimensions of images and output gradients.
    filter_format : {"HWIO", "OIHW", "OHWI"}, optional
        Order of the dimensions of filters; by default HWIO with NHWC and OIHW with NCHW.
    out : ndarray, optional
        Where to write the result: its shape and dtype, any strides and byte order; no overlap with an input.
        It is never read.
    out_dtype : dtype, optional
        ``"float32"`` for float16 and bfloat16 operands keeps the float32 sums; otherwise the operands' own dtype.
    algorithm : {"auto", "fft", "planar", "depthwise", "winograd", "direct", "gemm", "im2col", "reference"}
        Family that must serve the call; ``"auto"`` takes the first that can and is likely to be fast (see `explain`).
        On CuPy arrays ``"gemm"``, ``"cudnn"``, ``"direct"`` or ``"im2col"``.
    num_threads : int, optional
        Most threads for this call, 1 to 1024; by default from `options`, `set_options`, the environment variables
        CONVKIT_NUM_THREADS or OMP_NUM_THREADS, or the CPUs that the process may use, the first that is set;
        threadpoolctl's ``threadpool_limits`` caps them all.  The bits of the result do not depend on it.

    Returns
    -------
    ndarray
        Of the input's full shape and of the filter's dtype or `out_dtype`; `out` itself if given.  A cupy.ndarray if
        the operands are.

    Raises
    ------
    ShapeError
        Shapes, strides, padding, dilations and groups do not go together; a filter larger than the padded image.
    DTypeError
        Unsupported dtypes, or dtypes that do not go together.
    ArgumentError, ArgumentTypeError
        Other impossible values, types or names of arguments.
    UnsupportedError
        `algorithm` cannot serve this call.
    WorkspaceError
        The workspace limit or the memory there is does not suffice; the message says how many bytes are needed.

    Warns
    -----
    PerformanceWarning
        Only the slow reference implementation can serve the call, and it was not asked for.

    Notes
    -----
    With s the stride, d the dilation and p the padding before, each output gradient goes back to the pixels it came
    from::

        gradient[n, i*s + a*d - p, j*s + b*d - p, c] += out_backprop[n, i, j, k] * filter[a, b, c, k]

    summed over all a, b, i, j and k, as TensorFlow's ``Conv2DBackpropInput``; pixels that no window reads get zero.

    Sums of float16, bfloat16 and float32 are kept in float32 in blocks of at most 512 terms, those of float64 in
    float64; halves are rounded once, at the end.  3x3 filters at stride 1 may be served by the family
    ``winograd``, whose errors are larger where pixels differ by orders of magnitude; `options` with
    ``precision="high"`` leaves it out.

    Examples
    --------
    >>> import numpy as np, convkit
    >>> w, dy = np.ones((2, 2, 3, 5), np.float32), np.ones((1, 3, 3, 5), np.float32)
    >>> convkit.conv2d_backprop_input((1, 6, 6, 3), w, dy, strides=2).shape
    (1, 6, 6, 3)
    """
    if not (foreign or more):
        result = repeat(
            "conv2d_backprop_input", filter, out_backprop, input_shape,
            strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm,
            out, num_threads, False,
        )  # fmt: skip
        if result is not None:
            return result
    if foreign or more or out_backprop is MISSING:
        given = {"input_shape": input_shape, "filter": filter, "out_backprop": out_backprop}
        _check_positions("conv2d_backprop_input", tuple(given), more)
        check_names("conv2d_backprop_input", given, foreign, _NAMES["conv2d_backprop_input"])
    settings = Settings(strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm)
    return execute("conv2d_backprop_input", (filter, out_backprop), input_shape, settings, out, num_threads)


def _check_positions(op: str, names: tuple[str, ...], more: tuple[Any, ...]) -> None:
    if more:
        raise ArgumentTypeError(
            f"{op}: takes {len(names)} positional arguments ({', '.join(names)}), "
            f"but {len(names) + len(more)} are given; strides, padding and the others go by keyword, "
            "and a bias is added to the result"
        )


def _argument_names(function: Any) -> tuple[str, ...]:
    return tuple(function.__signature__.parameters)


_NAMES = {
    function.__name__: _argument_names(function) for function in (conv2d, conv2d_backprop_filter, conv2d_backprop_input)
}
