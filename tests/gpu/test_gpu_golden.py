"""TensorFlow's own kernels, computed elsewhere: every family of the GPU gives their values to the last bit."""

import cases
import fake_cudnn
import harness
import int8_cases
import numpy as np
import pytest
from conftest import forget_gpu
from harness import DTYPES, HALVES, LAYOUTS, NHWC

import convkit

CASES = cases.golden_ids()
INT8_CASES = int8_cases.golden_ids()


def golden_calls(case):
    """Return each of the three calls of a golden case with its expected result."""
    golden = cases.golden(case)
    calls = harness.three_calls(*(a.astype(np.float64) for a in (golden.x, golden.w, golden.dy)), **golden.geometry)
    return list(zip(calls, (golden.y, golden.dw, golden.dx), strict=True))


def check(case, layouts, dtypes):
    for call, expected in golden_calls(case):
        harness.assert_exact(call, layouts, dtypes, expected)


@pytest.mark.parametrize("number", range(0, len(CASES), 2))
def test_golden_values_equal_to_the_last_bit(gpu, number):
    """Every other case in one dtype and layout, in turn; all in all of them in the slow set."""
    check(CASES[number], LAYOUTS[number % 3 : number % 3 + 1], (DTYPES[number // 6 % 4],))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_golden_values_in_every_layout_and_dtype(gpu, case):
    check(case, LAYOUTS, DTYPES)


@pytest.mark.parametrize("number", range(0, len(CASES), 6))
def test_golden_values_by_the_graphs_of_cudnn(gpu, number):
    with fake_cudnn.installed():
        forget_gpu()
        check(CASES[number], LAYOUTS[number % 3 : number % 3 + 1], (DTYPES[number % 4],))


@pytest.mark.parametrize("case", CASES[::10])
def test_golden_values_of_half_types_in_float32_out(gpu, case):
    for call, expected in golden_calls(case):
        for dtype in HALVES:
            for family, result in harness.each_family(call, NHWC, dtype, out_dtype="float32"):
                assert result.dtype == np.float32
                np.testing.assert_array_equal(result, expected, err_msg=f"{call.op} by {family}")


@pytest.mark.parametrize("case", CASES[5::20])
def test_golden_values_in_an_out_full_of_nan(gpu, case):
    for call, expected in golden_calls(case):
        for layout in LAYOUTS:
            arguments = call.in_layout(layout, np.dtype(np.float32))
            keywords = {**call.geometry, **layout.keywords}
            for family in harness.families(call.op, *arguments, **keywords):
                out = np.full(call.result_to(expected, layout).shape, np.nan, np.float32)
                harness.operation(call.op)(*arguments, algorithm=family, out=out, **keywords)
                np.testing.assert_array_equal(call.result_from(out, layout), expected, err_msg=family)


@pytest.mark.parametrize("number", range(0, len(INT8_CASES), 2))
def test_golden_values_of_int8(gpu, number):
    fused, y = int8_cases.golden(INT8_CASES[number])
    first = number // 2 % len(int8_cases.LAYOUTS)
    fused.check(y, int8_cases.LAYOUTS[first : first + 1])


@pytest.mark.slow
@pytest.mark.parametrize("case", INT8_CASES)
def test_golden_values_of_int8_in_every_layout(gpu, case):
    fused, y = int8_cases.golden(case)
    fused.check(y)


@pytest.mark.parametrize("number", range(0, len(INT8_CASES), 12))
def test_golden_values_of_int8_by_the_graphs_of_cudnn(gpu, number):
    with fake_cudnn.installed():
        forget_gpu()
        fused, y = int8_cases.golden(INT8_CASES[number])
        fused.check(y)


def test_the_cpu_agrees_on_sums_without_an_epilogue(gpu):
    for case in INT8_CASES[::17]:
        fused, _ = int8_cases.golden(case)
        expected = convkit.conv2d(fused.x, fused.w, **fused.geometry)
        np.testing.assert_array_equal(gpu.conv2d(fused.x, fused.w, **fused.geometry), expected)
