"""int8 convolutions: exact for every geometry, value, layout and way the arrays lie in memory."""

import pickle

import harness
import int8_cases
import int8_reference
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_cases import LAYOUTS, PACKED, Fused
from refusals import refused
from test_properties import layers

import convkit

MOST, MOST_WIDE = 131071, 65793


def check_sums(x, w, **geometry) -> None:
    """Check int32 sums of NHWC and HWIO data against int64 ones, by every family in every layout that fits."""
    expected = int8_reference.sums(x, w, **geometry)
    assert np.abs(expected).max(initial=0) < 2**31
    for layout in filter(Fused(x, w).fits, LAYOUTS):
        arguments = int8_cases.to_layout(x, layout.data), int8_cases.to_layout(w, layout.filter)
        keywords = {**geometry, **layout.keywords}
        assert convkit.conv2d_output_shape(arguments[0].shape, arguments[1].shape, **keywords) == (
            int8_cases.to_layout(expected, layout.data).shape
        )
        for family in harness.families("conv2d", *arguments, **keywords):
            y = convkit.conv2d(*arguments, algorithm=family, **keywords)
            assert y.dtype == np.int32
            y = int8_cases.from_layout(y, layout.data)
            np.testing.assert_array_equal(y, expected, err_msg=f"{family} {layout}")


def full_range(rng, shape, dtype=np.int8):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@st.composite
def int8_layers(draw):
    """Draw a layer, its channels often in fours, its image's dtype and zero point."""
    layer = draw(layers())
    scale = draw(st.sampled_from([1, 1, 2, 4]))
    x, w = (*layer.x[:3], layer.x[3] * scale), (*layer.w[:2], layer.w[2] * scale, layer.w[3] * scale)
    dtype = draw(st.sampled_from([np.int8, np.uint8]))
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(layer.seed)
    images = [
        lambda: full_range(rng, x, dtype),
        lambda: rng.choice([limits.min, limits.max], x).astype(dtype),
        lambda: np.full(x, draw(st.sampled_from([limits.min, limits.max])), dtype),
    ]
    filters = [
        lambda: full_range(rng, w),
        lambda: rng.choice([-128, 127], w).astype(np.int8),
        lambda: np.full(w, -128, np.int8),
    ]
    zero_point = draw(st.sampled_from([0, 0, int(limits.min), int(limits.max), 3]))
    return draw(st.sampled_from(images))(), draw(st.sampled_from(filters))(), zero_point, layer.geometry


def check_layer(x, w, zero_point, geometry) -> None:
    """Check the sums, and those less a zero point as float32 results, which hold them to 2^24."""
    check_sums(x, w, **geometry)
    expected = int8_reference.sums(x, w, zero_point, **geometry).astype(np.float32)
    Fused(x, w, terms={"out_dtype": "float32", "input_zero_point": zero_point}, geometry=geometry).check(expected)


@settings(max_examples=150, deadline=None)
@given(int8_layers())
def test_random_geometries(layer):
    check_layer(*layer)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=2000, deadline=None)
@given(int8_layers())
def test_two_thousand_random_geometries(layer):
    check_layer(*layer)


@settings(max_examples=60, deadline=None)
@given(int8_layers(), st.integers(0, 2**32 - 1))
def test_random_terms(layer, seed):
    """The whole epilogue, against fractions, on the first pixels."""
    x, w, zero_point, geometry = layer
    rng = np.random.default_rng(seed)
    y = int8_reference.sums(x[:1], w, **geometry)[:, :3, :3]
    x, w, k = x[:1], w, y.shape[3]
    out_dtype = rng.choice(["int8", "uint8", "float32"])
    zero = 0 if out_dtype == "float32" else rng.integers(*int8_reference.RANGES[out_dtype], endpoint=True)
    spread = 100 / (1 + np.abs(y).max(initial=0))
    terms = {
        "conv_scale": spread * rng.uniform(0.1, 2, rng.choice([1, k])),
        "side_scale": rng.choice([0.0, 0.3, 1.0]),
        "activation": rng.choice([None, "relu"]),
        "output_zero_point": int(zero),
        "input_zero_point": zero_point,
        "out_dtype": str(out_dtype),
    }
    biases = [None, rng.normal(0, 30, k).astype(np.float32), rng.integers(-3000, 3000, k).astype(np.int32)]
    shape = reference.output_shape(x.shape, w.shape, **{n: v for n, v in geometry.items() if n != "groups"})
    Fused(x, w, biases[rng.integers(3)], full_range(rng, shape), terms, geometry).check()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 64, 65])
