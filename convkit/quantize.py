"""From floating-point numbers to int8 and back, for `convkit.fused_conv2d`.

Numbers are ``scale * integer``, symmetric around zero: one scale for an array of activations, one for each output
channel of a filter.  With the scales of input, filter and result, a layer ``relu(conv2d(x, w) + b)`` is::

    q, filter_scales = quantize_filter(w)
    y = fused_conv2d(quantize(x, x_scale), q, b / y_scale, conv_scale=x_scale * filter_scales / y_scale,
                     activation="relu")

and `y` times `y_scale` is close to the result in floating point.  The scales of activations come from what a network
makes of a few hundred typical images (`activation_scale`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arguments import as_text, is_a, parse_format, show
from ._arrays import FLOATS, INTEGERS, as_array
from ._errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from ._foreign import own_names_only
from ._formats import FILTER_AXES

__all__ = ["activation_scale", "dequantize", "quantize", "quantize_filter"]

# The largest integer of each dtype; int8 leaves out -128, so that every number has its negative.
_LARGEST = {"int8": 127, "uint8": 255}
_FORMATS = {name: name for name in FILTER_AXES}


def _real(op: str, name: str, value: Any) -> npt.NDArray[Any]:
    """Return an array of floating-point numbers or integers."""
    array = as_array(op, name, value)[0]
    if array.dtype.name not in FLOATS + INTEGERS:
        raise DTypeError(f"{op}: {name} has dtype {array.dtype!s:.60}, but must be floating-point or integer")
    return array


def _integers(op: str, dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except Exception:
        found = np.dtype(np.void)
    if found.name not in _LARGEST:
        raise DTypeError(f"{op}: dtype is {show(dtype)}, but must be {' or '.join(_LARGEST)}")
    return found


def _scales(op: str, value: Any) -> npt.NDArray[np.float32]:
    """Return positive finite numbers as float32."""
    scale = _real(op, "scale", value).astype(np.float32)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ArgumentError(f"{op}: scale is {show(value)}, but must be positive and finite")
    return scale


def _check_broadcast(op: str, scale: npt.NDArray[Any], array: npt.NDArray[Any]) -> None:
    try:
        fits = np.broadcast_shapes(scale.shape, array.shape) == array.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{op}: scale has shape {scale.shape}, which does not broadcast to array's {array.shape}")


def _scale_of(op: str, name: str, largest: npt.NDArray[Any], most: int) -> npt.NDArray[np.float32]:
    """Return the scales that bring the largest absolute values to the largest integer; 1 where all is zero."""
    if not np.isfinite(largest).all():
        raise ArgumentError(f"{op}: {name} holds a NaN or an infinity, which no integer stands for")
    scale = (largest / most).astype(np.float32)
    return np.where(scale > 0, scale, np.float32(1))


@own_names_only
def quantize(
    array: npt.ArrayLike, scale: npt.ArrayLike, *, zero_point: int = 0, dtype: Any = "int8"
) -> npt.NDArray[Any]:
    """Round numbers to integers: ``array / scale + zero_point``, half to even, clipped to the dtype's range.

    Parameters
    ----------
    array : array_like
        Finite numbers.
    scale : float or array_like
        What one step of the integers is worth; broadcast against `array`.
    zero_point : int, default 0
        The integer that stands for zero.
    dtype : {"int8", "uint8"}, default "int8"
        Dtype of the result.

    Returns
    -------
    ndarray
        Of the shape of `array`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DTypeError
        A scale that is not positive, numbers that are not finite, another dtype.
    ShapeError
        A scale that does not broadcast to the array's shape.

    Examples
    --------
    >>> import numpy as np
    >>> quantize([0.5, 0.125, -3.0, 40.0], 0.25)
    array([  2,   0, -12, 127], dtype=int8)
    """
    values, limits = _real("quantize", "array", array), np.iinfo(_integers("quantize", dtype))
    if is_a(zero_point, bool) or not is_a(zero_point, (int, np.integer)):
        raise ArgumentTypeError(f"quantize: zero_point is of type {type(zero_point).__name__}, but must be an int")
    if not limits.min <= zero_point <= limits.max:
        raise ArgumentError(f"quantize: zero_point is {zero_point}, but must be from {limits.min} to {limits.max}")
    steps = _scales("quantize", scale)
    _check_broadcast("quantize", steps, values)
    with np.errstate(all="ignore"):
        scaled = values.astype(np.result_type(values.dtype, np.float32), copy=False) / steps
        if not np.isfinite(values).all():
            raise ArgumentError("quantize: array holds a NaN or an infinity, which no integer stands for")
        clipped: npt.NDArray[Any] = np.clip(np.rint(scaled) + int(zero_point), limits.min, limits.max)
    return clipped.astype(limits.dtype)


@own_names_only
def dequantize(array: npt.ArrayLike, scale: npt.ArrayLike, *, zero_point: int = 0) -> npt.NDArray[np.float32]:
    """Return ``(array - zero_point) * scale`` in float32.

    Parameters
    ----------
    array : array_like
        Integers.
    scale : float or array_like
        What one step of the integers is worth; broadcast against `array`.
    zero_point : int, default 0
        The integer that stands for zero.

    Returns
    -------
    ndarray
        Of the shape of `array` and dtype float32.

    Raises
    ------
    ArgumentError, DTypeError, ShapeError
        A scale that is not positive or does not broadcast to the array's shape, an array that is not of integers.

    Examples
    --------
    >>> import numpy as np
    >>> dequantize(np.array([2, -12], np.int8), 0.25)
    array([ 0.5, -3. ], dtype=float32)
    """
    values = _real("dequantize", "array", array)
    if values.dtype.kind not in "iu":
        raise DTypeError(f"dequantize: array has dtype {values.dtype}, but must be integer")
    steps = _scales("dequantize", scale)
    _check_broadcast("dequantize", steps, values)
    return ((values.astype(np.int64) - int(zero_point)) * steps).astype(np.float32)


@own_names_only
def quantize_filter(
    filter: npt.ArrayLike, *, filter_format: str = "HWIO", per_channel: bool = True
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Round a filter to int8, symmetric around zero, from -127 to 127.

    Parameters
    ----------
    filter : array_like
        The filter, in `filter_format`.
    filter_format : {"HWIO", "OIHW", "OHWI"}, default "HWIO"
        Order of the filter's dimensions.
    per_channel : bool, default True
        One scale for each output channel, and not one for all.

    Returns
    -------
    integers : ndarray of int8
        In the same format.
    scales : ndarray of float32
        Of shape (K,), or () with `per_channel` false; ``integers * scales`` along the output channels is the filter
        to half a step.  1 for channels of zeros.

    Examples
    --------
    >>> import numpy as np
    >>> integers, scales = quantize_filter(np.array([[[[1.0, -50.8]]]]))
    >>> integers.ravel(), scales
    (array([ 127, -127], dtype=int8), array([0.00787402, 0.4       ], dtype=float32))
    """
    op = "quantize_filter"
    layout = parse_format(op, "filter_format", filter_format, _FORMATS)
    values = _real(op, "filter", filter)
    if values.ndim != 4:
        raise ArgumentError(f"{op}: filter has {values.ndim} dimensions, but {layout} has 4")
    out_axis = FILTER_AXES[layout][3]
    over = tuple(axis for axis in range(4) if axis != out_axis) if per_channel else None
    largest = np.abs(values.astype(np.float64)).max(axis=over, keepdims=bool(per_channel), initial=0)
    scales = _scale_of(op, "filter", np.asarray(largest), _LARGEST["int8"])
    integers = np.clip(np.rint(values / scales), -_LARGEST["int8"], _LARGEST["int8"]).astype(np.int8)
    return integers, scales.reshape(-1) if per_channel else scales


