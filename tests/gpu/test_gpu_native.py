"""The families im2col and direct on CuPy's stand-in: every layout and dtype, small workspaces, int8, epilogues.

Golden data are in test_gpu_golden.py.
"""

import itertools
import re

import harness
import int8_cases
import numpy as np
import pytest
import reference
from harness import ALL_LAYOUTS, BFLOAT16, DTYPES, LAYOUTS, Layout

import convkit
from convkit import UnsupportedError, WorkspaceError
from convkit._gpu import direct, im2col, launch

FAMILIES = ("im2col", "direct")
OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")


def on_gpu(cupy, value):
    """Return an array on the stand-in; other values as they are."""
    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def result_of(cupy, call, layout, *dtypes, family, **keywords):
    """Return what a family gives, in NHWC or HWIO."""
    arguments = [on_gpu(cupy, value) for value in call.in_layout(layout, *dtypes)]
    keywords = {**call.geometry, **layout.keywords, **keywords}
    result = harness.operation(call.op)(*arguments, algorithm=family, **keywords)
    return call.result_from(cupy.asnumpy(result), layout)


def rounded(expected, dtype):
    """Return exact sums as a dtype holds them."""
    return expected.astype(np.float32).astype(dtype) if dtype in harness.HALVES else expected.astype(dtype)


def check(cupy, call, layouts, dtypes, families=FAMILIES, **keywords):
    """Check that the families give the reference to the last bit."""
    expected = call.reference()
    for layout, dtype, family in itertools.product(layouts, dtypes, families):
        result = result_of(cupy, call, layout, dtype, family=family, **keywords)
        assert result.dtype == dtype
        message = f"{call.op} by {family} in {layout}, {dtype}"
        np.testing.assert_array_equal(result, rounded(expected, dtype), err_msg=message)


