"""An independent reference: sums over the filter taps in float64 or int64, on NHWC images and HWIO filters.

It shares nothing with the package it checks, not even the size rules.  Padding is written out by ``np.pad``, each
tap is one strided slice, and each slice meets its filter in one product per group.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray  # of float64 or int64
Pair = tuple[int, int]
Pads = tuple[Pair, Pair]
Padding = str | Pads

DATA_AXES = {"NHWC": (0, 1, 2, 3), "NCHW": (0, 3, 1, 2)}
FILTER_AXES = {"HWIO": (0, 1, 2, 3), "OIHW": (3, 2, 0, 1), "OHWI": (3, 0, 1, 2)}


def to_data_format(array: Array, data_format: str) -> Array:
    """Return a contiguous copy of an NHWC array in ``data_format``."""
    return np.ascontiguousarray(array.transpose(DATA_AXES[data_format]))


def from_data_format(array: Array, data_format: str) -> Array:
    """Return an array in ``data_format`` as an NHWC view."""
    return array.transpose(np.argsort(DATA_AXES[data_format]))


def to_filter_format(array: Array, filter_format: str) -> Array:
    """Return a contiguous copy of an HWIO filter in ``filter_format``."""
    return np.ascontiguousarray(array.transpose(FILTER_AXES[filter_format]))


def from_filter_format(array: Array, filter_format: str) -> Array:
    """Return a filter in ``filter_format`` as an HWIO view."""
    return array.transpose(np.argsort(FILTER_AXES[filter_format]))


def shape_in(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return an NHWC (or HWIO) shape in the order of ``axes``."""
    return tuple(shape[axis] for axis in axes)


