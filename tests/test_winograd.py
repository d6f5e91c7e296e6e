"""Winograd convolutions: the error contract on every geometry, layout, dtype, level; bits, packs, values, choice."""

import itertools

import cases
import harness
import numpy as np
import pytest
import reference
import winograd_cases
from child import run_python
from harness import ALL_LAYOUTS, LAYOUTS, NCHW, NHWC, WIDE, Call
from hypothesis import given, settings
from hypothesis import strategies as st
from test_families import WAYS

import convkit
from convkit._cpu import _engine, isa

FLOAT32 = np.dtype(np.float32)
FORWARD, FILTER, INPUT = range(3)


def by_winograd(call: Call, layout=NHWC, *dtypes, **keywords) -> np.ndarray:
    """Return what the family gives, in NHWC or HWIO."""
    arguments = call.in_layout(layout, *(dtypes or (FLOAT32,)))
    keywords = {**call.geometry, **layout.keywords, **keywords}
    return call.result_from(harness.operation(call.op)(*arguments, algorithm="winograd", **keywords), layout)


def layer(rng, x_shape, w_shape, **geometry) -> tuple[Call, ...]:
    """Return the three calls of a layer of random floats."""
    no_groups = {key: value for key, value in geometry.items() if key != "groups"}
    y_shape = reference.output_shape(x_shape, w_shape, **no_groups)
    return harness.three_calls(*(harness.floats(rng, shape) for shape in (x_shape, w_shape, y_shape)), **geometry)


def assert_close(call: Call, tile, layout=NHWC, dtype=FLOAT32, **keywords) -> None:
    """Check the family's result against the contract; halves by their float32 sums."""
    if dtype in harness.HALVES:
        rounded = [a.astype(dtype).astype(np.float64) if isinstance(a, np.ndarray) else a for a in call.arguments]
        call, keywords = Call(call.op, tuple(rounded), call.geometry), {"out_dtype": "float32", **keywords}
    result = by_winograd(call, layout, dtype, **keywords)
    wide = FLOAT32 if dtype in harness.HALVES else dtype
    winograd_cases.assert_close(call, result, wide, tile, f"in {layout}, {dtype}")


# name: image, filter (HWIO), geometry
GEOMETRIES = {
    "one tile": ((1, 6, 6, 5), (3, 3, 5, 7), {}),
    "part of a tile": ((2, 4, 3, 3), (3, 3, 3, 2), {}),
    "same": ((2, 9, 11, 20), (3, 3, 20, 37), {"padding": "SAME"}),
    "full": ((1, 7, 5, 8), (3, 3, 8, 6), {"padding": "FULL"}),
    "padding beyond the filter": ((1, 5, 6, 4), (3, 3, 4, 6), {"padding": ((5, 3), (4, 9))}),
    "padding on one side": ((2, 8, 9, 4), (3, 3, 4, 6), {"padding": ((0, 2), (2, 0))}),
    "groups": ((2, 10, 9, 12), (3, 3, 4, 21), {"groups": 3, "padding": "SAME"}),
    "deeper than a block of sums": ((1, 5, 6, 600), (3, 3, 600, 3), {"padding": "SAME"}),
    "many filters": ((1, 5, 6, 3), (3, 3, 3, 600), {"padding": "SAME"}),
    "many images": ((70, 4, 5, 3), (3, 3, 3, 9), {"padding": "SAME"}),
    "more tiles than a block of sums": ((9, 40, 31, 3), (3, 3, 3, 5), {"padding": "SAME"}),
    "one block of tiles, many filters": ((2, 9, 7, 160), (3, 3, 160, 200), {"padding": "SAME"}),
    "a long row": ((1, 3, 700, 2), (3, 3, 2, 3), {"padding": "SAME"}),
}


