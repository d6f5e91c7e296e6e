"""TensorFlow's own kernels, computed elsewhere: every family gives their values to the last bit."""

import cases
import harness
import numpy as np
import pytest
from harness import HALVES, LAYOUTS, WIDE

CASES = cases.golden_ids()


def golden_calls(case):
    """Return each of the three calls of a golden case with its expected result."""
    golden = cases.golden(case)
    calls = harness.three_calls(*(a.astype(np.float64) for a in (golden.x, golden.w, golden.dy)), **golden.geometry)
    return list(zip(calls, (golden.y, golden.dw, golden.dx), strict=True))


def test_all_120_float_cases_are_there():
    assert len(CASES) == 120


@pytest.mark.parametrize("case", CASES)
def test_the_reference_of_the_tests_gives_them_too(case):
    for call, expected in golden_calls(case):
        np.testing.assert_array_equal(call.reference(), expected, err_msg=call.op)


@pytest.mark.parametrize("case", CASES)
def test_golden_values_equal_to_the_last_bit(case):
    for call, expected in golden_calls(case):
        harness.assert_exact(call, LAYOUTS, WIDE, expected)


@pytest.mark.parametrize("case", CASES)
def test_golden_values_rounded_once_to_half_types(case):
    golden = cases.golden(case)
    for dtype in HALVES:
        for values in (golden.x, golden.w, golden.dy):
            np.testing.assert_array_equal(values.astype(dtype).astype(np.int64), values)
    for call, expected in golden_calls(case):
        harness.assert_exact(call, LAYOUTS, HALVES, expected)


@pytest.mark.parametrize("case", CASES)
def test_golden_values_of_half_types_in_float32_out(case):
    for call, expected in golden_calls(case):
        for layout in LAYOUTS:
            for dtype in HALVES:
                for family, result in harness.each_family(call, layout, dtype, out_dtype="float32"):
                    assert result.dtype == np.float32
                    np.testing.assert_array_equal(result, expected, err_msg=f"{call.op} by {family} in {layout}")


@pytest.mark.parametrize("case", CASES)
def test_golden_values_in_an_out_full_of_nan(case):
    for call, expected in golden_calls(case):
        for layout in LAYOUTS:
            for dtype in (*WIDE, *HALVES):
                arguments = call.in_layout(layout, dtype)
                keywords = {**call.geometry, **layout.keywords}
                wanted = call.result_to(expected, layout).astype(np.float32).astype(dtype)
                for family in harness.families(call.op, *arguments, **keywords):
                    out = np.full(wanted.shape, np.nan, dtype)
                    result = harness.operation(call.op)(*arguments, algorithm=family, out=out, **keywords)
                    assert result is out
                    np.testing.assert_array_equal(out, wanted, err_msg=f"{call.op} by {family} in {layout}, {dtype}")
