"""Convolutions that are matrix products: which axes become rows, columns and terms, and in how many calls of cuBLAS.

Where a filter is one pixel, every pixel of the image is a row; where it is as large as the image, the whole image is
one.  Then, per group, an image is a matrix of rows by terms, a filter one of terms by output channels, and an output
one of rows by output channels; each of the three operations multiplies two of them into the third.  Axes that lie one
in the other in both arrays that have them become one; what cannot be joined is a batch of products, or a few calls.

Sums of float32 run over at most 512 terms before they are added to others, as everywhere in convkit: longer ones are
cut.  Parts go to places of their own in scratch memory, all in one batch, and are added up in order afterwards; or,
where there are few of them and the result is large, one after the other into the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._arrays import Operand
from .._registry import NeedsWorkspace, Problem
from . import blas
from .machine import GpuMachine

# Terms that one accumulator may take, by the result's dtype.  A result in 16 bits is so much coarser than a float32 sum
# of 4096 terms that cutting the sum, which takes a result in float32 beside it, would change little.
MOST_TERMS = {"float32": 512, "float16": 4096, "bfloat16": 4096}
# Pieces of a sum begin at multiples of so many terms, for whole vectors.
PIECE = 8
# More calls than that take longer to launch than most convolutions run.
MOST_CALLS = 64
# Parts are added into the result itself, call by call, where they are at most so many and each fills the GPU.
MOST_IN_TURN = 4
# Rows and columns of a result that one multiprocessor takes at a time.
TILE = 128

# Axes of sums that are added up by one kernel.
MOST_AXES = 4

# What sums are kept in: dtype and bytes.
SUMS = {"float32": ("float32", 4), "float64": ("float64", 8), "float16": ("float32", 4), "bfloat16": ("float32", 4)}
# Image, filter and output as the two factors and the result of each operation.
_ORDER = {
    "conv2d": (0, 1, 2),
    "fused_conv2d": (0, 1, 2),
    "conv2d_backprop_filter": (0, 2, 1),
    "conv2d_backprop_input": (2, 1, 0),
}
# Which kinds of axes are rows, terms and columns of those factors.
_MATRICES = {
    "conv2d": ("pixels", "inputs", "outputs"),
    "fused_conv2d": ("pixels", "inputs", "outputs"),
    "conv2d_backprop_filter": ("inputs", "pixels", "outputs"),
    "conv2d_backprop_input": ("pixels", "outputs", "inputs"),
}


def sums_of(dtype: str) -> np.dtype[Any]:
    """Return the dtype that sums are kept in."""
    return np.dtype(SUMS[dtype][0])


class Axis(NamedTuple):
    """An index of a product, and by how many bytes it moves in the factors and the result; None where it does not."""

    size: int
    a: int | None
    b: int | None
    out: int | None


class Call(NamedTuple):
    """One call of cuBLAS: where its operands and its result begin, in bytes, and whether it adds to the result."""

    product: blas.Product
    a: int
    b: int
    out: int
    adds: bool


@dataclass(frozen=True, slots=True)
class Scratch:
    """Sums beside the result: so many parts, one after the other, that are added up and go to the result at last.

    ``sizes`` are those of the axes of one part, which is dense; ``strides`` are the bytes between their elements in the
    result.
    """

    parts: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def part_bytes(self) -> int:
        """Bytes of one part."""
        return math.prod(self.sizes) * self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.parts * self.part_bytes


@dataclass(frozen=True, slots=True)
class ProductSpec:
    """All calls of a convolution; they write to scratch memory if there is any, else to the result."""

    calls: tuple[Call, ...]
    scratch: Scratch | None


def shape_objection(problem: Problem) -> str | None:
    """Return why a convolution is no matrix product, or None."""
    g = problem.geometry
    for name, kind in zip(("height", "width"), _kinds(problem), strict=True):
        if kind is None:
            taps, size = ("x".join(map(str, each)) for each in (g.filter_size, g.in_size))
            return (
                f"in {name}, a {taps} filter on a {size} image with strides {g.strides} and padding {g.pad_before}, "
                f"{g.pad_after} is neither one pixel at stride 1 nor as large as the image, without padding"
            )
    return None


def _kinds(problem: Problem) -> list[str | None]:
    """Return of each spatial dimension whether it is one of pixels or of inputs to every sum."""
    g = problem.geometry
    found: list[str | None] = []
    for size, taps, out, stride, before in zip(
        g.in_size, g.filter_size, g.out_size, g.strides, g.pad_before, strict=True
    ):
        pixels = before == 0 and taps == 1 and size == out and (stride == 1 or out == 1)
        found.append("pixels" if pixels else "inputs" if before == 0 and taps == size and out == 1 else None)
    return found


def _arrays(problem: Problem) -> tuple[Operand, Operand, Operand]:
    """Return image, filter and output."""
    first, second = problem.operands[:2]
    if problem.op == "conv2d_backprop_filter":
        return first, problem.out, second
    return (problem.out, first, second) if problem.op == "conv2d_backprop_input" else (first, second, problem.out)


def _axes(problem: Problem) -> dict[str, list[Axis]]:
    """Return the axes of each kind, joined where they can be; those of one element are left out."""
    g = problem.geometry
    x, w, y = (operand.strides for operand in _arrays(problem))
    axes: dict[str, list[tuple[int, int | None, int | None, int | None]]] = {
        "pixels": [(g.batch, x[0], None, y[0])],
        "inputs": [(g.group_in, x[3], w[2], None)],
        "outputs": [(g.group_out, None, w[3], y[3])],
        "groups": [(g.groups, g.group_in * x[3], g.group_out * w[3], g.group_out * y[3])],
    }
    for i, kind in enumerate(_kinds(problem)):
        only = (None, y[1 + i]) if kind == "pixels" else (w[i], None)
        axes[str(kind)].append((g.in_size[i], x[1 + i], *only))
    order = _ORDER[problem.op]
    return {
        kind: _joined([Axis(each[0], *(each[1 + place] for place in order)) for each in members])
        for kind, members in axes.items()
    }


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Return axes from the innermost to the outermost, joined where one lies in the other wherever they move."""
    found: list[Axis] = []
    for outer in sorted((a for a in axes if a.size > 1), key=lambda axis: max(abs(step or 0) for step in axis[1:])):
        inner = found[-1] if found else None
        if inner is not None and all(
            near is None or far == inner.size * near for near, far in zip(inner[1:], outer[1:], strict=True)
        ):
            found[-1] = inner._replace(size=inner.size * outer.size)
        else:
            found.append(outer)
    return found


