"""Large filters by way of transforms: exact on whole numbers, and within the contract whatever the data."""

import tracemalloc

import harness
import numpy as np
import pytest
import reference
from harness import BFLOAT16, DTYPES, NCHW, NHWC
from test_interrupt import interrupt_after

import convkit
from convkit import UnsupportedError, WorkspaceError
from convkit._cpu import fft, fft_tiles

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
FLOAT32 = np.dtype(np.float32)
EPS = 2.0**-23
MIB = 2**20

# name: image, filter (HWIO), geometry
GEOMETRIES = {
    "same": ((2, 30, 31, 1), (11, 11, 1, 1), {"padding": "SAME"}),
    "several tiles": ((1, 150, 130, 2), (12, 13, 2, 1), {}),
    "several channels": ((1, 40, 50, 3), (15, 13, 3, 4), {}),
    "full": ((1, 20, 22, 2), (13, 12, 2, 3), {"padding": "FULL"}),
    "groups": ((2, 40, 33, 6), (11, 12, 2, 6), {"groups": 3, "padding": "SAME"}),
    "depthwise": ((1, 26, 24, 2), (21, 13, 1, 4), {"groups": 2, "padding": "SAME"}),
    "padding on one side": ((1, 40, 41, 2), (11, 12, 2, 2), {"padding": ((20, 3), (0, 15))}),
    "filter larger than the image": ((1, 14, 15, 2), (21, 21, 2, 2), {"padding": "SAME"}),
    "row filter": ((1, 4, 300, 1), (1, 121, 1, 1), {"padding": "SAME"}),
    "column filter": ((1, 300, 4, 1), (121, 1, 1, 1), {"padding": "SAME"}),
}


@pytest.fixture
def always(monkeypatch):
    """Serve small problems too, in small tiles, whatever the cost."""
    monkeypatch.setattr(fft, "NS_DIRECT", np.inf)
    monkeypatch.setattr(fft, "NS_DIRECT_FEW", np.inf)
    monkeypatch.setattr(fft, "MOST_SIDE", 64)
    fft.tiling.cache_clear()
    convkit.clear_caches()
    yield
    fft.tiling.cache_clear()
    convkit.clear_caches()


def by_fft(call, layout=NHWC, dtype=FLOAT32, **keywords):
    """Return what the family gives, as NHWC or HWIO."""
    arguments = call.in_layout(layout, dtype)
    keywords = {**call.geometry, **layout.keywords, **keywords}
    return call.result_from(harness.operation(call.op)(*arguments, algorithm="fft", **keywords), layout)


def assert_contract(call, c=2.0, **keywords):
    """Check every element, against a float64 result whose own error does not count."""
    result, expected = by_fft(call, **keywords), call.reference()
    scale = reference.magnitude(call.op, *call.arguments, **call.geometry)
    error = np.abs(result - expected)
    assert np.all(error <= c * EPS * scale), f"{call.op}: {np.max(error / (EPS * np.maximum(scale, 1e-300)))}"


def floats_of(rng, name):
    x, w, geometry = GEOMETRIES[name]
    y = reference.output_shape(x, w, **{key: value for key, value in geometry.items() if key != "groups"})
    return harness.three_calls(*(harness.floats(rng, shape) for shape in (x, w, y)), **geometry)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", GEOMETRIES)
def test_whole_numbers_are_exact(name, rng):
    x, w, geometry = GEOMETRIES[name]
    for call in harness.layer(rng, x, w, **geometry):
        told = convkit.explain(call.op, *call.in_layout(NHWC, FLOAT32), **geometry)
        assert dict(told.candidates)["cpu:fft_f32"] is None
        for dtype in (FLOAT32, np.dtype(np.float16), BFLOAT16):
            expected = call.reference().astype(np.float32).astype(dtype)
            for layout in (NHWC, NCHW):
                np.testing.assert_array_equal(by_fft(call, layout, dtype), expected)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", GEOMETRIES)
def test_random_floats_keep_the_contract(name, rng):
    for call in floats_of(rng, name):
        assert_contract(call, layout=NCHW)


