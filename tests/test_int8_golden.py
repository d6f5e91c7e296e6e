"""TensorFlow's fused int8 kernel and its tests: every family gives their values to the last bit, at every ISA level."""

import cases
import int8_cases
import int8_reference
import numpy as np
import pytest
import reference
from child import run_python
from int8_cases import Fused

import convkit
from convkit._cpu import _engine, isa

CASES = int8_cases.golden_ids()
PROBES = cases.tf_file()["constructed"]["int8_epilogue"]
TF_INT8 = [case for case in cases.tf_cases() if case["op"] == "fused_conv2d_int8"]
# Multiplications that one test may take; the larger cases of TensorFlow's tests are in the slow set.
LARGE = 1e9

AT_EVERY_LEVEL = """
    import convkit, int8_cases, numpy as np

    for case in int8_cases.golden_ids():
        fused, y = int8_cases.golden(case)
        for layout in filter(fused.fits, int8_cases.LAYOUTS):
            for threads in (1, 2, 5):
                result = convkit.fused_conv2d(
                    *fused.arguments(layout), **fused.terms, **fused.geometry, **layout.keywords, num_threads=threads
                )
                result = int8_cases.from_layout(result, layout.data)
                np.testing.assert_array_equal(result, y, err_msg=f"{case} {layout} {threads}")
    print("checked")
"""


def test_all_120_int8_cases_are_there():
    assert len(CASES) == 120


@pytest.mark.parametrize("case", CASES)
def test_the_reference_of_the_tests_gives_them_too(case):
    fused, y = int8_cases.golden(case)
    np.testing.assert_array_equal(fused.expected(), y)


@pytest.mark.parametrize("case", CASES)
def test_golden_values_equal_to_the_last_bit(case):
    fused, y = int8_cases.golden(case)
    fused.check(y)


@pytest.mark.parametrize("level", isa.levels(_engine.BEST_ISA))
def test_golden_values_at_every_level_and_on_any_number_of_threads(level):
    assert run_python(AT_EVERY_LEVEL, timeout=280, CONVKIT_MAX_ISA=level) == "checked"


def case_of_probe(probe):
    """Return a convolution whose single sum is the probe's accumulator: 127 as often as it goes, and the rest."""
    count, rest = divmod(abs(probe["accumulator"]), 127 * 127)
    pixels = np.append(np.full(count, 127), rest // 127), np.append(np.zeros(count), rest % 127)
    x = np.concatenate(pixels).astype(np.int8)
    w = np.concatenate((np.full(count + 1, 127), np.zeros(count), [1])).astype(np.int8)
    if probe["accumulator"] < 0:
        w = -w
    side = None if probe["side_input"] is None else np.full((1, 1, 1, 1), probe["side_input"], np.int8)
    terms = {
        "conv_scale": probe["conv_input_scale"],
        "side_scale": probe["side_input_scale"],
        "activation": None if probe["activation"] == "None" else probe["activation"].lower(),
    }
    bias = np.array([probe["bias"]], np.float32)
    return Fused(x.reshape(1, 1, 1, -1), w.reshape(1, 1, -1, 1), bias, side, terms)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe["id"])
def test_epilogue_probe(probe):
    fused = case_of_probe(probe)
    assert int8_reference.sums(fused.x, fused.w).item() == probe["accumulator"]
    fused.check(np.full((1, 1, 1, 1), probe["expected_order"]))


def scaled(case, rng, x_shape):
    """Return a case of TensorFlow's test on random data, as the test makes it."""
    w_shape, given = tuple(case["filter_shape"]), case["side_input"] != "absent"
    geometry = {"strides": tuple(case["strides"]), "padding": case["padding"]}
    y_shape = reference.output_shape(x_shape, w_shape, **geometry)
    terms = {
        "conv_scale": case["conv_input_scale"],
        "side_scale": case["side_input_scale"],
        "activation": {"Relu": "relu", "None": None}[case["activation"]],
    }
    return Fused(
        rng.integers(0, 128, x_shape, np.int8),
        rng.integers(-128, 128, w_shape, np.int8),
        rng.uniform(-10, 20, w_shape[3]).astype(np.float32),
        rng.integers(0, 128, y_shape, np.int8) if given else None,
        terms,
        geometry,
    )


def test_rounding_mode():
    case = next(case for case in TF_INT8 if case["kind"] == "value")
    x, w = (np.reshape(case["inputs"][name], case[f"{name}_shape"]).astype(np.int8) for name in ("input", "filter"))
    fused = Fused(x, w, np.zeros(1, np.float32), None, {"conv_scale": case["conv_input_scale"]})
    fused.check(np.reshape(case["expected"], case["output_shape"]))


def products(case):
    return np.prod(case["output_shape"]) * np.prod(case["filter_shape"][:3])


@pytest.mark.parametrize(
    "case",
    [case for case in TF_INT8 if case["kind"] == "compare" and products(case) < LARGE],
    ids=lambda case: case["id"],
)
def test_parameters_of_tensorflows_test(case, rng):
    fused = scaled(case, rng, tuple(case["input_shape"]))
    assert fused.expected().shape == tuple(case["output_shape"])
    fused.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "case",
    [case for case in TF_INT8 if case["kind"] == "compare" and products(case) >= LARGE],
    ids=lambda case: case["id"],
)
def test_the_largest_parameters_of_tensorflows_test(case, rng):
    """Once, by the family that serves, and compared at random pixels and at the corners."""
    fused = scaled(case, rng, tuple(case["input_shape"]))
    y = convkit.fused_conv2d(fused.x, fused.w, fused.bias, fused.side, **fused.terms, **fused.geometry)
    assert y.shape == tuple(case["output_shape"])
    _, pads = reference.resolve(
        fused.x.shape[1:3], fused.w.shape[:2], fused.geometry["strides"], (1, 1), fused.geometry["padding"]
    )
    padded = np.pad(fused.x, ((0, 0), *pads, (0, 0)))
    kh, kw = fused.w.shape[:2]
    corners = [(n, i, j) for n in (0, y.shape[0] - 1) for i in (0, y.shape[1] - 1) for j in (0, y.shape[2] - 1)]
    for n, i, j in corners + [tuple(rng.integers(size) for size in y.shape[:3]) for _ in range(40)]:
        window = padded[n : n + 1, i : i + kh, j : j + kw]
        one = Fused(window, fused.w, fused.bias, fused.side[n : n + 1, i : i + 1, j : j + 1], fused.terms)
        np.testing.assert_array_equal(y[n, i, j], one.expected()[0, 0, 0])
