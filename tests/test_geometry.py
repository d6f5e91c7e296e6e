"""The validator: sizes and padding by hand-computed tables, every refusal with its numbers, and properties."""

import itertools
import pickle
from collections import UserList, deque
from collections.abc import Sequence
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convkit._errors import ArgumentError, ArgumentTypeError, ConvkitError, ShapeError
from convkit._geometry import DATA_AXES, FILTER_AXES, conv2d_output_shape, make_geometry

LIMIT = 2**63 - 1
X = (2, 15, 12, 6)
W = (3, 5, 6, 8)


def geometry(input_shape=X, filter_shape=W, out_backprop_shape=None, *, op="conv2d", **keywords):
    return make_geometry(op, input_shape, filter_shape, out_backprop_shape, **keywords)


def refusal(*args, error=ShapeError, **keywords):
    """The sentence with which the call is refused, without the operation."""
    op = keywords.get("op", "conv2d")
    with pytest.raises(error) as caught:
        geometry(*args, **keywords)
    sentence = str(caught.value)
    assert sentence.startswith(f"{op}: ")
    assert len(sentence) < 1000
    assert "\n" not in sentence
    return sentence.removeprefix(f"{op}: ")


def along_height(n, k, s=1, d=1, padding="VALID"):
    """(output size, before, after) of a height; the width has other numbers, so that the two cannot be mixed up."""
    if isinstance(padding, tuple):
        padding = (padding, (0, 0))
    g = geometry((1, n, 9, 1), (k, 1, 1, 1), strides=(s, 1), dilations=(d, 1), padding=padding)
    assert (g.out_size[1], g.pad_before[1], g.pad_after[1]) == (9, 0, 0)
    return g.out_size[0], g.pad_before[0], g.pad_after[0]


SIZES = [
    # n, k, s, d, padding, (out, before, after)
    (7, 3, 1, 1, "VALID", (5, 0, 0)),
    (7, 3, 2, 1, "VALID", (3, 0, 0)),
    (8, 3, 2, 1, "VALID", (3, 0, 0)),
    (7, 7, 5, 1, "VALID", (1, 0, 0)),
    (9, 3, 1, 4, "VALID", (1, 0, 0)),
    (10, 3, 2, 3, "VALID", (2, 0, 0)),
    (10, 1, 4, 7, "VALID", (3, 0, 0)),
    (5, 1, 9, 1, "VALID", (1, 0, 0)),
    (5, 3, 1, 1, "SAME", (5, 1, 1)),
    (5, 2, 1, 1, "SAME", (5, 0, 1)),
    (5, 3, 2, 1, "SAME", (3, 1, 1)),
    (6, 3, 2, 1, "SAME", (3, 0, 1)),
    (224, 7, 2, 1, "SAME", (112, 2, 3)),
    (4, 3, 4, 1, "SAME", (1, 0, 0)),
    (8, 2, 4, 1, "SAME", (2, 0, 0)),
    (2, 9, 1, 1, "SAME", (2, 4, 4)),
    (5, 2, 1, 3, "SAME", (5, 1, 2)),
    (0, 3, 1, 1, "SAME", (0, 1, 1)),
    (0, 4, 1, 1, "SAME", (0, 1, 2)),
    (0, 3, 5, 1, "SAME", (0, 0, 0)),
    (5, 2, 1, 1, "SAME_LOWER", (5, 1, 0)),
    (6, 3, 2, 1, "SAME_LOWER", (3, 1, 0)),
    (224, 7, 2, 1, "SAME_LOWER", (112, 3, 2)),
    (5, 3, 1, 1, "SAME_LOWER", (5, 1, 1)),
    (0, 4, 1, 1, "SAME_LOWER", (0, 2, 1)),
    (5, 3, 1, 1, "FULL", (7, 2, 2)),
    (5, 3, 2, 1, "FULL", (4, 2, 2)),
    (5, 3, 1, 2, "FULL", (9, 4, 4)),
    (2, 9, 1, 1, "FULL", (10, 8, 8)),
    (5, 1, 1, 1, "FULL", (5, 0, 0)),
    (0, 2, 1, 1, "FULL", (1, 1, 1)),
    (15, 3, 2, 1, (1, 1), (8, 1, 1)),
    (5, 3, 1, 1, (0, 2), (5, 0, 2)),
    (5, 3, 3, 1, (4, 1), (3, 4, 1)),
    (2, 5, 1, 1, (3, 0), (1, 3, 0)),
    (0, 3, 1, 1, (2, 1), (1, 2, 1)),
]


@pytest.mark.parametrize(("n", "k", "s", "d", "padding", "expected"), SIZES)
def test_sizes_by_hand(n, k, s, d, padding, expected):
    assert along_height(n, k, s, d, padding) == expected


def test_height_and_width_are_kept_apart():
    g = geometry((2, 15, 12, 6), (3, 5, 6, 8), strides=(2, 3), dilations=(3, 1), padding=((1, 2), (3, 0)))
    assert g.effective_filter == (7, 5)
    assert g.out_size == (6, 4)  # (15 + 3 - 7)//2 + 1, (12 + 3 - 5)//3 + 1
    assert (g.pad_before, g.pad_after) == ((1, 3), (2, 0))
    assert g.flops == 2 * 2 * 6 * 4 * 8 * 3 * 5 * 6


