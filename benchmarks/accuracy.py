"""How far results are from the exact ones, for each family, dtype, operation and kind of data, as a Markdown table.

The measure is the largest |y - exact| / (eps * scale), where scale is the same operation on absolute values: the c of
docs/numerics.md.  Beside it the relative error in the L2 norm.  `python benchmarks/accuracy.py` takes half a minute.
A second table is that of the Winograd convolutions, whose c is relative to a larger scale; `--winograd` prints
it alone.
With `--torch`, what convkit selects by itself stands beside PyTorch on the same data, which must be installed.
"""

import argparse
import contextlib
import io
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import convkit

try:
    import ml_dtypes

    HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
except ImportError:
    HALVES = (np.dtype(np.float16),)

Array = NDArray
OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
FAMILIES = ("direct", "gemm", "im2col", "reference")
DTYPES = (np.dtype(np.float32), np.dtype(np.float64), *HALVES)
SUM_BLOCK = 512
# Of a filter gradient: the least pixels that a block has on average, and the most slices (docs/numerics.md).
LEAST_PIXELS = 128
MOST_SLICES = 48


@dataclass(frozen=True)
class Data:
    """Images, filters and output gradients of a convolution at stride 1 without padding, in float64."""

    name: str
    x: Array
    w: Array
    dy: Array

    def cast(self, dtype: np.dtype) -> "Data":
        """Return the values as ``dtype`` holds them."""
        return Data(self.name, self.x.astype(dtype), self.w.astype(dtype), self.dy.astype(dtype))

    def terms(self, op: str) -> int:
        """Return the length of the sum behind one element."""
        taps = self.w.shape[0] * self.w.shape[1]
        return {
            "conv2d": taps * self.w.shape[2],
            "conv2d_backprop_filter": self.dy.shape[0] * self.dy.shape[1] * self.dy.shape[2],
            "conv2d_backprop_input": taps * self.w.shape[3],
        }[op]

    def arguments(self, op: str) -> tuple:
        """Return what the operation takes."""
        return {
            "conv2d": (self.x, self.w),
            "conv2d_backprop_filter": (self.x, self.w.shape, self.dy),
            "conv2d_backprop_input": (self.x.shape, self.w, self.dy),
        }[op]


