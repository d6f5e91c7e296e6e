"""How a grid of pixels is cut into pieces whose scratch memory fits a limit: pure arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Some images, rows and columns, and how many of each a piece has at most."""

    images: slice
    rows: slice
    columns: slice

    @property
    def place(self) -> tuple[slice, slice, slice]:
        """The index of the piece in an N, H, W, C array."""
        return self.images, self.rows, self.columns

    @property
    def size(self) -> tuple[int, int, int]:
        """Images, rows and columns."""
        images, rows, columns = (part.stop - part.start for part in self.place)
        return images, rows, columns


Size = tuple[int, int, int]


def largest(whole: Size, nbytes: Callable[[Size], int], limit: int) -> Size | None:
    """Return the largest piece that takes at most ``limit`` bytes, or None if a single pixel takes more.

    Images are cut first, then rows, then columns; ``nbytes`` grows with each of them.
    """
    images, rows, columns = whole
    ways: list[tuple[int, Callable[[int], Size]]] = [
        (images, lambda count: (count, rows, columns)),
        (rows, lambda count: (1, count, columns)),
        (columns, lambda count: (1, 1, count)),
    ]
    for most, size in ways:
        if nbytes(size(1)) <= limit:
            low, high = 1, most
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if nbytes(size(middle)) <= limit else (low, middle - 1)
            return size(_even(most, low))
    return None


def _even(whole: int, most: int) -> int:
    """Return the length of pieces that are about equal, and as few as those of the greatest length."""
    return -(-whole // -(-whole // most))


def pieces(whole: Sequence[int], size: Size) -> Iterator[Piece]:
    """Yield all pieces of a grid of images, rows and columns, the last ones of each shorter."""
    axes = [
        [slice(start, min(start + step, length)) for start in range(0, length, step)]
        for length, step in zip(whole, size, strict=True)
    ]
    return (Piece(*place) for place in itertools.product(*axes))


def touched(first: int, count: int, padding: int, extent: int, step: int, most: int) -> slice:
    """Return which outputs of one dimension have windows that hold some pixels.

    Parameters
    ----------
    first, count : int
        The pixels.
    padding, extent, step : int
        Padding before, pixels that the dilated filter spans, and stride.
    most : int
        Outputs in all.
    """
    start = max(0, -(-(first + padding - extent + 1) // step))
    stop = min(most, (first + count - 1 + padding) // step + 1)
    return slice(start, max(start, stop))


def most_touched(count: int, extent: int, step: int, most: int) -> int:
    """Return how many outputs have windows that hold any of so many neighbouring pixels, at most."""
    return min(most, (count + extent - 2) // step + 1)
