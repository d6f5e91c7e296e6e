"""The kernels without a register tile, depthwise and planar ones: which a level has, and how long their vectors are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .isa import levels


class Kernel(NamedTuple):
    """The kernels of one level and dtype, and the numbers in one of their vectors."""

    name: str
    isa: str
    arithmetic: str
    lanes: int


class Kernels(tuple[Kernel, ...]):
    """All kernels of a kind that are built in, lowest level first."""

    __slots__ = ()

    @classmethod
    def of(cls, built: Iterable[tuple[str, str, str, int]]) -> Kernels:
        """Return them as the engine lists them."""
        return cls(Kernel(*kernel) for kernel in built)

    def best(self, arithmetic: str, isa: str) -> Kernel:
        """Return those of the highest level that ``isa`` includes, as `ck_depthwise_kernel_for` and its like do."""
        usable = levels(isa)
        return [kernel for kernel in self if kernel.arithmetic == arithmetic and kernel.isa in usable][-1]
