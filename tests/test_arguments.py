"""Keywords, the forms of the geometry arguments, and the sentences that refuse the others."""

import inspect
from fractions import Fraction

import numpy as np
import pytest
from refusals import refused

import convkit
from convkit import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError
from convkit._foreign import DATA_FORMATS_ELSEWHERE, FILTER_FORMATS_ELSEWHERE, OURS, RECIPES
from convkit._formats import DATA_FORMATS, FILTER_FORMATS
from convkit._options import read_environment

X = np.arange(2 * 9 * 8 * 3, dtype=np.float32).reshape(2, 9, 8, 3) % 7
W = np.arange(3 * 2 * 3 * 4, dtype=np.float32).reshape(3, 2, 3, 4) % 5
DY = np.ones((2, 7, 7, 4), np.float32)

CALLS = {
    "conv2d": lambda **keywords: convkit.conv2d(X, W, **keywords),
    "conv2d_backprop_filter": lambda **keywords: convkit.conv2d_backprop_filter(X, W.shape, DY, **keywords),
    "conv2d_backprop_input": lambda **keywords: convkit.conv2d_backprop_input(X.shape, W, DY, **keywords),
    "conv2d_output_shape": lambda **keywords: convkit.conv2d_output_shape(X.shape, W.shape, **keywords),
}
FOREIGN = {
    "stride": "strides",
    "dilation": "dilations",
    "rate": "dilations",
    "dilation_rate": "dilations",
    "pad": "padding",
    "mode": "padding",
    "group": "groups",
}
GEOMETRY = ["strides", "padding", "dilations", "groups", "data_format", "filter_format"]
COMMON = [*GEOMETRY, "out", "out_dtype", "algorithm", "num_threads"]


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_keyword_is_refused_with_ours_named(op, foreign):
    with refused(ArgumentTypeError, repr(foreign), FOREIGN[foreign], op=op):
        CALLS[op](**{foreign: 1})


@pytest.mark.parametrize("op", CALLS)
@pytest.mark.parametrize(
    "foreign, recipe",
    [
        ("bias", "add it to the result"),
        ("use_bias", "add it to the result"),
        ("activation", "np.maximum(y, 0)"),
        ("padding_mode", "np.pad the image first"),
        ("output_padding", "give conv2d_backprop_input the input_shape"),
        ("name", "leave it out"),
        ("precision", "with convkit.options(precision=...)"),
    ],
)
def test_keyword_of_what_is_done_otherwise_is_answered_with_a_recipe(op, foreign, recipe):
    with refused(ArgumentTypeError, repr(foreign), recipe, op=op):
        CALLS[op](**{foreign: None})


def test_recipes_are_for_names_that_mean_nothing_here():
    assert not RECIPES.keys() & (OURS.keys() | COMMON)
    with refused(ArgumentTypeError, "'bias'", "num_threads", op="options"):
        convkit.options(bias=1)


@pytest.mark.parametrize("op", CALLS)
def test_unknown_keyword_is_refused_by_name(op):
    with refused(ArgumentTypeError, "banana", op=op):
        CALLS[op](banana=1)


@pytest.mark.parametrize("foreign", ["weight", "weights", "kernel"])
def test_foreign_keyword_in_place_of_the_filter(foreign):
    with refused(ArgumentTypeError, repr(foreign), "filter"):
        convkit.conv2d(X, **{foreign: W})
    with refused(ArgumentTypeError, repr(foreign), "filter", op="conv2d_backprop_input"):
        convkit.conv2d_backprop_input(X.shape, out_backprop=DY, **{foreign: W})


