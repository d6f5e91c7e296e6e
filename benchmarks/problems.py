"""A layer as one line of text, which is its own reproducer; its operations as functions; and whether they are right."""

import argparse
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import convkit

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import reference

# The operations of floating-point problems, and the one of int8 problems.
FLOAT_OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
FUSED = "fused_conv2d"
OPS = (*FLOAT_OPS, FUSED)
INT8_DTYPES = ("int8", "uint8")
# Half a unit in the last place of a half, relative to a number, and of its smallest number.
HALF_ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}
_LINE = re.compile(
    r"n(?P<n>\d+) h(?P<h>\d+) w(?P<w>\d+) c(?P<c>\d+) k(?P<k>\d+) r(?P<r>\d+(x\d+)?) s(?P<s>\d+(x\d+)?) "
    r"(d(?P<d>\d+(x\d+)?) )?(g(?P<g>\d+) )?(?P<padding>VALID|SAME|SAME_LOWER|FULL|p\d+(x\d+)?) "
    r"(?P<data_format>NHWC|NCHW) (?P<dtype>float32|float64|float16|bfloat16|int8|uint8)"
)
_FORM = (
    "'n16 h56 w56 c64 k64 r3 s1 SAME NHWC float32' (after the stride, d2 and g4 may give dilation and groups; r, s and "
    "d may differ by axis, as in r1x3; padding VALID, SAME, SAME_LOWER, FULL, or p1 or p0x1 on either side; NHWC or "
    "NCHW; float32, float64, float16 or bfloat16, and int8 or uint8 for fused_conv2d)"
)
_BRACES = re.compile(r"\{([^{}]*)\}")

Pair = tuple[int, int]


class WrongResultError(Exception):
    """A result is further from the float64 reference than the error bound allows."""


def _pair(text: str) -> Pair:
    first, _, second = text.partition("x")
    return int(first), int(second or first)


def _text(pair: Pair) -> str:
    return f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


