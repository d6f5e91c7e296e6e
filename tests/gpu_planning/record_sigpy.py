"""Writes tests/data/sigpy_calls.json: how sigpy calls `cupy.cudnn`, call by call, with shapes and strides.

    python tests/gpu_planning/record_sigpy.py

Needs sigpy and CuPy 14, and no GPU: sigpy's GPU functions work on NumPy arrays as well, up to the call of cuDNN.
"""

import itertools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import convkit
from convkit import compat

TARGET = Path(__file__).resolve().parents[1] / "data" / "sigpy_calls.json"
# Data, filter, whether they have channels.
SHAPES = (
    ((9,), (4,), False),
    ((2, 3, 10), (3,), False),
    ((2, 12), (1, 2, 5), True),
    ((7, 8), (3, 2), False),
    ((2, 9, 6), (4, 3), False),
    ((2, 3, 8, 7), (4, 3, 3, 3), True),
    ((5, 5), (5, 5), False),
)
DTYPES = ("float32", "complex128")
STEPS = (None, 2)


def problems() -> Iterator[dict]:
    """Yield the arguments of sigpy's functions."""
    for (data, filt, channels), dtype, mode, step in itertools.product(SHAPES, DTYPES, ("full", "valid"), STEPS):
        sizes = len(filt) - 2 * channels
        yield {
            "data_shape": data, "filt_shape": filt, "multi_channel": channels, "dtype": dtype, "mode": mode,
            "strides": None if step is None else [step] * sizes,
        }  # fmt: skip


class Recorder:
    """Stands in for `cupy.cudnn`: notes each call, and computes it on the CPU."""

    def __init__(self) -> None:
        self.calls: list[dict] = []

    def _note(self, function: str, arrays: dict, rest: tuple, keywords: dict) -> dict:
        forms = {
            role: None if a is None else {"shape": a.shape, "strides": a.strides, "dtype": a.dtype.name}
            for role, a in arrays.items()
        }
        self.calls.append({"function": function, "arrays": forms, "rest": rest, "keywords": keywords})
        pads, strides, dilations, groups = rest
        return {"padding": pads, "strides": strides, "dilations": dilations, "groups": groups, "data_format": "NCHW"}

    def convolution_forward(self, x, W, b, y, *rest, **keywords):
        """Take the arguments as CuPy's function takes them."""
        geometry = self._note("convolution_forward", {"x": x, "W": W, "b": b, "y": y}, rest, keywords)
        convkit.conv2d(x, W, out=y, **geometry)

    def convolution_backward_data(self, W, x, b, y, *rest, **keywords):
        """Take the arguments as CuPy's function takes them."""
        geometry = self._note("convolution_backward_data", {"W": W, "x": x, "b": b, "y": y}, rest, keywords)
        convkit.conv2d_backprop_input(y.shape, W, x, out=y, **geometry)

    def convolution_backward_filter(self, x, gy, gW, *rest, **keywords):
        """Take the arguments as CuPy's function takes them."""
        geometry = self._note("convolution_backward_filter", {"x": x, "gy": gy, "gW": gW}, rest, keywords)
        convkit.conv2d_backprop_filter(x, gW.shape, gy, out=gW, **geometry)


def record() -> list[dict]:
    """Return the distinct calls that all problems make; sigpy's result on them must be what it computes itself."""
    compat.install()
    from sigpy import conv

    recorder, kept = Recorder(), conv.cudnn
    conv.cudnn = recorder
    try:
        for problem in problems():
            solve(conv, problem)
    finally:
        conv.cudnn = kept
    return [json.loads(text) for text in dict.fromkeys(json.dumps(call) for call in recorder.calls)]


def solve(conv, problem: dict) -> None:
    """Make sigpy's three functions call cuDNN, and compare with what they give on the CPU."""
    rng = np.random.default_rng(0)
    data, filt = (rng.standard_normal(problem[name]).astype(problem["dtype"]) for name in ("data_shape", "filt_shape"))
    keywords = {name: problem[name] for name in ("mode", "strides", "multi_channel")}
    output = conv.convolve(data, filt, **keywords)
    # On the GPU the adjoints conjugate before they split into real and imaginary parts.
    for name, first, second, conjugated, more in (
        ("convolve", data, filt, filt, ()),
        ("convolve_data_adjoint", output, filt, filt.conj(), (data.shape,)),
        ("convolve_filter_adjoint", output, data, data.conj(), (filt.shape,)),
    ):
        expected = getattr(conv, name)(first, second, *more, **keywords)
        on_gpu = getattr(conv, f"_{name}_cuda")
        if np.iscomplexobj(data):
            result = conv._complex(on_gpu, first, conjugated, *more, **keywords)
        else:
            result = on_gpu(first, second, *more, **keywords)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    TARGET.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in record()) + "\n]\n", encoding="utf-8")