@pytest.mark.parametrize(
    ("data_format", "filter_format", "groups", "input_shape", "filter_shape", "output_shape"),
    [
        ("NHWC", None, 1, (2, 15, 12, 6), (3, 5, 6, 8), (2, 13, 8, 8)),
        ("NHWC", "OIHW", 1, (2, 15, 12, 6), (8, 6, 3, 5), (2, 13, 8, 8)),
        ("NHWC", "OHWI", 2, (2, 15, 12, 6), (8, 3, 5, 3), (2, 13, 8, 8)),
        ("NCHW", None, 2, (2, 6, 15, 12), (8, 3, 3, 5), (2, 8, 13, 8)),
        ("NCHW", "HWIO", 1, (2, 6, 15, 12), (3, 5, 6, 8), (2, 8, 13, 8)),
        ("NCHW", "OHWI", 1, (2, 6, 15, 12), (8, 3, 5, 6), (2, 8, 13, 8)),
        ("NCHW_VECT_C", None, 1, (2, 3, 15, 12, 4), (8, 3, 3, 5, 4), (2, 2, 13, 8, 4)),
        ("NCHW_VECT_C", "OIHW_VECT_I", 3, (2, 3, 15, 12, 4), (24, 1, 3, 5, 4), (2, 6, 13, 8, 4)),
    ],
)
def test_formats(data_format, filter_format, groups, input_shape, filter_shape, output_shape):
    g = geometry(input_shape, filter_shape, groups=groups, data_format=data_format, filter_format=filter_format)
    assert (g.input_shape, g.filter_shape, g.output_shape) == (input_shape, filter_shape, output_shape)
    assert (g.in_size, g.filter_size, g.out_size, g.batch) == ((15, 12), (3, 5), (13, 8), 2)
    assert g.group_in * groups == g.in_channels
    assert g.group_out * groups == g.out_channels
    assert all(type(size) is int for size in g.output_shape)
    for op in ("conv2d_backprop_filter", "conv2d_backprop_input"):
        again = geometry(
            input_shape,
            filter_shape,
            output_shape,
            op=op,
            groups=groups,
            data_format=data_format,
            filter_format=filter_format,
        )
        assert again.output_shape == output_shape


def test_axes_lead_to_nhwc_and_hwio():
    sizes = {"N": 2, "H": 15, "W": 12, "C": 6, "I": 6, "O": 8}
    for name, axes in DATA_AXES.items():
        assert tuple(sizes[name[axis]] for axis in axes) == (2, 15, 12, 6)
    for name, axes in FILTER_AXES.items():
        assert tuple(sizes[name[axis]] for axis in axes) == (15, 12, 6, 8)


def test_geometry_is_a_frozen_hashable_value():
    g = geometry()
    with pytest.raises(FrozenInstanceError):
        g.batch = 3
    assert {g: 1}[geometry()] == 1
    assert pickle.loads(pickle.dumps(g)) == g


def test_public_output_shape():
    assert conv2d_output_shape((8, 32, 32, 3), (5, 5, 3, 16), strides=2, padding="SAME") == (8, 16, 16, 16)
    with pytest.raises(ShapeError, match=r"^conv2d_output_shape: filter_shape has 3 dimensions"):
        conv2d_output_shape((8, 32, 32, 3), (5, 5, 3))


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize(
    "value",
    [
        (2, 3),
        [2, 3],
        np.array([2, 3]),
        np.array([2, 3], np.uint8),
        np.array([2, 3], ">i4"),
        [np.int16(2), Index(3)],
        (np.array(2), 3),
        deque([2, 3]),
        UserList([2, 3]),
        range(2, 4),
        (1, 2, 3, 1),
        np.array([1, 2, 3, 1]),
    ],
)
@pytest.mark.parametrize("argument", ["strides", "dilations"])
def test_forms_of_strides_and_dilations(argument, value):
    assert getattr(geometry(padding="SAME", **{argument: value}), argument) == (2, 3)


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), Index(2), np.array(2), (2, 2)])
def test_one_number_serves_both_dimensions(value):
    g = geometry(strides=value, dilations=value, padding=value)
    assert g.strides == g.dilations == g.pad_before == g.pad_after == (2, 2)


