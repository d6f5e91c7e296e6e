"""The family direct on int8 and uint8 images: exact int32 sums, finished in the kernel that sums them.

Wide groups are tiled through shared memory and multiplied four channels at a time; narrow ones, as depthwise, are
summed one result per thread. No workspace in any case. No part of this has run on a GPU yet; LEAST_FILTERS is an
estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._epilogue import Terms
from .._formats import VECTOR
from .._registry import FusedPlan, Implementation, Plan, Problem
from . import launch
from .checks import array_objection, check_addresses
from .epilogue import NO_TERMS, NOTHING, Int8Finish, pixels_fastest, vector_steps

# As in int8.cu.
PIXELS, FILTERS, THREADS = 128, 64, 256
# Groups of fewer filters leave most of a tile empty.
LEAST_FILTERS = 16
# A uint8 is a signed byte with its highest bit flipped, and smaller by 128.
FLIPS, OFFSETS = {"int8": 0, "uint8": 0x80808080}, {"int8": 0, "uint8": -128}


def _filter_steps(weights: Any) -> tuple[np.int64, ...]:
    """Return the strides of H, W, of blocks of four channels, of channels in a block, and of O."""
    steps = tuple(map(np.int64, weights.strides))
    return steps if len(steps) == 5 else (*steps[:2], np.int64(VECTOR * steps[2]), *steps[2:])


def _words(steps: Sequence[np.int64], lane: int, channels: int) -> bool:
    """Tell whether four channels are one word, if the array begins with one; ``lane`` is the place of their stride."""
    others = [int(step) for place, step in enumerate(steps) if place != lane]
    return bool(steps[lane] == 1) and not any(number % VECTOR for number in (*others, channels))


class Int8Plan(FusedPlan):
    """One launch for the convolution and its epilogue."""

    copies = ()

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        g = problem.geometry
        image, weights, *beside = problem.operands
        e = problem.epilogue or NOTHING
        self.image, self.weights = vector_steps(image), _filter_steps(weights)
        self.finish = Int8Finish(e, beside[0] if beside else None, problem.out)
        self.tiled = g.group_out >= LEAST_FILTERS
        pixels = g.batch * g.out_size[0] * g.out_size[1]
        self.work = pixels * g.out_channels
        if self.tiled:
            self.work = -(-pixels // PIXELS) * -(-g.group_out // FILTERS) * g.groups
        numbers = (
            *(self.work, *g.in_size, *g.out_size, g.out_channels, g.group_in, g.group_out),
            *(*g.filter_size, *g.strides, *g.dilations, *g.pad_before),
        )
        zero = e.input_zero_point + OFFSETS[image.dtype]
        self.rest = np.uint32(FLIPS[image.dtype]), np.int32(zero), *map(np.int64, numbers)
        self.by_words = _words(self.image, 4, g.group_in), _words(self.weights, 3, g.group_in)
        self.fastest = (
            np.int32(abs(self.image[2]) < abs(self.image[4])),
            np.int32(abs(self.weights[4]) < abs(self.weights[3])),
        )

    def workspace(self, threads: int) -> int:
        return 0

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        self._run(operands, NO_TERMS, out)

    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Any) -> None:
        self._run(operands, terms, out)

    def _run(self, operands: Sequence[Any], terms: Terms, out: Any) -> None:
        check_addresses(self.problem, (*operands, out))
        image, weights, *beside = operands
        finish = self.finish.arguments(terms, beside[0] if beside else None, out)
        arguments = image, *self.image, weights, *self.weights, *self.rest
        if self.tiled:
            aligned = (array.data.ptr % VECTOR == 0 for array in (image, weights))
            whole = [np.int32(words and begins) for words, begins in zip(self.by_words, aligned, strict=True)]
            batch = np.int64(self.problem.geometry.batch)
            arguments = *arguments, batch, *whole, *self.fastest, *finish
            launch.run_blocks("int8_tiles", (), self.work, (THREADS,), arguments)
        else:
            fastest = np.int32(pixels_fastest(self.problem.out))
            launch.run("int8_narrow", (), self.work, (*arguments, fastest, *finish))


class Int8Direct(Implementation):
    """Dot products of bytes; serves every int8 convolution that fits."""

    def __init__(self, op: str) -> None:
        super().__init__("gpu", "direct", op, "int8")

    def objection(self, problem: Problem, machine: Any) -> str | None:
        return None if problem.empty else array_objection(problem)

    def plan(self, problem: Problem, machine: Any) -> Plan:
        return Int8Plan(problem)
