"""Which tiles Winograd convolutions take, and where other families come first."""

import dataclasses

import harness
import numpy as np
import pytest
from harness import BFLOAT16

import convkit
from convkit._arrays import Operand, fresh_form
from convkit._cpu import winograd_choice
from convkit._cpu.isa import has_tile
from convkit._cpu.machine import this_machine
from convkit._geometry import make_geometry
from convkit._registry import Problem

FLOAT32, FLOAT64 = harness.WIDE
OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
MIB = 2**20


def problem(op, images, size, channels, filters, dtype=FLOAT32, padding="SAME", groups=1, packed=False) -> Problem:
    """Return a call of an operation on a layer, whose arrays lie as new ones do."""
    x, w = (images, *size, channels), (3, 3, channels // groups, filters)
    geometry = make_geometry(op, x, w, padding=padding, groups=groups)
    shapes = {"input": x, "filter": w, "out_backprop": (images, *geometry.out_size, filters)}
    roles = {
        "conv2d": ("input", "filter", "out_backprop"),
        "conv2d_backprop_filter": ("input", "out_backprop", "filter"),
        "conv2d_backprop_input": ("filter", "out_backprop", "input"),
    }[op]
    operands = [Operand.of(role, fresh_form(shapes[role], dtype), (0, 1, 2, 3)) for role in roles]
    return Problem(geometry, dtype.name, tuple(operands[:2]), operands[2], False, 64 * MIB, "default", packed=packed)


def machine(llc_bytes=32 * MIB, isa="generic"):
    return dataclasses.replace(this_machine(), llc_bytes=llc_bytes, isa=isa)


# Sides of a map: of the tiles that take fewer products.
SIDES = {1: 2, 2: 2, 3: 4, 4: 4, 5: 2, 6: 2, 7: 4, 8: 4, 9: 4, 10: 4, 14: 4, 28: 4, 56: 4}


@pytest.mark.parametrize("op", OPS)
def test_tiles_are_those_that_take_fewer_products(op):
    for side, tile in SIDES.items():
        for images in (1, 16):
            assert winograd_choice.tile_of(problem(op, images, (side, side), 64, 64), machine()) == tile
    assert winograd_choice.tile_of(problem(op, 1, (2, 56), 64, 64), machine()) == 2
    assert winograd_choice.tile_of(problem(op, 1, (6, 56), 64, 64), machine()) == 4


def test_tiles_are_counted_in_the_result():
    """A VALID forward pass of 8x8 pixels has 6x6 outputs; its input gradient has 8x8."""
    for op, tile in (("conv2d", 2), ("conv2d_backprop_filter", 2), ("conv2d_backprop_input", 4)):
        assert winograd_choice.tile_of(problem(op, 4, (8, 8), 64, 64, padding="VALID"), machine()) == tile


def test_large_filters_over_few_pixels_are_transformed_less():
    """Where what large tiles make of the filter does not stay in the last-level cache."""
    for op in ("conv2d", "conv2d_backprop_input"):
        few, many = (problem(op, images, (7, 7), 512, 512) for images in (1, 2))
        assert [winograd_choice.tile_of(each, machine()) for each in (few, many)] == [2, 4]
        assert winograd_choice.tile_of(few, machine(llc_bytes=128 * MIB)) == 4
        assert winograd_choice.tile_of(problem(op, 1, (7, 7), 256, 256), machine()) == 4
        assert winograd_choice.tile_of(problem(op, 1, (7, 7), 384, 384, FLOAT64), machine()) == 2
    gradient = problem("conv2d_backprop_filter", 1, (7, 7), 512, 512)
    assert winograd_choice.tile_of(gradient, machine()) == 4


@pytest.mark.skipif(not has_tile("bfloat16", this_machine().isa), reason="the CPU has no dot products of pairs")
def test_pairs_of_bfloat16_take_large_tiles():
    for size in (2, 6):
        few = problem("conv2d", 16, (size, size), 64, 64, BFLOAT16)
        assert winograd_choice.tile_of(few, machine(isa=this_machine().isa)) == 4


@pytest.mark.parametrize(
    ("op", "sizes", "words"),
    [
        ("conv2d", (16, (6, 6), 64, 64), None),
        ("conv2d", (1, (6, 6), 64, 64), None),
        ("conv2d", (1, (7, 7), 512, 512), "unless it is packed"),
        ("conv2d", (1, (10, 10), 512, 512), None),
        ("conv2d", (1, (7, 7), 384, 384), None),
        ("conv2d_backprop_input", (1, (7, 7), 512, 512), None),
        ("conv2d", (8, (2, 2), 64, 64), None),
        ("conv2d", (1, (5, 5), 64, 64), "25 pixels, too few"),
        ("conv2d", (7, (2, 2), 64, 64), "28 pixels, too few"),
        ("conv2d", (16, (6, 6), 16, 64), "16 channels"),
        ("conv2d", (16, (8, 8), 16, 64), None),
        ("conv2d", (16, (8, 8), 64, 7), "7 channels"),
        ("conv2d_backprop_filter", (16, (6, 6), 64, 64), None),
        ("conv2d_backprop_filter", (16, (7, 7), 64, 64), None),
        ("conv2d_backprop_filter", (64, (2, 2), 64, 64), "1024 products for each pair of channels, and taps meet 1024"),
        ("conv2d_backprop_filter", (16, (5, 5), 64, 64), "2304 products for each pair of channels, and taps meet 2704"),
        ("conv2d_backprop_filter", (1, (9, 9), 64, 64), "81 pixels, too few"),
    ],
)
def test_where_others_are_likely_to_be_faster(op, sizes, words):
    told = winograd_choice.reluctance(problem(op, *sizes), machine())
    assert told is None if words is None else words in told


def test_a_large_filter_over_few_pixels_is_transformed_only_if_it_is_packed(rng):
    sizes = (1, (7, 7), 512, 512)
    assert winograd_choice.reluctance(problem("conv2d", *sizes, packed=True), machine()) is None
    assert winograd_choice.reluctance(problem("conv2d", *sizes), machine(llc_bytes=128 * MIB)) is None
    x, w = rng.standard_normal((1, 7, 7, 512), np.float32), rng.standard_normal((3, 3, 512, 512), np.float32)
    packed = convkit.pack_filter(w, op="conv2d", padding="SAME")
    if 2 * this_machine().llc_bytes < 3 * 36 * 512 * 512 * 4:
        assert convkit.explain("conv2d", x, w, padding="SAME").implementation == "cpu:direct_f32"
    assert convkit.explain("conv2d", x, packed, padding="SAME").implementation == "cpu:winograd_f32"
    found = convkit.conv2d(x, packed, padding="SAME")
    np.testing.assert_array_equal(found, convkit.conv2d(x, packed, padding="SAME", algorithm="winograd"))
    np.testing.assert_array_equal(found, convkit.conv2d(x, w, padding="SAME", algorithm="winograd"))


@pytest.mark.parametrize("padding", ["SAME", "VALID", "FULL", ((4, 0), (1, 3)), ((0, 2), (5, 5))], ids=str)
def test_pixels_that_taps_meet_are_counted(padding):
    g = make_geometry("conv2d", (2, 6, 5, 1), (3, 3, 1, 1), padding=padding)
    found = convkit.conv2d(np.ones((2, 6, 5, 1)), np.ones((3, 3, 1, 1)), padding=padding)
    assert winograd_choice._met(g) == found.sum()


def test_explain_tells_the_tiles():
    for size, tile in ((6, 2), (8, 4)):
        told = convkit.explain("conv2d", (16, size, size, 64), (3, 3, 64, 64), padding="SAME")
        assert told.implementation == "cpu:winograd_f32"
        assert any(f"of {tile}x{tile} outputs" in sentence for sentence in told.copies)