@pytest.mark.parametrize("dtype", harness.DTYPES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_dtype_in_every_layout(name, dtype, tile, rng):
    x, w, geometry = GEOMETRIES[name]
    for call in layer(rng, x, w, **geometry):
        for layout in ALL_LAYOUTS:
            assert_close(call, tile, layout, dtype)


@pytest.mark.parametrize("dtype", harness.DTYPES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_small_tiles_round_nothing_of_small_whole_numbers(name, dtype, rng):
    x, w, geometry = GEOMETRIES[name]
    with winograd_cases.in_tiles_of(2):
        for call in harness.layer(rng, x, w, limit=2, **geometry):
            expected = call.reference().astype(np.float32).astype(dtype)
            for layout in LAYOUTS:
                np.testing.assert_array_equal(by_winograd(call, layout, dtype), expected)


@pytest.mark.parametrize("case", cases.golden_ids())
def test_small_tiles_give_golden_values_to_the_last_bit(case):
    golden = cases.golden(case)
    calls = harness.three_calls(*(a.astype(np.float64) for a in (golden.x, golden.w, golden.dy)), **golden.geometry)
    with winograd_cases.in_tiles_of(2):
        for call, expected in zip(calls, (golden.y, golden.dw, golden.dx), strict=True):
            for layout, dtype in itertools.product(LAYOUTS, harness.DTYPES):
                arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
                told = convkit.explain(call.op, *arguments, **keywords)
                if any("winograd" in name and why is None for name, why in told.candidates):
                    rounded = expected.astype(np.float32).astype(dtype)
                    np.testing.assert_array_equal(by_winograd(call, layout, dtype), rounded)


def test_every_number_of_channels_and_filters(tile, rng):
    for channels in range(1, 18):
        for filters in range(1, 18):
            for call in layer(rng, (1, 5, 6, channels), (3, 3, channels, filters), padding="SAME"):
                assert_close(call, tile, (NHWC, NCHW)[(channels + filters) % 2])


@st.composite
def random_layers(draw):
    """Draw shapes that a 3x3 filter fits into, and a seed."""
    pads = draw(st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2))
    size = [draw(st.integers(max(1, 3 - sum(pad)), 14)) for pad in pads]
    groups, depth, multiplier = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    x = (draw(st.integers(1, 3)), *size, groups * depth)
    return x, (3, 3, depth, groups * multiplier), {"padding": pads, "groups": groups}, draw(st.integers(0, 2**32 - 1))


def check_random_layer(drawn, layout, dtype, mean, tile) -> None:
    """Check each operation, if no tap is idle, which makes a smaller filter of it."""
    x, w, geometry, seed = drawn
    for call in layer(np.random.default_rng(seed), x, w, **geometry):
        moved = [(a + mean).astype(np.float32).astype(np.float64) if isinstance(a, np.ndarray) else a
                 for a in call.arguments]  # fmt: skip
        call = Call(call.op, tuple(moved), call.geometry)
        told = convkit.explain(call.op, *call.in_layout(layout, dtype), **geometry, **layout.keywords)
        if dict(told.candidates)[f"cpu:winograd_f{dtype.itemsize * 8}"] is None:
            with winograd_cases.in_tiles_of(tile):
                assert_close(call, tile, layout, dtype)


random_cases = given(
    random_layers(),
    st.sampled_from(LAYOUTS),
    st.sampled_from(WIDE),
    st.sampled_from([0, 100]),
    st.sampled_from(winograd_cases.TILES),
)


@settings(max_examples=100, deadline=None)
@random_cases
def test_random_geometries(drawn, layout, dtype, mean, tile):
    check_random_layer(drawn, layout, dtype, mean, tile)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@random_cases
def test_two_thousand_random_geometries(drawn, layout, dtype, mean, tile):
    check_random_layer(drawn, layout, dtype, mean, tile)


@pytest.mark.parametrize("op", [FORWARD, FILTER, INPUT])
def test_relative_error_on_random_numbers(op, tile, rng):
    """Of zero mean; the more channels, the more an error of the transforms weighs against the sum."""
    for channels in (64, 512):
        call = layer(rng, (1, 14, 14, channels), (3, 3, channels, channels), padding="SAME")[op]
        expected = call.reference()
        assert np.linalg.norm(by_winograd(call) - expected) <= 5e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("op", [FORWARD, FILTER, INPUT])
def test_large_means_cancel_about_as_well_as_in_plain_sums(op, tile, rng):
    """Pixels of 100 +- 1; filters and output gradients of mean zero."""
    x, w, dy = 100 + rng.uniform(-1, 1, (2, 18, 18, 64)), *map(rng.standard_normal, ((3, 3, 64, 64), (2, 16, 16, 64)))
    w, dy = (a - a.mean(axis=(0, 1, 2)) for a in (w, dy))
    call = harness.three_calls(*(a.astype(np.float32).astype(np.float64) for a in (x, w, dy)))[op]
    plain = harness.operation(call.op)(*call.in_layout(NHWC, FLOAT32), algorithm="direct")
    expected = call.reference()
    assert np.linalg.norm(by_winograd(call) - expected) <= 6 * np.linalg.norm(plain - expected)
    assert_close(call, tile)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_operands_and_out_however_they_lie_in_memory(way, tile, rng):
    x, w, geometry = GEOMETRIES["same"]
    for call in layer(rng, x, w, **geometry):
        for layout in (NHWC, NCHW):
            plain = call.in_layout(layout, FLOAT32)
            odd = [way(a) if isinstance(a, np.ndarray) else a for a in plain]
            keywords = {**geometry, **layout.keywords, "algorithm": "winograd"}
            function = harness.operation(call.op)
            expected = function(*plain, **keywords)
            np.testing.assert_array_equal(function(*odd, **keywords), expected)
            out = way(np.full(expected.shape, np.nan, np.float32))
            assert function(*plain, out=out, **keywords) is out
            np.testing.assert_array_equal(out, expected)


def test_integer_images(tile, rng):
    x, w = rng.integers(0, 256, (2, 9, 8, 5), np.uint8), harness.floats(rng, (3, 3, 5, 6))
    call = Call("conv2d", (x.astype(np.float64), w), {"padding": "SAME"})
    found = by_winograd(Call("conv2d", (x, w), call.geometry), NHWC, x.dtype, FLOAT32)
    winograd_cases.assert_close(call, found, FLOAT32, tile)


def test_threads_change_no_bit(tile, rng):
    layers = [
        ((3, 30, 29, 40), (3, 3, 40, 70), {}),
        ((2, 9, 9, 600), (3, 3, 600, 130), {"padding": "SAME"}),
        ((7, 56, 40, 6), (3, 3, 6, 35), {"padding": "SAME"}),
    ]
    for x, w, geometry in layers:
        for call in layer(rng, x, w, **geometry):
            for layout in (NHWC, NCHW):
                one, *others = (by_winograd(call, layout, num_threads=n).tobytes() for n in (1, 2, 3, 16))
                assert others == [one] * 3


@pytest.mark.parametrize("level", _engine.ISA_RUNS)
def test_every_level_keeps_the_contract(level):
    """Tails in every vector and register tile of it."""
    program = """
        import itertools
        import numpy as np
        import winograd_cases
        from test_winograd import assert_close, layer
        from harness import NHWC, NCHW, WIDE

        rng = np.random.default_rng(1)
        for channels, filters in ((1, 1), (5, 37), (16, 9), (33, 70)):
            for call in layer(rng, (2, 10, 7, channels), (3, 3, channels, filters), padding="SAME"):
                for tile in winograd_cases.TILES:
                    with winograd_cases.in_tiles_of(tile):
                        for layout, dtype in itertools.product((NHWC, NCHW), WIDE):
                            assert_close(call, tile, layout, dtype)
        print("kept")
    """
    assert run_python(program, CONVKIT_MAX_ISA=level).strip() == "kept"


def test_transforms_are_listed_for_every_level_of_register_tiles():
    tiles = {(tile.isa, tile.arithmetic) for tile in isa.TILES if tile.arithmetic != "bfloat16"}
    expected = [(level, dtype, side) for level, dtype in tiles for side in winograd_cases.TILES]
    assert sorted((level, dtype, side) for _, level, dtype, _, side in _engine.winograd_kernels()) == sorted(expected)


@pytest.mark.parametrize("op", [FORWARD, INPUT])
def test_a_packed_filter_gives_the_bits_of_the_filter(op, tile, rng):
    for (x, w, geometry), dtype in zip(GEOMETRIES.values(), harness.DTYPES * 3, strict=False):
        call = layer(rng, x, w, **geometry)[op]
        for layout in LAYOUTS:
            arguments = call.in_layout(layout, dtype)
            keywords = {**call.geometry, **layout.keywords}
            packed = convkit.pack_filter(arguments[1], op=call.op, **keywords)
            function = harness.operation(call.op)
            expected = function(*arguments, algorithm="winograd", **keywords)
            for threads in (1, 2):
                found = function(
                    arguments[0], packed, *arguments[2:], algorithm="winograd", num_threads=threads, **keywords
                )
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e38])
@pytest.mark.parametrize("op", [FORWARD, FILTER, INPUT])
def test_values_that_are_not_finite_reach_the_windows_that_hold_them_and_no_other(op, value, tile, rng):
    x, w = (2, 21, 18, 70), (3, 3, 70, 37)
    call = layer(rng, x, w, padding="SAME")[op]
    which = 2 if op == INPUT else 0
    pixels = call.arguments[which]
    for place in ((0, 7, 9, 3), (1, 19, 0, 30), (0, 20, 17, 36)):
        pixels[place] = value
    held = np.zeros_like(pixels)
    held[np.abs(pixels) > 1e30] = 1
    held[~np.isfinite(pixels)] = 1
    marks = Call(call.op, tuple(held if i == which else np.abs(a) if isinstance(a, np.ndarray) else a
                                for i, a in enumerate(call.arguments)), call.geometry).reference() != 0  # fmt: skip
    for layout in (NHWC, NCHW):
        arguments = call.in_layout(layout, FLOAT32)
        keywords = {**call.geometry, **layout.keywords}
        function, ways = harness.operation(call.op), [arguments[1]]
        if op != FILTER:
            ways.append(convkit.pack_filter(arguments[1], op=call.op, **keywords))
        for weights in ways:
            transformed, plain = (
                call.result_from(function(arguments[0], weights, *arguments[2:], algorithm=family, **keywords), layout)
                for family in ("winograd", "direct")
            )
            np.testing.assert_array_equal(np.isfinite(transformed), np.isfinite(plain))
            assert np.isfinite(transformed[~marks]).all()
            if np.isfinite(value):
                np.testing.assert_allclose(transformed[marks], plain[marks], rtol=1e-5)
            else:
                assert not np.isfinite(transformed[marks]).any()
            np.testing.assert_allclose(transformed[~marks], plain[~marks], atol=1e-3)


