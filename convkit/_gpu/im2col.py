"""The family im2col: patches of bounded pieces, multiplied by cuBLAS; every layout, dtype and geometry.

Patches of a piece are gathered into scratch memory, and products per group follow, each over at most as many terms as
an accumulator may take. The result of a piece is written where it belongs if it is a matrix there and can hold the
sums, else to scratch, and copied or finished from there. Which way the patch matrix lies follows the arrays: pixels are
its neighbours where they are neighbours in the image, or where a pixel has few channels. No part of this has run on a
GPU yet; PIECE_BYTES and FEW_CHANNELS are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import HALVES, Operand
from .._epilogue import Epilogue, Terms
from .._geometry import ConvGeometry
from .._registry import FusedPlan, Implementation, NeedsWorkspace, Plan, Problem
from . import blas, launch, matrices, memory, patches, products
from .checks import array_objection, check_addresses
from .epilogue import run_float
from .layout import copy
from .matrices import Room
from .pieces import Piece, Size, largest, most_touched, pieces, touched

# Scratch memory of one piece where the limit allows more: enough work for a product to fill a GPU, and a small multiple
# of its last-level cache.
PIECE_BYTES = 128 * 2**20
# Pixels of fewer channels than that are gathered with pixels as neighbours, so that whole lines are written.
FEW_CHANNELS = 8
# A double is exact enough for any sum, and longer products are faster.
MOST_TERMS = {**products.MOST_TERMS, "float64": 4096}
# The part of a piece's memory that partial filter gradients may take.
SLICES_PART = 4


def _multiply(a: Any, b: Any, out: Any, tf32: bool, most: int, accumulate: bool = False) -> None:
    """Multiply matrices per group, in pieces of the sums that are added up in the result."""
    if len(a) == 1:
        a, b, out = a[0], b[0], out[0]
    terms = a.shape[-1]
    for first in range(0, terms, most):
        part = slice(first, min(first + most, terms))
        blas.product(a[..., part], b[..., part, :], out, accumulate=accumulate or first > 0, tf32=tf32)


class _Matrices(Plan):
    """What the three operations share: sizes per pixel, and the filter as a matrix."""

    def __init__(self, problem: Problem) -> None:
        g = problem.geometry
        self.problem = problem
        self.op, self.g = problem.op, g
        self.tf32 = problem.precision == "fast"
        self.sums = products.sums_of(problem.dtype)
        self.itemsize = 2 if problem.dtype in HALVES else self.sums.itemsize
        self.terms = g.filter_size[0] * g.filter_size[1] * g.group_in
        self.patch_bytes = g.groups * self.terms * self.itemsize
        self.limit = problem.workspace_limit
        self.size: Size | None = None

    @property
    def budget(self) -> int:
        """Bytes for one piece."""
        return min(self.limit, max(PIECE_BYTES, self.least))

    @property
    def least(self) -> int:
        """Bytes that the smallest piece takes."""
        return self._nbytes((1, 1, 1))

    def _nbytes(self, size: Size) -> int:
        raise NotImplementedError

    def workspace(self, threads: int) -> int:
        assert self.size is not None
        return self._nbytes(self.size)

    def _windows(self, piece: Piece) -> patches.Windows:
        """Return the windows of a piece of the result."""
        g = self.g
        starts = piece.rows.start, piece.columns.start
        first = tuple(at * step - pad for at, step, pad in zip(starts, g.strides, g.pad_before, strict=True))
        return patches.Windows(piece.size[1:], _two(g.filter_size), _two(g.strides), _two(g.dilations), _two(first))

    def _patches(
        self, room: Room, pixels: int, dtype: np.dtype[Any], turned: bool, by_channels: bool
    ) -> tuple[Any, Any]:
        """Return patches as matrices per group and, for `gather` and `scatter`, by taps and channels."""
        g = self.g
        taps = g.filter_size[0] * g.filter_size[1]
        flat = room.flat(pixels * g.groups * self.terms, dtype)
        inner = (g.group_in, taps) if by_channels else (taps, g.group_in)
        if turned:
            matrix = flat.reshape(g.groups, self.terms, pixels).transpose(0, 2, 1)
            four = flat.reshape(g.groups, *inner, pixels).transpose(0, 3, 1, 2)
        else:
            matrix = flat.reshape(g.groups, pixels, self.terms)
            four = flat.reshape(g.groups, pixels, *inner)
        return matrix, four.transpose(0, 1, 3, 2) if by_channels else four


def _two(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second


def _pixels_fastest(operand: Operand) -> bool:
    """Tell whether pixels lie closer together than channels."""
    return abs(operand.strides[2]) < abs(operand.strides[3])


class _Filter:
    """How a filter becomes a matrix per group: where it lies, by taps or by channels first, or as a copy."""

    def __init__(self, g: ConvGeometry, operand: Operand, may_turn: bool) -> None:
        self.groups = g.groups
        sizes, strides = operand.shape, [stride // operand.itemsize for stride in operand.strides]
        ways = [(False, (0, 1, 2))] + ([(True, (2, 0, 1))] if may_turn else [])
        self.by_channels, self.order = ways[0]
        self.copied = g.groups > 1 and strides[3] <= 0
        for by_channels, order in ways if not self.copied else []:
            inner = [sizes[axis] for axis in order], [strides[axis] for axis in order]
            rows, row = sizes[0] * sizes[1] * sizes[2], matrices.step_of(*inner)
            if matrices.joins(*inner) and matrices.is_matrix(rows, row, g.group_out, strides[3]):
                self.by_channels, self.order = by_channels, order
                return
        self.copied = True

    def matrix(self, op: str, weights: Any) -> Any:
        """Return (groups, terms, channels out)."""
        taken = weights.transpose(*self.order, 3)
        if self.copied:
            target = Room(op, weights.nbytes).dense(taken.shape, weights.dtype, False)
            copy(taken, target)
            taken = target
        return matrices.by_groups(taken.reshape(-1, taken.shape[-1]), self.groups)


class ForwardPlan(_Matrices, FusedPlan):
    """Patches times filter."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        g = self.g
        image, weights = problem.operands[:2]
        # Halves are summed where they belong if the sum is short enough to be kept in one accumulator.
        half = problem.dtype in HALVES
        short = self.terms <= MOST_TERMS[problem.dtype] and problem.epilogue is None and problem.out.dtype in HALVES
        # What the products are written in; None stands for the dtype of the filter.
        self.result = np.dtype(np.float32) if half and not short else None
        self.turned = _pixels_fastest(image) or g.group_in < FEW_CHANNELS
        self.filter = _Filter(g, weights, may_turn=self.turned)
        self.out_turned = _pixels_fastest(problem.out)
        self.fixed = weights.itemsize * self.terms * g.out_channels if self.filter.copied else 0
        self.most = MOST_TERMS[problem.dtype if self.result is None else "float32"]
        self.size = largest((g.batch, g.out_size[0], g.out_size[1]), self._nbytes, self.budget)
        self.copies = ("input: its patches, piece by piece",)
        if self.filter.copied:
            self.copies += ("filter: brought into the order of the patches",)
        if self.size is not None and not self._in_place(self.size):
            self.copies += ("result: computed in scratch, piece by piece",)

    def _result_bytes(self) -> int:
        """Bytes of one number of a result in scratch."""
        return self.result.itemsize if self.result is not None else self.itemsize

    def _in_place(self, size: Size) -> bool:
        out, e = self.problem.out, self.problem.epilogue
        holds = out.dtype == (self.result.name if self.result is not None else self.problem.dtype)
        if not holds or (e is not None and e.onto_side):
            return False
        return matrices.pixels_in_place((*size, self.g.out_channels), out.strides, self.g.groups, out.itemsize)

    def _nbytes(self, size: Size) -> int:
        pixels = math.prod(size)
        beside = 0 if self._always_in_place() else self.g.out_channels * self._result_bytes()
        return self.fixed + pixels * (self.patch_bytes + beside)

    def _always_in_place(self) -> bool:
        """Tell whether pieces of any size are matrices in the result."""
        g = self.g
        return all(self._in_place((n, i, g.out_size[1])) for n, i in ((g.batch, g.out_size[0]), (1, 1)))

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        self._run(operands, None, out)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Any) -> None:
        self._run(operands, terms, out)

    def _run(self, operands: Sequence[Any], terms: Terms | None, out: Any) -> None:
        check_addresses(self.problem, (*operands, out))
        g, e = self.g, self.problem.epilogue
        image, weights, *beside = operands
        assert self.size is not None
        kernel = self.filter.matrix(self.op, weights)
        result = weights.dtype if self.result is None else self.result
        most = math.prod(self.size)
        room = Room(self.op, most * self.patch_bytes)
        aside = Room(self.op, most * g.out_channels * result.itemsize)
        for piece in pieces((g.batch, *g.out_size), self.size):
            count = math.prod(piece.size)
            matrix, four = self._patches(room, count, weights.dtype, self.turned, self.filter.by_channels)
            patches.gather(image[piece.images], four, self._windows(piece))
            target = out[piece.place]
            in_place = self._in_place(piece.size)
            sums = target if in_place else aside.dense((*piece.size, g.out_channels), result, self.out_turned)
            _multiply(matrix, kernel, matrices.of_pixels(sums, g.groups), self.tf32, self.most)
            self._finish(e, terms, sums, beside[0][piece.place] if beside else None, target)

    def _finish(self, e: Epilogue | None, terms: Terms | None, sums: Any, side: Any, target: Any) -> None:
        if e is not None:
            assert terms is not None
            run_float(e, terms, sums, side, target)
        elif sums is not target:
            copy(sums, target)


