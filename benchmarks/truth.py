"""The exact result of a case in float64, and how far off a contestant's result is, in units of the error contract.

Of a large problem only a part is computed: some images, channels and filters, but every pixel and every tap of theirs.
"""

from pathlib import Path

import numpy as np
from peers.job import int8_terms
from problems import FUSED, Case, numpy_dtype, reference

# A reference result of about a second; beyond it a part is compared.
WHOLE_FLOPS = 1e9
FEW = 8
# Of an int8 result convkit must be right to the last bit, and others, which round elsewhere, to one step: an error of
# one is eight times this.
INT8_ALLOWED = 1 / 8
# The images of int8 problems, which peers hold as int8 or as uint8; and the spread that results have.
INT8_LARGEST, INT8_SPREAD = 127, 40


def arrays(case: Case, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random NHWC images, HWIO filters and output gradients; for int8, scales and int32 biases."""
    rng = np.random.default_rng(seed)
    if case.problem.int8:
        return _int8_arrays(case, rng)
    dtype = numpy_dtype(case.problem.dtype)
    x, w, dy = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in case.problem.shapes)
    return x, w, dy


def _int8_arrays(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whole numbers, and for each filter a scale that lets results fit int8, and a bias in units of the sums."""
    problem = case.problem
    x_shape, w_shape, _ = problem.shapes
    x = rng.integers(0, INT8_LARGEST, x_shape, np.int8, endpoint=True).astype(problem.dtype)
    w = rng.integers(-INT8_LARGEST, INT8_LARGEST, w_shape, np.int8, endpoint=True)
    scale = INT8_SPREAD / np.sqrt(np.prod(w_shape[:3])) / (INT8_LARGEST**2 / 3)
    scale = (scale * rng.uniform(0.5, 1.5, problem.k)).astype(np.float32)
    bias = np.rint(rng.normal(0, 10, problem.k) / scale)
    return x, w, np.stack([scale, bias.astype(np.float64)])


def save(folder: Path, x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> None:
    """Write what the contestants read; a half goes as uint16, since .npy has no bfloat16."""
    for name, array in (("x", x), ("w", w), ("dy", dy)):
        np.save(folder / f"{name}.npy", array.view(np.uint16) if array.dtype.itemsize == 2 else array)


def _ends(count: int, most: int = FEW) -> list[int]:
    """Return the first and the last of so many, at most ``most`` in all."""
    if count <= most:
        return list(range(count))
    return [*range(most - most // 2), *range(count - most // 2, count)]


def _fused(x: np.ndarray, w: np.ndarray, dy: np.ndarray, geometry: dict) -> np.ndarray:
    """Return a scaled, biased, rectified and rounded convolution; its sums are exact in float64."""
    scale, bias = int8_terms(dy)
    sums = reference.conv2d(x.astype(np.float64), w.astype(np.float64), **geometry)
    return np.clip(np.rint(sums.astype(np.float32) * scale + bias), 0, INT8_LARGEST)


class Truth:
    """What a result must be, and where to look at it.

    ``part`` lists axes of the result in NHWC or HWIO order with the indices to take, one after the other.
    """

    def __init__(self, case: Case, x: np.ndarray, w: np.ndarray, dy: np.ndarray):
        problem, op = case.problem, case.op
        groups, part = problem.g, []
        if problem.flops > WHOLE_FLOPS or groups > FEW:
            few = _ends(groups)
            channels = [g * (problem.c // groups) + i for g in few for i in range(problem.c // groups)]
            filters = [g * (problem.k // groups) + i for g in few for i in range(problem.k // groups)]
            images, groups = _ends(problem.n, 2), len(few)
            if op == "conv2d_backprop_filter" and groups == 1:
                channels, filters = _ends(problem.c), _ends(problem.k)
                w = w[:, :, channels]
            if op == "conv2d_backprop_filter":
                part = [(2, channels if groups == 1 else list(range(w.shape[2]))), (3, filters)]
            else:
                x, dy = x[images], dy if op == FUSED else dy[images]
                part = [(0, images), (3, channels if op == "conv2d_backprop_input" else filters)]
            x, w, dy = x[..., channels], w[..., filters], dy[..., filters]
        self.part = part
        geometry = problem.geometry | {"groups": groups}
        if op == FUSED:
            self.wanted, self.allowed = _fused(x, w, dy, geometry), INT8_ALLOWED
            return
        arguments = {
            "conv2d": (x, w),
            "conv2d_backprop_filter": (x, w.shape, dy),
            "conv2d_backprop_input": (x.shape, w, dy),
        }[op]
        self.wanted = reference.OPS[op](*arguments, **geometry)
        self.allowed = problem.allowed(op, self.wanted, reference.magnitude(op, *arguments, **geometry))

    def excess(self, part: np.ndarray) -> float:
        """Return the largest error over what is allowed: at most 1 if the result is right, infinite if it is NaN."""
        if part.shape != self.wanted.shape:
            return float("inf")
        with np.errstate(all="ignore"):
            error = np.abs(part.astype(np.float64) - self.wanted)
            # Outputs that meet padding alone are exactly zero, and nothing is allowed there.
            share = np.where(error == 0, 0.0, error / self.allowed)
        worst = float(share.max(initial=0.0))
        return float("inf") if np.isnan(worst) else worst