def picture(rng, kind, shape):
    """Return pixels that are hard on transforms: small beside others of the same tile, or nearly cancelling."""
    values = harness.floats(rng, shape)
    if kind == "one huge pixel":
        values[:, shape[1] // 2, shape[2] // 2] = 2.0**40
    elif kind == "large mean":
        values = (1000 + values).astype(np.float32).astype(np.float64)
    elif kind == "black background":
        values[:, : shape[1] * 3 // 4] = 0
        values[:, :, 7:] = 0
    elif kind == "steep":
        values *= 2.0 ** -np.arange(shape[1])[:, None, None]
    elif kind == "constant":
        values[...] = 0.3
    return values.astype(np.float32).astype(np.float64)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["one huge pixel", "large mean", "black background", "steep", "constant", "normal"])
@pytest.mark.parametrize("filter_kind", ["normal", "cancelling", "steep"])
def test_the_contract_holds_element_by_element(kind, filter_kind, rng):
    shape, taps = (2, 70, 60, 1), (13, 11, 1, 1)
    x, w = picture(rng, kind, shape), harness.floats(rng, taps)
    dy = picture(rng, kind, (2, 58, 50, 1))
    if filter_kind == "steep":
        w *= 2.0 ** (-3.0 * np.arange(13)[:, None, None, None])
    elif filter_kind == "cancelling":
        w[1::2] = -w[: 13 - 1 : 2]
        w[-1] = 0
    for call in harness.three_calls(x, w, dy):
        assert_contract(call, c=8.0)


@pytest.mark.usefixtures("always")
def test_windows_of_zeros_give_zeros(rng):
    x = np.zeros((1, 90, 90, 1))
    x[0, 40, 40] = 1 / 3
    call = harness.three_calls(x, harness.floats(rng, (11, 11, 1, 1)), np.ones((1, 80, 80, 1)))[0]
    inside = np.zeros((1, 80, 80, 1), bool)
    inside[0, 30:41, 30:41] = True
    assert np.array_equal(by_fft(call) != 0, inside)
    assert_contract(call)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_pixel_reaches_exactly_the_outputs_whose_window_holds_it(bad, rng):
    x, w = harness.floats(rng, (1, 90, 80, 2)), harness.floats(rng, (11, 13, 2, 3))
    dy = harness.floats(rng, (1, 90, 80, 3))
    x[0, 45, 40, 1] = dy[0, 45, 40, 1] = bad
    forward, _, backward = harness.three_calls(x, w, dy, padding="SAME")
    for call in (forward, backward):
        finite = np.isfinite(by_fft(call))
        expected = np.ones(finite.shape, bool)
        expected[0, 40:51, 34:47] = False
        np.testing.assert_array_equal(finite, expected)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_elsewhere_are_those_of_the_other_families(bad, rng):
    x, w = harness.floats(rng, (1, 40, 41, 1)), harness.floats(rng, (11, 13, 1, 2))
    dy = harness.floats(rng, (1, 30, 29, 2))
    w[3, 4, 0, 1] = dy[0, 12, 9, 0] = bad
    forward, gradient, _ = harness.three_calls(x, w, dy)
    for call in (forward, gradient):
        np.testing.assert_array_equal(np.isfinite(by_fft(call)), np.isfinite(call.reference()))


@pytest.mark.usefixtures("always")
def test_tiles_of_padding_alone_are_written_whatever_the_filter(rng):
    """A filter value that is not finite may give NaN where it meets padding, or zero, but nothing else."""
    x, w = harness.floats(rng, (1, 40, 40, 1)), harness.floats(rng, (11, 11, 1, 1))
    w[5, 5] = np.nan
    out = np.full((1, 190, 30, 1), 7, np.float32)
    convkit.conv2d(*(a.astype(np.float32) for a in (x, w)), padding=((160, 0), (0, 0)), out=out, algorithm="fft")
    assert np.isnan(out[0, -30:]).all()
    assert np.all(np.isnan(out) | (out == 0))


@pytest.mark.usefixtures("always")
def test_subnormals_and_large_numbers(rng):
    calls = floats_of(rng, "several channels")
    for factor in (2.0**-140, 2.0**60):
        x, w = (np.float32(factor * a).astype(np.float64) for a in calls[0].arguments)
        result, expected = by_fft(harness.Call("conv2d", (x, w))), reference.conv2d(x, w)
        np.testing.assert_allclose(result, expected.astype(np.float32), rtol=1e-5, atol=2.0**-148)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["same", "several channels", "groups"])