def window_rule(size: int, taps: int, stride: int, dilation: int, padding: str | Pair) -> tuple[int, int, int]:
    """Return the output size and the padding before and after, in one spatial dimension."""
    extent = (taps - 1) * dilation + 1
    if padding in ("SAME", "SAME_LOWER"):
        out = -(-size // stride)
        total = max(0, (out - 1) * stride + extent - size)
        small, large = total // 2, total - total // 2
        return (out, small, large) if padding == "SAME" else (out, large, small)
    named = {"VALID": (0, 0), "FULL": (extent - 1, extent - 1)}
    before, after = named[padding] if isinstance(padding, str) else padding
    out = (size + before + after - extent) // stride + 1
    if out < 1:
        raise ValueError(f"a window of {extent} does not fit into {size} + {before} + {after}")
    return out, before, after


def resolve(spatial: Pair, taps: Pair, strides: Pair, dilations: Pair, padding: Padding) -> tuple[Pair, Pads]:
    """Return the spatial output size, and the padding as pairs."""
    modes = (padding, padding) if isinstance(padding, str) else padding
    rules = [window_rule(*one) for one in zip(spatial, taps, strides, dilations, modes, strict=True)]
    return (rules[0][0], rules[1][0]), (rules[0][1:], rules[1][1:])


def output_shape(x_shape, w_shape, *, strides=(1, 1), padding="VALID", dilations=(1, 1)) -> tuple[int, ...]:
    """Return the NHWC shape of the output."""
    size, _ = resolve(x_shape[1:3], w_shape[:2], strides, dilations, padding)
    return (x_shape[0], *size, w_shape[3])


def _wide(array: Array) -> Array:
    return np.asarray(array, dtype=np.int64 if array.dtype.kind in "bui" else np.float64)


def _taps(taps: Pair, out: Pair, strides: Pair, dilations: Pair) -> Iterator[tuple[Pair, tuple[slice, slice]]]:
    """Yield each filter tap, with the pixels of the padded image that it meets."""
    for tap in np.ndindex(*taps):
        starts = [i * d for i, d in zip(tap, dilations, strict=True)]
        yield tap, tuple(slice(b, b + (o - 1) * s + 1, s) for b, o, s in zip(starts, out, strides, strict=True))


def _groups(groups: int, channels: int, filters: int) -> Iterator[tuple[slice, slice]]:
    """Yield the input channels and the filters of each group."""
    c, k = channels // groups, filters // groups
    for g in range(groups):
        yield slice(g * c, (g + 1) * c), slice(g * k, (g + 1) * k)


def conv2d(x, w, *, strides=(1, 1), padding="VALID", dilations=(1, 1), groups=1) -> Array:
    """Return the convolution of NHWC ``x`` with HWIO ``w``."""
    x, w = _wide(x), _wide(w)
    out, pads = resolve(x.shape[1:3], w.shape[:2], strides, dilations, padding)
    y = np.zeros((x.shape[0], *out, w.shape[3]), np.result_type(x, w))
    if y.size == 0:
        return y
    padded = np.pad(x, ((0, 0), *pads, (0, 0)))
    for (i, j), (rows, columns) in _taps(w.shape[:2], out, strides, dilations):
        for c, k in _groups(groups, x.shape[3], w.shape[3]):
            y[..., k] += padded[:, rows, columns, c] @ w[i, j, :, k]
    return y


def backprop_filter(x, w_shape, dy, *, strides=(1, 1), padding="VALID", dilations=(1, 1), groups=1) -> Array:
    """Return the gradient of HWIO shape ``w_shape``, from NHWC ``x`` and ``dy``."""
    x, dy = _wide(x), _wide(dy)
    out, pads = resolve(x.shape[1:3], w_shape[:2], strides, dilations, padding)
    dw = np.zeros(w_shape, np.result_type(x, dy))
    if dy.size == 0 or dw.size == 0:
        return dw
    padded = np.pad(x, ((0, 0), *pads, (0, 0)))
    for (i, j), (rows, columns) in _taps(w_shape[:2], out, strides, dilations):
        for c, k in _groups(groups, x.shape[3], w_shape[3]):
            pixels = padded[:, rows, columns, c]
            dw[i, j, :, k] = pixels.reshape(-1, pixels.shape[3]).T @ dy[..., k].reshape(-1, w_shape[3] // groups)
    return dw


def backprop_input(x_shape, w, dy, *, strides=(1, 1), padding="VALID", dilations=(1, 1), groups=1) -> Array:
    """Return the gradient of NHWC shape ``x_shape``, from HWIO ``w`` and NHWC ``dy``."""
    w, dy = _wide(w), _wide(dy)
    out, pads = resolve(x_shape[1:3], w.shape[:2], strides, dilations, padding)
    (top, bottom), (left, right) = pads
    _, height, width, channels = x_shape
    padded = np.zeros((x_shape[0], height + top + bottom, width + left + right, channels), np.result_type(w, dy))
    if dy.size:
        for (i, j), (rows, columns) in _taps(w.shape[:2], out, strides, dilations):
            for c, k in _groups(groups, channels, w.shape[3]):
                padded[:, rows, columns, c] += dy[..., k] @ w[i, j, :, k].T
    return padded[:, top : top + height, left : left + width, :]


OPS = {"conv2d": conv2d, "conv2d_backprop_filter": backprop_filter, "conv2d_backprop_input": backprop_input}


def magnitude(op: str, *arguments, **geometry) -> Array:
    """Return the operation on the absolute values: the scale of the rounding error of each element."""
    return OPS[op](*(np.abs(_wide(a)) if isinstance(a, np.ndarray) else a for a in arguments), **geometry)


def terms(op: str, x_shape, w_shape, y_shape) -> int:
    """Return the length of the longest sum behind one element."""
    taps = w_shape[0] * w_shape[1]
    return {
        "conv2d": taps * w_shape[2],
        "conv2d_backprop_filter": y_shape[0] * y_shape[1] * y_shape[2],
        "conv2d_backprop_input": taps * w_shape[3],
    }[op]


def error_bound(length: int, scale: Array, accumulator: np.dtype) -> Array:
    """Return the most that sums of ``length`` products may be off, given the same sums of absolute values.

    In blocks of at most 512 terms that are added to a second-level sum, an element passes through at most
    ``min(length, 512)`` additions in its block and one for each block; each of them, the product and the last rounding
    are off by half an epsilon of ``scale`` at most.  The bound allows for twice that.
    """
    return (min(length, 512) + length // 512 + 2) * float(np.finfo(accumulator).eps) * scale
