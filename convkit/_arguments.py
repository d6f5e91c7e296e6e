"""From whatever a user passed to plain Python integers, or to an error with a sentence.

Arguments are untrusted objects: their ``__index__``, ``__iter__`` or ``__repr__`` may raise or never end. Types are
therefore looked up with ``type(value)`` (``isinstance`` asks the object), and sequences are read up to a bound.
"""

import operator
import reprlib
from collections.abc import Sequence
from itertools import islice
from typing import Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from ._errors import ArgumentTypeError, ShapeError
from ._foreign import BORDERS, DATA_FORMATS_ELSEWHERE, FILTER_FORMATS_ELSEWHERE, PAD_FIRST
from ._formats import VECTOR, is_packed, letters, rank

IntArray = npt.NDArray[np.integer[Any]]
ShapeLike = Sequence[SupportsIndex] | IntArray
StridesLike = SupportsIndex | Sequence[SupportsIndex] | IntArray
PaddingLike = str | SupportsIndex | Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]] | IntArray

LIMIT = 2**63 - 1
PADDING_MODES = ("VALID", "SAME", "SAME_LOWER", "FULL")

_DIMENSION = {"N": "batch", "C": "channel", "H": "height", "W": "width"}
_LONGEST_TEXT = 120
_ELSEWHERE = {"data_format": DATA_FORMATS_ELSEWHERE, "filter_format": FILTER_FORMATS_ELSEWHERE}

# Arrays that lack dimensions: (argument, format, rank) with what to write.
_MISSING_AXES = {
    ("input", "NHWC", 3): "for one image, image[np.newaxis]",
    ("input", "NCHW", 3): "for one image, image[np.newaxis]",
    ("input", "NHWC", 2): "for one image, image[np.newaxis, :, :, np.newaxis]",
    ("input", "NCHW", 2): "for one image, image[np.newaxis, np.newaxis]",
    ("filter", "HWIO", 2): "for one filter of one channel, filter[:, :, np.newaxis, np.newaxis]",
    ("filter", "OIHW", 2): "for one filter of one channel, filter[np.newaxis, np.newaxis]",
}


class _ShortRepr(reprlib.Repr):
    """A repr of a few dozen characters, for values of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxtuple = self.maxlist = self.maxdict = 8
        self.maxlevel = 3
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to print integers of more than some thousand digits."""
        return repr(x) if x.bit_length() <= 128 else f"<an integer of {x.bit_length()} bits>"

    def repr_ndarray(self, x: npt.NDArray[Any], level: int) -> str:
        """An array of a few numbers by its contents, any other by shape and dtype."""
        if x.size <= 8 and x.dtype.kind in "biuf":
            return f"array({x.tolist()}, dtype={x.dtype})"
        return f"<an array of shape {x.shape} and dtype {x.dtype}>"


_SHORT = _ShortRepr()


def show(value: object) -> str:
    """A short one-line text for an error message; never raises."""
    try:
        text = " ".join(_SHORT.repr(value).split())
    except Exception:  # a __repr__ or __len__ of the user's own
        text = f"<an object of type {type(value).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def wrong_type(op: str, argument: str, expected: str, value: object) -> ArgumentTypeError:
    """The error for a value of a type that the argument cannot have."""
    return ArgumentTypeError(f"{op}: {argument} must be {expected}; got {show(value)} of type {type(value).__name__}")


