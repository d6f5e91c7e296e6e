"""What Winograd convolutions must keep: the bound of docs/numerics.md, derived from the points alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import reference
from harness import Call

import convkit
from convkit._cpu import winograd_choice

# The points other than infinity, for each number of outputs along a side of a tile.
POINTS = {4: (0, 0.75, -0.75, 1.5, -1.5), 2: (0, 1, -1)}
TILES = tuple(POINTS)
BORDER = 2
# Roundings that the transforms of image, filter and result put on a term beside those of its sum.
TRANSFORMS = {4: 24, 2: 10}


@contextmanager
def in_tiles_of(side: int) -> Iterator[None]:
    """Let the family take tiles of so many outputs along a side, whatever it would choose."""
    chosen = winograd_choice.tile_of
    winograd_choice.tile_of = lambda problem, machine: side
    convkit.clear_caches()
    try:
        yield
    finally:
        winograd_choice.tile_of = chosen
        convkit.clear_caches()


def matrices(tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, G and B transposed of Toom and Cook's algorithm with the points and infinity."""
    points, reach = POINTS[tile], tile + BORDER
    a, g, b = np.zeros((reach, tile)), np.zeros((reach, 3)), np.zeros((reach, reach))
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        a[i] = [point**power for power in range(tile)]
        g[i] = np.array([point**power for power in range(3)]) / np.prod([point - other for other in others])
        b[i, : reach - 1] = np.poly(others)[::-1]
    a[-1, -1] = g[-1, -1] = 1
    b[-1] = np.poly(points)[::-1]
    return a, g, b


def amplification(op: str, tile: int) -> float:
    """Return how much larger than the scale the products of transformed numbers can be, all of them together."""
    a, g, b = map(np.abs, matrices(tile))
    if op == "conv2d_backprop_filter":
        return float((g * (b.sum(1) * a.max(1))[:, np.newaxis]).sum(0).max() ** 2)
    return float((a * (b.sum(1) * g.max(1))[:, np.newaxis]).sum(0).max() ** 2)


def _tiles(x: np.ndarray, pads: tuple[int, int], out_size: tuple[int, int], tile: int, size: int, reduce) -> np.ndarray:
    """Return ``reduce`` over the size x size pixels that begin at each tile: N, rows of tiles, columns of tiles, C."""
    grids = [-(-n // tile) for n in out_size]
    margin = [(tile * grid + size, tile * grid + size + abs(pad)) for grid, pad in zip(grids, pads, strict=True)]
    padded = np.pad(x, ((0, 0), *margin, (0, 0)))
    found = np.stack(
        [
            [
                reduce(padded[:, r : r + size, c : c + size], axis=(1, 2))
                for c in (margin[1][0] - pads[1] + tile * j for j in range(grids[1]))
            ]
            for r in (margin[0][0] - pads[0] + tile * i for i in range(grids[0]))
        ]
    )
    return found.transpose(2, 0, 1, 3)


def scale(call: Call, tile: int) -> np.ndarray:
    """Return the sum of absolute values with each pixel replaced by the largest of its tile."""
    x, w, dy = call.arguments if len(call.arguments) == 3 else (*call.arguments, None)
    groups = call.geometry.get("groups", 1)
    shapes = [array.shape if isinstance(array, np.ndarray) else array for array in (x, w)]
    rules = [
        reference.window_rule(n, 3, 1, 1, padding)
        for n, padding in zip(shapes[0][1:3], _paddings(call.geometry.get("padding", "VALID")), strict=True)
    ]
    out_size, before = tuple(rule[0] for rule in rules), tuple(rule[1] for rule in rules)
    if call.op == "conv2d_backprop_filter":
        pixels = _tiles(np.abs(x), before, out_size, tile, tile + BORDER, np.max)
        gradients = _tiles(np.abs(dy), (0, 0), out_size, tile, tile, np.sum)
        parts = zip(np.split(pixels, groups, -1), np.split(gradients, groups, -1), strict=True)
        sums = np.concatenate([np.einsum("nijc,nijk->ck", p, d) for p, d in parts], axis=-1)
        return np.broadcast_to(sums, shapes[1])
    taps = np.split(np.abs(w).sum((0, 1)), groups, -1)
    if call.op == "conv2d":
        image, pads = np.abs(x), before
    else:
        image, pads, out_size = np.abs(dy), (2 - before[0], 2 - before[1]), shapes[0][1:3]
        taps = [part.T for part in taps]
    largest = _tiles(image, pads, out_size, tile, tile + BORDER, np.max)
    sums = np.concatenate([p @ t for p, t in zip(np.split(largest, groups, -1), taps, strict=True)], axis=-1)
    return sums.repeat(tile, 1).repeat(tile, 2)[:, : out_size[0], : out_size[1]]


def _paddings(padding) -> tuple:
    return (padding, padding) if isinstance(padding, str) else padding


def terms(call: Call, tile: int) -> int:
    """Return the length of the sum behind one element of a transformed result."""
    _, w, dy = call.arguments if len(call.arguments) == 3 else (*call.arguments, None)
    if call.op == "conv2d":
        return w.shape[2]
    if call.op == "conv2d_backprop_input":
        return w.shape[3] // call.geometry.get("groups", 1)
    return dy.shape[0] * -(-dy.shape[1] // tile) * -(-dy.shape[2] // tile)


def gradient_additions(tiles: int) -> int:
    """Return how many additions a tile's product can pass through, by the sizes of blocks and slices."""
    return min(tiles, 112) + -(-tiles // 42) + 32


def constant(call: Call, tile: int) -> float:
    """Return the c of the contract."""
    length = terms(call, tile)
    steps = min(length, 512) + -(-length // 512)
    if call.op == "conv2d_backprop_filter":
        steps = gradient_additions(length)
    return amplification(call.op, tile) * (steps + TRANSFORMS[tile]) / 2


def assert_close(call: Call, result: np.ndarray, dtype: np.dtype, tile: int, message: str = "") -> None:
    """Check a result in NHWC or HWIO against the contract, for sums kept in ``dtype``."""
    bound = constant(call, tile) * float(np.finfo(dtype).eps) * scale(call, tile)
    excess = np.max(np.abs(result - call.reference()) - bound, initial=0)
    assert excess <= 0, f"{call.op} by Winograd in tiles of {tile}x{tile} {message}: {excess} beyond the bound"
