"""Known failures of other libraries, by id: int8 convolutions."""

import itertools

import cases
import int8_cases
import numpy as np
import pytest
from int8_cases import LAYOUTS, PACKED, Fused, single

import convkit


def repro(bug: str) -> dict:
    return cases.known_bugs()[bug]["repro"]


def case_of(bug: str, rng, **shapes) -> Fused:
    """Return random full-range data of the shapes and the geometry of an entry."""
    entry = {**repro(bug), **shapes}
    x, w = (rng.integers(-128, 128, tuple(entry[name]), np.int8) for name in ("x", "w"))
    geometry = {"strides": tuple(entry.get("stride", (1, 1))), "padding": "VALID"}
    if "pads" in entry:
        geometry["padding"] = tuple(map(tuple, entry["pads"]))
    return Fused(x, w, None, None, {"conv_scale": 1e-3}, geometry)


def check_sums(x, w, expected, layouts=LAYOUTS, **geometry) -> None:
    """Check the int32 sums of NHWC and HWIO data, in each layout that fits, and as they reach the epilogue."""
    fused = Fused(x, w, terms={"out_dtype": "float32"}, geometry=geometry)
    for layout in filter(fused.fits, layouts):
        arguments = fused.arguments(layout)[:2]
        for family in int8_cases.harness.families("conv2d", *arguments, **geometry, **layout.keywords):
            y = convkit.conv2d(*arguments, algorithm=family, **geometry, **layout.keywords)
            assert y.dtype == np.int32
            y = int8_cases.from_layout(y, layout.data)
            np.testing.assert_array_equal(y, expected, err_msg=f"{family} {layout}")
    fused.check(np.float32(expected))


def test_A14_an_axis_without_pixels(rng):
    x, w = np.zeros(repro("A14")["x"], np.int8), np.ones(repro("A14")["w"], np.int8)
    keywords = {"strides": tuple(repro("A14")["stride"]), "padding": repro("A14")["padding"]}
    assert convkit.fused_conv2d(x, w, **keywords).shape == (2, 1, 0, 1)
    assert convkit.conv2d(x, w, **keywords).shape == (2, 1, 0, 1)
    for wrong in ({"conv_scale": [1.0, 2.0]}, {"bias": np.zeros(3, np.float32)}, {"side_input": x[:1]}):
        with pytest.raises(convkit.ShapeError, match=rf"^fused_conv2d: {next(iter(wrong))}"):
            convkit.fused_conv2d(x, w, **keywords, **wrong)


@pytest.mark.parametrize("size", [7, 8])
def test_B07_odd_and_even_sizes_of_three_channels(rng, size):
    case_of("B07", rng, x=(1, size, size, 3)).check()


def test_E01_pairs_of_products_beyond_sixteen_bits():
    check_sums(np.full((1, 1, 1, 4), 127, np.int8), np.full((1, 1, 4, 4), 127, np.int8), np.full((1, 1, 1, 4), 64516))
    high = np.full((1, 1, 1, 4), 255, np.uint8)
    check_sums(high, np.full((1, 1, 4, 4), -128, np.int8), np.full((1, 1, 1, 4), -4 * 255 * 128))


@pytest.mark.parametrize(("a", "b"), [(-128, -128), (-128, 127), (-128, 1), (127, -128)])
def test_E02_the_lowest_number(a, b):
    check_sums(np.full((1, 1, 1, 4), a, np.int8), np.full((1, 1, 4, 1), b, np.int8), np.full((1, 1, 1, 1), 4 * a * b))


def test_E03_small_weights_are_not_rescaled():
    x, w = np.ones((1, 64, 64, 3), np.int8), np.ones((5, 5, 3, 8), np.int8)
    check_sums(x, w, np.full((1, 60, 60, 8), 75))


def test_E05_padding_is_shifted_with_the_pixels(rng):
    case = case_of("E05", rng)
    case.check()
    ones = Fused(np.ones_like(case.x), np.ones_like(case.w), geometry=case.geometry)
    ones.check(np.broadcast_to(np.array([6, *[8] * 61, 6, 4]).reshape(1, 1, 64, 1), (1, 16, 64, 1)))


