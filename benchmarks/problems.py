"""A layer as one line of text, which is its own reproducer; its operations as functions; and whether they are right."""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import convkit

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import reference

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
_LINE = re.compile(
    r"n(?P<n>\d+) h(?P<h>\d+) w(?P<w>\d+) c(?P<c>\d+) k(?P<k>\d+) r(?P<r>\d+) s(?P<s>\d+) "
    r"(?P<padding>VALID|SAME|SAME_LOWER|FULL) (?P<data_format>NHWC|NCHW) (?P<dtype>float32|float64)"
)


class WrongResultError(Exception):
    """A result is further from the float64 reference than the error bound allows."""


@dataclass(frozen=True)
class Problem:
    """One layer: n images of h x w pixels and c channels, k filters of r x r pixels, stride s."""

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    padding: str
    data_format: str
    dtype: str

    @classmethod
    def parse(cls, line: str) -> "Problem":
        """Return the problem that a line such as ``n16 h56 w56 c64 k64 r3 s1 SAME NHWC float32`` describes."""
        match = _LINE.fullmatch(" ".join(line.split()))
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{line!r} is not of the form 'n16 h56 w56 c64 k64 r3 s1 SAME NHWC float32' (padding VALID, SAME, "
                "SAME_LOWER or FULL; NHWC or NCHW; float32 or float64)"
            )
        return cls(**{name: int(text) if text.isdigit() else text for name, text in match.groupdict().items()})

    def __str__(self) -> str:
        sizes = " ".join(f"{name}{getattr(self, name)}" for name in "nhwckrs")
        return f"{sizes} {self.padding} {self.data_format} {self.dtype}"

    @property
    def geometry(self) -> dict:
        """The keywords of the reference, which works on NHWC and HWIO."""
        return {"strides": (self.s, self.s), "padding": self.padding}

    @property
    def shapes(self) -> tuple[tuple, tuple, tuple]:
        """NHWC images, HWIO filters, NHWC output."""
        x, w = (self.n, self.h, self.w, self.c), (self.r, self.r, self.c, self.k)
        return x, w, reference.output_shape(x, w, **self.geometry)

    @property
    def flops(self) -> int:
        """Multiplications and additions of one operation, padding included."""
        return 2 * int(np.prod(self.shapes[2])) * self.r**2 * self.c


class Layer:
    """A problem with random data and, as functions without arguments, its three operations."""

    def __init__(self, problem: Problem, seed: int = 0, **keywords):
        self.problem = problem
        rng = np.random.default_rng(seed)
        self.x, self.w, self.dy = (rng.standard_normal(shape).astype(problem.dtype) for shape in problem.shapes)
        first = problem.data_format == "NCHW"
        x, dy = (reference.to_data_format(array, problem.data_format) for array in (self.x, self.dy))
        w = reference.to_filter_format(self.w, "OIHW" if first else "HWIO")
        keywords |= {"strides": problem.s, "padding": problem.padding, "data_format": problem.data_format}
        self.calls = {
            "conv2d": lambda **more: convkit.conv2d(x, w, **keywords, **more),
            "conv2d_backprop_filter": lambda **more: convkit.conv2d_backprop_filter(x, w.shape, dy, **keywords, **more),
            "conv2d_backprop_input": lambda **more: convkit.conv2d_backprop_input(x.shape, w, dy, **keywords, **more),
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
            length = reference.terms(op, *self.problem.shapes)
            scale = reference.magnitude(op, *arguments[op], **self.problem.geometry)
            bound = reference.error_bound(length, scale, result.dtype)
            if not np.all(np.abs(result - wanted) <= bound):  # also false for NaN
                raise WrongResultError(f"{op} of {self.problem} is wrong: {np.max(np.abs(result - wanted)):.3g} off")
