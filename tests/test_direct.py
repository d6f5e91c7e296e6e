"""The direct family: how pixels are laid down for the register tiles, and when it leaves a call to others."""

import numpy as np
import pytest

import convkit
from convkit._cpu.direct import CONFLICT_BYTES, PITCH
from convkit._cpu.machine import this_machine


@pytest.fixture
def arrays(rng):
    def make(*shapes):
        return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]

    return make


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    "geometry", [{}, {"strides": 2}, {"padding": 1}, {"strides": (1, 2), "padding": ((0, 1), (2, 0))}]
)
@pytest.mark.parametrize("channels", [256, 512, 520, 1024])
def test_pixels_that_would_conflict_in_the_cache_are_laid_apart(channels, geometry, data_format, arrays):
    """1x1 filters over channels of a multiple of CONFLICT_BYTES; the gaps between pixels never reach a result."""
    x, w = arrays((2, 7, 9, channels), (1, 1, channels, 40))
    if data_format == "NCHW":
        x, w = (np.ascontiguousarray(a.transpose(order)) for a, order in ((x, (0, 3, 1, 2)), (w, (3, 2, 0, 1))))
    keywords = {"data_format": data_format, **geometry}
    results = []
    for family in ("direct", "im2col"):
        y = np.full(convkit.conv2d_output_shape(x.shape, w.shape, **keywords), np.nan, np.float32)
        convkit.conv2d(x, w, out=y, algorithm=family, **keywords)
        dw = convkit.conv2d_backprop_filter(x, w.shape, y, algorithm=family, **keywords)
        dx = convkit.conv2d_backprop_input(x.shape, w, y, algorithm=family, **keywords)
        results.append((y, dw, dx))
    for taken, expected in zip(*results, strict=True):
        assert np.array_equal(taken, expected)


def test_only_conflicting_pixels_are_laid_apart():
    def copied(channels, taps=1):
        told = convkit.explain("conv2d", (2, 8, 8, channels), (taps, taps, channels, 64), algorithm="direct")
        return any(sentence.startswith("input: copied") for sentence in told.copies)

    assert copied(CONFLICT_BYTES // 4)
    assert not copied(CONFLICT_BYTES // 4 + PITCH)
    assert not copied(64)
    assert not copied(CONFLICT_BYTES // 4, taps=3)


@pytest.mark.parametrize(
    ("op", "arguments", "keywords", "words"),
    [
        ("conv2d", ((1, 32, 32, 16), (3, 3, 16, 3)), {}, "wide"),
        ("conv2d", ((8, 5, 3, 16), (3, 1, 16, 64)), {}, "lie along rows"),
        ("conv2d", ((4, 64, 40, 40), (64, 64, 1, 1)), {"data_format": "NCHW"}, "in place"),
        ("conv2d_backprop_filter", ((1, 4, 4, 64), (3, 3, 64, 64), (1, 4, 4, 64)), {"padding": "SAME"}, "terms only"),
        ("conv2d_backprop_input", ((2, 8, 8, 64), (7, 7, 64, 64), (2, 2, 2, 64)), {}, "scattering"),
    ],
)
def test_what_it_leaves_to_others_unless_asked(op, arguments, keywords, words):
    told = convkit.explain(op, *arguments, **keywords)
    if this_machine().isa == "generic" and words == "wide":  # that level's tile is 8 channels, which 3 fill well enough
        assert told.implementation == "cpu:direct_f32"
        return
    assert words in dict(told.reluctances)["cpu:direct_f32"]
    assert not told.implementation.startswith("cpu:direct")
    assert convkit.explain(op, *arguments, algorithm="direct", **keywords).implementation == "cpu:direct_f32"