def test_output_gradients_that_are_not_finite_stay_with_their_filters(tile, rng):
    _, call, _ = layer(rng, (2, 11, 10, 130), (3, 3, 130, 70))
    call.arguments[2][1, 4, 5, 60] = np.nan
    np.testing.assert_array_equal(
        np.isfinite(by_winograd(call)), np.broadcast_to(np.arange(70) != 60, call.arguments[1])
    )


@pytest.mark.parametrize("dtype", harness.DTYPES, ids=str)
def test_accumulate_adds_to_out(dtype, tile, rng):
    """Once, also where something is not finite and computed again."""
    for spoilt in (False, True):
        _, call, _ = layer(rng, (2, 11, 10, 5), (3, 3, 5, 40))
        if spoilt:
            call.arguments[0][0, 5, 5, 2] = np.inf
        for layout in (NHWC, NCHW):
            arguments, keywords = call.in_layout(layout, dtype), {**layout.keywords, "algorithm": "winograd"}
            sums = convkit.conv2d_backprop_filter(
                *arguments, **keywords, **({"out_dtype": "float32"} if dtype in harness.HALVES else {})
            )
            out = np.ones(sums.shape, dtype)
            convkit.conv2d_backprop_filter(*arguments, out=out, accumulate=True, **keywords)
            np.testing.assert_array_equal(out, (sums + 1).astype(dtype))
            assert spoilt is not np.isfinite(out).all()