def as_int(op: str, argument: str, value: object, *, least: int, expected: str = "an integer") -> int:
    """`value` as a Python int from `least` to LIMIT; anything with ``__index__`` but a bool will do."""
    if issubclass(type(value), bool | np.bool):
        raise wrong_type(op, argument, expected + ", not a bool", value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except Exception as error:
        raise wrong_type(op, argument, expected, value) from error
    if number < least:
        raise ShapeError(f"{op}: {argument} is {show(number)}, but it must be at least {least}")
    return check_limit(op, argument, number)


def check_limit(op: str, what: str, number: int, formula: str = "") -> int:
    """`number` itself, if it fits a signed 64-bit integer."""
    if number > LIMIT:
        raise ShapeError(f"{op}: {what} is {show(number)}{formula}, beyond the 64-bit limit 2**63 - 1 = {LIMIT}")
    return number


def is_a(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Tell whether a value is of a type; unlike ``isinstance`` this asks nothing of the value, which may raise then."""
    return issubclass(type(value), kinds)


def as_text(value: object) -> str | None:
    """A plain str from a str or an instance of a subclass (``numpy.str_``), else None."""
    return str.__str__(value) if issubclass(type(value), str) else None


def as_items(op: str, argument: str, value: object, *, most: int) -> tuple[object, ...] | None:
    """The items of a sequence or integer array, None if `value` is neither; reads one item more than `most`.

    Iterators are not sequences: they can be read once only, and may not end.
    """
    kind = type(value)
    if not issubclass(kind, Sequence | np.ndarray) or issubclass(kind, str | bytes | bytearray):
        return None
    sequence: Any = value
    try:
        if issubclass(kind, np.ndarray) and sequence.ndim == 0:
            return None
        # The items of other sequences are checked one by one, by who asks for them.
        integers = not issubclass(kind, np.ndarray) or sequence.dtype.kind in "iu"
        items = tuple(islice(sequence, most + 1)) if integers else ()
    except Exception as error:  # an __iter__ or __getitem__ of the user's own
        raise ArgumentTypeError(f"{op}: {argument} cannot be read as a sequence: {show(error)}") from error
    if not integers:
        raise wrong_type(op, argument, "a sequence of integers", value)
    return items


def parse_shape(op: str, argument: str, value: object, *, most: int) -> tuple[int, ...]:
    """A shape of any rank up to `most` + 1; its dimensions are not negative."""
    if issubclass(type(value), np.ndarray) and cast("IntArray", value).ndim > 1:
        example = "w.shape" if argument.startswith("filter") else "x.shape"
        raise ArgumentTypeError(
            f"{op}: {argument} must be a sequence of integers; got {show(value)}: pass its shape, e.g. {example}"
        )
    items = as_items(op, argument, value, most=most)
    if items is None:
        either = ", four or (height, width)" if _may_be_pair(op, argument) else ""
        raise wrong_type(op, argument, "a sequence of integers" + either, value)
    return tuple(
        as_int(op, f"{argument}[{axis}]", item, least=0, expected="an integer size") for axis, item in enumerate(items)
    )


def _may_be_pair(op: str, argument: str) -> bool:
    """Whether (height, width) will do for a shape."""
    return op == "conv2d_backprop_input" and argument == "input_shape"


def parse_format(op: str, argument: str, value: object, known: dict[str, str]) -> str:
    """One of the formats in `known`."""
    text = as_text(value)
    if text in known:
        return text
    names = ", ".join(map(repr, known))
    plain = (show(value) if text is None else text).strip().upper()
    ours = repr(plain) if plain in known else _ELSEWHERE[argument].get(plain)
    hint = f"; that is {ours}" if ours else ""
    if text is None:
        error = wrong_type(op, argument, f"one of {names}", value)
        raise ArgumentTypeError(f"{error}{hint}")
    raise ShapeError(f"{op}: {argument} is {show(text)}, but it must be one of {names}{hint}")


def parse_array_shape(op: str, argument: str, value: object, layout: str, known: dict[str, str]) -> tuple[int, ...]:
    """A shape of the format's rank."""
    shape = parse_shape(op, argument, value, most=rank(layout))
    if len(shape) != rank(layout):
        count = f"{len(shape)}" if len(shape) <= rank(layout) else f"more than {rank(layout)}"
        either = ", or (height, width) alone" if _may_be_pair(op, argument) else ""
        remedy = _MISSING_AXES.get((argument, layout, len(shape)))
        raise ShapeError(
            f"{op}: {argument} has {count} dimensions, {show(value)}, but {layout} has {rank(layout)}: "
            f"{known[layout]}{either}{f'; {remedy}' if remedy else ''}"
        )
    if is_packed(layout) and shape[-1] != VECTOR:
        raise ShapeError(
            f"{op}: {argument} has {shape[-1]} as its last dimension, {show(shape)}, but {layout} has {VECTOR} there: "
            f"{known[layout]}"
        )
    return shape


def parse_spatial(op: str, argument: str, value: object, data_format: str) -> tuple[int, int]:
    """Strides or dilations as (height, width)."""
    order = letters(data_format)
    expected = f"an integer, a pair (height, width), or four integers in the order {', '.join(order)}"
    items = as_items(op, argument, value, most=4)
    if items is None:
        both = as_int(op, argument, value, least=1, expected=expected)
        return both, both
    if len(items) not in (2, 4):
        raise ShapeError(f"{op}: {argument} is {show(value)}, but it must be {expected}")
    names = order if len(items) == 4 else "HW"
    number = {
        name: as_int(op, f"{argument} for the {_DIMENSION[name]} dimension", item, least=1)
        for name, item in zip(names, items, strict=True)
    }
    for name in "NC":
        if number.get(name, 1) != 1:
            raise ShapeError(
                f"{op}: {argument} is {show(value)}, {number[name]} for the {_DIMENSION[name]} dimension in the order "
                f"{', '.join(order)}, but it must be 1 there"
            )
    return number["H"], number["W"]


def parse_padding(op: str, value: object, data_format: str) -> str | tuple[tuple[int, int], tuple[int, int]]:
    """One of PADDING_MODES, or ((top, bottom), (left, right))."""
    order = letters(data_format)
    expected = (
        f"one of {', '.join(map(repr, PADDING_MODES))}, an integer, a pair (height, width), "
        f"((top, bottom), (left, right)), or four pairs in the order {', '.join(order)}"
    )
    text = as_text(value)
    if text is not None:
        # Some letters outside ASCII become ASCII in upper case.
        if text.isascii() and text.upper() in PADDING_MODES:
            return text.upper()
        hint = f"; {PAD_FIRST}" if text.lower() in BORDERS else ""
        raise ShapeError(f"{op}: padding is {show(text)}, but it must be {expected}{hint}")
    items = as_items(op, "padding", value, most=4)
    if items is None:
        every = as_int(op, "padding", value, least=0, expected=expected)
        return (every, every), (every, every)
    if len(items) not in (2, 4):
        raise ShapeError(f"{op}: padding is {show(value)}, but it must be {expected}")
    names = order if len(items) == 4 else "HW"
    if as_items(op, "padding", items[0], most=2) is None:
        numbers = [
            as_int(op, f"padding for the {_DIMENSION[name]} dimension", item, least=0)
            for name, item in zip(names, items, strict=True)
        ]
        if len(numbers) == 4:
            raise ShapeError(
                f"{op}: padding is {show(value)}, but four numbers are no padding; write ((top, bottom), (left, right))"
            )
        height, width = numbers
        return (height, height), (width, width)
    pairs = {name: _padding_pair(op, name, item, expected) for name, item in zip(names, items, strict=True)}
    for name in "NC":
        if pairs.get(name, (0, 0)) != (0, 0):
            raise ShapeError(
                f"{op}: padding is {show(value)}, {pairs[name]} for the {_DIMENSION[name]} dimension in the order "
                f"{', '.join(order)}, but it must be (0, 0) there"
            )
    return pairs["H"], pairs["W"]


def _padding_pair(op: str, name: str, value: object, expected: str) -> tuple[int, int]:
    """(before, after) of one dimension."""
    argument = f"padding for the {_DIMENSION[name]} dimension"
    items = as_items(op, argument, value, most=2)
    if items is None:
        as_int(op, argument, value, least=0, expected="a pair (before, after)")
    if items is None or len(items) != 2:
        raise ShapeError(f"{op}: {argument} is {show(value)}; padding must be {expected}")
    before, after = (as_int(op, argument, item, least=0) for item in items)
    return before, after
