"""The epilogue of int8 convolutions against exact fractions: halves, NaN, infinities, huge and tiny terms."""

import itertools
import math
from fractions import Fraction

import int8_reference
import numpy as np
import pytest
from int8_cases import Fused, single

from convkit._cpu import epilogue

TINY = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)
PLAIN = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 3.0, 1 / 3, 2.0**-23, 2.0**-24, 1 + 2.0**-23, 2.0**24 + 2]
ODD = [1e-38, TINY, -3 * TINY, 3e38, LARGEST, -LARGEST, math.inf, -math.inf, math.nan]
EDGES = [float(np.float32(value)) for value in (*PLAIN, *ODD)]


def test_the_reference_rounds_as_numpy_does(rng):
    for value in rng.standard_normal(2000) * 10.0 ** rng.integers(-50, 45, 2000):
        with np.errstate(all="ignore"):
            assert int8_reference.to_float32(Fraction(value)) == float(np.float32(value))


def assert_fma(a, b, c) -> None:
    with np.errstate(all="ignore"):
        result = epilogue.fma(np.float32(a), np.float32(b), np.float32(c))
    expected = [int8_reference.multiply_add(*map(float, three)) for three in np.broadcast(a, b, c)]
    np.testing.assert_array_equal(result.ravel(), np.array(expected, np.float32))


def test_fma_of_edges():
    a, b, c = np.array(list(itertools.product(EDGES, repeat=3))).T
    assert_fma(a, b, c)


def test_fma_rounds_once(rng):
    """Sums that lie on a tie of float32 after a rounding to float64, but not before."""
    c = np.float32(1.0)
    for low, sign in itertools.product((2.0**-60, 2.0**-90, 2.0**-120), (1, -1)):
        a, b = np.float32(2.0**-24), np.float32(1.0)
        assert_fma(np.array([a]), np.array([b]), np.array([c]))
        next_to_one = int8_reference.to_float32(1 + Fraction(2.0**-24) + sign * Fraction(low))
        assert next_to_one == (1 + 2.0**-23 if sign > 0 else 1)
    a = np.float32(rng.integers(-(2**24), 2**24, 3000)) * np.float32(2.0) ** rng.integers(-60, 60, 3000)
    b = np.float32(rng.integers(-(2**24), 2**24, 3000)) * np.float32(2.0) ** rng.integers(-60, 60, 3000)
    product = a.astype(np.float64) * b
    with np.errstate(all="ignore"):
        near = np.float32(-product) * np.float32(2.0) ** rng.integers(-30, 30, 3000).astype(np.float32)
    assert_fma(a, b, near.astype(np.float32))


@pytest.mark.parametrize("out_dtype", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_every_edge_of_scale_side_and_bias(out_dtype, activation):
    """One output channel for each scale and bias; pixels for the sums."""
    pairs = np.array(list(itertools.product(EDGES, EDGES)), np.float32)
    scale, bias = pairs.T.copy()
    w = np.ones((1, 1, 1, len(pairs)), np.int8)
    x = np.array([0, 1, -128, 35], np.int8).reshape(1, 1, 4, 1)
    rng = np.random.default_rng(3)
    side = rng.integers(-128, 128, (1, 1, 4, len(pairs)), np.int8)
    side[..., ::7] = 0
    for side_scale in (0.0, 0.3, TINY, 3e38, math.inf, math.nan):
        terms = {"conv_scale": scale, "side_scale": side_scale, "activation": activation, "out_dtype": out_dtype}
        Fused(x, w, bias, side, terms).check()


def test_halves_around_every_result():
    """Sums of half steps over the whole range and beyond, for several zero points."""
    x = np.arange(-128, 128).astype(np.int8)
    for out_dtype, zero in (("int8", 0), ("int8", -128), ("int8", 127), ("uint8", 0), ("uint8", 128), ("uint8", 255)):
        for activation in (None, "relu"):
            terms = {"conv_scale": 0.5, "output_zero_point": zero, "out_dtype": out_dtype, "activation": activation}
            single(x, [1, 3, -5, 7], terms).check()


def test_multiplication_and_addition_are_two_roundings():
    single(35, 1, {"conv_scale": 0.1}, bias=np.array([-3.0], np.float32)).check(np.zeros((1, 1, 1, 1)))


def test_an_int32_bias_is_added_to_the_sums(rng):
    x, w = rng.integers(-128, 128, (1, 4, 5, 6), np.int8), rng.integers(-128, 128, (3, 3, 6, 9), np.int8)
    bias = rng.integers(-100000, 100000, 9).astype(np.int32)
    Fused(x, w, bias, terms={"conv_scale": 1e-3}).check()
    bias[:4] = 2**31 - 1, -(2**31), 2**31 - 5, 3 - 2**31
    for terms in ({"out_dtype": "float32"}, {"conv_scale": 1e-7}, {"conv_scale": 1e-7, "activation": "relu"}):
        Fused(x, w, bias, terms=terms).check()


def test_side_inputs_of_each_dtype(rng):
    x, w = rng.integers(0, 256, (2, 4, 5, 8), np.uint8), rng.integers(-128, 128, (2, 2, 8, 12), np.int8)
    bias = rng.standard_normal(12).astype(np.float32)
    for out_dtype, dtypes in {"int8": "bB", "uint8": "bB", "float32": "bBf"}.items():
        for dtype in dtypes:
            side = (rng.standard_normal((2, 3, 4, 12)) * 60 + (70 if dtype == "B" else 0)).clip(-128, 255)
            side = side.clip(0, 255).astype(dtype) if dtype == "B" else side.clip(-128, 127).astype(dtype)
            terms = {"conv_scale": 1e-3, "side_scale": 0.7, "out_dtype": out_dtype, "activation": "relu"}
            Fused(x, w, bias, side, terms).check()
