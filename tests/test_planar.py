"""Convolutions of few channels in or out: exact at every level, with every tail, and accurate over long sums."""

import harness
import numpy as np
import pytest
import reference
from child import run_python
from harness import ALL_LAYOUTS, NCHW, NHWC, WIDE

import convkit
from convkit._cpu import _engine, planar_tiles

LEVELS = [level for level in _engine.ISA_RUNS if any(k.isa == level for k in planar_tiles.KERNELS)]
FLOAT32 = np.dtype(np.float32)

# name: image, filter, geometry
GEOMETRIES = {
    "one channel": ((2, 20, 37, 1), (9, 8, 1, 1), {"padding": "SAME"}),
    "3x3": ((1, 21, 70, 1), (3, 3, 1, 1), {"padding": "SAME"}),
    "5x5": ((1, 21, 70, 1), (5, 5, 1, 1), {"padding": "SAME"}),
    "strided": ((1, 40, 70, 1), (5, 4, 1, 1), {"strides": (2, 3), "padding": "SAME"}),
    "stride beyond the filter": ((2, 17, 23, 1), (1, 2, 1, 1), {"strides": (3, 5)}),
    "dilated": ((1, 26, 33, 1), (5, 4, 1, 1), {"dilations": (3, 2), "padding": "SAME"}),
    "dilated and strided": ((2, 23, 24, 3), (3, 3, 3, 1), {"dilations": (3, 2), "strides": (2, 3)}),
    "padding beyond the filter": ((1, 5, 4, 2), (2, 3, 2, 2), {"padding": ((5, 3), (4, 7)), "strides": (2, 1)}),
    "colours": ((2, 19, 30, 3), (4, 3, 3, 3), {"padding": "FULL"}),
    "a first layer": ((1, 25, 40, 3), (7, 7, 3, 19), {"strides": (2, 2), "padding": ((3, 3), (3, 3))}),
    "many filters of one channel": ((1, 12, 20, 1), (3, 3, 1, 21), {"padding": "SAME"}),
    "many channels, one filter": ((2, 9, 14, 67), (3, 3, 67, 1), {"padding": "SAME"}),
    "many channels, three filters, strided": ((1, 12, 15, 40), (3, 2, 40, 3), {"strides": (2, 1), "padding": "SAME"}),
    "more taps than a block of sums": ((1, 33, 35, 1), (31, 31, 1, 2), {"padding": "SAME"}),
    "a row of more taps than a block of sums": ((1, 3, 700, 1), (1, 600, 1, 1), {}),
    "more channels than a block of sums": ((1, 3, 5, 5000), (1, 2, 5000, 1), {}),
    "columns of many tiles": ((1, 3, 1100, 1), (3, 3, 1, 1), {"padding": "SAME"}),
    "more rows than one tile": ((1, 400, 300, 1), (3, 2, 1, 1), {"padding": "SAME"}),
}


def layer(name, rng, limit=3):
    """Return the three calls of a named geometry, on small integers."""
    image, taps, geometry = GEOMETRIES[name]
    return harness.layer(rng, image, taps, limit, **geometry)


def check(call, layouts, dtypes):
    """Check that the family gives the reference to the last bit, rounded once to each dtype, in each layout."""
    expected = call.reference()
    for layout in layouts:
        for dtype in dtypes:
            arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
            result = harness.operation(call.op)(*arguments, algorithm="planar", **keywords)
            assert result.dtype == dtype
            message = f"{call.op} {call.geometry} in {layout}"
            np.testing.assert_array_equal(call.result_from(result, layout), expected.astype(dtype), err_msg=message)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_exact_in_every_layout_and_dtype(name, rng):
    for call in layer(name, rng):
        check(call, ALL_LAYOUTS, WIDE)
    for call in layer(name, rng, limit=1):
        check(call, (NHWC, NCHW), harness.HALVES)


def test_every_number_of_columns(rng):
    """Strips of every number of vectors, with a last one of every length."""
    for width in range(1, 140):
        for call in harness.layer(rng, (1, 6, width, 1), (4, 1, 1, 1), padding="SAME"):
            check(call, (NHWC,), WIDE)


@pytest.mark.parametrize("filters", [1, 2, 3, 4, 5])
def test_every_number_of_channels(filters, rng):
    for channels in (*range(1, 20), 33):
        if min(channels, filters) <= 4:
            for call in harness.layer(rng, (1, 5, 13, channels), (2, 3, channels, filters), padding="SAME"):
                check(call, (NHWC, NCHW), WIDE)


LEVEL_PROGRAM = """
    import numpy as np, test_planar

    rng = np.random.default_rng(3)
    for name in test_planar.GEOMETRIES:
        for call in test_planar.layer(name, rng):
            test_planar.check(call, (test_planar.NHWC, test_planar.NCHW), test_planar.WIDE)
    print("exact")
"""


@pytest.mark.parametrize("level", LEVELS)
def test_exact_at_every_level(level):
    assert planar_tiles.KERNELS.best("float32", level).isa == level
    assert run_python(LEVEL_PROGRAM, CONVKIT_MAX_ISA=level) == "exact"


