"""Filters far larger than the image: the taps that meet padding only are left out, and nothing else changes."""

import time

import numpy as np
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import convkit
from convkit._geometry import make_geometry, without_idle_taps

SIZES = st.integers(1, 6)
GEOMETRIES = st.fixed_dictionaries(
    {
        "size": st.tuples(SIZES, SIZES),
        "taps": st.tuples(st.integers(1, 23), st.integers(1, 23)),
        "strides": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "dilations": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "padding": st.one_of(
            st.sampled_from(["SAME", "SAME_LOWER", "FULL"]),
            st.tuples(*[st.tuples(st.integers(0, 50), st.integers(0, 50))] * 2),
        ),
    }
)


def geometry(case):
    shapes = (1, *case["size"], 1), (*case["taps"], 1, 1)
    keywords = {name: case[name] for name in ("strides", "dilations", "padding")}
    try:
        return make_geometry("conv2d", *shapes, **keywords), keywords
    except convkit.ShapeError:
        return None, keywords


@settings(max_examples=300, deadline=None)
@given(GEOMETRIES)
def test_exactly_the_taps_that_meet_a_pixel_are_kept(case):
    g, _ = geometry(case)
    if g is None:
        return
    trimmed, taps = without_idle_taps(g)
    taps = taps or tuple(slice(0, k) for k in g.filter_size)
    for axis in (0, 1):
        meets = [
            any(
                0 <= i * g.strides[axis] + t * g.dilations[axis] - g.pad_before[axis] < g.in_size[axis]
                for i in range(g.out_size[axis])
            )
            for t in range(g.filter_size[axis])
        ]
        used = [t for t, meeting in enumerate(meets) if meeting]
        kept = range(g.filter_size[axis])[taps[axis]]
        if used:
            # A dilated tap between two others may step over every pixel; the ends are exact.
            assert set(used) <= set(kept)
            assert trimmed.filter_size[axis] == len(kept)
    for t in range(*taps[0].indices(g.filter_size[0])):
        moved = t - taps[0].start
        assert moved * g.dilations[0] - trimmed.pad_before[0] == t * g.dilations[0] - g.pad_before[0]


@settings(max_examples=60, deadline=None)
@given(GEOMETRIES, st.integers(0, 1000))
def test_all_operations_and_families_agree_with_the_reference(case, seed):
    g, keywords = geometry(case)
    if g is None:
        return
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (2, *case["size"], 2)).astype(np.float32)
    w = rng.integers(-3, 4, (*case["taps"], 2, 3)).astype(np.float32)
    dy = rng.integers(-3, 4, (2, *g.out_size, 3)).astype(np.float32)
    pads = tuple(zip(g.pad_before, g.pad_after, strict=True))
    same = {"strides": case["strides"], "dilations": case["dilations"], "padding": pads}
    start = rng.integers(-3, 4, w.shape).astype(np.float32)
    for family in ("auto", "im2col", "reference"):
        y = convkit.conv2d(x, w, algorithm=family, **keywords)
        assert np.array_equal(y, reference.conv2d(x, w, **same))
        dx = convkit.conv2d_backprop_input(x.shape, w, dy, algorithm=family, **keywords)
        assert np.array_equal(dx, reference.backprop_input(x.shape, w, dy, **same))
        dw = reference.backprop_filter(x, w.shape, dy, **same)
        out = np.full(w.shape, np.nan, np.float32)
        convkit.conv2d_backprop_filter(x, w.shape, dy, out=out, algorithm=family, **keywords)
        assert np.array_equal(out, dw)
        out = start.copy()
        convkit.conv2d_backprop_filter(x, w.shape, dy, out=out, accumulate=True, algorithm=family, **keywords)
        assert np.array_equal(out, start + dw)


def test_a_gigantic_filter_takes_no_longer_than_its_useful_taps():
    x = np.ones((1, 5, 4, 2), np.float32)
    w = np.broadcast_to(np.float32(1), (2**20, 2**20, 2, 3))
    start = time.perf_counter()
    y = convkit.conv2d(x, w, padding="SAME")
    assert time.perf_counter() - start < 5
    assert y.max() == 40


def test_a_filter_that_meets_padding_only_gives_zeros():
    x = np.ones((1, 2, 2, 1), np.float32)
    keywords = {"strides": 50, "padding": ((20, 20), (20, 20))}
    w = np.ones((3, 3, 1, 1), np.float32)
    y = convkit.conv2d(x, w, **keywords)
    assert not y.any()
    assert not convkit.conv2d_backprop_filter(x, w.shape, np.ones_like(y), **keywords).any()
    assert not convkit.conv2d_backprop_input(x.shape, w, np.ones_like(y), **keywords).any()