@pytest.mark.parametrize(
    ("data_format", "x", "w", "four"),
    [
        ("NHWC", (2, 15, 12, 4), (3, 5, 4, 8), (1, 2, 3, 1)),
        ("NCHW", (2, 4, 15, 12), (8, 4, 3, 5), (1, 1, 2, 3)),
        ("NCHW_VECT_C", (2, 1, 15, 12, 4), (8, 1, 3, 5, 4), (1, 1, 2, 3)),
    ],
)
def test_four_numbers_follow_the_data_format(data_format, x, w, four):
    pairs = [(number - 1, number) if number > 1 else (0, 0) for number in four]
    g = geometry(x, w, strides=four, dilations=four, padding=pairs, data_format=data_format)
    assert g.strides == g.dilations == (2, 3)
    assert (g.pad_before, g.pad_after) == ((1, 2), (2, 3))


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        ("valid", (0, 0), (0, 0)),
        ("Same", (1, 2), (1, 2)),
        (np.str_("same_Lower"), (1, 2), (1, 2)),
        ("full", (2, 4), (2, 4)),
        (0, (0, 0), (0, 0)),
        ((1, 2), (1, 2), (1, 2)),
        (np.array([1, 2]), (1, 2), (1, 2)),
        (((1, 2), (3, 4)), (1, 3), (2, 4)),
        ([[1, 2], [3, 4]], (1, 3), (2, 4)),
        (np.array([[1, 2], [3, 4]]), (1, 3), (2, 4)),
        ([np.array([1, 2]), (3, Index(4))], (1, 3), (2, 4)),
        (((0, 0), (1, 2), (3, 4), (0, 0)), (1, 3), (2, 4)),
        (np.array([[0, 0], [1, 2], [3, 4], [0, 0]]), (1, 3), (2, 4)),
    ],
)
def test_forms_of_padding(value, before, after):
    g = geometry(padding=value)
    assert (g.pad_before, g.pad_after) == (before, after)


@pytest.mark.parametrize("shape", [list(X), np.array(X), np.array(X, np.uint16), [Index(size) for size in X]])
def test_forms_of_shapes(shape):
    assert geometry(shape) == geometry()


@pytest.mark.parametrize(
    ("x", "w", "keywords", "expected"),
    [
        ((0, 5, 5, 3), (3, 3, 3, 4), {}, (0, 3, 3, 4)),
        ((2, 5, 5, 0), (3, 3, 0, 4), {}, (2, 3, 3, 4)),
        ((2, 5, 5, 3), (3, 3, 3, 0), {}, (2, 3, 3, 0)),
        ((2, 5, 5, 0), (3, 3, 0, 0), {"groups": 7}, (2, 3, 3, 0)),
        ((2, 0, 5, 3), (3, 3, 3, 4), {"padding": "SAME"}, (2, 0, 5, 4)),
        ((2, 5, 0, 3), (3, 3, 3, 4), {"padding": "SAME_LOWER"}, (2, 5, 0, 4)),
        ((2, 0, 5, 3), (3, 3, 3, 4), {"padding": 2}, (2, 2, 7, 4)),
        ((2, 0, 5, 5, 4), (8, 0, 3, 3, 4), {"data_format": "NCHW_VECT_C"}, (2, 2, 3, 3, 4)),
    ],
)
def test_legal_empty_sizes(x, w, keywords, expected):
    assert geometry(x, w, **keywords).output_shape == expected