def test_every_remainder_of_channels(channels, dtype, rng):
    for k in (1, 3, 4, 8, 15, 16, 17, 32, 36, 63):
        x, w = full_range(rng, (1, 3, 7, channels), dtype), full_range(rng, (2, 2, channels, k))
        check_sums(x, w, padding="SAME")


@pytest.mark.parametrize("groups", [1, 2, 3, 12])
def test_groups(groups, rng):
    for k in (12, 24, 36):
        x, w = full_range(rng, (2, 6, 5, 12)), full_range(rng, (3, 3, 12 // groups, k))
        check_sums(x, w, padding="SAME", groups=groups, strides=(2, 1))


DEPTHWISE = [
    (3, 3, {"padding": "SAME"}),
    (3, 3, {"padding": "SAME", "strides": (2, 2)}),
    (5, 5, {"padding": ((2, 1), (0, 3)), "strides": (1, 2)}),
    (1, 9, {"padding": "VALID"}),
    (2, 4, {"padding": "FULL", "dilations": (2, 3)}),
    (1, 1, {}),
]


@pytest.mark.parametrize(("height", "width", "geometry"), DEPTHWISE, ids=str)
def test_depthwise(height, width, geometry, rng):
    for dtype, channels, zero_point in ((np.int8, 3, 0), (np.uint8, 32, 7), (np.int8, 40, -128), (np.uint8, 97, 0)):
        x, w = full_range(rng, (2, 11, 13, channels), dtype), full_range(rng, (height, width, 1, channels))
        check_layer(x, w, zero_point, {**geometry, "groups": channels})
        check_layer(x // 2, w // 2, zero_point, {**geometry, "groups": channels})
    # Wider than a tile, with everything that comes after the sums.
    shape = reference.output_shape((1, 9, 150, 36), (height, width, 1, 36), **geometry)
    x, w, side = full_range(rng, (1, 9, 150, 36)), full_range(rng, (height, width, 1, 36)), full_range(rng, shape)
    terms = {"conv_scale": rng.uniform(0.001, 0.01, 36), "side_scale": 0.3, "output_zero_point": -5}
    Fused(x, w, rng.normal(0, 9, 36).astype(np.float32), side, terms, {**geometry, "groups": 36}).check()


@pytest.mark.parametrize("filters", [2, 3, 5, 32, 40])
@pytest.mark.parametrize(("height", "width", "geometry"), DEPTHWISE[:3], ids=str)
def test_several_filters_of_each_channel(height, width, geometry, filters, rng):
    for dtype, channels, zero_point in ((np.int8, 2, 0), (np.uint8, 7, 5), (np.int8, 33, -128)):
        x, w = full_range(rng, (2, 7, 9, channels), dtype), full_range(rng, (height, width, 1, filters * channels))
        check_layer(x, w, zero_point, {**geometry, "groups": channels})
        check_layer(x // 2, w // 2, zero_point, {**geometry, "groups": channels})


def test_packed_channels_in_groups(rng):
    """Groups of four channels in, and of outputs that are no multiple of four."""
    for groups, k in ((2, 4), (4, 12), (3, 24), (6, 12)):
        x, w = full_range(rng, (2, 5, 6, 4 * groups)), full_range(rng, (3, 3, 4, k))
        check_sums(x, w, padding="SAME", groups=groups)
        Fused(x, w, terms={"conv_scale": rng.uniform(0, 1e-2, k)}, geometry={"groups": groups}).check()


EXTREMES = [(np.int8, MOST, -128, -128), (np.int8, MOST, 127, -128), (np.int8, MOST, 127, 127)]
EXTREMES += [(np.uint8, MOST_WIDE, 255, -128), (np.uint8, MOST_WIDE, 255, 127)]


@pytest.mark.parametrize(("dtype", "terms", "pixel", "weight"), EXTREMES, ids=str)
def test_the_longest_sums_of_extreme_values(dtype, terms, pixel, weight):
    x, w = np.full((1, 1, 1, terms), pixel, dtype), np.full((1, 1, terms, 4), weight, np.int8)
    w[..., 1] = 0
    w[:, :, ::2, 2] = ~w[:, :, ::2, 2]
    check_sums(x, w)
    side = terms // 9 * 9 // 9
    check_sums(np.full((1, 3, 3, side), pixel, dtype), np.full((3, 3, side, 2), weight, np.int8))
    check_sums(np.full((1, 4, 4, side), pixel, dtype), np.full((3, 3, side, 2), weight, np.int8), padding="SAME")


def test_the_longest_sums_with_a_zero_point():
    x, w = np.full((1, 1, 1, MOST_WIDE), 127, np.int8), np.full((1, 1, MOST_WIDE, 3), -128, np.int8)
    terms = {"input_zero_point": -128, "out_dtype": "float32"}
    Fused(x, w, terms=terms).check(np.float32(255 * -128 * MOST_WIDE))
    x = np.zeros_like(x, np.uint8)
    Fused(x, w, terms={**terms, "input_zero_point": 255}).check(np.float32(255 * 128 * MOST_WIDE))


def test_longer_sums_are_refused():
    def arrays(terms, dtype):
        return np.zeros((1, 1, 1, terms), dtype), np.zeros((1, 1, terms, 1), np.int8)

    for op in ("conv2d", "fused_conv2d"):
        for terms, dtype in ((MOST, np.int8), (MOST_WIDE, np.uint8)):
            with refused(convkit.UnsupportedError, str(terms + 1), str(terms), np.dtype(dtype).name, op=op):
                harness.operation(op)(*arrays(terms + 1, dtype))
    with refused(convkit.UnsupportedError, "input_zero_point 1", str(MOST_WIDE), op="fused_conv2d"):
        convkit.fused_conv2d(*arrays(MOST_WIDE + 1, np.int8), input_zero_point=1)


def test_sums_of_nothing_go_through_the_epilogue(rng):
    """No channels, or windows of padding only."""
    bias, side = np.array([1.5, -2.5], np.float32), full_range(rng, (2, 3, 3, 2))
    terms = {"side_scale": 0.5, "output_zero_point": 3, "activation": "relu"}
    Fused(np.zeros((2, 3, 3, 0), np.int8), np.zeros((1, 1, 0, 2), np.int8), bias, side, terms).check()
    x, w = full_range(rng, (2, 1, 1, 4)), full_range(rng, (1, 1, 4, 8))
    side = full_range(rng, (2, 5, 5, 8))
    geometry = {"padding": ((2, 2), (2, 2))}
    Fused(x, w, None, side, terms, geometry).check()
    Fused(np.zeros((2, 0, 4, 4), np.int8), w, None, None, {}, {"padding": "SAME"}).check()
    assert convkit.fused_conv2d(x[:0], w).shape == (0, 1, 1, 8)
    assert convkit.conv2d(np.zeros((2, 3, 3, 0), np.int8), np.zeros((1, 1, 0, 2), np.int8)).tolist() == (
        np.zeros((2, 3, 3, 2)).tolist()
    )


def test_taps_that_meet_only_padding(rng):
    x, w = full_range(rng, (1, 2, 3, 4)), full_range(rng, (9, 11, 4, 8))
    check_sums(x, w, padding="SAME")
    check_sums(x, w, padding=((8, 3), (2, 9)), strides=(3, 2))
    Fused(x, w, terms={"conv_scale": 1e-3, "input_zero_point": 9}, geometry={"padding": "FULL"}).check()


def strange(array, how):
    """Return an array of the same values that lies in memory in a strange way."""
    if how == "negative strides":
        return np.ascontiguousarray(array[..., ::-1])[..., ::-1]
    if how == "every other":
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 99, array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if how == "other order":
        return np.ascontiguousarray(array.transpose(*range(1, array.ndim), 0)).transpose(-1, *range(array.ndim - 1))
    if how == "read-only":
        kept = array.copy()
        kept.flags.writeable = False
        return kept
    if how == "big-endian":
        return array.astype(array.dtype.newbyteorder(">"))
    block = np.zeros(array.nbytes + 1, np.uint8)  # misaligned
    moved = block[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "how", ["negative strides", "every other", "other order", "read-only", "big-endian", "misaligned"]
)
def test_arrays_in_any_order_of_memory(how, layout, rng):
    for out_dtype, side_dtype in (("int8", np.int8), ("float32", np.float32)):
        x, w = full_range(rng, (2, 5, 6, 8)), full_range(rng, (3, 3, 8, 12))
        side = (rng.standard_normal((2, 5, 6, 12)) * 20).astype(side_dtype)
        bias, scale = rng.standard_normal(12).astype(np.float32), rng.uniform(0, 1e-3, 12).astype(np.float32)
        terms = {"side_scale": 0.4, "out_dtype": out_dtype}
        case = Fused(x, w, bias, side, {**terms, "conv_scale": scale}, {"padding": "SAME"})
        expected = case.expected()
        x, w, bias, side = (strange(array, how) for array in case.arguments(layout))
        for family in harness.families("fused_conv2d", x, w, bias, side, padding="SAME", **terms, **layout.keywords):
            out = strange(np.full(side.shape, 77, out_dtype), how if how != "read-only" else "every other")
            y = convkit.fused_conv2d(
                x, w, bias, side, conv_scale=strange(scale, how), padding="SAME", out=out, algorithm=family,
                **terms, **layout.keywords,
            )  # fmt: skip
            assert y is out
            np.testing.assert_array_equal(int8_cases.from_layout(y, layout.data), expected, err_msg=family)


def test_broadcast_arrays(rng):
    x = np.broadcast_to(full_range(rng, (1, 4, 1, 8)), (3, 4, 5, 8))
    w = np.broadcast_to(full_range(rng, (1, 2, 8, 1)), (2, 2, 8, 6))
    side = np.broadcast_to(full_range(rng, (1, 1, 1, 6)), (3, 3, 4, 6))
    bias = np.broadcast_to(np.float32(3.25), (6,))
    expected = Fused(x, w, bias, side, {"conv_scale": 1e-3}).expected()
    for family in harness.families("fused_conv2d", x, w, bias, side):
        y = convkit.fused_conv2d(x, w, bias, side, conv_scale=1e-3, algorithm=family)
        np.testing.assert_array_equal(y, expected, err_msg=family)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_out_may_be_the_side_input_and_nothing_around_it_is_touched(layout, threads, rng):
    for out_dtype in ("int8", "uint8", "float32"):
        x, w = full_range(rng, (2, 9, 7, 8), np.uint8), full_range(rng, (3, 3, 8, 20))
        low = 0 if out_dtype == "uint8" else -100
        side = rng.integers(low, 100, (2, 9, 7, 20)).astype(out_dtype)
        terms = {"conv_scale": 1e-3, "side_scale": 0.75, "out_dtype": out_dtype}
        case = Fused(x, w, None, side, terms, {"padding": "SAME"})
        expected = case.expected()
        x, w, _, side = case.arguments(layout)
        keywords = {**terms, "padding": "SAME", **layout.keywords, "num_threads": threads}
        for family in harness.families("fused_conv2d", x, w, None, side, **keywords):
            around = np.full([size + 4 for size in side.shape], 55, out_dtype)
            inside = tuple(slice(2, size + 2) for size in side.shape)
            out = around[inside]
            out[...] = side
            y = convkit.fused_conv2d(x, w, side_input=out, out=out, algorithm=family, **keywords)
            assert y is out
            np.testing.assert_array_equal(int8_cases.from_layout(y, layout.data), expected, err_msg=family)
            out[...] = 55
            assert np.all(around == 55)


def test_other_overlaps_are_refused(rng):
    x, w = full_range(rng, (1, 4, 4, 4)), full_range(rng, (1, 1, 4, 4))
    both = full_range(rng, (2, 4, 4, 4))
    shifted = {"side_input": both[:1], "out": both.reshape(-1)[1:65].reshape(1, 4, 4, 4)}
    for keywords, name in (
        ({"out": x}, "input"),
        (shifted, "side_input"),
        ({"side_input": both[:1].transpose(0, 2, 1, 3), "out": both[:1]}, "side_input"),
        ({"side_input": both[:1].view(np.uint8), "out": both[:1]}, "side_input"),
    ):
        with refused(convkit.ArgumentError, "overlap any input", name, op="fused_conv2d"):
            convkit.fused_conv2d(x, w, **keywords)
    row = np.zeros((1, 1, 1, 4), np.float32)
    for name in ("bias", "conv_scale"):
        with refused(convkit.ArgumentError, name, op="fused_conv2d"):
            convkit.fused_conv2d(x[:, :1, :1], w, out_dtype="float32", out=row, **{name: row.reshape(4)})


@pytest.mark.parametrize("op", ["conv2d", "fused_conv2d"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_packed_filters(layout, op, rng):
    for dtype in (np.int8, np.uint8):
        x, w = full_range(rng, (2, 6, 5, 8), dtype), full_range(rng, (3, 3, 8, 20))
        x, plain = int8_cases.to_layout(x, layout.data), int8_cases.to_layout(w, layout.filter)
        packed = convkit.pack_filter(plain, op=op, padding="SAME", **layout.keywords)
        for geometry in ({"padding": "SAME"}, {"padding": 2, "strides": 2}, {}):
            y = harness.operation(op)(x, plain, **geometry, **layout.keywords)
            for filter in (packed, packed, pickle.loads(pickle.dumps(packed))):
                np.testing.assert_array_equal(harness.operation(op)(x, filter, **geometry, **layout.keywords), y)


def test_a_small_workspace(rng):
    """Any limit works, or the error names the bytes."""
    x, w = full_range(rng, (2, 20, 20, 32)), full_range(rng, (3, 3, 32, 48))
    expected = convkit.conv2d(x, w)
    for limit in (1 << 25, 1 << 16, 1 << 12, 1):
        with convkit.options(workspace_limit=limit):
            try:
                assert np.array_equal(convkit.conv2d(x, w), expected)
                assert convkit.explain("conv2d", x, w).workspace <= limit
            except convkit.WorkspaceError as error:
                assert "bytes" in str(error)


def test_explain():
    shapes = (1, 8, 8, 16), (3, 3, 16, 32), (32,), (1, 6, 6, 32)
    told = convkit.explain("fused_conv2d", *shapes, dtype="uint8", conv_scale=0.5, activation="relu")
    assert told.op == "fused_conv2d"
    assert told.output_shape == shapes[3]
    assert told.candidates[-1] == ("cpu:reference_int8", None)
    assert told == convkit.explain(
        "fused_conv2d", *shapes[:2], bias=shapes[2], side_input=shapes[3], dtype="uint8", activation="relu"
    )
    arrays = np.zeros(shapes[0], np.int8), np.zeros(shapes[1], np.int8)
    assert convkit.explain("conv2d", *arrays) == convkit.explain("conv2d", *shapes[:2], dtype="int8")
    packed = convkit.pack_filter(arrays[1], op="fused_conv2d")
    assert convkit.explain("fused_conv2d", arrays[0], packed) == convkit.explain("fused_conv2d", *arrays)
    packed_shapes = (1, 4, 8, 8, 4), (32, 4, 3, 3, 4)
    told = convkit.explain("conv2d", *packed_shapes, dtype="int8", **PACKED.keywords)
    assert told.output_shape == (1, 8, 6, 6, 4)
    assert pickle.loads(pickle.dumps(told)) == told
    refusals = {"side_input": {"side_scale": 1.0}, "strides": {"stride": 2}, "relu6": {"activation": "tanh"}}
    for words, wrong in refusals.items():
        with pytest.raises(convkit.ConvkitError, match=words):
            convkit.explain("fused_conv2d", *shapes[:2], dtype="int8", **wrong)


def test_integers_have_no_gradients():
    x, w, dy = np.ones((1, 5, 4, 2), np.int8), np.ones((3, 2, 2, 3), np.int8), np.ones((1, 3, 3, 3), np.int8)
    for call in (
        lambda: convkit.conv2d_backprop_filter(x, w.shape, dy),
        lambda: convkit.conv2d_backprop_input(x.shape, w, dy),
    ):
        with pytest.raises(convkit.DTypeError, match="integers have no gradients, not those of int8"):
            call()
