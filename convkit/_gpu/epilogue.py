"""Epilogues of fused convolutions on the GPU, bit for bit those of the CPU (``elu`` as far as the two libraries' own
``expm1`` agree).

The kernels of `native` apply them to sums in registers; here they run over sums in memory, which cuBLAS and cuDNN
leave.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._epilogue import ACTIVATIONS, Epilogue, Terms
from .._formats import VECTOR
from . import launch
from .patches import steps_of

# What plain convolutions do with their sums: nothing.
NOTHING = Epilogue(False, None, False, None, 0.0, 0, 0, False)
NO_TERMS = Terms(None, 0.0, None)  # type: ignore[arg-type]  # no epilogue, no scale

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
_NO_STRIDES = (np.int64(0),) * 5


def pixels_fastest(array: Any) -> bool:
    """Tell whether an N, H, W, C array, or one of vectors, has its pixels closer together than its channels."""
    return bool(abs(array.strides[2]) < abs(array.strides[3])) and array.shape[2] > 1


class FloatFinish:
    """The arguments of ``finish`` in finish.cu, all but the arrays' addresses made once.

    ``side`` and ``out`` are arrays or operands of a problem.
    """

    def __init__(self, e: Epilogue, side: Any, out: Any) -> None:
        self._per_channel = np.int64(e.per_channel)
        self._side = (np.int32(0), *_NO_STRIDES[:4]) if side is None else (_code(side), *steps_of(side))
        self._activation = np.int32(ACTIVATIONS.index(e.activation)), np.float64(e.alpha)
        self._out = _code(out), *steps_of(out)

    def arguments(self, terms: Terms, side: Any, out: Any) -> tuple[Any, ...]:
        """Return the arguments for some arrays."""
        return (
            *(_or_null(terms.conv_scale), self._per_channel, _or_null(terms.bias), _or_null(side), *self._side),
            *(np.float64(terms.side_scale), *self._activation, out, *self._out),
        )


class Int8Finish:
    """The arguments of ``finish_int8`` in finish_int8.cu, all but the arrays' addresses made once.

    ``side`` and ``out`` are arrays or operands of a problem.
    """

    def __init__(self, e: Epilogue, side: Any, out: Any) -> None:
        low, high = RANGES.get(str(out.dtype), (0, 0))
        zero, relu = e.output_zero_point, e.activation == "relu"
        low = zero if relu else low
        self._per_channel, self._bias = np.int64(e.per_channel), launch.CODES[e.bias or "float32"]
        self._side = (np.int32(0), *_NO_STRIDES) if side is None else (_code(side), *vector_steps(side))
        self._limits = np.int32(relu), np.float32(low - zero), np.float32(high - zero), np.int32(zero)
        self._out = _code(out), *vector_steps(out)

    def arguments(self, terms: Terms, side: Any, out: Any) -> tuple[Any, ...]:
        """Return the arguments for some arrays."""
        return (
            *(_or_null(terms.conv_scale), self._per_channel, _or_null(terms.bias), self._bias),
            *(_or_null(side), *self._side, np.float32(terms.side_scale), *self._limits, out, *self._out),
        )


def vector_steps(array: Any) -> tuple[np.int64, ...]:
    """Return the strides in elements of N, H, W, of blocks of four channels, and of channels in a block."""
    steps = steps_of(array)
    return steps if len(steps) == 5 else (*steps[:3], np.int64(VECTOR * steps[3]), steps[3])


def channels_of(array: Any) -> int:
    """Return how many channels an array has that may hold them in vectors."""
    count: int = array.shape[3] * (array.shape[4] if array.ndim == 5 else 1)
    return count


def _or_null(array: Any) -> Any:
    return launch.NULL if array is None else array


def _code(array: Any) -> np.int32:
    return launch.CODES[str(array.dtype)]


def run_float(e: Epilogue, terms: Terms, sums: Any, side: Any, out: Any) -> None:
    """Write what becomes of float32 or float64 sums, all N, H, W, C; ``out`` may be ``sums`` or ``side``."""
    grid = np.int64(out.size), np.int32(pixels_fastest(out)), *map(np.int64, out.shape[1:])
    arguments = sums, *steps_of(sums), *grid, *FloatFinish(e, side, out).arguments(terms, side, out)
    launch.run("float_epilogue", (("ACC", launch.TYPES[sums.dtype.name]),), out.size, arguments)


def run_int8(e: Epilogue, terms: Terms, sums: Any, side: Any, out: Any) -> None:
    """Write what becomes of int32 sums; arrays are N, H, W, C or N, H, W, C/4, 4, and ``out`` may be ``side``."""
    numbers = map(np.int64, (*out.shape[1:3], channels_of(out)))
    grid = np.int64(out.size), np.int32(pixels_fastest(out)), *numbers
    arguments = sums, *vector_steps(sums), *grid, *Int8Finish(e, side, out).arguments(terms, side, out)
    launch.run("int8_epilogue", (), out.size, arguments)
