"""The cases of TensorFlow's own tests, by every family of the GPU."""

import int8_cases
import numpy as np
import pytest
import test_int8_golden
import test_tf_cases

INT8 = [case for case in test_int8_golden.TF_INT8 if case["kind"] == "compare"]
# Multiplications that a case of the fast set may take; kernels run on the CPU here.
FAST = 1e5


def products(case):
    """Return how many multiplications a case takes, as far as it says; errors take none."""
    shapes = [case.get(name, ()) for name in ("output_shape", "out_backprop_shape", "input_shape")]
    window = case.get("filter_shape", case.get("filter_sizes", (1, 1, 1, 1)))
    outputs = max((np.prod(shape, dtype=float) for shape in shapes if shape), default=0)
    return outputs * np.prod(window[:3], dtype=float) * (20 if "gradcheck" in case["kind"] else 1)


def check(gpu, monkeypatch, case):
    monkeypatch.setattr(test_tf_cases, "convkit", gpu)
    test_tf_cases.DECIDED_OTHERWISE.get(case["id"], test_tf_cases.CHECKS[case["op"], case["kind"]])(case)


def named(cases, slow):
    return [pytest.param(case, id=case["id"]) for case in cases if bool(products(case) > FAST) == slow]


@pytest.mark.parametrize("case", named(test_tf_cases.IN_SCOPE, slow=False))
def test_tf_case(gpu, monkeypatch, case):
    check(gpu, monkeypatch, case)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", named(test_tf_cases.IN_SCOPE, slow=True))
def test_large_tf_case(gpu, monkeypatch, case):
    check(gpu, monkeypatch, case)


@pytest.mark.parametrize("probe", test_int8_golden.PROBES, ids=lambda probe: probe["id"])
def test_epilogue_probe(gpu, probe):
    fused = test_int8_golden.case_of_probe(probe)
    fused.check(np.full((1, 1, 1, 1), probe["expected_order"]))


@pytest.mark.parametrize("case", named(INT8, slow=False))
def test_int8_case(gpu, rng, case):
    fused = test_int8_golden.scaled(case, rng, tuple(case["input_shape"]))
    fused.check(layouts=int8_cases.LAYOUTS[:1])