def test_accumulate_adds_in_one_rounding(name, rng):
    for dtype in (FLOAT32, np.dtype(np.float16), BFLOAT16):
        call = floats_of(rng, name)[1]
        x, w_shape, dy = call.in_layout(NHWC, dtype)
        keywords = {**call.geometry, "algorithm": "fft"}
        wide = convkit.conv2d_backprop_filter(x, w_shape, dy, out_dtype=np.float32, **keywords)
        start = harness.floats(rng, w_shape).astype(dtype)
        out = start.copy()
        convkit.conv2d_backprop_filter(x, w_shape, dy, out=out, accumulate=True, **keywords)
        np.testing.assert_array_equal(out, (start.astype(np.float32) + wide).astype(dtype))


@pytest.mark.usefixtures("always")
def test_odd_memory(rng):
    """Byte order, negative strides, steps, broadcast values, an `out` within a larger array, integer images."""
    x, w, geometry = GEOMETRIES["several channels"]
    for call in harness.layer(rng, x, w, **geometry):
        plain = call.in_layout(NHWC, FLOAT32)
        odd = [np.repeat(a, 2, axis=1)[:, ::-2].astype(">f4") if isinstance(a, np.ndarray) else a for a in plain]
        turned = [a[:, ::-1].astype(np.float64) if isinstance(a, np.ndarray) else a for a in call.arguments]
        expected = harness.Call(call.op, tuple(turned)).reference()
        out = np.full((*expected.shape[:-1], 2 * expected.shape[-1]), np.nan, ">f4")[..., ::-2]
        harness.operation(call.op)(*odd, out=out, algorithm="fft")
        np.testing.assert_array_equal(out, expected)
    image = rng.integers(0, 256, x).astype(np.uint8)
    kernel = harness.integers(rng, w)
    result = convkit.conv2d(image, kernel.astype(np.float32), algorithm="fft")
    np.testing.assert_array_equal(result, reference.conv2d(image.astype(np.float64), kernel))


@pytest.mark.usefixtures("always")
def test_bits_do_not_depend_on_threads_or_errstate(rng):
    for call in floats_of(rng, "several tiles"):
        with np.errstate(all="raise"):
            one, two = by_fft(call, num_threads=1), by_fft(call, num_threads=2)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("size", [(22, 64), (90, 100), (243, 250)])
def test_transforms_stay_within_their_bound(size, rng):
    """Against a product of longer numbers; the bound is loose by design."""
    x, w = harness.floats(rng, (1, *size)), harness.floats(rng, (11, 11, 1, 1))
    x[0, 3, 3] = 1e6
    held = fft_tiles.Filters(fft_tiles.Transform(size), w)
    patch = fft_tiles.Patch(held, x)
    sums, error = patch._product(patch.spectra, held.spectra[0], patch.norm * held.norms[0])
    expected = reference.conv2d(x[..., None].astype(np.longdouble), w)[0, ..., 0]
    worst = np.abs(sums - expected).max()
    assert worst <= error
    assert worst >= error / 1e5


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", ["normal", "steep", "large mean"])
def test_scratch_stays_within_what_is_told(op, kind, rng):
    """NumPy's allocations are traced; the transforms' tables of a few kilobytes are not."""
    x, w, dy = picture(rng, kind, (1, 220, 220, 4)), harness.floats(rng, (25, 25, 4, 8)), None
    dy = picture(rng, kind, (1, 196, 196, 8))
    call = harness.three_calls(x, w, dy)[OPS.index(op)]
    for limit in (8 * MIB, 64 * MIB):
        with convkit.options(workspace_limit=limit, num_threads=1):
            arguments = call.in_layout(NHWC, FLOAT32)
            out = np.empty(call.reference().shape, np.float32)
            told = convkit.explain(op, *arguments, algorithm="fft").workspace
            assert told <= limit
            harness.operation(op)(*arguments, out=out, algorithm="fft")
            tracemalloc.start()
            try:
                harness.operation(op)(*arguments, out=out, algorithm="fft")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak <= told, f"{peak} bytes, and {told} told"


