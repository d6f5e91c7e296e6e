"""What the project's own kernels want of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._errors import UnsupportedError
from .._registry import Problem


def array_objection(problem: Problem) -> str | None:
    """Return why no kernel can read or write the arrays of a problem, or None."""
    for operand in (*problem.operands, problem.out):
        if not operand.native:
            return f"{operand.role} has bytes in the order of other machines, which its kernels do not read"
        if any(n > 1 and stride % operand.itemsize for n, stride in zip(operand.shape, operand.strides, strict=True)):
            return f"{operand.role} has strides that are no multiples of its {operand.itemsize} bytes per element"
    return None


def check_addresses(problem: Problem, arrays: Sequence[Any]) -> None:
    """Raise if an array begins where a GPU cannot load its elements: that would be an error of the whole process."""
    for operand, array in zip((*problem.operands, problem.out), arrays, strict=True):
        if array.data.ptr % operand.itemsize:
            raise UnsupportedError(
                f"{problem.op}: {operand.role} begins at address {array.data.ptr:#x}, but must begin at a multiple of "
                f"its {operand.itemsize} bytes per element; copy it, e.g. {operand.role}.copy()"
            )