def test_E06_compensation_is_removed_before_the_conversion():
    x, w = np.full((1, 1, 1, 2048), 50, np.int8), np.full((1, 1, 2048, 1), -128, np.int8)
    w[0, 0, 0] = -87
    check_sums(x, w, np.full((1, 1, 1, 1), repro("E06")["acc"]))


def test_E07_sums_beyond_the_whole_numbers_of_float32():
    x, w = np.full((1, 3, 3, 128), 127, np.int8), np.full((3, 3, 128, 1), 127, np.int8)
    w[1, 1, 7] = 126
    assert float(np.float32(18580481)) == 18580480
    check_sums(x, w, np.full((1, 1, 1, 1), 18580481))


def test_E08_nothing_is_clipped_before_the_side_input():
    side = np.full((1, 1, 1, 1), -80, np.int8)
    single(100, [2], {"side_scale": 1.0}, bias=np.zeros(1, np.float32), side=side).check(np.full((1, 1, 1, 1), 120))


@pytest.mark.parametrize("place", range(17))
def test_E09_halves_go_to_the_even_number(place):
    """In every lane of a vector and in every remainder."""
    for value, expected in zip(repro("E09")["pre_round"], repro("E09")["y"], strict=True):
        w = np.ones((1, 1, 1, place + 1), np.int8)
        case = single([1] * 3, w, {"conv_scale": np.full(place + 1, value, np.float32)})
        case.check(np.full((1, 1, 3, place + 1), expected))


def test_E10_clipping_to_the_ends():
    entry = repro("E10")
    for activation, expected in ((None, entry["y"]), ("relu", entry["relu_y"])):
        terms = {"conv_scale": np.array(entry["pre_round"], np.float32), "activation": activation}
        single([1, 1], [1] * len(expected), terms).check(np.broadcast_to(expected, (1, 1, 2, len(expected))))
        for value, y in zip(entry["pre_round"], expected, strict=True):
            single(1, 1, {"conv_scale": value, "activation": activation}).check(np.full((1, 1, 1, 1), y))


def test_E11_the_bias_is_in_units_of_the_result():
    entry = repro("E11")
    arrays = {"bias": np.array([entry["bias"]], np.float32), "side": np.full((1, 1, 1, 1), entry["side"], np.int8)}
    for activation, expected in ((None, entry["linear_y"]), ("relu", entry["relu_y"])):
        terms = {"conv_scale": entry["scale"], "side_scale": entry["side_scale"], "activation": activation}
        single(5, 2, terms, **arrays).check(np.full((1, 1, 1, 1), expected))


@pytest.mark.parametrize("activation", [None, "relu"])
def test_E12_packed_and_plain_layouts_with_and_without_relu(rng, activation):
    x, w = rng.integers(-128, 128, (1, 16, 16, 32), np.int8), rng.integers(-128, 128, (3, 3, 32, 32), np.int8)
    case = Fused(x, w, terms={"conv_scale": 1e-3, "activation": activation}, geometry={"padding": "SAME"})
    sums = int8_cases.int8_reference.sums(x, w, padding="SAME")
    y = np.clip(np.rint(sums.astype(np.float32) * np.float32(1e-3)), 0 if activation else -128, 127)
    case.check(y, (int8_cases.harness.NHWC, PACKED))


def test_E13_numbers_of_channels_that_are_no_multiples_of_four(rng):
    case_of("E13", rng).check()
    for c, k in itertools.product((1, 2, 3, 5, 7), (1, 2, 3, 5, 9)):
        case_of("E13", rng, x=(2, 4, 5, c), w=(2, 3, c, k)).check()


def test_E14_scales_that_are_no_numbers():
    w = [0, 5, -5]
    for out_dtype, low, high in (("int8", -128, 127), ("uint8", 0, 255)):
        for zero in (0, 7):
            terms = {"out_dtype": out_dtype, "output_zero_point": zero}
            single(1, w, {"conv_scale": np.nan, **terms}).check(np.full((1, 1, 1, 3), zero))
            single(1, w, {"conv_scale": np.inf, **terms}).check(np.array([[[[zero, high, low]]]]))
            terms["activation"] = "relu"
            single(1, w, {"conv_scale": -np.inf, **terms}).check(np.array([[[[zero, zero, high]]]]))
            del terms["activation"]
            bias = np.array([np.nan, -np.inf, np.inf], np.float32)
            single(1, w, terms, bias=bias).check(np.array([[[[zero, low, high]]]]))