def objection(*arguments, op="conv2d", dtype="float32", **keywords):
    told = convkit.explain(op, *arguments, dtype=dtype, **keywords)
    return next(why for name, why in told.candidates if ":fft_" in name)


def test_objections():
    x = (1, 256, 256, 1)
    for words, arguments, keywords in (
        ("float64", (x, (31, 31, 1, 1)), {"dtype": "float64"}),
        ("strides", (x, (31, 31, 1, 1)), {"strides": 2}),
        ("dilations", (x, (31, 31, 1, 1)), {"dilations": 2}),
        ("9x9", (x, (9, 9, 1, 1)), {}),
    ):
        assert words in objection(*arguments, **keywords)
        arrays = [np.zeros(shape, keywords.get("dtype", "float32")) for shape in arguments]
        given = {key: value for key, value in keywords.items() if key != "dtype"}
        with pytest.raises(UnsupportedError, match=words):
            convkit.conv2d(*arrays, algorithm="fft", **given)
    told = convkit.explain("conv2d", (1, 32, 32, 256), (11, 11, 256, 256), padding="SAME")
    assert "times as long" in dict(told.reluctances)["cpu:fft_f32"]
    assert told.implementation != "cpu:fft_f32"
    assert "nothing" in objection((0, 64, 64, 1), (31, 31, 1, 1))
    for limit, taps in ((MIB, 31), (8 * MIB, 601)):
        image, kernel = np.zeros((1, 700, 700, 1), np.float32), np.zeros((taps, taps, 1, 1), np.float32)
        with convkit.options(workspace_limit=limit), pytest.raises(WorkspaceError) as caught:
            convkit.conv2d(image, kernel, algorithm="fft")
        need = max(int(word) for word in str(caught.value).split() if word.isdigit())
        assert need > limit
        with convkit.options(workspace_limit=need):
            assert convkit.explain("conv2d", image, kernel, algorithm="fft").workspace == need


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != np.float64], ids=str)
def test_large_filters_of_few_channels_are_served_by_it(dtype):
    for op, arguments in (
        ("conv2d", ((1, 512, 512, 1), (31, 31, 1, 1))),
        ("conv2d_backprop_input", ((1, 512, 512, 1), (31, 31, 1, 1), (1, 482, 482, 1))),
        ("conv2d_backprop_filter", ((1, 512, 512, 1), (31, 31, 1, 1), (1, 482, 482, 1))),
        ("conv2d", ((1, 128, 128, 8), (45, 45, 8, 8))),
    ):
        assert ":fft_" in convkit.explain(op, *arguments, dtype=dtype).implementation
    told = convkit.explain("conv2d", (1, 512, 512, 1), (11, 11, 1, 1), dtype=dtype)
    assert any("times as long" in why for name, why in told.reluctances if ":fft_" in name)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("limit", [8 * MIB, 64 * MIB])
def test_tilings(op, limit):
    """Windows of a block fit into the transform, whose sides have small factors, and all fits the limit."""
    for size, taps, channels, filters in (
        ((512, 700), (31, 11), 1, 1),
        ((60, 3000), (45, 45), 8, 8),
        ((200,) * 2, (15,) * 2, 64, 64),
    ):
        image, kernel = (2, *size, channels), (*taps, channels, filters)
        result = convkit.conv2d_output_shape(image, kernel, padding="SAME")
        arguments = (image, kernel) if op == "conv2d" else (image, kernel, result)
        g = convkit.explain(op, *arguments, padding="SAME").geometry
        found = fft.tiling(g, limit)
        assert found.bytes <= limit and 1 <= found.filters <= filters
        for n, block, k in zip(found.size, found.block, taps, strict=True):
            assert block + k - 1 <= n
            for factor in (2, 3, 5):
                while n % factor == 0:
                    n //= factor
            assert n == 1


@pytest.mark.parametrize("op", OPS)
def test_interrupt(op):
    assert interrupt_after(0.4, op, "fft", 1, "float32") < 1
