"""Run an operation by every family and in every layout, on NHWC and HWIO arrays."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import reference

import convkit

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = (np.dtype(np.float16), BFLOAT16)
WIDE = (np.dtype(np.float32), np.dtype(np.float64))
DTYPES = (*WIDE, *HALVES)


@dataclass(frozen=True)
class Layout:
    """A data format and a filter format."""

    data: str
    filter: str

    @property
    def keywords(self) -> dict:
        """The two as keyword arguments."""
        return {"data_format": self.data, "filter_format": self.filter}


NHWC, NCHW = Layout("NHWC", "HWIO"), Layout("NCHW", "OIHW")
LAYOUTS = (NHWC, NCHW, Layout("NHWC", "OHWI"))
ALL_LAYOUTS = tuple(Layout(d, f) for d in ("NHWC", "NCHW") for f in ("HWIO", "OIHW", "OHWI"))


@dataclass(frozen=True)
class Call:
    """One call of an operation, said in NHWC and HWIO: the arguments in the order of the operation's own."""

    op: str
    arguments: tuple
    geometry: dict = field(default_factory=dict)

    def in_layout(self, layout: Layout, *dtypes: np.dtype) -> tuple:
        """Return the arguments in ``layout``; arrays cast to the one dtype given, or to one each."""
        to_data = (reference.DATA_AXES[layout.data], reference.to_data_format, layout.data)
        to_filter = (reference.FILTER_AXES[layout.filter], reference.to_filter_format, layout.filter)
        roles = (to_data, to_filter, to_data)[: len(self.arguments)]
        kinds = iter(dtypes * 2 if len(dtypes) == 1 else dtypes)
        return tuple(
            transpose(argument, name).astype(next(kinds), copy=False)
            if isinstance(argument, np.ndarray)
            else reference.shape_in(argument, axes)
            for argument, (axes, transpose, name) in zip(self.arguments, roles, strict=True)
        )

    def result_to(self, result: np.ndarray, layout: Layout) -> np.ndarray:
        """Return an NHWC or HWIO result in ``layout``."""
        if self.op == "conv2d_backprop_filter":
            return reference.to_filter_format(result, layout.filter)
        return reference.to_data_format(result, layout.data)

    def result_from(self, result: np.ndarray, layout: Layout) -> np.ndarray:
        """Return a result in ``layout`` as NHWC or HWIO."""
        if self.op == "conv2d_backprop_filter":
            return reference.from_filter_format(result, layout.filter)
        return reference.from_data_format(result, layout.data)

    def reference(self) -> np.ndarray:
        """Return what the independent reference gives."""
        return reference.OPS[self.op](*self.arguments, **self.geometry)

    def bound(self, dtype: np.dtype, scale: np.ndarray | None = None) -> np.ndarray:
        """Return the error that the contract allows, element by element, for sums kept in ``dtype``.

        ``scale`` are the sums of absolute values, where they are known.
        """
        shapes = [a.shape if isinstance(a, np.ndarray) else a for a in self.arguments]
        geometry = {key: value for key, value in self.geometry.items() if key != "groups"}
        y_shape = reference.output_shape(shapes[0], shapes[1], **geometry)
        length = reference.terms(self.op, shapes[0], shapes[1], y_shape)
        if scale is None:
            scale = reference.magnitude(self.op, *self.arguments, **self.geometry)
        return reference.error_bound(length, scale, dtype)


def operation(op: str):
    """Return convkit's function for ``op``."""
    return getattr(convkit, op)


def three_calls(x, w, dy, **geometry) -> tuple[Call, Call, Call]:
    """Return the forward call and the two gradients of one layer."""
    return (
        Call("conv2d", (x, w), geometry),
        Call("conv2d_backprop_filter", (x, w.shape, dy), geometry),
        Call("conv2d_backprop_input", (x.shape, w, dy), geometry),
    )


def layer(rng, x_shape, w_shape, limit: int = 3, **geometry) -> tuple[Call, Call, Call]:
    """Return the three calls of a layer of small integers, exact in every dtype and in any order of summation."""
    no_groups = {key: value for key, value in geometry.items() if key != "groups"}
    y_shape = reference.output_shape(x_shape, w_shape, **no_groups)
    return three_calls(*(integers(rng, shape, limit) for shape in (x_shape, w_shape, y_shape)), **geometry)


def integers(rng, shape, limit: int = 3) -> np.ndarray:
    """Return random whole numbers from ``-limit`` to ``limit``, as float64."""
    return rng.integers(-limit, limit, shape, endpoint=True).astype(np.float64)


# Its transforms round even on whole numbers; winograd_cases.py holds it against a bound of its own.
TRANSFORMING = "winograd"


def families(op: str, *arguments, **keywords) -> list[str]:
    """Return each family that sums products and that the registry offers without an objection.

    And ``"auto"`` before them, if it stands for one of them.
    """
    explanation = convkit.explain(op, *arguments, **keywords)
    able = (name.split(":")[1].split("_")[0] for name, objection in explanation.candidates if objection is None)
    auto = [] if TRANSFORMING in explanation.implementation else ["auto"]
    return [*auto, *(family for family in dict.fromkeys(able) if family != TRANSFORMING)]


def each_family(call: Call, layout: Layout, *dtypes: np.dtype, **keywords) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what each family gives, in NHWC or HWIO."""
    arguments = call.in_layout(layout, *dtypes)
    keywords = {**call.geometry, **layout.keywords, **keywords}
    for family in families(call.op, *arguments, **keywords):
        yield family, call.result_from(operation(call.op)(*arguments, algorithm=family, **keywords), layout)


def assert_exact(call: Call, layouts=LAYOUTS, dtypes=DTYPES, expected: np.ndarray | None = None) -> None:
    """Check that every family gives the reference to the last bit, rounded once to each dtype, in each layout."""
    expected = call.reference() if expected is None else expected
    for layout in layouts:
        for dtype in dtypes:
            rounded = expected.astype(np.float32).astype(dtype) if dtype in HALVES else expected.astype(dtype)
            for family, result in each_family(call, layout, dtype):
                assert result.dtype == dtype
                np.testing.assert_array_equal(result, rounded, err_msg=f"{call.op} by {family} in {layout}, {dtype}")


def assert_close(call: Call, layouts=LAYOUTS, dtypes=WIDE) -> None:
    """Check that every family keeps the error contract on the float64 values of the call."""
    expected = call.reference()
    for dtype in dtypes:
        bound = 2 * call.bound(dtype)  # in float64 the reference may be off as much
        # The reference sees the values as the dtype holds them only if they were exact in it.
        assert all(np.array_equal(a, a.astype(dtype)) for a in call.arguments if isinstance(a, np.ndarray))
        for layout in layouts:
            for family, result in each_family(call, layout, dtype):
                excess = np.max(np.abs(result - expected) - bound, initial=0)
                assert excess <= 0, f"{call.op} by {family} in {layout}, {dtype}: {excess} beyond the bound"


def floats(rng, shape) -> np.ndarray:
    """Return random normal numbers that float32 holds exactly, as float64."""
    return rng.standard_normal(shape, np.float32).astype(np.float64)
