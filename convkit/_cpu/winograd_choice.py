"""Which tiles a Winograd convolution takes, and where it is worth its transforms: limits that were measured.

On an AMD EPYC 9004: docs/decisions/0013.
"""

from __future__ import annotations

from .._geometry import ConvGeometry
from .._registry import Problem
from . import plan
from .families import direct_arithmetic
from .machine import Machine
from .winograd_tiles import TILES, elements

LARGE, SMALL = TILES
# Large tiles transform a filter to 2.25 times as much as small ones.  Where that does not stay in the last-level cache,
# it costs as much as so many products for each pair of channels.
FAR_PRODUCTS = 128

# With fewer channels on either side transforms take longer than they save; `direct` does well with 16 channels on maps
# so small that small tiles serve.
LEAST_CHANNELS, LEAST_CHANNELS_OF_SMALL, LEAST_CHANNELS_OF_PAIRS = 8, 24, 16
# Of fewer pixels, transforming the filter or the sums back takes longer.  Dot products of bfloat16 pairs multiply twice
# as much in the same time.
LEAST_PIXELS, LEAST_PIXELS_OF_SMALL, LEAST_PIXELS_OF_PAIRS, LEAST_GRADIENT_PIXELS = 49, 32, 144, 98
# Large filters over few pixels are rather read where they lie, in the order that `conv2d` has them in; not transposed,
# as an input gradient needs them.
LEAST_PIXELS_OF_FAR = 100
# Where pixels fill too little of their tiles, too many products are of zeros.  Filter gradients by `direct` leave out
# most products with padding, too; of what these do, tiles must save so much.
MOST_WASTE, MOST_WASTE_OF_PAIRS = 2.6, 1.25
LEAST_GRADIENT_GAIN = 1.45
# A filter gradient that takes some microseconds is left as exact as it can be.
LEAST_GRADIENT_FLOPS = 2_000_000


def tile_of(problem: Problem, machine: Machine) -> int:
    """Return the output pixels along a side of the tiles that multiply and read less."""
    if direct_arithmetic(problem, machine) == "bfloat16":
        return LARGE
    far = problem.op != "conv2d_backprop_filter" and 2 * _transformed(problem) > machine.llc_bytes
    small, large = (_tiles(problem, tile) * elements(tile) for tile in (SMALL, LARGE))
    return SMALL if small <= large + (FAR_PRODUCTS if far else 0) else LARGE


def reluctance(problem: Problem, machine: Machine) -> str | None:
    """Return why others are likely to be faster, or None."""
    g, tile, of_filter = problem.geometry, tile_of(problem, machine), problem.op == "conv2d_backprop_filter"
    few, pairs = min(g.group_in, g.group_out), direct_arithmetic(problem, machine) == "bfloat16"
    if few < (LEAST_CHANNELS_OF_PAIRS if pairs else LEAST_CHANNELS_OF_SMALL if tile == SMALL else LEAST_CHANNELS):
        return f"a group has {few} channels on one side, too few to pay for transforming them"
    out = _out_size(problem)
    pixels, in_tiles = g.batch * out[0] * out[1], _tiles(problem, tile) * tile * tile
    least = LEAST_GRADIENT_PIXELS if of_filter else LEAST_PIXELS_OF_SMALL if tile == SMALL else LEAST_PIXELS
    if pixels < (LEAST_PIXELS_OF_PAIRS if pairs else least):
        return f"there are {pixels} pixels, too few to pay for transforming what all of them share"
    far = problem.op == "conv2d" and 3 * _transformed(problem) > 2 * machine.llc_bytes
    if far and not problem.packed and pixels < LEAST_PIXELS_OF_FAR:
        return f"there are {pixels} pixels, too few to pay for transforming a filter of this size, unless it is packed"
    if of_filter and g.flops < LEAST_GRADIENT_FLOPS:
        return f"the call has {g.flops} multiplications and additions only, too few to be worth larger roundings"
    if in_tiles > (MOST_WASTE_OF_PAIRS if pairs else MOST_WASTE) * pixels:
        return f"its tiles of {tile}x{tile} have room for {in_tiles} pixels, and there are {pixels}"
    products = _tiles(problem, tile) * elements(tile)
    if of_filter and (met := _met(g)) < LEAST_GRADIENT_GAIN * products:
        return f"its tiles take {products} products for each pair of channels, and taps meet {met} pixels in all"
    return None


def _transformed(problem: Problem) -> int:
    """Return the bytes that large tiles make of the filter."""
    g = problem.geometry
    return elements(LARGE) * g.groups * g.group_in * g.group_out * plan.size_of(plan.arithmetic_of(problem.dtype))


def _out_size(problem: Problem) -> tuple[int, ...]:
    """Return the rows and columns of pixels that are cut into tiles."""
    g = problem.geometry
    return g.in_size if problem.op == "conv2d_backprop_input" else g.out_size


def _tiles(problem: Problem, tile: int) -> int:
    """Return the number of tiles of all images."""
    rows, columns = (-(-pixels // tile) for pixels in _out_size(problem))
    return problem.geometry.batch * rows * columns


def _met(g: ConvGeometry) -> int:
    """Return how often a tap meets a pixel, not padding, at stride 1."""
    count = g.batch
    for size, taps, before, out in zip(g.in_size, g.filter_size, g.pad_before, g.out_size, strict=True):
        count *= sum(max(0, min(out, size + before - tap) - max(0, before - tap)) for tap in range(taps))
    return count