@pytest.mark.parametrize(
    ("x", "w", "keywords", "parts"),
    [
        # ranks and signs
        ((15, 12, 6), W, {}, ["input has 3 dimensions, (15, 12, 6)", "NHWC has 4: (batch, height, width, channels)"]),
        ((1, 2, 15, 12, 6), W, {}, ["input has more than 4 dimensions"]),
        ((), W, {}, ["input has 0 dimensions, ()"]),
        (
            X,
            (3, 5, 6),
            {},
            ["filter has 3 dimensions", "HWIO has 4: (height, width, in channels/groups, out channels)"],
        ),
        (X, W, {"data_format": "NCHW_VECT_C"}, ["filter has 4", "OIHW_VECT_I has 5: (out channels"]),
        ((2, 15, -12, 6), W, {}, ["input[2] is -12", "at least 0"]),
        (X, (3, 5, 6, -8), {}, ["filter[3] is -8", "at least 0"]),
        ((2, 2, 9, 9, 8), (8, 2, 3, 3, 4), {"data_format": "NCHW_VECT_C"}, ["input has 8 as its last", "has 4 there"]),
        ((2, 2, 9, 9, 4), (8, 2, 3, 3, 2), {"data_format": "NCHW_VECT_C"}, ["filter has 2 as its last", "has 4 there"]),
        # formats
        (X, W, {"data_format": "nhwc"}, ["data_format is 'nhwc'", "'NHWC', 'NCHW', 'NCHW_VECT_C'"]),
        (X, W, {"data_format": "NH\0WC"}, ["data_format is 'NH\\x00WC'"]),
        (X, W, {"filter_format": "HWCN"}, ["filter_format is 'HWCN'", "'HWIO', 'OIHW', 'OHWI', 'OIHW_VECT_I'"]),
        (X, W, {"filter_format": "OIHW_VECT_I"}, ["data_format is 'NHWC' and filter_format 'OIHW_VECT_I'"]),
        (X, W, {"data_format": "NCHW_VECT_C", "filter_format": "OIHW"}, ["'NCHW_VECT_C' and filter_format 'OIHW'"]),
        # strides and dilations
        (X, W, {"strides": 0}, ["strides is 0", "at least 1"]),
        (X, W, {"strides": (1, -2)}, ["strides for the width dimension is -2", "at least 1"]),
        (X, W, {"dilations": 0}, ["dilations is 0", "at least 1"]),
        (X, W, {"dilations": (0, 1)}, ["dilations for the height dimension is 0"]),
        (X, W, {"strides": ()}, ["strides is ()", "a pair (height, width), or four integers in the order N, H, W, C"]),
        (X, W, {"strides": (1,)}, ["strides is (1,)"]),
        (X, W, {"strides": (1, 2, 3)}, ["strides is (1, 2, 3)"]),
        (X, W, {"strides": range(1, 10**9)}, ["strides is range(1, 1000000000)"]),
        (X, W, {"strides": (2, 1, 1, 1)}, ["strides is (2, 1, 1, 1), 2 for the batch dimension", "must be 1"]),
        (X, W, {"dilations": (1, 1, 1, 3)}, ["dilations is (1, 1, 1, 3), 3 for the channel dimension"]),
        ((2, 6, 15, 12), (8, 6, 3, 5), {"strides": (1, 2, 2, 1), "data_format": "NCHW"}, ["order N, C, H, W"]),
        # padding
        (X, W, {"padding": "EXPLICIT"}, ["padding is 'EXPLICIT'", "'VALID', 'SAME', 'SAME_LOWER', 'FULL', an integer"]),
        (X, W, {"padding": ""}, ["padding is ''"]),
        (X, W, {"padding": "SAME\0"}, ["padding is 'SAME\\x00'"]),
        (X, W, {"padding": "val\u0131d"}, ["padding is 'val\u0131d'"]),
        (X, W, {"padding": "\u017fame"}, ["padding is"]),
        (X, W, {"padding": "x" * 10**6}, ["padding is 'xxx"]),
        (X, W, {"padding": -1}, ["padding is -1", "at least 0"]),
        (X, W, {"padding": (0, -1)}, ["padding for the width dimension is -1"]),
        (X, W, {"padding": ((0, -3), (0, 0))}, ["padding for the height dimension is -3"]),
        (X, W, {"padding": (1, 2, 3)}, ["padding is (1, 2, 3)", "((top, bottom), (left, right))"]),
        (
            X,
            W,
            {"padding": (1, 1, 1, 1)},
            ["padding is (1, 1, 1, 1), but four numbers are no padding; write ((top, bottom), (left, right))"],
        ),
        (X, W, {"padding": (1, 1, 1, -1)}, ["padding for the channel dimension is -1", "at least 0"]),
        (X, W, {"padding": ((1, 2), (3,))}, ["padding for the width dimension is (3,)"]),
        (X, W, {"padding": ((1, 2), 3)}, ["padding for the width dimension is 3"]),
        (X, W, {"padding": np.ones((3, 2), int)}, ["padding is array([[1, 1], [1, 1], [1, 1]]"]),
        (X, W, {"padding": ((1, 0), (1, 1), (1, 1), (0, 0))}, ["(1, 0) for the batch dimension", "must be (0, 0)"]),
        (X, W, {"padding": ((0, 0), (1, 1), (1, 1), (0, 2))}, ["(0, 2) for the channel dimension"]),
        # the window
        ((2, 2, 12, 6), W, {}, ["filter has height 3, more than the padded input's 2 = 2 + 0 + 0"]),
        ((2, 15, 2, 6), W, {"padding": 1}, ["filter has width 5, more than the padded input's 4 = 2 + 1 + 1"]),
        (X, W, {"dilations": (1, 4)}, ["filter has width 5 and spans 17 = (5 - 1)*4 + 1", "12 = 12 + 0 + 0"]),
        ((2, 0, 12, 6), (1, 5, 6, 8), {"padding": "FULL"}, ["filter has height 1", "0 = 0 + 0 + 0"]),
        (X, (0, 5, 6, 8), {}, ["filter has height 0", "at least 1"]),
        (X, (3, 0, 6, 8), {"padding": "SAME"}, ["filter has width 0", "at least 1"]),
        # channels and groups
        (X, W, {"groups": 0}, ["groups is 0", "at least 1"]),
        (X, W, {"groups": -1}, ["groups is -1"]),
        (X, W, {"groups": 4}, ["groups is 4", "the 6 channels of input"]),
        (X, (3, 5, 2, 8), {"groups": 3}, ["groups is 3", "the 8 out channels of filter"]),
        (X, (3, 5, 5, 8), {}, ["filter has 5 in channels", "6 = 6/1"]),
        (X, W, {"groups": 2}, ["filter has 6 in channels", "3 = 6/2", "fit groups=1"]),
        (X, (3, 5, 0, 8), {}, ["filter has 0 in channels", "6 = 6/1"]),
        (
            (2, 1, 9, 9, 4),
            (6, 1, 3, 3, 4),
            {"data_format": "NCHW_VECT_C"},
            ["filter has 6 out channels", "multiple of 4"],
        ),
        ((2, 2, 9, 9, 4), (8, 1, 3, 3, 4), {"data_format": "NCHW_VECT_C"}, ["4 in channels", "8 = 8/1", "groups=2"]),
    ],
)
def test_refusals(x, w, keywords, parts):
    sentence = refusal(x, w, **keywords)
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("x", "w", "keywords", "hint"),
    [
        ((8, 3, 32, 32), (16, 3, 5, 5), {}, "data_format='NCHW'"),
        ((8, 3, 32, 32), (5, 5, 3, 16), {}, "data_format='NCHW' with filter_format='HWIO'"),
        ((8, 3, 32, 32), (5, 5, 3, 16), {"filter_format": "HWIO"}, "data_format='NCHW'"),
        ((8, 32, 32, 3), (16, 3, 5, 5), {}, "filter_format='OIHW'"),
        ((8, 32, 32, 3), (16, 5, 5, 3), {"filter_format": "OIHW"}, "filter_format='OHWI'"),
        ((8, 32, 32, 3), (5, 5, 3, 16), {"data_format": "NCHW"}, "data_format='NHWC'"),
        ((8, 9, 9, 64), (3, 3, 1, 128), {}, "groups=64"),
        ((8, 7, 7, 4), (3, 3, 2, 4), {"groups": 3}, "groups=2"),
        ((8, 9, 9, 4), (3, 3, 2, 4), {"groups": 3}, "groups=2"),
        # depthwise filters without groups
        ((8, 32, 32, 3), (3, 3, 1, 3), {}, "groups=3"),
        ((8, 32, 32, 3), (1, 3, 1, 3), {}, "groups=3"),
        ((8, 3, 32, 32), (3, 1, 5, 5), {"data_format": "NCHW"}, "groups=3"),
        # filters of all shapes in the other layout
        ((8, 32, 32, 16), (16, 16, 3, 3), {}, "filter_format='OIHW'"),
        ((8, 32, 32, 64), (64, 64, 1, 1), {}, "filter_format='OIHW'"),
        ((8, 32, 32, 3), (3, 3, 1, 1), {}, "filter_format='OIHW'"),
        ((8, 32, 32, 1), (1, 1, 31, 31), {}, "filter_format='OIHW'"),
        ((8, 32, 32, 3), (16, 3, 1, 7), {}, "filter_format='OIHW'"),
        ((8, 32, 32, 3), (16, 3, 5, 7), {}, "filter_format='OIHW'"),
        ((8, 4, 4, 64), (128, 64, 5, 5), {}, "filter_format='OIHW'"),
        ((8, 3, 32, 32), (16, 3, 3, 5), {}, "data_format='NCHW'"),
        ((8, 3, 20, 30), (5, 5, 3, 16), {}, "data_format='NCHW' with filter_format='HWIO'"),
    ],
)
def test_a_channel_mismatch_names_what_would_fit(x, w, keywords, hint):
    assert refusal(x, w, **keywords).endswith(f"; the shapes would fit {hint}")


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((8, 32, 32, 3), (3, 3, 4, 16)),  # as OIHW a filter of 4x16
        ((8, 90, 90, 3), (3, 3, 64, 64)),  # as OIHW a filter of 64x64
        ((8, 32, 32, 5), (3, 5, 4, 16)),
        ((8, 4, 4, 3), (1, 3, 9, 9)),  # as OIHW far larger than the image
        ((8, 32, 32, 3), (3, 3, 32, 16)),  # as NCHW an image of 32x3
    ],
)
def test_a_channel_mismatch_offers_nothing_unlikely(x, w):
    assert refusal(x, w).endswith("the channels of input over groups")


