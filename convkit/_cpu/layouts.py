"""Which arrays the engine can use as matrices where they lie, and which it has to copy or convert."""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import NamedTuple

from .._arrays import Operand

# CBLAS with 32-bit integers cannot express a larger distance between rows.
MAX_LD = 2**31 - 1


class Kind(enum.IntEnum):
    """As `ck_matrix_kind` in multiply.h."""

    COPY = 0
    ROWS = 1
    COLUMNS = 2


class Layout(NamedTuple):
    """A matrix without a copy: its kind, and the elements from one row (or column) to the next."""

    kind: Kind
    ld: int


COPY = Layout(Kind.COPY, 0)


def settle_strides(operand: Operand) -> Operand:
    """Give axes of length 1, whose strides mean nothing, the strides that they would have in a dense array."""
    strides = list(operand.strides)
    step = operand.itemsize
    for axis in reversed(range(len(strides))):
        if operand.shape[axis] <= 1:
            strides[axis] = step
        step = strides[axis] * max(1, operand.shape[axis])
    return replace(operand, strides=tuple(strides))


def computes_as_is(operand: Operand, arithmetic: str) -> bool:
    """Tell whether the elements are numbers that the arithmetic can use in place."""
    whole = all(stride % operand.itemsize == 0 for stride in operand.strides)
    return operand.dtype == arithmetic and operand.native and operand.aligned and whole


def is_plain(operand: Operand, arithmetic: str) -> bool:
    """Tell whether the channels of a pixel are neighbouring numbers that the arithmetic can use in place."""
    return computes_as_is(operand, arithmetic) and operand.strides[3] == operand.itemsize


def pixel_layout(operand: Operand, arithmetic: str) -> tuple[Layout, bool]:
    """Return how an N, H, W, C array is a matrix of pixels and channels, and whether across images too."""
    size = operand.itemsize
    _, height, width, channels = operand.shape
    s_n, s_h, s_w, s_c = operand.strides
    if not computes_as_is(operand, arithmetic):
        return COPY, True
    ld = s_w // size
    if s_c == size and s_h == width * s_w and channels <= ld <= MAX_LD:
        return Layout(Kind.ROWS, ld), s_n == height * s_h
    ld = s_c // size
    if s_w == size and s_h == width * size and height * width <= ld <= MAX_LD:
        return Layout(Kind.COLUMNS, ld), False
    return COPY, True


def filter_layout(
    operand: Operand, strides: tuple[int, int, int, int], sizes: tuple[int, ...], arithmetic: str
) -> Layout:
    """Return how a filter is a matrix of (tap row, tap column, channel in) and channel out.

    ``strides`` and ``sizes`` are in that order, for one group; in a gradient, in and out have changed places.
    """
    size = operand.itemsize
    s_a, s_b, s_in, s_out = strides
    rows, columns, n_in, n_out = sizes
    if n_in == 1:  # then terms are as far apart as taps
        s_in = s_b if columns > 1 else s_a
    if not computes_as_is(operand, arithmetic):
        return COPY
    dense_taps = (columns == 1 or s_b == n_in * s_in) and (rows == 1 or s_a == columns * n_in * s_in)
    if not dense_taps:
        return COPY
    ld = s_in // size
    if (s_out == size or n_out == 1) and n_out <= ld <= MAX_LD:
        return Layout(Kind.ROWS, ld)
    ld = s_out // size
    if (s_in == size or rows * columns * n_in == 1) and rows * columns * n_in <= ld <= MAX_LD:
        return Layout(Kind.COLUMNS, ld)
    return COPY


def conversion(operand: Operand, arithmetic: str) -> str | None:
    """Return a sentence on why elements are not used as they are, or None."""
    reasons = []
    if operand.dtype != arithmetic:
        reasons.append(f"{operand.dtype} to {arithmetic}")
    if not operand.native:
        reasons.append("byte order")
    if not operand.aligned:
        reasons.append("alignment")
    return ", ".join(reasons) or None
