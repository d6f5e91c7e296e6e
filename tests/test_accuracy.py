"""The error contract of docs/numerics.md, on random and on adversarial data."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import convkit

_PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "accuracy.py"
_SPEC = importlib.util.spec_from_file_location("convkit_accuracy_benchmark", _PATH)
accuracy = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(accuracy)

WIDE = (np.dtype(np.float32), np.dtype(np.float64))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = (np.dtype(np.float16), BFLOAT16)
LONG = list(accuracy.long_sums(34, 1024))


def assert_contract(op, data, dtype):
    """Check every family that can serve."""
    families = accuracy.able(op, data, dtype)
    assert families
    for family in families:
        worst, _ = accuracy.measure(op, data, dtype, family)
        bound = accuracy.proven_c(op, data, family, dtype)
        assert worst <= bound, f"{op} of {data.name} data by {family} in {dtype}: {worst} beyond {bound}"


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("op", accuracy.OPS)
@pytest.mark.parametrize("data", list(accuracy.kinds(1)), ids=lambda data: data.name)
def test_error_contract(data, op, dtype):
    assert_contract(op, data, dtype)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize(("op", "data"), LONG, ids=lambda value: getattr(value, "name", value))
def test_error_contract_of_long_sums(op, data, dtype):
    assert_contract(op, data, dtype)


def test_error_contract_of_an_input_gradient_with_many_taps():
    """Few input channels: each pixel collects the products of 1089 taps, in two levels."""
    data = accuracy.constant((1, 66, 2, 16, 33))
    assert_contract("conv2d_backprop_input", data, WIDE[0])


@pytest.mark.parametrize(("op", "data"), LONG[:3], ids=lambda value: getattr(value, "name", value))
def test_long_sums_of_random_floats_stay_near_the_rounding_of_the_result(op, data):
    """One chain of additions would be off by some 1e-5; blocks keep the error under ten times the float32 epsilon."""
    _, relative = accuracy.measure(op, data, WIDE[0], "im2col")
    assert relative < 10 * np.finfo(np.float32).eps


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("op", accuracy.OPS)
def test_halves_are_summed_in_float32_and_rounded_once(op, half, rng):
    data = accuracy.make("random", (2, 9, 40, 24, 3), *[lambda rng, shape: rng.standard_normal(shape)] * 3)
    arguments = data.cast(half).arguments(op)
    operation = getattr(convkit, op)
    for family in accuracy.able(op, data, half):
        sums = operation(*arguments, algorithm=family, out_dtype=np.float32)
        assert sums.dtype == np.float32
        assert np.array_equal(operation(*arguments, algorithm=family), sums.astype(half))


def test_accumulate_adds_what_the_gradient_is_without_it(rng):
    x, dy = rng.standard_normal((2, 8, 8, 3), np.float32), rng.standard_normal((2, 6, 6, 4), np.float32)
    start = rng.standard_normal((3, 3, 3, 4), np.float32)
    out = start.copy()
    convkit.conv2d_backprop_filter(x, out.shape, dy, out=out, accumulate=True)
    assert np.array_equal(out, start + convkit.conv2d_backprop_filter(x, out.shape, dy))


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_accumulate_into_a_half_rounds_once_after_the_addition(half, rng):
    x, dy = (rng.standard_normal(shape).astype(half) for shape in ((2, 8, 8, 3), (2, 6, 6, 4)))
    start = rng.standard_normal((3, 3, 3, 4)).astype(half)
    sums = convkit.conv2d_backprop_filter(x, start.shape, dy, out_dtype=np.float32)
    out = start.copy()
    convkit.conv2d_backprop_filter(x, start.shape, dy, out=out, accumulate=True)
    assert np.array_equal(out, (start.astype(np.float32) + sums).astype(half))
