"""The modules that stand in for CuPy's former cuDNN bindings, and sigpy on them where it is installed."""

import itertools
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

import convkit
from convkit import compat

from .findings import Finding
from .session import Session

SHAPES = (((2, 14, 11), (3, 4)), ((1, 9), (4,)), ((20, 20), (7, 7)))
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
# Sums of some dozens of random products.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-13}


def drop_in(session: Session) -> Finding:
    """The three functions, with symmetric padding and a flipped filter, against the CPU."""
    finding = Finding("cupy.cudnn")
    finding.detail = compat.install()
    from cupy import cudnn

    rng = np.random.default_rng(8)
    # Whole numbers, which only a transforming algorithm would round.
    with convkit.options(precision="high"):
        for dtype in (np.float16, np.float32, np.float64):
            x, w = rng.integers(-3, 4, (2, 3, 9, 8)).astype(dtype), rng.integers(-3, 4, (4, 3, 3, 2)).astype(dtype)
            for name, found, wanted in _three(session, cudnn, x, w):
                finding.note(np.array_equal(found, wanted.astype(dtype)), f"{name}, {np.dtype(dtype)}")
    return finding


def _three(session: Session, cudnn: Any, x: np.ndarray, w: np.ndarray) -> Iterator[tuple]:
    """Yield the name of each function, what it gives, and what the CPU gives."""
    wide_x, wide_w = (array.astype(np.float64) for array in (x, w))
    geometry = {"padding": (2, 1), "strides": (2, 1), "data_format": "NCHW"}
    y = convkit.conv2d(wide_x, wide_w, **geometry)
    rest, more = ((2, 1), (2, 1), (1, 1), 1), {"auto_tune": True, "tensor_core": "auto"}
    gx, gy = session.to_gpu(x), session.to_gpu(y.astype(x.dtype))
    # Reversed in memory, and reversed back by the view.
    gw = session.to_gpu(w[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    out = session.cupy.empty(y.shape, x.dtype)
    cudnn.convolution_forward(gx, gw, None, out, *rest, **more)
    yield "convolution_forward", session.to_cpu(out), y
    out = session.cupy.empty(x.shape, x.dtype)
    cudnn.convolution_backward_data(gw, gy, None, out, *rest, deterministic=False, **more)
    yield (
        "convolution_backward_data",
        session.to_cpu(out),
        convkit.conv2d_backprop_input(x.shape, wide_w, y, **geometry),
    )
    out = session.cupy.empty(w.shape, x.dtype)
    cudnn.convolution_backward_filter(gx, gy, out, *rest, deterministic=False, **more)
    wanted = convkit.conv2d_backprop_filter(wide_x, w.shape, y, **geometry)
    yield "convolution_backward_filter", session.to_cpu(out), wanted


def sigpy(session: Session) -> Finding:
    """sigpy's convolutions and their adjoints on the GPU against sigpy's own on the CPU."""
    finding = Finding("sigpy")
    if find_spec("sigpy") is None:
        return finding.left_out("sigpy is not installed")
    if "sigpy" not in sys.modules:
        compat.install()
    from sigpy import conv

    rng = np.random.default_rng(9)
    for (data_shape, filter_shape), dtype, mode, stride in itertools.product(SHAPES, DTYPES, ("full", "valid"), (1, 2)):
        data, filt = (_numbers(rng, shape, dtype) for shape in (data_shape, filter_shape))
        keywords = {"mode": mode, "strides": (stride,) * len(filter_shape)}
        wanted = conv.convolve(data, filt, **keywords)
        calls = {
            "convolve": ((data, filt), ()),
            "convolve_data_adjoint": ((wanted, filt), (data_shape,)),
            "convolve_filter_adjoint": ((wanted, data), (filter_shape,)),
        }
        for name, (arrays, shapes) in calls.items():
            function = getattr(conv, name)
            expected = function(*arrays, *shapes, **keywords)
            found = session.to_cpu(function(*map(session.to_gpu, arrays), *shapes, **keywords))
            off = np.max(np.abs(found - expected)) / np.max(np.abs(expected))
            line = f"{name} {data_shape} {filter_shape} {np.dtype(dtype)} {mode}, stride {stride}: {off:.2g} off"
            finding.note(found.dtype == expected.dtype and off <= TOLERANCE[np.abs(expected).dtype], line)
    return finding


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else real).astype(dtype)