def test_foreign_keywords_in_place_of_shapes():
    with refused(ArgumentTypeError, "filter_sizes", "filter_shape", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(X, filter_sizes=W.shape, out_backprop=DY)
    with refused(ArgumentTypeError, "input_sizes", "input_shape", op="conv2d_backprop_input"):
        convkit.conv2d_backprop_input(input_sizes=X.shape, filter=W, out_backprop=DY)


def test_accumulate_belongs_to_the_filter_gradient_alone():
    for op in ("conv2d", "conv2d_backprop_input"):
        with refused(ArgumentTypeError, "accumulate", op=op):
            CALLS[op](accumulate=True)


def test_missing_and_surplus_positionals_are_type_errors():
    for call in (
        lambda: convkit.conv2d(X),
        lambda: convkit.conv2d(),
        lambda: convkit.conv2d(X, W, 1),
        lambda: convkit.conv2d_backprop_filter(X, W.shape),
        lambda: convkit.conv2d_backprop_input(X.shape, W, DY, 1),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "op, positional, keywords",
    [
        ("conv2d", ["input", "filter"], COMMON),
        ("conv2d_backprop_filter", ["input", "filter_shape", "out_backprop"], [*COMMON, "accumulate"]),
        ("conv2d_backprop_input", ["input_shape", "filter", "out_backprop"], COMMON),
        ("conv2d_output_shape", ["input_shape", "filter_shape"], GEOMETRY),
    ],
)
def test_signatures_are_the_documented_ones(op, positional, keywords):
    parameters = inspect.signature(getattr(convkit, op)).parameters.values()
    kinds = inspect.Parameter
    assert [p.name for p in parameters if p.kind is kinds.POSITIONAL_OR_KEYWORD] == positional
    assert sorted(p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY) == sorted(keywords)


def test_everything_can_be_given_by_name():
    np.testing.assert_array_equal(convkit.conv2d(filter=W, input=X), convkit.conv2d(X, W))
    by_name = convkit.conv2d_backprop_filter(out_backprop=DY, filter_shape=W.shape, input=X)
    np.testing.assert_array_equal(by_name, convkit.conv2d_backprop_filter(X, W.shape, DY))


@pytest.mark.parametrize("name", ["strides", "dilations"])
@pytest.mark.parametrize(
    "form, pair",
    [
        (2, (2, 2)),
        (np.int64(2), (2, 2)),
        ((2, 3), (2, 3)),
        ([2, 3], (2, 3)),
        ((np.int32(2), 3), (2, 3)),
        ((1, 2, 3, 1), (2, 3)),
        ([1, 1, 2, 1], (1, 2)),
    ],
)
def test_forms_of_strides_and_dilations(name, form, pair):
    taken = convkit.conv2d(X, W, padding="SAME", **{name: form})
    np.testing.assert_array_equal(taken, convkit.conv2d(X, W, padding="SAME", **{name: pair}))
    sizes = [int(-(-n // s)) for n, s in zip(X.shape[1:3], pair, strict=True)] if name == "strides" else X.shape[1:3]
    assert taken.shape[1:3] == tuple(sizes)


@pytest.mark.parametrize("name", ["strides", "dilations"])
def test_four_numbers_follow_the_data_format(name):
    x, w = np.moveaxis(X, 3, 1), W
    for data_format, image, four in (("NHWC", X, (1, 2, 3, 1)), ("NCHW", x, (1, 1, 2, 3))):
        keywords = {"data_format": data_format, "filter_format": "HWIO", "padding": "SAME"}
        taken = convkit.conv2d(image, w, **keywords, **{name: four})
        np.testing.assert_array_equal(taken, convkit.conv2d(image, w, **keywords, **{name: (2, 3)}))
    with refused(ShapeError, name):
        convkit.conv2d(x, w, data_format="NCHW", filter_format="HWIO", **{name: (1, 2, 3, 1)})


@pytest.mark.parametrize("name", ["strides", "dilations"])
@pytest.mark.parametrize("bad", [0, -1, (1, 0), (1, 1, 1), (1,), (), (2, 1, 1, 1), (1, 1, 1, 2), (1,) * 5])
def test_strides_and_dilations_out_of_range(name, bad):
    with refused(ShapeError, name):
        convkit.conv2d(X, W, **{name: bad})


@pytest.mark.parametrize("name", ["strides", "dilations", "groups"])
@pytest.mark.parametrize("bad", ["x", None, 1.5, 2.0, Fraction(2), {1: 2}, float("nan")])
def test_strides_dilations_and_groups_of_a_wrong_type(name, bad):
    with refused(ArgumentTypeError, name):
        convkit.conv2d(X, W, **{name: bad})


PADDINGS = [
    # form, ((top, bottom), (left, right))
    ("VALID", ((0, 0), (0, 0))),
    ("valid", ((0, 0), (0, 0))),
    ("SAME", ((1, 1), (0, 1))),
    ("same", ((1, 1), (0, 1))),
    ("Same_Lower", ((1, 1), (1, 0))),
    ("FULL", ((2, 2), (1, 1))),
    (0, ((0, 0), (0, 0))),
    (2, ((2, 2), (2, 2))),
    (np.int64(1), ((1, 1), (1, 1))),
    ((1, 3), ((1, 1), (3, 3))),
    ([3, 1], ((3, 3), (1, 1))),
    (((1, 2), (0, 3)), ((1, 2), (0, 3))),
    ([[2, 0], [1, 0]], ((2, 0), (1, 0))),
    (((0, 0), (1, 2), (3, 4), (0, 0)), ((1, 2), (3, 4))),
]


@pytest.mark.parametrize("form, amounts", PADDINGS, ids=[str(form) for form, _ in PADDINGS])
def test_forms_of_padding(form, amounts):
    padded = np.pad(X, ((0, 0), *amounts, (0, 0)))
    taken = convkit.conv2d(X, W, padding=form)
    np.testing.assert_array_equal(taken, convkit.conv2d(padded, W))
    assert taken.shape == convkit.conv2d_output_shape(X.shape, W.shape, padding=form)


def test_four_pairs_of_padding_follow_the_data_format():
    x = np.moveaxis(X, 3, 1)
    keywords = {"data_format": "NCHW", "filter_format": "HWIO"}
    taken = convkit.conv2d(x, W, padding=((0, 0), (0, 0), (1, 2), (3, 4)), **keywords)
    np.testing.assert_array_equal(taken, convkit.conv2d(x, W, padding=((1, 2), (3, 4)), **keywords))
    with refused(ShapeError, "padding"):
        convkit.conv2d(x, W, padding=((0, 0), (1, 2), (3, 4), (0, 0)), **keywords)


@pytest.mark.parametrize(
    "bad", [-1, (0, -1), ((0, 1), (-1, 0)), (1, 2, 3), ((1, 1), (1, 1), (0, 0), (0, 0)), ((1, 2),), ()]
)
def test_padding_that_is_no_padding(bad):
    with refused(ShapeError, "padding"):
        convkit.conv2d(X, W, padding=bad)


def test_an_unknown_padding_name_is_refused_with_the_names_there_are():
    with refused(ArgumentError, "padding", "half", "VALID", "SAME", "SAME_LOWER", "FULL"):
        convkit.conv2d(X, W, padding="half")


@pytest.mark.parametrize("border", ["reflect", "Replicate", "wrap"])
def test_a_border_that_is_no_padding_leads_to_numpy(border):
    with refused(ArgumentError, f"padding is {border!r}", "np.pad the image first"):
        convkit.conv2d(X, W, padding=border)


@pytest.mark.parametrize("bad", [3.5, None, {"top": 1}, (1.0, 1.0), ("SAME", "VALID"), b"SAME", object()])
def test_padding_of_a_wrong_type(bad):
    with refused(ArgumentTypeError, "padding"):
        convkit.conv2d(X, W, padding=bad)


def test_an_image_in_the_other_layout_is_told_so():
    with refused(ShapeError, "channels", "NCHW"):
        convkit.conv2d(np.ones((1, 3, 20, 21), np.float32), np.ones((2, 2, 3, 5), np.float32))
    with refused(ShapeError, "channels", "NHWC"):
        convkit.conv2d(np.ones((1, 20, 21, 3), np.float32), np.ones((5, 3, 2, 2), np.float32), data_format="NCHW")


def test_a_filter_in_the_other_layout_is_told_so():
    with refused(ShapeError, "channels", "OIHW"):
        convkit.conv2d(np.ones((1, 20, 21, 5), np.float32), np.ones((8, 5, 3, 3), np.float32))


def test_a_channel_mismatch_that_fits_no_layout_names_none():
    with pytest.raises(ShapeError) as caught:
        convkit.conv2d(np.ones((1, 20, 21, 5), np.float32), np.ones((3, 3, 4, 8), np.float32))
    assert "NCHW" not in str(caught.value)


@pytest.mark.parametrize("name", ["data_format", "filter_format"])
def test_formats_that_do_not_exist(name):
    for bad in ("NWHC", "hello", ""):
        with refused(ArgumentError, name, "HW"):
            CALLS["conv2d"](**{name: bad})
    for bad in (3, b"NHWC", ["NHWC"]):
        with refused(ArgumentTypeError, name):
            CALLS["conv2d"](**{name: bad})
    with refused(ArgumentTypeError, "data_format"):
        CALLS["conv2d"](data_format=None)


class MemoryFormat:
    def __repr__(self):
        return "torch.channels_last"


@pytest.mark.parametrize(
    "name, foreign, ours",
    [
        ("data_format", "channels_last", "'NHWC'"),
        ("data_format", "channels_first", "'NCHW'"),
        ("data_format", "nhwc", "'NHWC'"),
        ("data_format", "NHWC ", "'NHWC'"),
        ("data_format", np.str_("NCHW\n"), "'NCHW'"),
        ("data_format", "CHW", "'NCHW' after image[np.newaxis]"),
        ("data_format", "HWCN", "'NHWC' after x.transpose(3, 0, 1, 2)"),
        ("filter_format", "HWCN", "'HWIO'"),
        ("filter_format", "oihw", "'OIHW'"),
        ("filter_format", "KCRS", "'OIHW'"),
    ],
)
def test_a_format_of_another_name_is_told_ours(name, foreign, ours):
    with pytest.raises(ShapeError) as caught:
        CALLS["conv2d"](**{name: foreign})
    assert str(caught.value).startswith(f"conv2d: {name} is {str(foreign)!r}, but it must be one of ")
    assert str(caught.value).endswith(f"; that is {ours}")


def test_a_memory_format_of_pytorch_is_no_order_of_dimensions():
    with refused(ArgumentTypeError, "data_format", "torch.channels_last", "that is 'NCHW', the shape"):
        CALLS["conv2d"](data_format=MemoryFormat())


def test_formats_of_other_names_lead_to_ours():
    for elsewhere, known in ((DATA_FORMATS_ELSEWHERE, DATA_FORMATS), (FILTER_FORMATS_ELSEWHERE, FILTER_FORMATS)):
        assert not elsewhere.keys() & known.keys()
        for name, ours in elsewhere.items():
            assert name == name.upper()
            assert ours.split("'")[1] in known


@pytest.mark.parametrize(
    "name, option, text, expected",
    [
        ("CONVKIT_WORKSPACE_LIMIT", "workspace_limit", "64MB", "an integer number of bytes"),
        ("CONVKIT_NUM_THREADS", "num_threads", "abc", "an integer"),
        ("CONVKIT_NUM_THREADS", "num_threads", "1.5", "an integer"),
        ("CONVKIT_AUTOTUNE", "autotune", "maybe", "one of 1, true, yes, 0, false, no"),
    ],
)
def test_an_environment_variable_that_cannot_be_read_is_told_the_rule(monkeypatch, name, option, text, expected):
    monkeypatch.setenv(name, text)
    with pytest.raises(ArgumentError) as caught:
        read_environment(name, option)
    assert str(caught.value) == f"convkit: environment variable {name} is {text!r}, but must be {expected}"


def test_filter_format_is_independent_of_the_data_format():
    expected = convkit.conv2d(X, W)
    x = np.ascontiguousarray(np.moveaxis(X, 3, 1))
    filters = {"HWIO": W, "OIHW": W.transpose(3, 2, 0, 1), "OHWI": W.transpose(3, 0, 1, 2)}
    for name, w in filters.items():
        np.testing.assert_array_equal(convkit.conv2d(X, w, filter_format=name), expected)
        nchw = convkit.conv2d(x, w, filter_format=name, data_format="NCHW")
        np.testing.assert_array_equal(np.moveaxis(nchw, 1, 3), expected)
    np.testing.assert_array_equal(convkit.conv2d(x, filters["OIHW"], data_format="NCHW"), np.moveaxis(expected, 3, 1))


def test_a_filter_gradient_comes_in_the_filter_format():
    expected = convkit.conv2d_backprop_filter(X, W.shape, DY)
    for name, order in (("OIHW", (3, 2, 0, 1)), ("OHWI", (3, 0, 1, 2))):
        shape = tuple(W.shape[axis] for axis in order)
        taken = convkit.conv2d_backprop_filter(X, shape, DY, filter_format=name)
        np.testing.assert_array_equal(taken, expected.transpose(order))
        assert taken.flags.c_contiguous


@pytest.mark.parametrize("groups", [0, -1, 2, 4, 2**40])
def test_groups_that_do_not_divide(groups):
    with refused(ShapeError, "groups"):
        convkit.conv2d(X, W, groups=groups)


def test_vect_c_is_for_int8():
    x = np.ones((1, 2, 8, 8, 4), np.float32)
    w = np.ones((8, 2, 3, 3, 4), np.float32)
    with refused((UnsupportedError, convkit.DTypeError), "NCHW_VECT_C", "int8"):
        convkit.conv2d(x, w, data_format="NCHW_VECT_C")
    assert convkit.conv2d_output_shape(x.shape, w.shape, data_format="NCHW_VECT_C") == (1, 2, 6, 6, 4)
    four = convkit.conv2d_output_shape(x.shape, w.shape, data_format="NCHW_VECT_C", strides=(1, 1, 2, 3))
    assert four == (1, 2, 3, 2, 4)


@pytest.mark.parametrize("op", ["conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"])
@pytest.mark.parametrize("bad", [0, -1, 1025, 2**40])
def test_num_threads_out_of_range(op, bad):
    with refused(ArgumentError, "num_threads", str(bad), "1024", op=op):
        CALLS[op](num_threads=bad)


@pytest.mark.parametrize("bad", ["2", 1.5, 2.0, (1,), float("nan")])
def test_num_threads_of_a_wrong_type(bad):
    with refused(ArgumentTypeError, "num_threads"):
        convkit.conv2d(X, W, num_threads=bad)


def test_num_threads_may_be_any_integer_type():
    np.testing.assert_array_equal(convkit.conv2d(X, W, num_threads=np.int64(2)), convkit.conv2d(X, W, num_threads=1024))


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "reference"])
def test_algorithms_that_serve_everything(algorithm):
    for op in ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"):
        np.testing.assert_array_equal(CALLS[op](algorithm=algorithm), CALLS[op]())


@pytest.mark.parametrize("op", ["conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"])
def test_a_family_that_cannot_serve_is_refused_with_its_reason(op):
    with refused(UnsupportedError, "gemm", "1x1", op=op):
        CALLS[op](algorithm="gemm")


def test_a_family_of_the_other_device_is_refused():
    with refused((UnsupportedError, ArgumentError), "cudnn"):
        CALLS["conv2d"](algorithm="cudnn")


def test_an_unknown_algorithm_is_refused_with_the_families_there_are():
    with refused((ArgumentError, UnsupportedError), "algorithm", "quantum", "im2col"):
        CALLS["conv2d"](algorithm="quantum")
    for bad in (3, None, b"im2col"):
        with refused(ArgumentTypeError, "algorithm"):
            CALLS["conv2d"](algorithm=bad)


def test_shapes_may_be_any_sequence_of_integers():
    expected = convkit.conv2d_backprop_input(X.shape, W, DY)
    for shape in (list(X.shape), np.array(X.shape), tuple(np.int32(n) for n in X.shape)):
        np.testing.assert_array_equal(convkit.conv2d_backprop_input(shape, W, DY), expected)
    assert convkit.conv2d_output_shape(list(X.shape), list(W.shape)) == DY.shape


@pytest.mark.parametrize("bad", [(2, 9, 8), (2, 9, 8, 3, 1), (), (2, -9, 8, 3)])
def test_shapes_of_a_wrong_rank_or_sign(bad):
    with refused((ShapeError, UnsupportedError), "input_shape", op="conv2d_backprop_input"):
        convkit.conv2d_backprop_input(bad, W, DY)
    with refused((ShapeError, UnsupportedError), "input_shape", op="conv2d_output_shape"):
        convkit.conv2d_output_shape(bad, W.shape)


@pytest.mark.parametrize("bad", [None, 3, 2.5, "NHWC", (2, 9.5, 8, 3), (2, "9", 8, 3), {2, 9, 8, 3}])
def test_shapes_of_a_wrong_type(bad):
    with refused((ArgumentTypeError, ShapeError), "filter_shape", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(X, bad, DY)


def test_an_out_backprop_that_does_not_fit_is_told_the_formula():
    with refused(ShapeError, "out_backprop", "height 8", "gives 7", op="conv2d_backprop_filter"):
        convkit.conv2d_backprop_filter(X, W.shape, np.ones((2, 8, 7, 4), np.float32))


def test_five_dimensions_are_refused_by_name():
    x, w = np.ones((1, 4, 4, 4, 2), np.float32), np.ones((2, 2, 2, 2, 3), np.float32)
    with refused((UnsupportedError, ShapeError), "dimensions"):
        convkit.conv2d(x, w)
