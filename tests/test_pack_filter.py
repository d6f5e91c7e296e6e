"""Filters prepared once and used for many calls."""

import copy
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest

import convkit
from convkit._packed import MOST_PACKS

LAYOUTS = [("NHWC", "HWIO"), ("NHWC", "OIHW"), ("NHWC", "OHWI"), ("NCHW", "OIHW"), ("NCHW", "HWIO")]
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def arrange(shape, order, standard):
    return tuple(shape[standard.index(axis)] for axis in order)


def problem(rng, dtype, data_format, filter_format, groups=1, **geometry):
    x = rng.integers(-4, 5, arrange((2, 9, 8, 6), data_format, "NHWC")).astype(dtype)
    w = rng.integers(-4, 5, arrange((3, 2, 6 // groups, 34), filter_format, "HWIO")).astype(dtype)
    keywords = {"data_format": data_format, "filter_format": filter_format, "groups": groups, **geometry}
    return x, w, keywords


@pytest.mark.parametrize("algorithm", ["auto", "direct", "im2col", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("data_format", "filter_format"), LAYOUTS)
def test_a_packed_filter_gives_what_the_filter_gives(data_format, filter_format, dtype, algorithm, rng):
    for geometry in ({}, {"strides": 2, "padding": "SAME"}, {"groups": 2, "padding": 1}, {"dilations": (2, 3)}):
        x, w, keywords = problem(rng, dtype, data_format, filter_format, **geometry)
        y = convkit.conv2d(x, w, algorithm=algorithm, **keywords)
        packed = convkit.pack_filter(w, op="conv2d", **keywords)
        for _ in range(2):
            assert np.array_equal(convkit.conv2d(x, packed, algorithm=algorithm, **keywords), y)
        dx = convkit.conv2d_backprop_input(x.shape, w, y, algorithm=algorithm, **keywords)
        packed = convkit.pack_filter(w, op="conv2d_backprop_input", **keywords)
        for _ in range(2):
            taken = convkit.conv2d_backprop_input(x.shape, packed, y, algorithm=algorithm, **keywords)
            assert np.array_equal(taken, dx)


def test_changes_of_the_filter_do_not_reach_it(rng):
    x, w, _ = problem(rng, np.float32, "NHWC", "HWIO")
    packed, y = convkit.pack_filter(w, op="conv2d"), convkit.conv2d(x, w)
    w[...] = 0
    assert np.array_equal(convkit.conv2d(x, packed), y)
    assert not packed.filter.flags.writeable
    assert packed.shape == w.shape
    assert packed.dtype == w.dtype


def test_pickles_as_the_plain_filter(rng):
    x, w, keywords = problem(rng, np.float32, "NCHW", "OIHW", padding="SAME")
    packed = convkit.pack_filter(w, op="conv2d", **keywords)
    y = convkit.conv2d(x, packed, **keywords)
    data = pickle.dumps(packed)
    assert len(data) < 1.1 * w.nbytes + 1000
    for same in (pickle.loads(data), copy.deepcopy(packed)):
        assert np.array_equal(convkit.conv2d(x, same, **keywords), y)


def test_one_filter_serves_many_kinds_of_calls_and_keeps_few_packs(rng):
    w = rng.integers(-4, 5, (5, 5, 4, 40)).astype(np.float32)
    packed = convkit.pack_filter(w, op="conv2d")
    for size in range(6, 6 + 4 * MOST_PACKS):
        x = rng.integers(-4, 5, (1, size, size + 1, 4)).astype(np.float32)
        for padding in ("VALID", "SAME", "FULL"):
            assert np.array_equal(convkit.conv2d(x, packed, padding=padding), convkit.conv2d(x, w, padding=padding))
    assert len(packed._packs) <= MOST_PACKS


def test_a_filter_larger_than_the_image_is_packed_for_the_taps_in_use(rng):
    w = rng.integers(-4, 5, (9, 9, 2, 33)).astype(np.float32)
    packed = convkit.pack_filter(w, op="conv2d")
    x = rng.integers(-4, 5, (1, 2, 2, 2)).astype(np.float32)
    for padding in (((8, 8), (8, 8)), ((4, 5), (6, 3)), ((5, 4), (3, 6)), "SAME"):
        assert np.array_equal(convkit.conv2d(x, packed, padding=padding), convkit.conv2d(x, w, padding=padding))


def test_many_threads_share_one(rng):
    x, w, _ = problem(rng, np.float32, "NHWC", "HWIO")
    y = convkit.conv2d(x, w)
    for _ in range(20):
        packed, wrong = convkit.pack_filter(w, op="conv2d"), []

        def user(packed=packed, wrong=wrong):
            for _ in range(10):
                if not np.array_equal(convkit.conv2d(x, packed, num_threads=2), y):
                    wrong.append(1)

        threads = [threading.Thread(target=user) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_explain_and_shapes(rng):
    x, w, _ = problem(rng, np.float32, "NHWC", "HWIO")
    packed = convkit.pack_filter(w, op="conv2d")
    assert convkit.explain("conv2d", x, packed) == convkit.explain("conv2d", x, w)
    assert "conv2d" in repr(packed)


@pytest.mark.parametrize(
    ("error", "words", "make"),
    [
        (convkit.ArgumentError, "op is 'conv2d_backprop_filter'", lambda w: {"op": "conv2d_backprop_filter"}),
        (convkit.ArgumentTypeError, "op", lambda w: {"op": 3}),
        (convkit.ArgumentTypeError, "strides", lambda w: {"op": "conv2d", "stride": 2}),
        (convkit.ShapeError, "strides", lambda w: {"op": "conv2d", "strides": 0}),
        (convkit.ShapeError, "padding", lambda w: {"op": "conv2d", "padding": "HALF"}),
        (convkit.ShapeError, "groups", lambda w: {"op": "conv2d", "groups": 5}),
        (convkit.ShapeError, "filter_format", lambda w: {"op": "conv2d", "filter_format": "IOHW"}),
    ],
)
def test_refusals(error, words, make):
    w = np.ones((3, 3, 4, 6), np.float32)
    with pytest.raises(error, match=rf"^pack_filter: .*{words}"):
        convkit.pack_filter(w, **make(w))


def test_refused_filters():
    for value in (np.ones((3, 3), np.float32), np.ones((0, 3, 1, 1), np.float32), np.ones((3, 3, 1, 1), np.uint8), "w"):
        with pytest.raises(convkit.ConvkitError, match=r"^pack_filter: filter"):
            convkit.pack_filter(value, op="conv2d")
    with pytest.raises(convkit.DTypeError, match=r"^pack_filter: filter has dtype int8"):
        convkit.pack_filter(np.ones((3, 3, 1, 1), np.int8), op="conv2d_backprop_input")


def test_refused_uses():
    w, x = np.ones((3, 3, 1, 1), np.float32), np.ones((1, 5, 5, 1), np.float32)
    packed = convkit.pack_filter(w, op="conv2d")
    with pytest.raises(convkit.ArgumentError, match="packed for conv2d"):
        convkit.conv2d_backprop_input(x.shape, packed, np.ones((1, 3, 3, 1), np.float32))
    with pytest.raises(convkit.ArgumentError, match="packed in HWIO"):
        convkit.conv2d(x, packed, filter_format="OIHW")
    with pytest.raises(convkit.ArgumentTypeError, match="packed filter"):
        convkit.conv2d(packed, w)
    with pytest.raises(convkit.ArgumentError, match="overlap"):
        convkit.conv2d(x, convkit.pack_filter(w, op="conv2d"), out=x[:, :3, :3])