@pytest.mark.parametrize(("multiplier", "groups"), [(1, 3), (2, 3)])
def test_a_depthwise_filter_of_tensorflow_is_told_its_shape(multiplier, groups):
    given, ours = (3, 3, 3, multiplier), (3, 3, 1, 3 * multiplier)
    sentence = refusal((8, 32, 32, 3), given, groups=groups)
    assert sentence.endswith(f"TensorFlow's depthwise filter {given} is HWIO after filter.reshape{ours}")
    assert geometry((8, 32, 32, 3), ours, groups=groups).out_channels == 3 * multiplier


@pytest.mark.parametrize(
    ("x", "w", "data_format", "remedy"),
    [
        ((15, 12, 6), W, "NHWC", "for one image, image[np.newaxis]"),
        ((6, 15, 12), (8, 6, 3, 5), "NCHW", "for one image, image[np.newaxis]"),
        ((15, 12), (3, 5, 1, 8), "NHWC", "for one image, image[np.newaxis, :, :, np.newaxis]"),
        ((15, 12), (8, 1, 3, 5), "NCHW", "for one image, image[np.newaxis, np.newaxis]"),
        ((2, 15, 12, 1), (3, 5), "NHWC", "for one filter of one channel, filter[:, :, np.newaxis, np.newaxis]"),
        ((2, 1, 15, 12), (3, 5), "NCHW", "for one filter of one channel, filter[np.newaxis, np.newaxis]"),
    ],
)
def test_arrays_without_some_axes_are_told_how_to_add_them(x, w, data_format, remedy):
    assert refusal(x, w, data_format=data_format).endswith(f"; {remedy}")
    scope = {"np": np, "image": np.ones(x), "filter": np.ones(w)}
    added = eval(remedy.split(", ", 1)[1], scope).shape
    assert geometry(*((added, w) if "image" in remedy else (x, added)), data_format=data_format)


