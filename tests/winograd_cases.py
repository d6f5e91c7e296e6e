"""What Winograd convolutions must keep: the bound of docs/numerics.md, derived from the points alone."""

import numpy as np
import reference
from harness import Call

POINTS = (0, 0.75, -0.75, 1.5, -1.5)
TILE, REACH = 4, 6
# Roundings that the transforms of image, filter and result put on a term beside those of its sum.
TRANSFORMS = 24


def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A (6x4), G (6x3) and B transposed (6x6) of Toom and Cook's algorithm with the points and infinity."""
    a, g, b = np.zeros((6, 4)), np.zeros((6, 3)), np.zeros((6, 6))
    for i, point in enumerate(POINTS):
        others = [other for other in POINTS if other != point]
        a[i] = [point**power for power in range(4)]
        g[i] = np.array([point**power for power in range(3)]) / np.prod([point - other for other in others])
        b[i, :5] = np.poly(others)[::-1]
    a[5, 3] = g[5, 2] = 1
    b[5] = np.poly(POINTS)[::-1]
    return a, g, b


def amplification(op: str) -> float:
    """Return how much larger than the scale the products of transformed numbers can be, all of them together."""
    a, g, b = map(np.abs, matrices())
    if op == "conv2d_backprop_filter":
        return float((g * (b.sum(1) * a.max(1))[:, np.newaxis]).sum(0).max() ** 2)
    return float((a * (b.sum(1) * g.max(1))[:, np.newaxis]).sum(0).max() ** 2)


def _tiles(x: np.ndarray, pads: tuple[int, int], out_size: tuple[int, int], size: int, reduce) -> np.ndarray:
    """Return ``reduce`` over the size x size pixels that begin at each tile: N, rows of tiles, columns of tiles, C."""
    grids = [-(-n // TILE) for n in out_size]
    margin = [(TILE * grid + REACH, TILE * grid + REACH + abs(pad)) for grid, pad in zip(grids, pads, strict=True)]
    padded = np.pad(x, ((0, 0), *margin, (0, 0)))
    found = np.stack(
        [
            [
                reduce(padded[:, r : r + size, c : c + size], axis=(1, 2))
                for c in (margin[1][0] - pads[1] + TILE * j for j in range(grids[1]))
            ]
            for r in (margin[0][0] - pads[0] + TILE * i for i in range(grids[0]))
        ]
    )
    return found.transpose(2, 0, 1, 3)


def scale(call: Call) -> np.ndarray:
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
        pixels = _tiles(np.abs(x), before, out_size, REACH, np.max)
        gradients = _tiles(np.abs(dy), (0, 0), out_size, TILE, np.sum)
        parts = zip(np.split(pixels, groups, -1), np.split(gradients, groups, -1), strict=True)
        sums = np.concatenate([np.einsum("nijc,nijk->ck", p, d) for p, d in parts], axis=-1)
        return np.broadcast_to(sums, shapes[1])
    taps = np.split(np.abs(w).sum((0, 1)), groups, -1)
    if call.op == "conv2d":
        image, pads = np.abs(x), before
    else:
        image, pads, out_size = np.abs(dy), (2 - before[0], 2 - before[1]), shapes[0][1:3]
        taps = [part.T for part in taps]
    largest = _tiles(image, pads, out_size, REACH, np.max)
    sums = np.concatenate([p @ t for p, t in zip(np.split(largest, groups, -1), taps, strict=True)], axis=-1)
    return sums.repeat(TILE, 1).repeat(TILE, 2)[:, : out_size[0], : out_size[1]]


def _paddings(padding) -> tuple:
    return (padding, padding) if isinstance(padding, str) else padding


def terms(call: Call) -> int:
    """Return the length of the sum behind one element of a transformed result."""
    _, w, dy = call.arguments if len(call.arguments) == 3 else (*call.arguments, None)
    if call.op == "conv2d":
        return w.shape[2]
    if call.op == "conv2d_backprop_input":
        return w.shape[3] // call.geometry.get("groups", 1)
    return dy.shape[0] * -(-dy.shape[1] // TILE) * -(-dy.shape[2] // TILE)


def gradient_additions(tiles: int) -> int:
    """Return how many additions a tile's product can pass through, by the sizes of blocks and slices."""
    return min(tiles, 112) + -(-tiles // 42) + 32


def constant(call: Call) -> float:
    """Return the c of the contract."""
    length = terms(call)
    steps = min(length, 512) + -(-length // 512)
    if call.op == "conv2d_backprop_filter":
        steps = gradient_additions(length)
    return amplification(call.op) * (steps + TRANSFORMS) / 2


def assert_close(call: Call, result: np.ndarray, dtype: np.dtype, message: str = "") -> None:
    """Check a result in NHWC or HWIO against the contract, for sums kept in ``dtype``."""
    bound = constant(call) * float(np.finfo(dtype).eps) * scale(call)
    excess = np.max(np.abs(result - call.reference()) - bound, initial=0)
    assert excess <= 0, f"{call.op} by Winograd {message}: {excess} beyond the bound"