@own_names_only
def activation_scale(
    batches: npt.ArrayLike | Iterable[npt.ArrayLike], *, dtype: Any = "int8", percentile: float = 100.0
) -> float:
    """Return the scale for activations, from typical ones.

    Parameters
    ----------
    batches : array_like, or iterable of array_like
        What a layer gets or gives on a calibration set, as one array or batch by batch.
    dtype : {"int8", "uint8"}, default "int8"
        What the activations will be rounded to; uint8 for those that are never negative, as after a ReLU.
    percentile : float, default 100
        Share in percent of each batch's values that must not be clipped: less than 100 gives outliers up for a finer
        step.  The largest of the batches counts.

    Returns
    -------
    float
        A number that float32 holds exactly; 1.0 if all values are zero.

    Raises
    ------
    ArgumentError, ArgumentTypeError, DTypeError
        Negative values for uint8, numbers that are not finite, no values at all, an impossible percentile.

    Examples
    --------
    >>> activation_scale([0.0, 63.5, -31.75])
    0.5
    """
    op = "activation_scale"
    most = _LARGEST[_integers(op, dtype).name]
    if is_a(percentile, bool) or not is_a(percentile, (int, float)) or not 0 < percentile <= 100:
        raise ArgumentError(f"{op}: percentile is {show(percentile)}, but must be a number above 0, up to 100")
    if as_text(batches) is not None:
        raise ArgumentTypeError(f"{op}: batches is a string, but must be an array, or several")
    many: Any = batches if is_a(batches, Iterable) else [batches]
    if is_a(batches, (np.ndarray, memoryview)) or _holds_numbers(batches):
        many = [batches]
    largest = 0.0
    count = 0
    for batch in many:
        values = _real(op, "batches", batch)
        if values.size == 0:
            continue
        count += values.size
        if most == _LARGEST["uint8"] and values.min() < 0:
            raise ArgumentError(f"{op}: batches hold {float(values.min())}, but uint8 is for numbers from 0 up")
        magnitudes = np.abs(values.astype(np.float64))
        if not np.isfinite(magnitudes).all():
            raise ArgumentError(f"{op}: batches hold a NaN or an infinity, which no integer stands for")
        top = magnitudes.max() if percentile == 100 else np.percentile(magnitudes, percentile)
        largest = max(largest, float(top))
    if count == 0:
        raise ArgumentError(f"{op}: batches hold no values")
    return float(_scale_of(op, "batches", np.asarray(largest), most))


def _holds_numbers(value: Any) -> bool:
    """Tell whether a sequence is of numbers, and so one array itself."""
    return is_a(value, (list, tuple)) and bool(value) and all(is_a(v, (int, float)) for v in value)