def numpy_dtype(name: str) -> np.dtype:
    """Return the dtype of that name; bfloat16 takes ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Problem:
    """One layer: n images of h x w pixels and c channels, k filters of r pixels, strides s, dilations d, g groups."""

    n: int
    h: int
    w: int
    c: int
    k: int
    r: Pair
    s: Pair
    d: Pair
    g: int
    padding: str
    data_format: str
    dtype: str

    @classmethod
    def parse(cls, line: str, int8: bool = False) -> "Problem":
        """Return the problem that a line such as ``n16 h56 w56 c64 k64 r3 s1 SAME NHWC float32`` describes.

        Whole numbers are refused where ``int8`` is false.
        """
        match = _LINE.fullmatch(" ".join(line.split()))
        if match is None or (match["dtype"] in INT8_DTYPES and not int8):
            raise argparse.ArgumentTypeError(f"{line!r} is not of the form {_FORM}")
        found = match.groupdict()
        sizes = {name: int(found[name] or 1) for name in "nhwckg"}
        if sizes["c"] % max(1, sizes["g"]) or sizes["k"] % max(1, sizes["g"]) or not sizes["g"]:
            raise argparse.ArgumentTypeError(f"{line!r}: the groups do not divide channels and filters")
        pairs = {name: _pair(found[name] or "1") for name in "rsd"}
        problem = cls(**sizes, **pairs, **{name: found[name] for name in ("padding", "data_format", "dtype")})
        try:
            problem.shapes  # noqa: B018 - a window that does not fit is refused here
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{line!r}: {error}") from error
        return problem

    def __str__(self) -> str:
        sizes = [f"{name}{getattr(self, name)}" for name in "nhwck"] + [f"r{_text(self.r)}", f"s{_text(self.s)}"]
        sizes += [f"d{_text(self.d)}"] * (self.d != (1, 1)) + [f"g{self.g}"] * (self.g != 1)
        return " ".join([*sizes, self.padding, self.data_format, self.dtype])

    @property
    def pads(self) -> str | tuple[Pair, Pair]:
        """The padding as an argument: a mode, or rows above and below and columns left and right."""
        if not self.padding.startswith("p"):
            return self.padding
        rows, columns = _pair(self.padding[1:])
        return (rows, rows), (columns, columns)

    @property
    def geometry(self) -> dict:
        """The keywords of the reference, which works on NHWC and HWIO, and of convkit."""
        return {"strides": self.s, "padding": self.pads, "dilations": self.d, "groups": self.g}

    @property
    def shapes(self) -> tuple[tuple, tuple, tuple]:
        """NHWC images, HWIO filters, NHWC output."""
        x, w = (self.n, self.h, self.w, self.c), (*self.r, self.c // self.g, self.k)
        return x, w, reference.output_shape(x, w, strides=self.s, padding=self.pads, dilations=self.d)

    @property
    def taps(self) -> int:
        """Pixels of a filter."""
        return self.r[0] * self.r[1]

    @property
    def int8(self) -> bool:
        """Whether images and filters are of whole numbers."""
        return self.dtype in INT8_DTYPES

    @property
    def depthwise(self) -> bool:
        """Whether each channel has filters of its own."""
        return self.g == self.c > 1

    @property
    def flops(self) -> int:
        """Multiplications and additions of one operation, padding included."""
        return 2 * int(np.prod(self.shapes[2])) * self.taps * self.c // self.g

    def allowed(self, op: str, wanted: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return how far off each element may be, given the exact results and those on absolute values."""
        (_, _, _, channels), filters, output = self.shapes
        length = reference.terms(op, (1, 1, 1, channels), (*filters[:3], self.k // self.g), output)
        accumulator = np.dtype(np.float64 if self.dtype == "float64" else np.float32)
        allowed = reference.error_bound(length, scale, accumulator)
        if self.dtype in HALF_ROUNDING:
            relative, least = HALF_ROUNDING[self.dtype]
            allowed += relative * (np.abs(wanted) + allowed) + least
        return allowed


@dataclass(frozen=True)
class Case:
    """One operation on a problem: the unit of the comparison."""

    op: str
    problem: Problem

    @classmethod
    def parse(cls, line: str) -> list["Case"]:
        """Return the cases of a line: a problem after the name of an operation; without one, all three, or the fused.

        ``{a,b}`` stands for either, as in a shell: ``n{1,16} h56 ...`` are two problems.
        """
        pieces = _BRACES.split(" ".join(line.split()))
        choices = [[piece] if number % 2 == 0 else piece.split(",") for number, piece in enumerate(pieces)]
        cases = []
        for text in map("".join, itertools.product(*choices)):
            first, _, rest = text.partition(" ")
            problem = Problem.parse(rest if first in OPS else text, int8=True)
            own = (FUSED,) if problem.int8 else FLOAT_OPS
            if first in OPS and first not in own:
                raise argparse.ArgumentTypeError(f"{text!r}: {problem.dtype} goes with {' and '.join(own)}")
            cases += [cls(op, problem) for op in ((first,) if first in OPS else own)]
        return cases

    def __str__(self) -> str:
        return f"{self.op} {self.problem}"

    @property
    def bytes_moved(self) -> int:
        """Bytes of images, filters and output, each read or written once."""
        size = numpy_dtype(self.problem.dtype).itemsize
        return size * sum(int(np.prod(shape)) for shape in self.problem.shapes)


class Layer:
    """A problem with random data and, as functions without arguments, its three operations."""

    def __init__(self, problem: Problem, seed: int = 0, **keywords):
        self.problem = problem
        rng, dtype = np.random.default_rng(seed), numpy_dtype(problem.dtype)
        self.x, self.w, self.dy = (rng.standard_normal(shape).astype(dtype) for shape in problem.shapes)
        first = problem.data_format == "NCHW"
        x, dy = (reference.to_data_format(array, problem.data_format) for array in (self.x, self.dy))
        w = reference.to_filter_format(self.w, "OIHW" if first else "HWIO")
        keywords |= {**problem.geometry, "data_format": problem.data_format}
        self.calls = {
            "conv2d": lambda **more: convkit.conv2d(x, w, **keywords, **more),
            "conv2d_backprop_filter": lambda **more: convkit.conv2d_backprop_filter(x, w.shape, dy, **keywords, **more),
            "conv2d_backprop_input": lambda **more: convkit.conv2d_backprop_input(x.shape, w, dy, **keywords, **more),
        }
        given = {
            "conv2d": (x, w),
            "conv2d_backprop_filter": (x, w.shape, dy),
            "conv2d_backprop_input": (x.shape, w, dy),
        }
        self.explain = lambda op, **more: convkit.explain(op, *given[op], **keywords, **more)

        geometry = {**problem.geometry, "data_format": problem.data_format}
        self.pack = lambda op: convkit.pack_filter(w, op=op, **geometry)
        self.packed_calls = {
            "conv2d": lambda packed: convkit.conv2d(x, packed, **keywords),
            "conv2d_backprop_input": lambda packed: convkit.conv2d_backprop_input(x.shape, packed, dy, **keywords),
        }

    def run(self):
        """Do all three operations."""
        for call in self.calls.values():
            call()

    def check(self):
        """Compare each result with float64, element by element; raise WrongResultError beyond the error bound."""
        arguments = {
            "conv2d": (self.x, self.w),
            "conv2d_backprop_filter": (self.x, self.w.shape, self.dy),
            "conv2d_backprop_input": (self.x.shape, self.w, self.dy),
        }
        for op, call in self.calls.items():
            result = call()
            if op == "conv2d_backprop_filter":
                result = reference.from_filter_format(result, "OIHW" if self.problem.data_format == "NCHW" else "HWIO")
            else:
                result = reference.from_data_format(result, self.problem.data_format)
            wanted = reference.OPS[op](*arguments[op], **self.problem.geometry)
            scale = reference.magnitude(op, *arguments[op], **self.problem.geometry)
            bound = self.problem.allowed(op, wanted, scale)
            if not np.all(np.abs(result - wanted) <= bound):  # also false for NaN
                raise WrongResultError(f"{op} of {self.problem} is wrong: {np.max(np.abs(result - wanted)):.3g} off")