Fill = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def _large_mean(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return 100 + rng.uniform(-1, 1, shape)


def _constant(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.full(shape, rng.uniform(1, 2))


def make(name: str, sizes: tuple[int, int, int, int, int], fill_x: Fill, fill_w: Fill, fill_dy: Fill) -> Data:
    """Return data for N images of H x H pixels and C channels, and K filters of k x k taps: sizes (N, H, C, K, k)."""
    rng = np.random.default_rng(7)
    n, h, c, k, taps = sizes
    out = h - taps + 1
    return Data(name, fill_x(rng, (n, h, h, c)), fill_w(rng, (taps, taps, c, k)), fill_dy(rng, (n, out, out, k)))


def large_mean(sizes: tuple[int, int, int, int, int]) -> Data:
    """Pixels of 100 +- 1; the filters and the output gradients have the mean 0 wherever they are summed."""
    data = make("large mean", sizes, _large_mean, _normal, _large_mean)
    for axes in ((0, 1, 2), (0, 1, 3)):
        data.w[...] -= data.w.mean(axis=axes, keepdims=True)
    return data


def cancelling(sizes: tuple[int, int, int, int, int]) -> Data:
    """Channels in pairs that are nearly equal, filters in pairs that are opposite: every sum nearly cancels."""
    data = make("cancelling", sizes, _normal, _normal, _normal)
    near = 1 + 1e-4 * data.x[..., ::2]
    data.x[..., 1::2] = data.x[..., ::2] * near
    data.w[:, :, 1::2] = -data.w[:, :, ::2]
    data.w[..., 1::2] = -data.w[..., ::2]
    data.dy[..., 1::2] = data.dy[..., ::2] * (1 + 1e-4 * data.dy[..., ::2])
    half = data.x.shape[0] // 2
    data.x[half : 2 * half] = data.x[:half] * (1 + 1e-4)
    data.dy[half : 2 * half] = -data.dy[:half]
    return data


def constant(sizes: tuple[int, int, int, int, int]) -> Data:
    """All products equal, so that roundings of a sum all go the same way: the worst case of adding in order."""
    return make("constant", sizes, _constant, _constant, _constant)


def kinds(scale: int) -> Iterator[Data]:
    """Yield data of every kind; the larger ``scale``, the longer the sums."""
    yield make("random", (2, 14, 16 * scale, 16 * scale, 3), _normal, _normal, _normal)
    yield large_mean((2, 14, 16 * scale, 16 * scale, 3))
    yield cancelling((2, 14, 16 * scale, 16 * scale, 3))
    yield constant((2, 14, 16 * scale, 16 * scale, 3))
    yield make("random, 1x1", (2, 14, 64 * scale, 64 * scale, 1), _normal, _normal, _normal)


def long_sums(side: int, channels: int) -> Iterator[tuple[str, Data]]:
    """Yield each operation with data on which its sums are long."""
    deep = {"conv2d": (1, 6, channels, 2, 3), "conv2d_backprop_input": (1, 6, 2, channels, 3)}
    for fill, name in ((_normal, "long, random"), (_large_mean, "long, all positive")):
        for op, sizes in deep.items():
            yield op, make(name, sizes, fill, fill, fill)
        yield "conv2d_backprop_filter", make(name, (16, side, 4, 4, 3), fill, fill, fill)


def exact(op: str, data: Data, wide: type) -> Array:
    """Return the operation in the wider dtype, tap by tap."""
    x, w, dy = (a.astype(wide) for a in (data.x, data.w, data.dy))
    height, width = dy.shape[1:3]
    result = np.zeros({"conv2d": dy, "conv2d_backprop_filter": w, "conv2d_backprop_input": x}[op].shape, wide)
    for a, b in np.ndindex(*w.shape[:2]):
        seen = (slice(None), slice(a, a + height), slice(b, b + width))
        if op == "conv2d":
            result += x[seen] @ w[a, b]
        elif op == "conv2d_backprop_filter":
            result[a, b] = x[seen].reshape(-1, x.shape[3]).T @ dy.reshape(-1, dy.shape[3])
        else:
            result[seen] += dy @ w[a, b].T
    return result


def wider(dtype: np.dtype) -> type:
    """Return a dtype in which the exact result is computed."""
    return np.longdouble if dtype == np.float64 else np.float64


def proven_c(op: str, data: Data, family: str, dtype: np.dtype) -> float:
    """Return the c that holds for any data: half the additions that a term passes through (docs/numerics.md)."""
    terms, taps = data.terms(op), data.w.shape[0] * data.w.shape[1]
    if family == "reference":
        return (terms + taps + 2) / 2 if dtype == np.float64 else 1
    steps = two_levels(terms)
    if op == "conv2d_backprop_filter":
        steps = min(terms, SUM_BLOCK) + -(-terms // LEAST_PIXELS) + MOST_SLICES
    if op == "conv2d_backprop_input":
        steps = max(steps, two_levels(data.w.shape[3]) + two_levels(taps))
    return (steps + 2) / 2


def two_levels(terms: int) -> int:
    """Return the additions that a term passes through in its block and among the sums of blocks."""
    return min(terms, SUM_BLOCK) + -(-terms // SUM_BLOCK)


class Exact:
    """The exact result of an operation, and how far off others are."""

    def __init__(self, op: str, given: Data):
        dtype = given.x.dtype
        self.wide, self.eps = wider(dtype), 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)
        self.true = exact(op, given, self.wide)
        self.scale = exact(op, Data(given.name, abs(given.x), abs(given.w), abs(given.dy)), self.wide)

    def errors(self, y: Array) -> tuple[float, float]:
        """Return the largest error in units of eps * scale, and the relative error in the L2 norm."""
        error = abs(y.astype(self.wide) - self.true)
        relative = np.sqrt((error**2).sum() / (self.true**2).sum())
        return float((error / (self.eps * self.scale)).max()), float(relative)


def run(op: str, given: Data, family: str) -> Array:
    """Return convkit's result."""
    return getattr(convkit, op)(*given.arguments(op), algorithm=family)


def measure(op: str, data: Data, dtype: np.dtype, family: str) -> tuple[float, float]:
    """Return both errors of a family."""
    given = data.cast(dtype)
    return Exact(op, given).errors(run(op, given, family))


def able(op: str, data: Data, dtype: np.dtype) -> list[str]:
    """Return the families that can serve."""
    found = convkit.explain(op, *data.cast(dtype).arguments(op)).candidates
    return [family for family in FAMILIES if any(f":{family}_" in name and why is None for name, why in found)]


def problems() -> list[tuple[str, Data]]:
    """Return every operation with every kind of data."""
    return [(op, data) for data in kinds(4) for op in OPS] + list(long_sums(58, 8192))


def print_families() -> None:
    """Print the table; one row has all dtypes."""
    print(f"| data | operation | terms | family | {' | '.join(map(str, DTYPES))} | c, float32 | L2, float32 |")
    print("|---" * (6 + len(DTYPES)) + "|")
    for op, data in problems():
        for family in able(op, data, DTYPES[0]):
            found = [measure(op, data, dtype, family) for dtype in DTYPES]
            # A sum beyond float16's range is infinite, and so is its error.
            worst = " | ".join(f"{ratio:.2f}" if np.isfinite(ratio) else "-" for ratio, _ in found)
            bound = f"{proven_c(op, data, family, DTYPES[0]):.0f}"
            row = f"| {data.name} | {op} | {data.terms(op)} | {family} | {worst} | {bound} | {found[0][1]:.0e} |"
            print(row, flush=True)


def print_winograd() -> None:
    """Print the errors of both sizes of tiles, and those of `direct` on the same data, in float32."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    import harness
    import winograd_cases
    import winograd_data

    float32 = np.dtype(np.float32)
    print("| data | operation | tiles | T | L2 | L2, direct | largest | c |")
    print("|---" * 8 + "|")
    for kind, make_data in winograd_data.KINDS.items():
        with contextlib.redirect_stdout(io.StringIO()):  # a network that is trained tells of each epoch
            calls = harness.three_calls(*make_data())
        for op, call in zip(OPS, calls, strict=True):
            arguments, true = call.in_layout(harness.NHWC, float32), call.reference()
            norm = np.linalg.norm(true)
            plain = np.linalg.norm(getattr(convkit, op)(*arguments, algorithm="direct") - true) / norm
            for tile in winograd_cases.TILES:
                with winograd_cases.in_tiles_of(tile):
                    error = np.abs(getattr(convkit, op)(*arguments, algorithm="winograd") - true)
                # Where a scale is zero, so must the error be.
                unit = np.finfo(float32).eps * winograd_cases.scale(call, tile)
                largest = np.divide(error, unit, out=np.where(error > 0, np.inf, 0), where=unit > 0).max()
                cells = f"{winograd_cases.terms(call, tile)} | {np.linalg.norm(error) / norm:.1e} | {plain:.1e}"
                bound = f"{winograd_cases.constant(call, tile):.0f}"
                print(f"| {kind} | {op} | {tile}x{tile} | {cells} | {largest:.2f} | {bound} |", flush=True)


def filter_gradients_of_large_images() -> Iterator[tuple[str, Data]]:
    """Yield filter gradients over 16 images of 112 x 112 output pixels: 200,704 terms."""
    fills = (("random", _normal, _normal), ("large mean", _large_mean, _normal), ("positive", _large_mean, _large_mean))
    for name, fill_x, fill_dy in fills:
        yield "conv2d_backprop_filter", make(f"112x112, {name}", (16, 114, 16, 16, 3), fill_x, _normal, fill_dy)


def run_torch(op: str, given: Data) -> Array:
    """Return PyTorch's result."""
    import torch

    torch.set_num_threads(1)
    x, dy = (torch.from_numpy(np.ascontiguousarray(a.transpose(0, 3, 1, 2))) for a in (given.x, given.dy))
    w = torch.from_numpy(np.ascontiguousarray(given.w.transpose(3, 2, 0, 1)))
    if op == "conv2d":
        return torch.nn.functional.conv2d(x, w).numpy().transpose(0, 2, 3, 1)
    mask = [op == "conv2d_backprop_input", op == "conv2d_backprop_filter", False]
    found = torch.ops.aten.convolution_backward(dy, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    return found[0].numpy().transpose(0, 2, 3, 1) if mask[0] else found[1].numpy().transpose(2, 3, 1, 0)


def print_against_torch() -> None:
    """Print errors beside those of PyTorch, and the geometric means of their quotients."""
    print("| data | operation | terms | dtype | convkit, largest | PyTorch, largest | convkit, L2 | PyTorch, L2 |")
    print("|---" * 8 + "|")
    quotients: tuple[list[float], list[float]] = ([], [])
    for op, data in [*problems(), *filter_gradients_of_large_images()]:
        for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
            given = data.cast(dtype)
            true = Exact(op, given)
            ours, theirs = true.errors(run(op, given, "auto")), true.errors(run_torch(op, given))
            cells = f"{ours[0]:.2f} | {theirs[0]:.2f} | {ours[1]:.1e} | {theirs[1]:.1e}"
            print(f"| {data.name} | {op} | {data.terms(op)} | {dtype} | {cells} |", flush=True)
            for kept, mine, other in zip(quotients, ours, theirs, strict=True):
                kept.append(mine / other)
    means = [math.exp(sum(map(math.log, kept)) / len(kept)) for kept in quotients]
    worst = [max(kept) for kept in quotients]
    print(f"\nconvkit's error over PyTorch's: largest {means[0]:.2f} in the geometric mean, at most {worst[0]:.2f}; "
          f"L2 {means[1]:.2f}, at most {worst[1]:.2f}")  # fmt: skip


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--torch", action="store_true", help="compare with PyTorch")
    which.add_argument("--winograd", action="store_true", help="print the table of Winograd convolutions alone")
    arguments = parser.parse_args()
    if arguments.torch:
        print_against_torch()
        return
    if not arguments.winograd:
        print_families()
        print()
    print_winograd()


if __name__ == "__main__":
    main()