# Shapes of images and filters, and the geometry.
LAYERS = {
    "plain": ((2, 7, 9, 5), (3, 3, 5, 4), {"padding": "SAME"}),
    "large strides": ((1, 9, 10, 3), (2, 3, 3, 5), {"strides": (3, 4), "padding": ((1, 2), (0, 3))}),
    "dilated": ((2, 9, 8, 2), (3, 2, 2, 3), {"dilations": (2, 3), "padding": "FULL"}),
    "strided and dilated": (
        (1, 11, 9, 4),
        (3, 3, 4, 2),
        {"strides": (2, 2), "dilations": (3, 3), "padding": ((4, 5), (6, 2))},
    ),
    "groups": ((2, 6, 5, 6), (3, 2, 3, 4), {"groups": 2, "padding": "SAME_LOWER"}),
    "groups and strides": ((2, 6, 7, 8), (2, 2, 2, 12), {"groups": 4, "strides": (2, 1)}),
    "depthwise": ((2, 6, 9, 5), (3, 3, 1, 5), {"groups": 5, "padding": "SAME"}),
    "depthwise with multiplier": (
        (1, 7, 5, 3),
        (2, 5, 1, 6),
        {"groups": 3, "strides": (2, 2), "padding": ((3, 0), (1, 4))},
    ),
    "one pixel": ((3, 1, 1, 4), (1, 1, 4, 7), {}),
    "one pixel to the sum": ((1, 1, 1, 1), (5, 5, 1, 1), {"padding": "FULL"}),
    "padding beyond the filter": ((1, 3, 4, 2), (2, 2, 2, 3), {"padding": ((5, 4), (6, 3))}),
    "long rows": ((1, 1, 40, 2), (1, 37, 2, 3), {"padding": "SAME"}),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_geometries_in_every_layout_and_dtype(cupy, rng, layer):
    x, w, geometry = LAYERS[layer]
    for call in harness.layer(rng, x, w, **geometry):
        check(cupy, call, ALL_LAYOUTS, [np.dtype(np.float32)])
        check(cupy, call, LAYOUTS[:2], DTYPES)


@pytest.mark.parametrize("layer", ["plain", "depthwise with multiplier", "groups", "strided and dilated"])
def test_few_blocks_do_all_the_work(cupy, rng, monkeypatch, layer):
    monkeypatch.setattr(launch, "MOST_BLOCKS", 2)
    x, w, geometry = LAYERS[layer]
    for call in harness.layer(rng, x, w, **geometry):
        check(cupy, call, LAYOUTS[:2], [np.dtype(np.float32)])


def least_workspace(run) -> int:
    """Return the smallest limit that a call says it needs, which is not above what it works with."""
    try:
        with convkit.options(workspace_limit=1):
            run()
    except WorkspaceError as refusal:
        return int(re.search(r"needs (\d+) bytes", str(refusal))[1])
    return 1


@pytest.mark.parametrize("layer", LAYERS)
def test_small_workspaces_cut_the_work_into_pieces(cupy, rng, layer):
    x, w, geometry = LAYERS[layer]
    for call, (number, layout) in itertools.product(harness.layer(rng, x, w, **geometry), enumerate(LAYOUTS)):
        expected, dtype = rounded(call.reference(), DTYPES[number]), DTYPES[number]
        for family in FAMILIES:

            def run(call=call, layout=layout, dtype=dtype, family=family):
                return result_of(cupy, call, layout, dtype, family=family)

            least = least_workspace(run)
            assert (least == 1) == (family == "direct" and call.op != "conv2d_backprop_filter")
            for limit in (least, 2 * least + 100, 12 * least):
                with convkit.options(workspace_limit=limit):
                    message = f"{call.op} by {family} in {layout}, {dtype}, {limit} bytes"
                    np.testing.assert_array_equal(run(), expected, err_msg=message)
            if least > 1:
                with convkit.options(workspace_limit=least - 1), pytest.raises(WorkspaceError):
                    run()


def workspace_of(problem_arrays, op, family, **keywords):
    """Return the bytes that `explain` promises."""
    return convkit.explain(op, *problem_arrays, algorithm=family, **keywords).workspace


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limit", [20_000, 60_000, 2**30])
def test_no_more_memory_is_taken_than_planned(cupy, rng, world, op, family, limit):
    call = next(c for c in harness.layer(rng, (3, 12, 13, 8), (3, 3, 8, 6), padding="SAME") if c.op == op)
    for layout, dtype in itertools.product(LAYOUTS, (np.dtype(np.float32), BFLOAT16)):
        arguments = [on_gpu(cupy, value) for value in call.in_layout(layout, dtype)]
        keywords = {**call.geometry, **layout.keywords}
        result = harness.operation(op)(*arguments, algorithm=family, **keywords)
        with convkit.options(workspace_limit=limit):
            planned = workspace_of(arguments, op, family, **keywords)
            assert planned <= limit
            card = world.cards[0]
            card.most_used = card.used
            before, allocated = card.used, world.allocated
            harness.operation(op)(*arguments, algorithm=family, out=result, **keywords)
        # The pool hands out multiples of 512 bytes.
        assert card.most_used - before <= planned + 512 * (world.allocated - allocated)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_filter_gradients_are_added_to_what_is_there(cupy, rng, family, dtype):
    for layer in ("plain", "groups and strides", "depthwise"):
        x, w, geometry = LAYERS[layer]
        call = harness.layer(rng, x, w, limit=1, **geometry)[1]
        for layout in LAYOUTS:
            before = harness.integers(rng, w, 2)
            out = cupy.asarray(reference.to_filter_format(before, layout.filter).astype(dtype))
            result_of(cupy, call, layout, dtype, family=family, out=out, accumulate=True)
            result = call.result_from(cupy.asnumpy(out), layout)
            np.testing.assert_array_equal(result, rounded(call.reference() + before, dtype))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", harness.HALVES, ids=str)
def test_halves_give_float32_unrounded(cupy, rng, family, dtype):
    for layer in ("plain", "groups", "depthwise", "large strides"):
        x, w, geometry = LAYERS[layer]
        for call in harness.layer(rng, x, w, limit=100, **geometry):
            for layout in LAYOUTS:
                result = result_of(cupy, call, layout, dtype, family=family, out_dtype="float32")
                assert result.dtype == np.float32
                expected = reference.OPS[call.op](
                    *(a.astype(dtype).astype(np.float64) if isinstance(a, np.ndarray) else a for a in call.arguments),
                    **call.geometry,
                )
                np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_views_in_steps_backwards_and_broadcast(cupy, rng, op, family):
    call = next(c for c in harness.layer(rng, (2, 6, 7, 4), (3, 2, 2, 6), groups=2, padding="SAME") if c.op == op)
    arguments, arrays = [], [a for a in call.arguments if isinstance(a, np.ndarray)]
    for value in call.arguments:
        if isinstance(value, np.ndarray):
            room = cupy.full(tuple(2 * n for n in value.shape), np.nan, np.float32)
            view = room[tuple(slice(None, None, step) for step in (2, -2, 2, -2))]
            view[...] = cupy.asarray(value.astype(np.float32))
            value = view
        arguments.append(value)
    expected = call.reference()
    room = cupy.full(tuple(2 * n for n in expected.shape), 7, np.float32)
    out = room[::-2, ::2, 1::2, ::-2]
    harness.operation(op)(*arguments, algorithm=family, out=out, **call.geometry)
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)
    assert int((cupy.asnumpy(room) == 7).sum()) >= room.size - out.size
    constant = [np.broadcast_to(a[:1, :1, :1, :1], a.shape) for a in arrays]
    broadcast = [cupy.broadcast_to(cupy.asarray(a[:1, :1, :1, :1].astype(np.float32)), a.shape) for a in arrays]
    same, there = iter(constant), iter(broadcast)
    values = [next(same) if isinstance(a, np.ndarray) else a for a in call.arguments]
    result = harness.operation(op)(
        *(next(there) if isinstance(a, np.ndarray) else a for a in call.arguments), algorithm=family, **call.geometry
    )
    np.testing.assert_array_equal(cupy.asnumpy(result), reference.OPS[op](*values, **call.geometry))


