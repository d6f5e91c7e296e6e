"""Algebra that holds for every geometry: adjoints, linearity, batches, layouts, groups; and the error contract."""

from dataclasses import dataclass

import harness
import ml_dtypes
import numpy as np
import reference
from harness import NCHW, NHWC
from hypothesis import given, settings
from hypothesis import strategies as st

import convkit

FLOAT32 = np.dtype(np.float32)
property_test = settings(max_examples=100, deadline=None)


@dataclass(frozen=True)
class Layer:
    """The shapes and the geometry of a random layer, and a seed for its values."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    geometry: dict
    seed: int

    def integers(self) -> list[np.ndarray]:
        """Return x, w and dy of small integers in float32, whose results are exact in any order."""
        rng = np.random.default_rng(self.seed)
        return [harness.integers(rng, shape).astype(np.float32) for shape in (self.x, self.w, self.y)]

    def floats(self, mean: float = 100) -> list[np.ndarray]:
        """Return x, w and dy of normal numbers, each around 0 or ``mean``, as float64 that float32 holds exactly."""
        rng = np.random.default_rng(self.seed)
        shapes = (self.x, self.w, self.y)
        return [(harness.floats(rng, s) + rng.choice([0, mean])).astype(np.float32).astype(np.float64) for s in shapes]


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
explicit = st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2)
paddings = st.one_of(st.sampled_from(["VALID", "SAME", "SAME_LOWER", "FULL"]), explicit)


@st.composite
def layers(draw) -> Layer:
    """Draw a layer whose filter fits into its padded image."""
    strides, dilations, padding = draw(pairs), draw(pairs), draw(paddings)
    taps = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    extents = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    if padding == "VALID":
        least = extents
    elif isinstance(padding, str):
        least = [1, 1]
    else:
        least = [max(1, e - sum(pads)) for e, pads in zip(extents, padding, strict=True)]
    spatial = tuple(draw(st.integers(low, low + 6)) for low in least)
    groups, depth, multiplier = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    x = (draw(st.integers(1, 3)), *spatial, groups * depth)
    w = (*taps, depth, groups * multiplier)
    geometry = {"strides": strides, "dilations": dilations, "padding": padding}
    y = reference.output_shape(x, w, **geometry)
    return Layer(x, w, y, {**geometry, "groups": groups}, draw(st.integers(0, 2**32 - 1)))


def results(x, w, dy, **geometry) -> list[np.ndarray]:
    """Return y, dw and dx."""
    calls = harness.three_calls(x, w, dy, **geometry)
    return [harness.operation(call.op)(*call.arguments, **geometry) for call in calls]


def inner(a, b) -> float:
    """Return the inner product of integers in float64, where it is exact."""
    return float(np.vdot(a.astype(np.float64), b.astype(np.float64)))


@property_test
@given(layers())
def test_both_gradients_are_adjoint_to_the_forward_operation(layer):
    x, w, dy = layer.integers()
    y = convkit.conv2d(x, w, **layer.geometry)
    assert y.shape == layer.y
    dx = convkit.conv2d_backprop_input(layer.x, w, dy, **layer.geometry)
    dw = convkit.conv2d_backprop_filter(x, layer.w, dy, **layer.geometry)
    assert inner(y, dy) == inner(x, dx) == inner(w, dw)


@property_test
@given(layers())
def test_each_operation_is_linear_in_each_argument(layer):
    first = layer.integers()
    second = Layer(layer.x, layer.w, layer.y, layer.geometry, layer.seed ^ 1).integers()
    for call in harness.three_calls(*first, **layer.geometry):
        other = next(c for c in harness.three_calls(*second, **layer.geometry) if c.op == call.op)
        function = harness.operation(call.op)
        for i, (a, b) in enumerate(zip(call.arguments, other.arguments, strict=True)):
            if isinstance(a, np.ndarray):
                parts = [
                    function(*call.arguments[:i], part, *call.arguments[i + 1 :], **layer.geometry)
                    for part in (2 * a - b, a, b)
                ]
                np.testing.assert_array_equal(parts[0], 2 * parts[1] - parts[2], err_msg=call.op)


@property_test
@given(layers(), st.integers(0, 3))
def test_a_batch_may_be_split(layer, cut):
    x, w, dy = layer.integers()
    whole = results(x, w, dy, **layer.geometry)
    y0, dw0, dx0 = results(x[:cut], w, dy[:cut], **layer.geometry)
    y1, dw1, dx1 = results(x[cut:], w, dy[cut:], **layer.geometry)
    np.testing.assert_array_equal(np.concatenate([y0, y1]), whole[0])
    np.testing.assert_array_equal(dw0 + dw1, whole[1])
    np.testing.assert_array_equal(np.concatenate([dx0, dx1]), whole[2])
    total = convkit.conv2d_backprop_filter(x[:cut], layer.w, dy[:cut], **layer.geometry)
    convkit.conv2d_backprop_filter(x[cut:], layer.w, dy[cut:], out=total, accumulate=True, **layer.geometry)
    np.testing.assert_array_equal(total, whole[1])


@property_test
@given(layers())
def test_every_layout_gives_the_same_values(layer):
    for call in harness.three_calls(*layer.integers(), **layer.geometry):
        first = harness.operation(call.op)(*call.arguments, **call.geometry)
        for layout in harness.ALL_LAYOUTS:
            arguments, keywords = call.in_layout(layout, FLOAT32), {**call.geometry, **layout.keywords}
            result = call.result_from(harness.operation(call.op)(*arguments, **keywords), layout)
            np.testing.assert_array_equal(result, first, err_msg=f"{call.op} in {layout}")


@property_test
@given(layers())
def test_groups_are_a_loop_over_their_channels(layer):
    x, w, dy = layer.integers()
    groups = layer.geometry["groups"]
    alone = {**layer.geometry, "groups": 1}
    xs, ws, dys = (np.split(array, groups, axis=3) for array in (x, w, dy))
    loops = [results(*parts, **alone) for parts in zip(xs, ws, dys, strict=True)]
    for result, parts in zip(results(x, w, dy, **layer.geometry), zip(*loops, strict=True), strict=True):
        np.testing.assert_array_equal(result, np.concatenate(parts, axis=3))


@property_test
@given(layers())
def test_small_integers_by_every_family_equal_the_reference(layer):
    arrays = [array.astype(np.float64) for array in layer.integers()]
    for call in harness.three_calls(*arrays, **layer.geometry):
        harness.assert_exact(call, [NHWC, NCHW], (FLOAT32,))


@property_test
@given(layers())
def test_random_floats_keep_the_error_contract(layer):
    for call in harness.three_calls(*layer.floats(), **layer.geometry):
        harness.assert_close(call, [NHWC, NCHW])


@property_test
@given(layers(), st.sampled_from(harness.HALVES))
def test_half_types_are_rounded_once(layer, dtype):
    arrays = [array.astype(dtype).astype(np.float64) for array in layer.floats(mean=4)]
    for call in harness.three_calls(*arrays, **layer.geometry):
        expected, bound = call.reference(), call.bound(FLOAT32)
        # Half an epsilon for the one rounding, of a value that may itself be off by the bound.
        info = ml_dtypes.finfo(dtype)
        half = (np.abs(expected) + bound) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2
        for family, result in harness.each_family(call, NHWC, dtype):
            excess = np.max(np.abs(result.astype(np.float64) - expected) - bound - half, initial=0)
            assert excess <= 0, f"{call.op} by {family}: {excess} beyond the bound"


@property_test
@given(layers(), st.integers(1, 5), st.integers(1, 5))
def test_threads_change_no_bit(layer, one, other):
    for call in harness.three_calls(*layer.floats(), **layer.geometry):
        for layout in (NHWC, NCHW):
            arguments, keywords = call.in_layout(layout, FLOAT32), {**call.geometry, **layout.keywords}
            for family in harness.families(call.op, *arguments, **keywords):
                first, second = (
                    harness.operation(call.op)(*arguments, algorithm=family, num_threads=threads, **keywords)
                    for threads in (one, other)
                )
                assert first.tobytes() == second.tobytes(), f"{call.op} by {family}"


def test_adversarial_data_keeps_the_error_contract(rng):
    """A large mean and filters that cancel it: the result is small, its terms are not."""
    w = harness.floats(rng, (3, 3, 64, 16))
    w = (w - w.mean((0, 1, 2))).astype(np.float32).astype(np.float64)
    x = (harness.floats(rng, (2, 20, 21, 64)) + 1000).astype(np.float32).astype(np.float64)
    dy = harness.floats(rng, (2, 20, 21, 16)) * rng.choice([1e-6, 1.0, 1e6], (2, 20, 21, 16))
    dy = dy.astype(np.float32).astype(np.float64)
    for call in harness.three_calls(x, w, dy, padding="SAME"):
        harness.assert_close(call)