def test_filters_that_are_not_finite_do_not_spread(tile, rng):
    x, w = rng.standard_normal((1, 10, 10, 4), np.float32), rng.standard_normal((3, 3, 4, 5), np.float32)
    w[1, 2, 3, 2] = np.inf
    y = convkit.conv2d(x, w, algorithm="winograd")
    np.testing.assert_array_equal(np.isfinite(y), np.broadcast_to(np.arange(5) != 2, y.shape))


def test_objections_and_choice():
    """By default it serves where measurements say that it is faster, and never with high precision."""

    def objection(x, w, **keywords):
        told = convkit.explain("conv2d", x, w, **keywords)
        return dict(told.candidates)["cpu:winograd_f32"]

    x, w = (8, 56, 56, 64), (3, 3, 64, 64)
    assert convkit.explain("conv2d", x, w, padding="SAME").implementation == "cpu:winograd_f32"
    assert "5x5" in objection(x, (5, 5, 64, 64))
    assert "(2, 2)" in objection(x, w, strides=2)
    assert "(2, 2)" in objection(x, w, dilations=2)
    with convkit.options(precision="high"):
        assert "'high'" in objection(x, w)
        assert convkit.explain("conv2d", x, w, padding="SAME").implementation != "cpu:winograd_f32"
    for small in (((1, 5, 5, 64), w), ((64, 1, 56, 64), w), ((*x[:3], 6), (3, 3, 6, 64)), (x, (3, 3, 64, 6))):
        assert convkit.explain("conv2d", *small, padding="SAME").implementation != "cpu:winograd_f32"


@pytest.mark.parametrize("limit", [2 << 20, 8 << 20])
def test_a_workspace_limit_is_kept(limit, tile, rng):
    for call in layer(rng, (2, 20, 20, 96), (3, 3, 96, 130), padding="SAME"):
        with convkit.options(workspace_limit=limit):
            arguments = call.in_layout(NHWC, FLOAT32)
            told = convkit.explain(call.op, *arguments, algorithm="winograd", **call.geometry)
            assert told.workspace <= limit
            assert_close(call, tile, NHWC, FLOAT32)


def test_a_workspace_limit_that_cannot_be_kept_is_told(tile):
    with convkit.options(workspace_limit=64 << 10), pytest.raises(convkit.WorkspaceError, match="workspace"):
        convkit.conv2d(np.ones((1, 9, 9, 64)), np.ones((3, 3, 64, 64)), algorithm="winograd")
