"""Winograd's filter gradient: its cuts, pieces that are computed again, integer images, choice."""

import dataclasses
import itertools

import harness
import numpy as np
import pytest
import winograd_cases
from harness import NCHW, NHWC, Call
from test_winograd import FILTER, FLOAT32, by_winograd, layer

import convkit
from convkit._arrays import Operand, fresh_form
from convkit._cpu import winograd_gradient_tiles
from convkit._cpu.isa import tile_for
from convkit._cpu.machine import this_machine
from convkit._geometry import make_geometry
from convkit._registry import NeedsWorkspace

LIMIT = 64 << 20


def planned(images, size, channels, filters, dtype="float32", limit=LIMIT, groups=1, isa=None, tile=4):
    """Return how a gradient with SAME padding is cut, and its tiles."""
    shapes = (images, size, size, channels), (3, 3, channels // groups, filters), (images, size, size, filters)
    g = make_geometry("conv2d_backprop_filter", *shapes[:2], padding="SAME", groups=groups)
    operands = [
        Operand.of(role, fresh_form(shape, np.dtype(dtype)), (0, 1, 2, 3))
        for role, shape in zip(("input", "filter", "out_backprop"), shapes, strict=True)
    ]
    machine = dataclasses.replace(this_machine(), isa=isa or this_machine().isa)
    image, out, gradient = operands
    spec = winograd_gradient_tiles.filter_gradient_spec(g, tile, image, gradient, out, False, limit, machine)
    return spec, images * (-(-size // tile)) ** 2


CUTS = list(itertools.product((1, 16), (7, 14, 30, 224, 500), ((64, 64), (32, 512), (512, 512), (130, 70))))


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_and_slices_keep_what_the_error_contract_says(dtype, isa):
    for images, size, (channels, filters) in CUTS:
        for groups, tile in itertools.product((1, 2), winograd_cases.TILES):
            spec, tiles = planned(images, size, channels, filters, dtype, groups=groups, isa=isa, tile=tile)
            block = spec.block[0] * spec.block[1] * spec.block[2]
            longest = min(tiles, block) + spec.slice_blocks + spec.slices
            assert longest <= winograd_cases.gradient_additions(tiles)
            assert block <= winograd_gradient_tiles.BLOCK_TILES
            assert spec.shared_bytes + sum(spec.scratch) <= LIMIT


def test_cuts_do_not_follow_the_limit_until_parts_cannot_be_cut_further():
    whole, _ = planned(16, 28, 128, 128)
    for limit in (LIMIT, LIMIT // 2, LIMIT // 4):
        spec, _ = planned(16, 28, 128, 128, limit=limit)
        assert (spec.block, spec.slices, spec.slice_blocks) == (whole.block, whole.slices, whole.slice_blocks)
    spec, _ = planned(16, 28, 128, 128, limit=4 << 20)
    assert spec.shared_bytes + sum(spec.scratch) <= 4 << 20
    with pytest.raises(convkit.WorkspaceError, match="workspace"):
        planned(16, 28, 128, 128, limit=256 << 10)


def test_a_large_problem_gives_work_to_many_threads():
    for sizes in ((16, 56, 64, 64), (16, 28, 512, 512), (16, 112, 128, 128)):
        spec, _ = planned(*sizes)
        width = spec.panel_block * tile_for("float32", spec.isa).columns
        parts = -(-spec.in_channels // spec.channel_block) * -(-spec.out_channels // width)
        assert parts * spec.slices >= 8


@pytest.mark.parametrize("geometry", [{}, {"groups": 2}, {"padding": ((1, 3), (0, 2))}], ids=str)
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), harness.BFLOAT16], ids=str)
def test_only_pieces_that_are_not_finite_are_computed_again(geometry, dtype, tile, rng):
    """In slices, with pieces and panels that are not whole; all others keep their bits."""
    groups = geometry.get("groups", 1)
    call = layer(rng, (4, 33, 30, 45 * groups), (3, 3, 45, 70 * groups), **geometry)[FILTER]
    clean = by_winograd(call, NHWC, dtype)
    x, _, dy = call.arguments
    dy[3, 30, 25, 69] = np.nan
    x[1, 17, 13, 44] = np.inf
    for layout in (NHWC, NCHW):
        found, *others = (by_winograd(call, layout, dtype, num_threads=threads) for threads in (1, 2, 5))
        for other in others:
            assert other.tobytes() == found.tobytes()
        arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
        plain = convkit.conv2d_backprop_filter(*arguments, algorithm="reference", **keywords)
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(call.result_from(plain, layout)))
    assert not np.isfinite(found[:, :, 44, 0]).any()
    assert not np.isfinite(found[:, :, 0, 69]).any()
    np.testing.assert_array_equal(by_winograd(call, NHWC, dtype)[:, :, :32, :64], clean[:, :, :32, :64])


def test_integer_images(tile, rng):
    x = rng.integers(0, 256, (3, 14, 12, 35), np.uint8)
    dy = harness.floats(rng, (3, 12, 10, 40))
    call = Call("conv2d_backprop_filter", (x.astype(np.float64), (3, 3, 35, 40), dy))
    found = by_winograd(Call(call.op, (x, (3, 3, 35, 40), dy)), NHWC, x.dtype, FLOAT32)
    winograd_cases.assert_close(call, found, FLOAT32, tile)


def test_an_empty_batch_gives_zeros():
    gradient = convkit.conv2d_backprop_filter(
        np.ones((0, 8, 8, 3), np.float32), (3, 3, 3, 2), np.ones((0, 6, 6, 2), np.float32), algorithm="winograd"
    )
    np.testing.assert_array_equal(gradient, np.zeros((3, 3, 3, 2), np.float32))


def test_objections_and_choice():
    """By default it serves where measurements say that it is faster, and never with high precision."""

    def told(images, size, channels, filters, **keywords):
        shapes = (images, size, size, channels), (3, 3, channels, filters), (images, size, size, filters)
        return convkit.explain("conv2d_backprop_filter", *shapes, padding="SAME", **keywords)

    assert told(8, 28, 64, 64).implementation == "cpu:winograd_f32"
    assert told(8, 28, 64, 64, dtype="float64").implementation == "cpu:winograd_f64"
    for small in ((8, 28, 64, 6), (8, 28, 6, 64), (1, 9, 64, 64)):
        assert told(*small).implementation != "cpu:winograd_f32"
    with convkit.options(precision="high"):
        assert "'high'" in dict(told(8, 28, 64, 64).candidates)["cpu:winograd_f32"]
    with convkit.options(workspace_limit=64 << 10):
        assert isinstance(dict(told(8, 28, 64, 64).candidates)["cpu:winograd_f32"], NeedsWorkspace)


def test_large_layers_keep_the_default_workspace(rng):
    x, dy = rng.standard_normal((1, 8, 8, 512)), rng.standard_normal((1, 8, 8, 512))
    told = convkit.explain("conv2d_backprop_filter", x, (3, 3, 512, 512), dy, padding="SAME", algorithm="winograd")
    assert told.workspace <= LIMIT