@pytest.mark.parametrize(
    ("shape", "keywords", "message"),
    [
        ((2, 7, 8, 4), {"padding": 1}, "has height 7, but the geometry gives 8 = (15 + 1 + 1 - 3)//2 + 1"),
        ((2, 8, 7, 4), {"padding": "SAME"}, "has width 7, but the geometry gives 8 = ceil(15/2)"),
        ((2, 9, 8, 4), {"padding": "same_lower"}, "has height 9, but the geometry gives 8 = ceil(15/2)"),
        ((2, 6, 7, 4), {}, "has height 6, but the geometry gives 7 = (15 - 3)//2 + 1"),
        ((2, 7, 9, 4), {"padding": "FULL"}, "has height 7, but the geometry gives 9 = (15 + 2 + 2 - 3)//2 + 1"),
        ((2, 4, 4, 4), {"dilations": 2}, "the geometry gives 6 = (15 - 5)//2 + 1 with 5 = (3 - 1)*2 + 1"),
        ((3, 7, 7, 4), {}, "has batch 3, but input has batch 2"),
        ((2, 7, 7, 3), {}, "has 3 channels, but filter has 4 out channels"),
        ((2, 4, 7, 7), {}, "; its shape is that of data_format='NCHW'"),
        ((2, 7, 7), {}, "has 3 dimensions, (2, 7, 7), but NHWC has 4"),
        ((2, 7, -7, 4), {}, "[2] is -7"),
    ],
)
@pytest.mark.parametrize("op", ["conv2d_backprop_filter", "conv2d_backprop_input"])
def test_out_backprop_is_checked_in_every_dimension(op, shape, keywords, message):
    sentence = refusal((2, 15, 15, 3), (3, 3, 3, 4), shape, op=op, strides=2, **keywords)
    assert sentence.startswith("out_backprop")
    assert message in sentence


@pytest.mark.parametrize(
    ("data_format", "w", "dy", "groups", "expected"),
    [
        ("NHWC", (3, 3, 3, 4), (5, 8, 8, 4), 1, (5, 15, 16, 3)),
        ("NHWC", (3, 3, 3, 4), (5, 8, 8, 4), 2, (5, 15, 16, 6)),
        ("NCHW", (4, 3, 3, 3), (5, 4, 8, 8), 1, (5, 3, 15, 16)),
        ("NCHW_VECT_C", (8, 1, 3, 3, 4), (5, 2, 8, 8, 4), 2, (5, 2, 15, 16, 4)),
    ],
)
def test_input_sizes_of_two_numbers(data_format, w, dy, groups, expected):
    keywords = {"strides": 2, "padding": "SAME", "groups": groups, "data_format": data_format}
    assert geometry((15, 16), w, dy, op="conv2d_backprop_input", **keywords).input_shape == expected


def test_input_sizes_of_two_numbers_only_where_a_shape_is_given():
    assert "input has 2 dimensions" in refusal((15, 16), (3, 3, 3, 4), (5, 8, 8, 4), op="conv2d_backprop_filter")
    assert "input has 2 dimensions" in refusal((15, 16), (3, 3, 3, 4))
    sentence = refusal((15, -16), (3, 3, 3, 4), (5, 8, 8, 4), op="conv2d_backprop_input")
    assert "input_shape[1] is -16" in sentence
    sentence = refusal((15, 16), (3, 3, 3, 4), (5, 8, 7, 4), op="conv2d_backprop_input", strides=2, padding="SAME")
    assert "width 7, but the geometry gives 8 = ceil(16/2)" in sentence


@pytest.mark.parametrize(
    ("x", "w", "dy", "strides", "padding"),
    [
        # The original's size rule truncates towards zero and gives 0 for these; a test of its own relies on the first.
        ((3, 1, 1, 2), (1, 3, 2, 3), (3, 1, 0, 3), (1, 2), "VALID"),
        # Its loop over patches still runs once here, and writes outside its buffer.
        ((1, 1, 1, 1), (2, 2, 1, 1), (1, 0, 0, 1), 2, "VALID"),
        ((1, 2, 2, 1), (4, 4, 1, 1), (1, 0, 0, 1), 2, "VALID"),
        ((1, 2, 2, 1), (7, 7, 1, 1), (1, 0, 0, 1), 3, 1),
        # A filter without rows gives it one row more than the image has.
        ((1, 3, 3, 1), (0, 1, 1, 1), (1, 4, 3, 1), 1, "VALID"),
    ],
)
@pytest.mark.parametrize("op", ["conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"])
def test_sizes_that_the_original_accepts_and_convkit_refuses(op, x, w, dy, strides, padding):
    sentence = refusal(x, w, None if op == "conv2d" else dy, op=op, strides=strides, padding=padding)
    assert "filter has" in sentence


HUGE_SHAPE = (1, 2**31, 2**31, 1)  # 2**62 elements