def floats(name, rng):
    """Return the three calls of a named geometry on random floats."""
    image, taps, geometry = GEOMETRIES[name]
    y = reference.output_shape(image, taps, **geometry)
    return harness.three_calls(*(harness.floats(rng, shape) for shape in (image, taps, y)), **geometry)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_threads_do_not_change_the_bits(name, rng):
    for call in floats(name, rng):
        for layout in (NHWC, NCHW):
            arguments, keywords = call.in_layout(layout, FLOAT32), {**call.geometry, **layout.keywords}
            one, *others = (
                harness.operation(call.op)(*arguments, algorithm="planar", num_threads=n, **keywords).tobytes()
                for n in (1, 2, 3, 16)
            )
            assert all(other == one for other in others)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_errors_stay_within_the_contract(name, rng):
    for call in floats(name, rng):
        for layout in (NHWC, NCHW):
            for dtype in WIDE:
                arguments, keywords = call.in_layout(layout, dtype), {**call.geometry, **layout.keywords}
                result = harness.operation(call.op)(*arguments, algorithm="planar", **keywords)
                error = np.abs(call.result_from(result, layout).astype(np.float64) - call.reference())
                assert (error <= 2 * call.bound(dtype)).all(), f"{call.op} {layout} {dtype}"


@pytest.mark.parametrize("limit", [1 << 14, 1 << 16, 1 << 20])
def test_the_workspace_limit_is_kept_and_changes_no_bit(limit, rng):
    for name in GEOMETRIES:
        for call in floats(name, rng):
            arguments, keywords = call.in_layout(NHWC, FLOAT32), {"algorithm": "planar", **call.geometry}
            free = harness.operation(call.op)(*arguments, **keywords)
            with convkit.options(workspace_limit=limit):
                try:
                    told = convkit.explain(call.op, *arguments, **keywords)
                except convkit.WorkspaceError:
                    assert limit < 1 << 20, name
                    continue
                assert told.workspace <= limit
                np.testing.assert_array_equal(harness.operation(call.op)(*arguments, **keywords), free)


def test_a_filter_gradient_over_very_many_pixels_sums_in_blocks():
    """One float32 chain over a million ones and a half would stop growing evenly long before the end."""
    x = np.full((1, 1024, 1024, 1), 1.5, np.float32)
    dy = np.full_like(x, 1 / 3)
    result = convkit.conv2d_backprop_filter(x, (1, 1, 1, 1), dy, algorithm="planar")
    exact = 1.5 * np.float64(np.float32(1 / 3)) * 1024 * 1024
    assert np.abs(result / exact - 1).max() < 64 * np.finfo(np.float32).eps


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("shape", [((1, 40, 50, 1), (9, 9, 1, 1)), ((1, 12, 14, 40), (3, 3, 40, 2))])
def test_a_bad_pixel_reaches_its_windows_alone(bad, shape, rng):
    image, taps = shape
    x, w = rng.standard_normal(image).astype(np.float32), np.ones(taps, np.float32)
    x[0, 7, 8, 0] = bad
    y = convkit.conv2d(x, w, algorithm="planar")
    reached = np.zeros(y.shape, bool)
    reached[0, max(0, 8 - taps[0]) : 8, max(0, 9 - taps[1]) : 9] = True
    np.testing.assert_array_equal(~np.isfinite(y), reached)
    dw = convkit.conv2d_backprop_filter(x, taps, np.ones_like(y), algorithm="planar")
    meets = [[8 - y.shape[1] <= a <= 7 and 9 - y.shape[2] <= b <= 8 for b in range(taps[1])] for a in range(taps[0])]
    np.testing.assert_array_equal(~np.isfinite(dw[:, :, 0, 0]), np.array(meets))


@pytest.mark.parametrize(
    ("op", "image", "taps", "family"),
    [
        ("conv2d", (1, 64, 64, 1), (9, 9, 1, 1), "planar"),
        ("conv2d", (1, 64, 64, 1), (3, 3, 1, 1), "depthwise"),
        ("conv2d", (1, 64, 64, 3), (7, 7, 3, 64), "direct"),
        ("conv2d_backprop_filter", (1, 64, 64, 3), (7, 7, 3, 64), "direct"),
        ("conv2d_backprop_input", (1, 64, 64, 3), (7, 7, 3, 64), "planar"),
        ("conv2d", (1, 28, 28, 129), (3, 3, 129, 1), "planar"),
    ],
)
def test_which_problems_it_serves(op, image, taps, family):
    y = reference.output_shape(image, taps)
    shapes = (image, taps) if op == "conv2d" else (image, taps, y)
    assert convkit.explain(op, *shapes).implementation.startswith(f"cpu:{family}_")


def test_many_channels_on_both_sides_are_refused(rng):
    x, w = rng.standard_normal((1, 8, 8, 5)), rng.standard_normal((3, 3, 5, 6))
    with pytest.raises(convkit.UnsupportedError, match="5 channels in and 6 out"):
        convkit.conv2d(x, w, algorithm="planar")
