"""im2col and col2im on the GPU: the patch matrix of a piece of a convolution, and an image's gradient from patches.

A piece is some images by some rows by some columns of a result.  Patches are seen with four axes, group, pixel, tap and
channel, whatever order they lie in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import launch
from .layout import WIDEST, conversion

# Axes of images.
N, H, W, C = range(4)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a piece: how many, the filter's size, steps and dilation, and where the first one begins."""

    size: tuple[int, int]
    filter_size: tuple[int, int]
    steps: tuple[int, int]
    dilations: tuple[int, int]
    first: tuple[int, int]

    def arguments(self) -> tuple[np.int64, ...]:
        """Return them as the kernels take them."""
        numbers = (*self.size, *self.filter_size, *self.steps, *self.dilations, *self.first)
        return tuple(map(np.int64, numbers))


def steps_of(array: Any, by: int = 1) -> tuple[np.int64, ...]:
    """Return the strides of an array or an operand in elements, or in elements that are ``by`` times as large."""
    size = array.itemsize * by
    return tuple(np.int64(stride // size) for stride in array.strides)


def gather(image: Any, patches: Any, windows: Windows) -> None:
    """Write the patches of all windows over some images, N, H, W, C; what is in the padding is zero."""
    groups, pixels, _, group_channels = patches.shape
    pixels_fastest = abs(patches.strides[1]) < abs(patches.strides[3]) or group_channels == 1
    types: launch.Types
    codes: tuple[Any, ...] = ()
    by = 1
    if image.dtype == patches.dtype:
        by = _vector(image, patches)
        types = (("ELEMENT", launch.BITS[image.itemsize * by]),)
    else:
        types, codes = conversion(image.dtype.name, patches.dtype.name)
    channels = groups * group_channels // by
    count = pixels * channels
    strides = [*steps_of(image, by), *steps_of(patches, by)]
    if by > 1:
        # Elements of several channels are neighbours.
        strides[3] = strides[7] = np.int64(1)
    arguments = (
        *(image, patches, *codes, np.int64(count), np.int32(pixels_fastest)),
        *(np.int64(channels), np.int64(group_channels // by), np.int64(image.shape[H]), np.int64(image.shape[W])),
        *(*windows.arguments(), *strides),
    )
    launch.run("gather", types, count, arguments)


def _vector(image: Any, patches: Any) -> int:
    """Return how many neighbouring channels can be moved as one element."""
    size = image.itemsize
    if image.strides[C] != size or patches.strides[3] != size:
        return 1
    distances = [*image.strides[:C], *patches.strides[:3], image.data.ptr, patches.data.ptr, WIDEST]
    together: int = math.gcd(*distances, patches.shape[3] * size) // size
    return together


def scatter(patches: Any, image: Any, windows: Windows, first: tuple[int, int]) -> None:
    """Write the gradient of some pixels from those of all patches that hold them.

    Parameters
    ----------
    patches : cupy.ndarray
        Sums in float32 or float64.
    image : cupy.ndarray
        Where to write, N, H, W, C: all channels of some rows and columns.
    windows : Windows
        The windows of the patches, at least all that meet these pixels.
    first : tuple of int
        The row and the column in the image of the first pixel written, where rows and columns are counted as in
        ``windows.first``.
    """
    groups, _, _, group_channels = patches.shape
    pixels_fastest = abs(patches.strides[1]) < abs(patches.strides[3])
    numbers = (*image.shape[H:C], *first, groups * group_channels, group_channels)
    arguments = (
        *(patches, image, launch.CODES[image.dtype.name], np.int64(image.size), np.int32(pixels_fastest)),
        *(*map(np.int64, numbers), *windows.arguments(), *steps_of(image), *steps_of(patches)),
    )
    launch.run("scatter_back", (("SUM", launch.TYPES[patches.dtype.name]),), image.size, arguments)