@pytest.mark.parametrize(
    ("x", "w", "keywords", "parts"),
    [
        ((1, LIMIT + 1, 1, 1), (1, 1, 1, 1), {}, ["input[1] is 9223372036854775808", str(LIMIT)]),
        ((1, 10**30, 1, 1), (1, 1, 1, 1), {}, [f"input[1] is {10**30}"]),
        ((1, 10**5000, 1, 1), (1, 1, 1, 1), {}, ["input[1] is <an integer of 16610 bits>"]),
        (X, W, {"strides": 10**5000}, ["strides is <an integer of 16610 bits>"]),
        (X, W, {"padding": 10**5000}, ["padding is <an integer of 16610 bits>"]),
        (X, W, {"groups": 2**63}, ["groups is 9223372036854775808"]),
        (X, W, {"padding": 2**62}, [f"the padded height of input is {2**63 + 15} = 15 + {2**62} + {2**62}"]),
        (
            X,
            (3, 5, 6, 8),
            {"dilations": 2**62, "padding": "SAME"},
            ["the height that filter spans is", f"= (3 - 1)*{2**62} + 1"],
        ),
        ((1, LIMIT, 1, 1), (2, 1, 1, 1), {"padding": "SAME"}, ["the padded height of input is"]),
        ((2, *HUGE_SHAPE[1:]), (1, 1, 1, 1), {}, ["elements of the input", f"{2**63} = 2 * {2**31} * {2**31} * 1"]),
        ((1, 1, 1, 1), (2**31, 2**31, 1, 2), {"padding": "SAME"}, ["elements of the filter", f"{2**63} = "]),
        (HUGE_SHAPE, (1, 1, 1, 2), {}, ["elements of the output", f"{2**63} = "]),
        (
            HUGE_SHAPE,
            (2, 2, 1, 1),
            {},
            ["elements of the patch matrix", f"= 1 * {2**31 - 1} * {2**31 - 1} * 2 * 2 * 1"],
        ),
        ((0, 2**40, 2**40, 1), (1, 1, 1, 1), {}, ["elements of the input", f"{2**80} = "]),
        (
            (1, 2**61, 1, 1, 4),
            (4, 2**61, 1, 1, 4),
            {"data_format": "NCHW_VECT_C"},
            [f"elements of the input is {2**63}"],
        ),
    ],
)
def test_beyond_64_bits(x, w, keywords, parts):
    sentence = refusal(x, w, **keywords)
    for part in [*parts, "64-bit limit"]:
        assert part in sentence


def test_up_to_64_bits():
    g = geometry(HUGE_SHAPE, (1, 1, 1, 1), strides=LIMIT, dilations=LIMIT)
    assert g.output_shape == (1, 1, 1, 1)
    assert geometry((1, LIMIT, 1, 1), (1, 1, 1, 1)).output_shape == (1, LIMIT, 1, 1)
    assert geometry((1, 1, 1, 1), (1, 1, 1, LIMIT)).output_shape == (1, 1, 1, LIMIT)
    assert geometry((1, 1, 1, 1), (2, 1, 1, 1), dilations=(2**62 - 2, 1), padding="FULL").out_size == (2**62 - 1, 1)
    # 2**62 patch elements for each of 64 out channels: the FLOPs do not fit 64 bits, and need not.
    assert geometry((1, 2**28, 2**28, 64), (1, 1, 64, 64)).flops == 2 * 2**56 * 64 * 64


class Raising:
    """Every question is answered with an exception of its own."""

    def _fail(self, *args):
        raise RuntimeError("asked")

    __index__ = __iter__ = __len__ = __getitem__ = __repr__ = __bool__ = __eq__ = __array__ = _fail
    __hash__ = None

    @property
    def __class__(self):
        raise RuntimeError("asked")


class RaisingSequence(Sequence):
    def __getitem__(self, index):
        raise RuntimeError("asked")

    def __len__(self):
        raise RuntimeError("asked")


class EndlessSequence(Sequence):
    def __getitem__(self, index):
        return 1

    def __len__(self):
        return 2


class FractionalIndex:
    def __index__(self):
        return 2.0


def _cyclic():
    items = []
    items += [items, items]
    return items


WRONG_TYPES = [
    None,
    True,
    np.True_,
    np.array(True),
    1.0,
    3.5,
    float("nan"),
    float("inf"),
    np.float32(2),
    2j,
    b"SAME",
    bytearray(2),
    {1: 2, 3: 4},
    {1, 2},
    object(),
    int,
    lambda: 2,
    itertools.count(1),
    iter((1, 2)),
    FractionalIndex(),
    Raising(),
    RaisingSequence(),
    (None, None),
    (True, 1),
    (1.0, 2.0),
    ("1", "2"),
    (Raising(), 1),
    _cyclic(),
    np.array(2.0),
    np.array([1.0, 2.0]),
    np.array([True, True]),
    np.array([1, 2], object),
    np.array(["a", "b"]),
    np.array([np.nan, np.nan]),
    np.zeros((1000, 1000)),
    np.ones((2, 2, 2, 2), int),
    np.ma.array([1, 2], mask=[False, True]),
]
# By position, since pytest itself asks parameters for their class.
each_wrong_type = pytest.mark.parametrize(
    "position", range(len(WRONG_TYPES)), ids=[f"{i}-{type(value).__name__}" for i, value in enumerate(WRONG_TYPES)]
)


@pytest.mark.parametrize("argument", ["strides", "dilations", "padding", "groups"])
@each_wrong_type
def test_wrong_types(argument, position):
    assert argument in refusal(error=ArgumentTypeError, **{argument: WRONG_TYPES[position]})