@pytest.mark.parametrize("source", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integer_images_are_converted_on_the_way(cupy, rng, source):
    x, w, geometry = LAYERS["groups"]
    for call in harness.layer(rng, x, w, **geometry)[:2]:
        image = rng.integers(0, 2 if source == "bool" else 100, x).astype(source)
        call = harness.Call(call.op, (image, *call.arguments[1:]), geometry)
        exact = harness.Call(call.op, (image.astype(np.float64), *call.arguments[1:]), geometry)
        for layout, dtype in itertools.product(LAYOUTS, DTYPES):
            if not np.can_cast(source, dtype, "safe"):
                continue
            result = result_of(cupy, call, layout, np.dtype(source), dtype, family="im2col")
            expected = exact.reference()
            np.testing.assert_array_equal(result, rounded(expected, dtype))
    with pytest.raises(UnsupportedError, match="convert no operands"):
        result_of(cupy, call, LAYOUTS[0], np.dtype(source), np.dtype(np.float64), family="direct")


# Sums of 18000 and more terms, over channels, a row of taps, all taps, pixels, or channels out.
LONG = {
    "channels in": ((1, 1, 2, 18000), (1, 1, 18000, 2), {}),
    "a row of taps": ((1, 1, 18010, 1), (1, 18000, 1, 1), {}),
    "taps": ((1, 150, 160, 1), (150, 140, 1, 1), {}),
    "pixels": ((2, 100, 100, 1), (1, 1, 1, 2), {}),
    "channels out": ((1, 1, 2, 1), (1, 1, 1, 18000), {}),
}
SUMMED = {"conv2d_backprop_filter": ("pixels",), "conv2d": ("channels in", "a row of taps", "taps"),
          "conv2d_backprop_input": ("channels out",)}  # fmt: skip


@pytest.mark.parametrize("op, layer", [(op, layer) for op, layers in SUMMED.items() for layer in layers])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_long_sums_are_kept_in_two_levels(cupy, op, layer, family, layout):
    # Equal terms are rounded to the same side, again and again: in one accumulator the error of these sums is beyond
    # 1e-4; over 512 terms, and some 40 sums of them, it is a twentieth of that.
    x, w, geometry = LONG[layer]
    shapes = x, w, reference.output_shape(x, w, **geometry)
    arrays = [np.full(shape, np.float32(value), np.float64) for shape, value in zip(shapes, (0.1, 1, 0.1), strict=True)]
    call = next(call for call in harness.three_calls(*arrays, **geometry) if call.op == op)
    with convkit.options(workspace_limit=400_000):
        result = result_of(cupy, call, layout, np.dtype(np.float32), family=family)
    expected = call.reference()
    assert np.max(np.abs(result / expected - 1)) < 1e-5


def test_one_accumulator_would_be_seen():
    terms = np.full(18000, np.float32(0.1))
    one = float(np.cumsum(terms)[-1])
    assert abs(one / (18000 * float(terms[0])) - 1) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_finite_stays_in_its_windows(cupy, family):
    x = np.ones((1, 6, 7, 2), np.float32)
    x[0, 2, 3, 1], x[0, 5, 0, 0] = np.nan, np.inf
    w = np.ones((3, 3, 2, 3), np.float32)
    keywords = {"padding": "SAME", "strides": (2, 1)}
    result = cupy.asnumpy(convkit.conv2d(cupy.asarray(x), cupy.asarray(w), algorithm=family, **keywords))
    np.testing.assert_array_equal(result, convkit.conv2d(x, w, algorithm="reference", **keywords))


FUSED = [
    {"activation": activation, "conv_scale": scale, "side": side, "bias": bias}
    for activation, (scale, side, bias) in zip(
        (None, "relu", "relu6", "elu", "leaky_relu", "relu"),
        ((1.0, None, True), ("each", 0.5, True), (0.25, None, False), ("each", None, True), (2.0, 1.0, False),
         (1.0, 0.75, True)),
        strict=True,
    )
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fused", FUSED, ids=str)
def test_fused_floats_are_those_of_the_cpu(cupy, rng, family, dtype, fused):
    computed = np.float64 if dtype == np.float64 else np.float32
    for layer, layout in itertools.product(("plain", "depthwise", "groups and strides"), LAYOUTS[:2]):
        x, w, geometry = LAYERS[layer]
        call = harness.layer(rng, x, w, **geometry)[0]
        images, weights = call.in_layout(layout, dtype)
        channels = w[3]
        shape = reference.to_data_format(call.reference(), layout.data).shape
        side = None if fused["side"] is None else harness.integers(rng, shape).astype(dtype)
        bias = harness.integers(rng, (channels,)).astype(computed) if fused["bias"] else None
        scale = fused["conv_scale"]
        if scale == "each":
            scale = (2.0 ** rng.integers(-2, 3, channels)).astype(computed)
        keywords = {**geometry, **layout.keywords, "activation": fused["activation"], "side_scale": fused["side"]}
        expected = convkit.fused_conv2d(images, weights, bias, side, conv_scale=scale, **keywords)
        there = [on_gpu(cupy, value) for value in (images, weights, bias, side)]
        for out, limit in ((None, None), ("side", None), (None, 2000)):
            if out == "side" and side is None:
                continue
            target = there[3].copy() if out == "side" else None
            arrays = [*there[:3], target] if out == "side" else there
            with convkit.options(workspace_limit=limit) if limit else convkit.options():
                result = convkit.fused_conv2d(
                    *arrays, conv_scale=on_gpu(cupy, scale), algorithm=family, out=target, **keywords
                )
            np.testing.assert_array_equal(cupy.asnumpy(result), expected, err_msg=f"{layer} {layout} {out} {limit}")


# Images, filters and groups, narrow and wide, with tails of tiles in pixels, filters and channels.
INT8_LAYERS = [
    ((2, 5, 6, 4), (3, 3, 4, 8), {"padding": "SAME"}),
    ((1, 9, 8, 3), (3, 2, 3, 20), {"strides": 2, "padding": ((1, 2), (0, 3))}),
    ((3, 7, 9, 37), (3, 3, 37, 70), {"dilations": (2, 1), "padding": "FULL"}),
    ((1, 6, 5, 8), (3, 3, 1, 8), {"groups": 8, "padding": "SAME"}),
    ((2, 6, 5, 24), (2, 3, 12, 40), {"groups": 2, "padding": "SAME_LOWER"}),
    ((1, 5, 5, 10), (3, 3, 5, 34), {"groups": 2, "strides": (1, 2), "padding": "SAME"}),
    ((1, 4, 4, 64), (1, 1, 64, 64), {}),
]


def int8_arrays(rng, x, w, image):
    """Return extreme bytes of both kinds."""
    low, high = (0, 256) if image == "uint8" else (-128, 128)
    images, weights = rng.integers(low, high, x).astype(image), rng.integers(-128, 128, w).astype(np.int8)
    images[..., 0], weights[0] = low, -128
    return images, weights


@pytest.mark.parametrize("image", ["int8", "uint8"])
@pytest.mark.parametrize("x, w, geometry", INT8_LAYERS)
@pytest.mark.parametrize("blocks", [launch.MOST_BLOCKS, 1])
def test_int8_sums_are_exact(cupy, rng, monkeypatch, x, w, geometry, image, blocks):
    monkeypatch.setattr(launch, "MOST_BLOCKS", blocks)
    images, weights = int8_arrays(rng, x, w, image)
    expected = convkit.conv2d(images, weights, algorithm="reference", **geometry)
    for layout in (*int8_cases.LAYOUTS, Layout("NCHW", "OHWI"), Layout("NHWC", "OIHW")):
        if int8_cases.Fused(images, weights).fits(layout):
            arrays = (int8_cases.to_layout(images, layout.data), int8_cases.to_layout(weights, layout.filter))
            there = [cupy.asarray(array) for array in arrays]
            result = convkit.conv2d(*there, algorithm="direct", **geometry, **layout.keywords)
            assert result.dtype == np.int32
            found = int8_cases.from_layout(cupy.asnumpy(result), layout.data)
            np.testing.assert_array_equal(found, expected, err_msg=str(layout))


@pytest.mark.parametrize("image, out, zeros", [("int8", "int8", (0, 0)), ("int8", "uint8", (-7, 130)),
                                               ("uint8", "int8", (200, -3)), ("uint8", "float32", (128, 0)),
                                               ("uint8", "uint8", (0, 0))])  # fmt: skip
@pytest.mark.parametrize("x, w, geometry", INT8_LAYERS)
def test_fused_int8_is_that_of_the_cpu(cupy, rng, x, w, geometry, image, out, zeros):
    images, weights = int8_arrays(rng, x, w, image)
    channels = w[3]
    shape = convkit.conv2d_output_shape(x, w, **geometry)
    for number, (layout, side_dtype) in enumerate(itertools.product(int8_cases.LAYOUTS, (None, "int8", out))):
        side = None if side_dtype is None else rng.integers(-100 if side_dtype == "int8" else 0, 100, shape)
        case = int8_cases.Fused(
            images,
            weights,
            rng.integers(-1000, 1000, channels).astype(np.int32 if number % 2 else np.float32),
            None if side is None else side.astype(side_dtype),
            {
                "conv_scale": rng.random(channels).astype(np.float32) / 500 if number % 3 else 0.001,
                "side_scale": None if side is None else 0.3,
                "activation": "relu" if number % 2 else None,
                "out_dtype": out,
                "input_zero_point": zeros[0],
                "output_zero_point": zeros[1],
            },
            geometry,
        )
        if not case.fits(layout):
            continue
        keywords = {**case.terms, **geometry, **layout.keywords}
        arguments = case.arguments(layout)
        expected = convkit.fused_conv2d(*arguments, **keywords)
        keywords["conv_scale"] = on_gpu(cupy, keywords["conv_scale"])
        result = convkit.fused_conv2d(*(on_gpu(cupy, a) for a in arguments), algorithm="direct", **keywords)
        assert result.dtype == np.dtype(out)
        np.testing.assert_array_equal(cupy.asnumpy(result), expected, err_msg=f"{layout} {side_dtype}")


def test_elements_at_odd_addresses_are_refused(cupy):
    bytes_there = cupy.zeros(4 * 36 + 1, np.uint8)
    odd = cupy.ndarray((1, 6, 6, 1), np.float32, memptr=bytes_there[1:].data)
    for family in FAMILIES:
        with pytest.raises(UnsupportedError, match="must begin at a multiple of its 4 bytes"):
            convkit.conv2d(odd, cupy.zeros((3, 3, 1, 1), np.float32), algorithm=family)


def test_kernels_of_its_own_serve_while_a_stream_is_captured(cupy, rng):
    call = harness.layer(rng, (1, 5, 6, 4), (3, 3, 4, 3), padding="SAME")[0]
    x, w = (cupy.asarray(a.astype(np.float32)) for a in call.arguments)
    out = cupy.zeros(call.reference().shape, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(UnsupportedError, match="stream is being captured"):
            convkit.conv2d(x, w, padding="SAME", algorithm="im2col")
        convkit.conv2d(x, w, padding="SAME", algorithm="direct", out=out)
        graph = stream.end_capture()
        assert not cupy.asnumpy(out).any()
        graph.launch(stream)
    np.testing.assert_array_equal(cupy.asnumpy(out), call.reference())


def test_bfloat16_needs_a_gpu_that_multiplies_it(cupy, world, rng):
    world.cards[0].capability = (7, 5)
    call = harness.layer(rng, (1, 5, 6, 4), (3, 3, 4, 3))[0]
    with pytest.raises(UnsupportedError, match=r"compute capability 8\.0"):
        result_of(cupy, call, LAYOUTS[0], BFLOAT16, family="im2col")
    check(cupy, call, LAYOUTS[:1], [BFLOAT16], ["direct"])


def test_constants_shared_with_the_kernels_are_the_same():
    text = launch.text_of(("direct.cu", "direct_filter.cu", "int8.cu"))
    assert f"RUN = {direct.RUN}," in text and f"TAPS = {direct.TAPS}, SIDE_BY_SIDE = {direct.SIDE_BY_SIDE}" in text
    assert f"SUM_BLOCK = {im2col.MOST_TERMS['float32']}" in text
