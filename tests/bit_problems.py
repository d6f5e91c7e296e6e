"""Problems of many kinds on random floats, and digests of their results: the bits must not depend on who computes them.

As a program, prints one digest over every problem: ``python bit_problems.py``.
"""

import hashlib
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

import convkit

DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Problem:
    """One geometry; `calls` makes the three operations of it."""

    image: tuple
    filter: tuple
    keywords: dict = field(default_factory=dict)

    def arrays(self, dtype):
        """Return image, filter and output gradient: random, and the same in every process."""
        rng = np.random.default_rng(20)
        shapes = (self.image, self.filter, convkit.conv2d_output_shape(self.image, self.filter, **self.keywords))
        return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]

    def calls(self, dtype):
        """Return the three operations as functions of further keywords."""
        x, w, dy = self.arrays(dtype)
        return (
            lambda **more: convkit.conv2d(x, w, **self.keywords, **more),
            lambda **more: convkit.conv2d_backprop_filter(x, w.shape, dy, **self.keywords, **more),
            lambda **more: convkit.conv2d_backprop_input(x.shape, w, dy, **self.keywords, **more),
        )

    def digests(self, dtype, **more):
        """Return one digest per operation."""
        return [digest(call(**more)) for call in self.calls(dtype)]


PROBLEMS = {
    "3x3": Problem((4, 28, 28, 32), (3, 3, 32, 64), {"padding": "SAME"}),
    "1x1": Problem((4, 28, 28, 64), (1, 1, 64, 96)),
    "depthwise": Problem((2, 28, 28, 48), (3, 3, 1, 48), {"padding": "SAME", "groups": 48}),
    "many channels, few filters": Problem((2, 30, 31, 40), (3, 3, 40, 3), {"padding": "SAME"}),
    "grouped": Problem((2, 20, 20, 24), (3, 3, 8, 36), {"padding": 1, "groups": 3}),
    "strided": Problem((2, 41, 37, 16), (3, 5, 16, 24), {"strides": (2, 3), "padding": "SAME"}),
    "dilated": Problem((2, 31, 27, 16), (3, 5, 16, 24), {"dilations": (3, 2), "padding": "SAME_LOWER"}),
    "large filter, small image": Problem((8, 12, 12, 16), (11, 11, 16, 32)),
    "filter as large as the image": Problem((32, 7, 7, 32), (7, 7, 32, 64)),
    "few output pixels": Problem((4, 9, 9, 192), (3, 3, 192, 128), {"strides": 4}),
    "one large image": Problem((1, 160, 160, 8), (3, 3, 8, 16), {"padding": "SAME"}),
    "many small images": Problem((64, 8, 8, 16), (3, 3, 16, 32)),
    "long sums, few filters": Problem((2, 96, 96, 3), (5, 5, 3, 4)),
    "one channel, one filter": Problem((1, 120, 120, 1), (9, 9, 1, 1), {"padding": "FULL"}),
    "channels first": Problem((2, 24, 19, 21), (40, 24, 3, 3), {"data_format": "NCHW", "padding": (1, 2)}),
}  # fmt: skip


def digest(array):
    """Return the SHA-256 of the bits."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


if __name__ == "__main__":
    every = (line for name in PROBLEMS for dtype in DTYPES for line in PROBLEMS[name].digests(dtype))
    print(hashlib.sha256("".join(every).encode()).hexdigest())