@pytest.mark.parametrize("value", ["x", "SAME", 7, (1, 2)], ids=str)
def test_types_that_only_some_arguments_take(value):
    for argument in ("data_format", "filter_format"):
        error = ArgumentError if isinstance(value, str) else ArgumentTypeError
        assert argument in refusal(error=error, **{argument: value})
    if isinstance(value, str):
        for argument in ("strides", "dilations", "groups"):
            assert argument in refusal(error=ArgumentTypeError, **{argument: value})


@each_wrong_type
@pytest.mark.parametrize("op", ["conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"])
def test_weird_shapes_and_formats(op, position):
    value = WRONG_TYPES[position]
    dy = (2, 13, 8, 8)
    assert "input" in refusal(value, W, dy, op=op, error=ConvkitError)
    assert "filter" in refusal(X, value, dy, op=op, error=ConvkitError)
    if value is not None:
        assert "out_backprop" in refusal(X, W, value, op=op, error=ConvkitError)
        assert "filter_format" in refusal(filter_format=value, op=op, error=ArgumentTypeError)
    assert "data_format" in refusal(data_format=value, op=op, error=ArgumentTypeError)


def test_long_and_unprintable_values_are_shown_short():
    assert "(1, 2, <an integer of 16610 bits>)" in refusal(padding=(1, 2, 10**5000))
    assert "strides is [1, 1, 1, 1, 1, 1, 1, 1, ...]" in refusal(strides=[1] * 10**6)
    assert "object of type Raising" in refusal(strides=Raising(), error=ArgumentTypeError)


def test_endless_sequences_are_read_up_to_a_bound():
    for argument in ("strides", "dilations", "padding"):
        assert argument in refusal(**{argument: EndlessSequence()}, error=ConvkitError)
    assert "input has more than 4 dimensions" in refusal(EndlessSequence())


def test_an_array_in_place_of_its_shape():
    sentence = refusal(X, np.zeros(W), (2, 13, 8, 8), op="conv2d_backprop_filter", error=ArgumentTypeError)
    assert "filter_shape must be a sequence of integers" in sentence
    assert "shape (3, 5, 6, 8) and dtype float64" in sentence
    assert sentence.endswith("pass its shape, e.g. w.shape")
    integers = np.zeros(X, np.uint8)
    sentence = refusal(integers, W, (2, 13, 8, 8), op="conv2d_backprop_input", error=ArgumentTypeError)
    assert sentence.startswith("input_shape must be")
    assert sentence.endswith("pass its shape, e.g. x.shape")


def test_an_input_shape_may_be_height_and_width():
    dy = (2, 13, 8, 8)
    sentence = refusal(128, W, dy, op="conv2d_backprop_input", error=ArgumentTypeError)
    assert sentence == "input_shape must be a sequence of integers, four or (height, width); got 128 of type int"
    assert refusal((15, 12, 6), W, dy, op="conv2d_backprop_input").endswith(", or (height, width) alone")
    assert "(height, width)" not in refusal(X, 128, dy, op="conv2d_backprop_filter", error=ArgumentTypeError)


small = st.integers(0, 14)
positive = st.integers(1, 6)


@settings(deadline=None)
@given(small, positive, positive, positive, st.one_of(st.just("VALID"), st.just("FULL"), st.tuples(small, small)))
def test_every_window_inside_the_padded_input_is_an_output(n, k, s, d, padding):
    reach = (k - 1) * d
    before, after = {"VALID": (0, 0), "FULL": (reach, reach)}.get(padding, padding)
    starts = [p for p in range(0, n + before + after, s) if p + reach < n + before + after]
    if starts:
        assert along_height(n, k, s, d, padding) == (len(starts), before, after)
    else:
        with pytest.raises(ShapeError, match=f"more than the padded input's {n + before + after} = "):
            along_height(n, k, s, d, padding)


@settings(deadline=None)
@given(small, positive, positive, positive)
def test_same_pads_as_little_as_one_window_per_stride_needs(n, k, s, d):
    out, before, after = along_height(n, k, s, d, "SAME")
    assert out == len(range(0, n, s))
    last = (out - 1) * s + (k - 1) * d + 1  # pixels up to the end of the last window
    assert last <= n + before + after
    assert before + after == 0 or last == n + before + after
    assert after - before in (0, 1)
    assert along_height(n, k, s, d, "SAME_LOWER") == (out, after, before)


@settings(deadline=None)
@given(st.integers(1, 14), positive, positive)
def test_full_covers_every_overlap(n, k, s):
    overlapping = [p for p in range(1 - k, n, s) if p < n and p + k > 0]
    assert along_height(n, k, s, 1, "FULL")[0] == len(overlapping)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.integers(0, 9)
    | st.sampled_from(["SAME", "full", "OIHW", "x"]),
    lambda inner: st.lists(inner, max_size=5) | st.tuples(inner, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["strides", "padding", "dilations", "groups", "filter_format"]), anything))
def test_anything_gives_a_geometry_or_a_sentence(keywords):
    try:
        g = geometry(**keywords)
    except ConvkitError as error:
        assert str(error).startswith("conv2d: ")
        assert len(str(error)) < 1000
    else:
        assert geometry(out_backprop_shape=g.output_shape, **keywords) == g