class InputGradientPlan(_Matrices):
    """The gradient of patches, and of every pixel the sum of those that hold it.

    Pieces are pixels of the image; patches that meet two pieces are computed for both.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        g = self.g
        weights, gradient = problem.operands
        self.turned = _pixels_fastest(problem.out) or g.group_in < FEW_CHANNELS
        self.filter = _Filter(g, weights, may_turn=self.turned)
        self.gradient_turned = _pixels_fastest(gradient)
        self.fixed = weights.itemsize * self.terms * g.out_channels if self.filter.copied else 0
        # Sums over channels out; float32 patches even of halves.
        self.patch_bytes = g.groups * self.terms * self.sums.itemsize
        self.most = MOST_TERMS[self.sums.name]
        self.size = largest((g.batch, *_two(g.in_size)), self._nbytes, self.budget)
        self.copies = ("result: the gradients of its patches, piece by piece",)
        if self.filter.copied:
            self.copies += ("filter: brought into the order of the patches",)
        if not self._in_place((g.batch, *_two(g.out_size))):
            self.copies += ("out_backprop: brought into the order of a matrix, piece by piece",)

    def _in_place(self, size: Size) -> bool:
        gradient = self.problem.operands[1]
        sizes = (*size, self.g.out_channels)
        return matrices.pixels_in_place(sizes, gradient.strides, self.g.groups, gradient.itemsize)

    def _windows_of(self, size: Size) -> int:
        """Return how many windows meet a piece, at most."""
        g = self.g
        axes = zip(size[1:], g.effective_filter, g.strides, g.out_size, strict=True)
        return size[0] * math.prod(most_touched(count, extent, step, most) for count, extent, step, most in axes)

    def _nbytes(self, size: Size) -> int:
        beside = self.g.out_channels * self.problem.operands[1].itemsize
        return self.fixed + self._windows_of(size) * (self.patch_bytes + beside)

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        check_addresses(self.problem, (*operands, out))
        g = self.g
        weights, gradient = operands
        assert self.size is not None
        kernel = self.filter.matrix(self.op, weights).transpose(0, 2, 1)
        most = self._windows_of(self.size)
        room = Room(self.op, most * self.patch_bytes)
        aside = Room(self.op, most * g.out_channels * gradient.itemsize)
        for piece in pieces((g.batch, *g.in_size), self.size):
            rows, columns = (
                touched(part.start, part.stop - part.start, pad, extent, step, most)
                for part, pad, extent, step, most in zip(
                    piece.place[1:], g.pad_before, g.effective_filter, g.strides, g.out_size, strict=True
                )
            )
            target = out[piece.place]
            met = Piece(piece.images, rows, columns)
            count = math.prod(met.size)
            if count == 0:
                memory.clear(target)
                continue
            matrix, four = self._patches(room, count, self.sums, self.turned, self.filter.by_channels)
            part, in_place = gradient[met.place], self._in_place(met.size)
            given = part if in_place else copied(part, aside, self.gradient_turned)
            _multiply(matrices.of_pixels(given, g.groups), kernel, matrix, self.tf32, self.most)
            patches.scatter(four, target, self._windows(met), (piece.rows.start, piece.columns.start))


def copied(part: Any, aside: Room, turned: bool) -> Any:
    """Return a copy of pixels that join."""
    target = aside.dense(part.shape, part.dtype, turned)
    copy(part, target)
    return target


class FilterGradientPlan(_Matrices):
    """Patches times the result's gradient, over all pixels.

    The pixels are cut into slices as long as an accumulator may sum. Several slices are multiplied at once, into sums
    of their own, and the next ones are added to those; at the end the sums are added up in order and rounded once.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        g = self.g
        image, gradient = problem.operands
        self.turned = _pixels_fastest(image) or g.group_in < FEW_CHANNELS
        self.gradient_turned = _pixels_fastest(gradient)
        self.slice = MOST_TERMS[self.sums.name]
        self.sum_count = self.terms * g.out_channels
        self.sum_bytes = self.sum_count * self.sums.itemsize
        self.size = largest((g.batch, *_two(g.out_size)), self._nbytes, self.budget)
        self.copies = ("input: its patches, piece by piece",)
        if not self._in_place((g.batch, *_two(g.out_size))):
            self.copies += ("out_backprop: brought into the order of a matrix, piece by piece",)
        self.copies += ("result: sums of slices of the pixels in scratch",)

    def _in_place(self, size: Size) -> bool:
        gradient = self.problem.operands[1]
        sizes = (*size, self.g.out_channels)
        return matrices.pixels_in_place(sizes, gradient.strides, self.g.groups, gradient.itemsize)

    def _slices(self, pixels: int) -> int:
        """Return how many slices are summed at once: all of a piece, if their sums take a small part of its memory."""
        room = max(self.least, min(self.limit, PIECE_BYTES)) // SLICES_PART
        return max(1, min(pixels // self.slice, room // self.sum_bytes))

    @property
    def least(self) -> int:
        beside = self.g.out_channels * self.problem.operands[1].itemsize
        return self.sum_bytes + self.patch_bytes + beside

    def _nbytes(self, size: Size) -> int:
        pixels = math.prod(size)
        beside = self.g.out_channels * self.problem.operands[1].itemsize
        return self._slices(pixels) * self.sum_bytes + pixels * (self.patch_bytes + beside)

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        check_addresses(self.problem, (*operands, out))
        g = self.g
        image, gradient = operands
        assert self.size is not None
        most = math.prod(self.size)
        parts = self._slices(most)
        room = Room(self.op, most * self.patch_bytes)
        aside = Room(self.op, most * g.out_channels * gradient.itemsize)
        flat = memory.scratch(self.op, parts * self.sum_bytes).view(self.sums)
        sums = flat.reshape(parts, self.terms, g.out_channels)
        begun = False
        for piece in pieces((g.batch, *g.out_size), self.size):
            matrix, four = self._patches(room, math.prod(piece.size), gradient.dtype, self.turned, by_channels=False)
            patches.gather(image[piece.images], four, self._windows(piece))
            part, in_place = gradient[piece.place], self._in_place(piece.size)
            given = matrices.of_pixels(part if in_place else copied(part, aside, self.gradient_turned), g.groups)
            begun = self._add(matrix.transpose(0, 2, 1), given, sums, begun)
        launch.run(
            "sum_slices",
            (("ACC", launch.TYPES[self.sums.name]),),
            self.sum_count,
            (
                *(flat, np.int64(parts), np.int64(self.sum_count), out, launch.CODES[out.dtype.name]),
                *(np.int32(self.problem.accumulate), np.int64(g.filter_size[1]), np.int64(g.group_in)),
                *(np.int64(g.out_channels), *patches.steps_of(out)),
            ),
        )

    def _add(self, patch: Any, given: Any, sums: Any, begun: bool) -> bool:
        """Add the products of all slices of a piece, dealt out to the sums in turns."""
        g, length = self.g, self.slice
        pixels = patch.shape[2]
        whole = pixels // length
        for first in range(0, whole, len(sums)):
            count = min(len(sums), whole - first)
            cut = slice(first * length, (first + count) * length)
            for group in range(g.groups):
                channels = slice(group * g.group_out, (group + 1) * g.group_out)
                a = patch[group, :, cut].reshape(self.terms, count, length).transpose(1, 0, 2)
                b = given[group, cut].reshape(count, length, g.group_out)
                self._product(a, b, sums[:count, :, channels], begun or first > 0)
        rest = slice(whole * length, pixels)
        if whole * length < pixels:
            target = matrices.by_groups(sums[0], g.groups)
            _multiply(patch[:, :, rest], given[:, rest], target, self.tf32, length, begun or whole > 0)
        return True

    def _product(self, a: Any, b: Any, out: Any, accumulate: bool) -> None:
        if len(a) == 1:
            a, b, out = a[0], b[0], out[0]
        blas.product(a, b, out, accumulate=accumulate, tf32=self.tf32)


PLANS: dict[str, type[_Matrices]] = {
    "conv2d": ForwardPlan,
    "fused_conv2d": ForwardPlan,
    "conv2d_backprop_filter": FilterGradientPlan,
    "conv2d_backprop_input": InputGradientPlan,
}


class Im2col(Implementation):
    """Patches and matrix products; serves every floating-point dtype."""

    def __init__(self, op: str, dtype: str) -> None:
        super().__init__("gpu", "im2col", op, dtype)

    def objection(self, problem: Problem, machine: Any) -> str | None:
        if problem.empty:
            return None
        refusal = array_objection(problem) or blas.dtype_objection(problem.dtype, machine.capability)
        if refusal is not None:
            return refusal
        plan = PLANS[problem.op](problem)
        if plan.size is None:
            return NeedsWorkspace(
                f"its smallest piece needs {plan.least} bytes of workspace, more than the limit of "
                f"{problem.workspace_limit} bytes"
            )
        return blas.capture_objection()

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return PLANS[problem.op](problem)
