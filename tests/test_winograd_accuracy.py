"""The error contract of Winograd convolutions on data that networks meet, and gradients against finite differences."""

import functools

import harness
import numpy as np
import pytest
import winograd_cases
import winograd_data
from harness import NHWC, Call

import convkit

FLOAT32 = np.dtype(np.float32)
OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
PRECISIONS = ("high", "default", "fast")
# Relative errors in the L2 norm: on data of mean zero, and how many times that of sums of products on any other.
MOST_RELATIVE, MOST_TIMES = 5e-6, 6

arrays = functools.cache(lambda kind: winograd_data.KINDS[kind]())


def call_on(kind: str, op: str) -> Call:
    return harness.three_calls(*arrays(kind))[OPS.index(op)]


@functools.cache
def expected_on(kind: str, op: str) -> np.ndarray:
    return call_on(kind, op).reference()


def relative(call: Call, family: str, expected: np.ndarray) -> float:
    found = harness.operation(call.op)(*call.in_layout(NHWC, FLOAT32), algorithm=family)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", winograd_data.KINDS)
def test_error_contract(kind, op, tile):
    call = call_on(kind, op)
    found = harness.operation(op)(*call.in_layout(NHWC, FLOAT32), algorithm="winograd")
    winograd_cases.assert_close(call, found, FLOAT32, tile, f"on {kind} data")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", winograd_data.KINDS)
def test_relative_error(kind, op, tile):
    """Where sums cancel, those of products are off as much."""
    call = call_on(kind, op)
    expected = expected_on(kind, op)
    error = relative(call, "winograd", expected)
    assert error <= MOST_TIMES * relative(call, "direct", expected)
    if kind in ("random, 64 channels", "random, 512 channels", "trained"):
        assert error <= MOST_RELATIVE


def loss_and_gradients(x, w):
    """Return sum(log(cosh(conv2d(x, w)))), and its gradients by the two backward operations."""
    y = convkit.conv2d(x, w, padding="SAME")
    dy = np.tanh(y)
    return (
        np.log(np.cosh(y)).sum(),
        convkit.conv2d_backprop_input(x.shape, w, dy, padding="SAME"),
        convkit.conv2d_backprop_filter(x, w.shape, dy, padding="SAME"),
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [6, 12])
def test_gradients_are_finite_differences_in_every_precision(size, precision, rng):
    """In tiles of both sizes, by whichever family each precision chooses."""
    x, w = rng.standard_normal((6, size, size, 32)) / 4, rng.standard_normal((3, 3, 32, 24)) / 8
    with convkit.options(precision=precision):
        chosen = {convkit.explain(op, *told, padding="SAME").implementation for op, told in (
            ("conv2d", (x, w)),
            ("conv2d_backprop_input", (x.shape, w, np.empty((6, size, size, 24)))),
            ("conv2d_backprop_filter", (x, w.shape, np.empty((6, size, size, 24)))),
        )}  # fmt: skip
        assert (chosen == {"cpu:winograd_f64"}) == (precision != "high")
        _, *gradients = loss_and_gradients(x, w)
        for array, gradient in zip((x, w), gradients, strict=True):
            for place in rng.integers(0, array.size, 20):
                number, step = array.flat[place], 1e-5
                array.flat[place] = number + step
                above, *_ = loss_and_gradients(x, w)
                array.flat[place] = number - step
                below, *_ = loss_and_gradients(x, w)
                array.flat[place] = number
                assert abs((above - below) / (2 * step) - gradient.flat[place]) <= 1e-6