class _Cut(NamedTuple):
    """Pieces of a sum: so many whole ones of one length, and what is left for a last, shorter one."""

    whole: int
    length: int
    rest: int

    @property
    def pieces(self) -> int:
        return self.whole + (self.rest > 0)


def _cut(terms: int, most: int | None) -> _Cut:
    """Cut a sum into pieces of about the same length."""
    if most is None or terms <= most:
        return _Cut(1, terms, 0)
    length = -(-terms // -(-terms // most))
    length += -length % PIECE
    return _Cut(terms // length, length, terms % length)


@dataclass(frozen=True, slots=True)
class _Assigned:
    """A product whose axes have been assigned: three make matrices, the others are outside of them."""

    rows: Axis
    terms: Axis
    columns: Axis
    outside: tuple[Axis, ...]

    @property
    def free(self) -> list[Axis]:
        """The axes of the result, from the outermost to the innermost."""
        axes = [*(axis for axis in self.outside if axis.out is not None), self.rows, self.columns]
        return sorted(axes, key=lambda axis: -abs(axis.out or 0))

    @property
    def summed(self) -> list[Axis]:
        """The axes outside of the matrices that are summed over."""
        return [axis for axis in self.outside if axis.out is None]


def plan(problem: Problem, machine: GpuMachine) -> ProductSpec | str:
    """Return the calls for a problem without `shape_objection`, or a sentence saying why there are none."""
    if problem.empty:
        return ProductSpec((), None)
    axes = _axes(problem)
    one = Axis(1, 0, 0, 0)
    choices = [axes[kind] or [one] for kind in _MATRICES[problem.op]]
    refusals: list[str] = []
    # The largest axes make the matrices, if they lie as cuBLAS wants them.
    for rows, terms, columns in sorted(
        itertools.product(*choices), key=lambda found: -math.prod(axis.size for axis in found)
    ):
        outside = tuple(axis for kind in axes.values() for axis in kind if axis not in (rows, terms, columns))
        spec = _calls_by_the_best_way(problem, machine, _Assigned(rows, terms, columns, outside))
        if isinstance(spec, ProductSpec):
            return spec
        refusals.append(spec)
    return next((r for r in refusals if isinstance(r, NeedsWorkspace)), refusals[0])


def _calls_by_the_best_way(problem: Problem, machine: GpuMachine, axes: _Assigned) -> ProductSpec | str:
    """Return the calls for axes that have been assigned, or why there are none."""
    cut = _cut(axes.terms.size, MOST_TERMS.get(problem.out.dtype))
    parts = cut.pieces * math.prod(axis.size for axis in axes.summed)
    if parts == 1:
        return _spec(problem, axes, cut, None)
    dtype, itemsize = SUMS[problem.dtype]
    wide = problem.out.dtype == dtype
    tiles = -(-axes.rows.size // TILE) * -(-axes.columns.size // TILE)
    tiles *= math.prod(axis.size for axis in axes.outside if axis.out is not None)
    if wide and parts <= MOST_IN_TURN and tiles >= machine.processors:
        return _spec(problem, axes, cut, None)
    kept = [axis for axis in axes.free if axis.size > 1]
    if len(kept) > MOST_AXES:
        return f"its sums have {len(kept)} axes that lie apart, more than {MOST_AXES}"
    form = tuple(axis.size for axis in kept), tuple(axis.out or 0 for axis in kept), dtype, itemsize
    every = Scratch(parts, *form)
    limit = problem.workspace_limit
    if every.nbytes <= limit and isinstance(spec := _spec(problem, axes, cut, every), ProductSpec):
        return spec
    if wide:
        return _spec(problem, axes, cut, None)
    if every.part_bytes > limit:
        return NeedsWorkspace(
            f"its sums take {every.part_bytes} bytes of workspace, more than the limit of {limit} bytes"
        )
    return _spec(problem, axes, cut, Scratch(1, *form))


def _spec(problem: Problem, axes: _Assigned, cut: _Cut, scratch: Scratch | None) -> ProductSpec | str:
    """Return the calls that write to the result, or to scratch; where that has one part only, they add up there."""
    part, own = 0, {axis: axis.out or 0 for axis in axes.free}
    if scratch is not None:
        inner = scratch.itemsize
        for axis in reversed(axes.free):
            own[axis] = inner
            inner *= axis.size
        part = scratch.part_bytes if scratch.parts > 1 else 0
    outer = [axis._replace(out=own[axis]) for axis in axes.outside if axis.out is not None]
    step = part * cut.pieces
    for axis in axes.summed:
        outer.append(axis._replace(out=step))
        step *= axis.size
    a, b = axes.terms.a or 0, axes.terms.b or 0
    whole = Axis(cut.whole, cut.length * a, cut.length * b, part)
    runs: list[tuple[int, list[Axis], list[int]]] = [
        (cut.length, [*outer, whole], [0, 0, 0]),
        (cut.rest, outer, [cut.whole * (step or 0) for step in whole[1:]]),
    ]
    dtype = (problem.out.dtype, problem.out.itemsize) if scratch is None else (scratch.dtype, scratch.itemsize)
    calls: list[Call] = []
    for length, outside, (first_a, first_b, first_out) in runs:
        if not length:
            continue
        found = _calls(problem, axes, length, outside, (own[axes.rows], own[axes.columns]), dtype)
        if isinstance(found, str):
            return found
        calls += [c._replace(a=c.a + first_a, b=c.b + first_b, out=c.out + first_out) for c in found]
    if len(calls) > MOST_CALLS:
        return f"it takes {len(calls)} products that are not at regular distances, more than {MOST_CALLS}"
    seen: set[int] = set()
    for i, call in enumerate(calls):
        calls[i] = call._replace(adds=call.out in seen)
        seen.add(call.out)
    return ProductSpec(tuple(calls), scratch)


def _calls(
    problem: Problem,
    axes: _Assigned,
    terms: int,
    outside: Sequence[Axis],
    steps: tuple[int, int],
    dtype: tuple[str, int],
) -> list[Call] | str:
    """Return the calls for sums of so many terms, one for each index outside of matrices and cuBLAS's batch."""
    loops = [axis for axis in outside if axis.size > 1]
    batch = max((axis for axis in loops if axis.out), default=None, key=lambda axis: axis.size)
    if batch is None:
        batch = Axis(1, 0, 0, 0)
    else:
        loops.remove(batch)
    if math.prod(axis.size for axis in loops) > MOST_CALLS:
        return f"it takes more than {MOST_CALLS} products that are not at regular distances"
    rows, columns = axes.rows.size, axes.columns.size
    left, right = (_arrays(problem)[place] for place in _ORDER[problem.op][:2])
    found = blas.arrange(
        blas.Matrix((batch.size, rows, terms), _steps(batch.a, axes.rows.a, axes.terms.a), left.dtype, left.itemsize),
        blas.Matrix(
            (batch.size, terms, columns), _steps(batch.b, axes.terms.b, axes.columns.b), right.dtype, right.itemsize
        ),
        blas.Matrix((batch.size, rows, columns), _steps(batch.out, *steps), *dtype),
    )
    if isinstance(found, str):
        return found
    calls = []
    for at in itertools.product(*(range(axis.size) for axis in loops)):
        a, b, out = (sum(i * (axis[n] or 0) for i, axis in zip(at, loops, strict=True)) for n in (1, 2, 3))
        calls.append(Call(found, a, b, out, adds=False))
    return calls


def _steps(*steps: int | None) -> tuple[int, ...]:
    return tuple(step or 0 for step in steps)
