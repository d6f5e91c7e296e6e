"""From the arguments of a fused convolution to its result: as `_calls`, with the terms of the epilogue."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ._arguments import as_int, as_text, show
from ._arrays import (
    FLOATS,
    HALVES,
    Form,
    Operand,
    as_array,
    as_out,
    check_dtypes,
    check_out_dtype,
    check_out_form,
    check_overlap,
    form_of,
    fresh_form,
    is_cuda,
    settle_weak,
)
from ._calls import (
    Array,
    Call,
    Checked,
    Limits,
    PerformanceWarning,
    Settings,
    _repeats,
    allocate,
    axes_of,
    check_algorithm,
    check_format,
    check_packed,
    is_small,
    logger,
    on_gpu,
    planned,
    with_taps,
)
from ._cpu.fused import SumsOfNothing
from ._cpu.machine import this_machine
from ._cpu.table import TABLE
from ._cpu.threads import resolve
from ._epilogue import ACTIVATIONS, INT8_ACTIVATIONS, Epilogue, Terms
from ._errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError
from ._geometry import ConvGeometry, make_geometry, without_idle_taps
from ._int8 import check_terms
from ._keys import plain_settings
from ._options import Options, current
from ._packed import PackedFilter
from ._registry import FusedPlan, FusedStart, Problem, choose
from ._repeated import frozen

OP = "fused_conv2d"
# What a bias may be where it is not of the filter's dtype alone.
BIASES = {"int8": ("float32", "int32"), **{half: ("float32", half) for half in HALVES}}
# Zero points are checked against the dtypes later; this only keeps out what is no 32-bit number.
_LEAST = -(2**31)


class Given(NamedTuple):
    """The arguments of the epilogue that are no arrays of pixels, as given."""

    conv_scale: Any
    side_scale: Any
    activation: Any
    alpha: Any
    input_zero_point: Any
    output_zero_point: Any


class Static(NamedTuple):
    """What a plan may know of the epilogue, all of it hashable and of one type each."""

    scale_shape: tuple[int, ...]
    bias: tuple[tuple[int, ...], np.dtype[Any]] | None
    side: Form | None
    reads_side: bool
    onto_side: bool
    activation: str | None
    alpha: float
    input_zero_point: int
    output_zero_point: int


@dataclass(frozen=True, slots=True)
class FusedCall:
    """A prepared call, the dtype that its epilogue computes with, and how it starts when it is repeated, if at all."""

    call: Call
    computed: np.dtype[Any]
    start: FusedStart | None


FLOAT32, FLOAT64, INT32 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32)
# Numbers up to here are no infinity in float32, and rounding them says nothing of an overflow.
MODEST = 1e38


def numbers(name: str, value: Any) -> Array:
    """Return real numbers as an array of any shape."""
    array = as_array(OP, name, value)[0]
    dtype = array.dtype
    # Most are float32: a dtype's name takes a microsecond.
    if dtype != FLOAT32 and dtype.name not in FLOATS and dtype.kind not in "iu":
        raise DTypeError(f"{OP}: {name} has dtype {array.dtype!s:.60}, but must be floating-point or integer")
    return array


def _number(name: str, value: Any) -> float:
    """Return one real number."""
    if type(value) is float:
        return value
    array = numbers(name, value)
    if array.ndim:
        raise ShapeError(f"{OP}: {name} has shape {array.shape}, but must be a single number")
    return float(array)


def _integer(name: str, value: Any) -> int:
    return value if type(value) is int else as_int(OP, name, value, least=_LEAST)


def _rounded(value: Array | float, computed: np.dtype[Any]) -> Array:
    """Return numbers as a dense array of the dtype that the epilogue computes with."""
    if type(value) is float and abs(value) < MODEST:
        return np.array([value], computed)
    if type(value) is np.ndarray and value.dtype == computed and value.dtype.isnative:
        flags = value.flags
        if flags.c_contiguous and flags.aligned:
            return value.reshape(-1)
    with np.errstate(all="ignore"):
        return np.require(value, computed, ["C", "A"]).reshape(-1)


def _activation(value: Any) -> str | None:
    name = None if value is None else as_text(value)
    if value is not None and name is None:
        raise ArgumentTypeError(f"{OP}: activation is of type {type(value).__name__}, but must be None or a string")
    if name not in ACTIVATIONS:
        raise ArgumentError(
            f"{OP}: activation is {show(value)}, but must be one of {', '.join(map(repr, ACTIVATIONS))}"
        )
    return name


def _check_side_scale(value: Any, side_given: bool) -> float:
    """Return the scale, 1 or 0 by default; a number other than 0 needs a side input."""
    if value is None:
        return float(side_given)
    scale = _number("side_scale", value)
    if scale != 0 and not side_given:
        raise ArgumentError(f"{OP}: side_scale is {show(value)}, but there is no side_input; give one, or leave it out")
    return scale


def computed_dtype(filter_dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that the epilogue computes with."""
    return FLOAT64 if filter_dtype.name == "float64" else FLOAT32


def _check_scale(shape: tuple[int, ...], channels: int) -> bool:
    """Tell whether a scale is one number per output channel."""
    if shape in ((), (1,)):
        return False
    if shape != (channels,):
        raise ShapeError(
            f"{OP}: conv_scale has shape {shape}, but must be one number, or one for each of the filter's {channels} "
            f"output channels, shape ({channels},)"
        )
    return True


def _check_bias(bias: tuple[tuple[int, ...], np.dtype[Any]] | None, channels: int, dtype: str) -> str | None:
    """Return the dtype that a bias is added in."""
    if bias is None:
        return None
    shape, given = bias
    if shape != (channels,):
        raise ShapeError(
            f"{OP}: bias has shape {show(shape)}, but must have one number for each of the filter's {channels} output "
            f"channels, shape ({channels},)"
        )
    allowed = BIASES.get(dtype, (dtype,))
    if given.name not in allowed:
        raise DTypeError(
            f"{OP}: bias has dtype {given!s:.60}, but with a filter of dtype {dtype} it must be "
            f"{' or '.join(allowed)}; cast it, e.g. bias.astype('{allowed[0]}')"
        )
    return given.name if dtype == "int8" else "float64" if dtype == "float64" else "float32"


def _check_side(side: Form | None, shape: tuple[int, ...], dtype: str, out_dtype: np.dtype[Any]) -> None:
    if side is None:
        return
    if side[0] != shape:
        raise ShapeError(f"{OP}: side_input has shape {show(side[0])}, but the result has shape {shape}")
    allowed = dict.fromkeys(("int8", "uint8", out_dtype.name) if dtype == "int8" else (dtype, out_dtype.name))
    if side[2].name not in allowed:
        raise DTypeError(
            f"{OP}: side_input has dtype {side[2]!s:.60}, but with a filter of dtype {dtype} and a result of "
            f"{out_dtype.name} it must be {' or '.join(allowed)}"
        )


def _check_zero_point(name: str, value: int, dtype: np.dtype[Any], of: str) -> None:
    limits = np.iinfo(dtype) if dtype.name in ("int8", "uint8") else None
    least, most = (limits.min, limits.max) if limits else (0, 0)
    if not least <= value <= most:
        raise ArgumentError(
            f"{OP}: {name} is {show(value)}, but with {of} of dtype {dtype.name} it must be "
            + (f"from {least} to {most}" if limits else "0")
        )


def check_fused(
    forms: tuple[Form, Form], static: Static, settings: Settings, out: Form | None, limits: Limits
) -> Checked:
    """Check a call, the same on every device; depends on nothing but the arguments."""
    geometry = make_geometry(
        OP,
        forms[0][0],
        forms[1][0],
        strides=settings.strides,
        padding=settings.padding,
        dilations=settings.dilations,
        groups=settings.groups,
        data_format=settings.data_format,
        filter_format=settings.filter_format,
    )
    dtype = check_dtypes(OP, ("input", forms[0][2]), [("filter", forms[1][2])])
    check_format(OP, geometry, dtype)
    out_dtype = check_out_dtype(OP, settings.out_dtype, forms[1][2].newbyteorder("="))
    epilogue = _check_epilogue(static, geometry, dtype, forms[0][2], out_dtype)
    shape = geometry.output_shape
    if out is not None:
        check_out_form(OP, out, shape, out_dtype)
    roles = [("input", forms[0]), ("filter", forms[1])]
    if epilogue.side:
        assert static.side is not None
        roles.append(("side_input", static.side))
    axes = tuple(axes_of(role, geometry) for role, _ in roles)
    served, taps = without_idle_taps(geometry)
    operands = [Operand.of(role, form, order) for (role, form), order in zip(roles, axes, strict=True)]
    if taps is not None:
        operands[1] = with_taps(operands[1], taps)
    out_axes = axes_of("output", geometry)
    problem = Problem(
        geometry=served,
        dtype=dtype,
        operands=tuple(operands),
        out=Operand.of("out", out or fresh_form(shape, out_dtype), out_axes),
        accumulate=False,
        workspace_limit=limits.workspace_limit,
        precision=limits.precision,
        epilogue=epilogue,
        deterministic=limits.deterministic,
        autotune=limits.autotune,
    )
    return Checked(geometry, problem, shape, out_dtype, axes, out_axes, taps)


def prepare_fused(
    forms: tuple[Form, Form], static: Static, settings: Settings, out: Form | None, workspace_limit: int, precision: str
) -> FusedCall:
    """Check a call, choose its implementation and plan it; depends on nothing but the arguments and the machine."""
    algorithm = check_algorithm(OP, settings.algorithm)
    checked = check_fused(forms, static, settings, out, Limits(workspace_limit, precision))
    problem, machine = checked.problem, this_machine()
    choice = choose(TABLE, problem, machine, algorithm)
    logger.debug("%s: %s serves %s", OP, choice.chosen.name, checked.geometry)
    plan = SumsOfNothing(problem) if problem.empty else choice.chosen.plan(problem, machine)
    slow = choice.by_default and choice.chosen.family == "reference" and not problem.empty
    call = planned(checked, choice, plan, slow)
    start = None
    if isinstance(plan, FusedPlan) and not (call.nothing_to_sum or call.slow or call.taps):
        start = plan.start_fused()
    return FusedCall(call, computed_dtype(forms[1][2]), start)


def _check_epilogue(
    static: Static, geometry: ConvGeometry, dtype: str, image: np.dtype[Any], out_dtype: np.dtype[Any]
) -> Epilogue:
    """Check what the arrays' shapes and dtypes decide, and return the epilogue."""
    channels = geometry.out_channels
    per_channel = _check_scale(static.scale_shape, channels)
    bias = _check_bias(static.bias, channels, dtype)
    _check_side(static.side, geometry.output_shape, dtype, out_dtype)
    if dtype == "int8" and static.activation not in INT8_ACTIVATIONS:
        raise UnsupportedError(
            f"{OP}: activation is {static.activation!r}, but with int8 filters it must be one of "
            f"{', '.join(map(repr, INT8_ACTIVATIONS))}; others come after a result of out_dtype='float32'"
        )
    _check_zero_point("input_zero_point", static.input_zero_point, image, "an input")
    _check_zero_point("output_zero_point", static.output_zero_point, out_dtype, "a result")
    if dtype == "int8":
        check_terms(geometry, image.name, static.input_zero_point)
    return Epilogue(
        per_channel=per_channel,
        bias=bias,
        side=static.reads_side,
        activation=static.activation,
        alpha=static.alpha,
        input_zero_point=static.input_zero_point,
        output_zero_point=static.output_zero_point,
        onto_side=static.onto_side,
    )


repeat_fused = _repeats.serve_fused
_prepared = lru_cache(maxsize=1024)(prepare_fused)


def clear_prepared() -> None:
    """Forget every cached call."""
    _prepared.cache_clear()


def prepare_fused_cached(
    forms: tuple[Form, Form], static: Static, settings: Settings, out: Form | None, options: Options
) -> FusedCall:
    """Return the prepared call, from the cache where the same one came before."""
    rest = (out, options.workspace_limit, options.precision)
    plain = plain_settings(settings)
    if plain is None:
        return prepare_fused(forms, static, settings, *rest)
    return _prepared(forms, static, plain, *rest)


def _weakly(role: str, value: Any, dtype: np.dtype[Any] | None) -> Array:
    """Return an array, nested lists in the dtype given."""
    array, weak = as_array(OP, role, value)
    if weak and dtype is not None:
        with np.errstate(all="ignore"):
            return array.astype(dtype)
    return array


class Door(NamedTuple):
    """How the arguments of one device are read."""

    # Takes a name and a value, and returns real numbers as an array.
    numbers: Callable[[str, Any], Any]
    # Takes a role, a value, and the dtype of nested lists.
    array: Callable[[str, Any, np.dtype[Any] | None], Any]
    form: Callable[[Any], Form]


CPU = Door(numbers, _weakly, form_of)


class Parsed(NamedTuple):
    """The epilogue's arguments, each checked by itself."""

    static: Static
    conv_scale: Array | float
    side_scale: float
    bias: Array | None
    side: Array | None


def parse(
    given: Given, bias: Any, side_input: Any, filter_dtype: np.dtype[Any], side_given: bool, door: Door = CPU
) -> Parsed:
    """Read the epilogue's arguments; what they must be beside the others is checked when the call is prepared."""
    scale: Any = given.conv_scale
    if type(scale) is not float:
        scale = door.numbers("conv_scale", scale)
    computed = computed_dtype(filter_dtype)
    side_scale = _check_side_scale(given.side_scale, side_given)
    if side_scale not in (0.0, 1.0):
        side_scale = float(_rounded(side_scale, computed)[0])
    activation = _activation(given.activation)
    alpha = _number("alpha", given.alpha)
    beside_dtype = filter_dtype.newbyteorder("=") if filter_dtype.kind != "i" else None
    terms = None if bias is None else door.array("bias", bias, computed)
    beside = None if side_input is None else door.array("side_input", side_input, beside_dtype)
    static = Static(
        scale_shape=() if type(scale) is float else scale.shape,
        bias=None if terms is None else (terms.shape, terms.dtype),
        side=None if beside is None else door.form(beside),
        reads_side=side_scale != 0 and side_given,
        onto_side=False,
        activation=activation,
        alpha=alpha if activation == "leaky_relu" else 0.0,
        input_zero_point=_integer("input_zero_point", given.input_zero_point),
        output_zero_point=_integer("output_zero_point", given.output_zero_point),
    )
    return Parsed(static, scale, side_scale, terms, beside)


def execute_fused(
    values: tuple[Any, Any],
    bias: Any,
    side_input: Any,
    settings: Settings,
    given: Given,
    out: Any,
    num_threads: Any,
) -> Array:
    """Carry out one fused convolution."""
    packed = None
    if PackedFilter in map(type, values):
        packed = check_packed(OP, values[1], settings)
        values = values[0], packed.filter
    x, w = values
    if type(x) is not np.ndarray or type(w) is not np.ndarray:
        if is_cuda(x) or is_cuda(w):
            on_device: Array = on_gpu().execute_fused(values, bias, side_input, settings, given, out, num_threads)
            return on_device
        x, w = settle_weak([as_array(OP, "input", x), as_array(OP, "filter", w)])
    parsed = parse(given, bias, side_input, w.dtype, side_input is not None)
    result = None if out is None else as_out(OP, out)
    static, side = parsed.static, parsed.side
    if result is not None:
        onto_side = side is not None and _same_place(result, side)
        static = static._replace(onto_side=onto_side and static.reads_side)
        inputs = [("input", x), ("filter", w)]
        inputs += [("conv_scale", parsed.conv_scale)] if type(parsed.conv_scale) is np.ndarray else []
        inputs += [("bias", parsed.bias)] if parsed.bias is not None else []
        inputs += [("side_input", side)] if side is not None and not onto_side else []
        check_overlap(OP, result, tuple(inputs))
    options = current()
    threads = resolve(OP, num_threads, options)
    out_form = None if result is None else form_of(result)
    # What is prepared and what it is kept under are the same copies: another thread may change a list or an array.
    forms, settings = (form_of(x), form_of(w)), Settings(*frozen(settings))
    prepared = prepare_fused_cached(forms, static, settings, out_form, options)
    call = prepared.call
    if prepared.start is not None:
        kind = None if packed is None else packed.kind
        epilogue = given.activation, given.input_zero_point, given.output_zero_point
        key = (*settings, *epilogue, kind, options.workspace_limit, options.precision)
        fresh, start = is_small(call.shape, call.dtype), prepared.start
        _repeats.keep_fused(key, *forms, out_form, static, packed is not None, call, start, fresh)
    if result is None:
        result = allocate(OP, call.shape, call.dtype)
    if call.slow:
        reasons = "; ".join(f"{name}: {why}" for name, why in call.choice.candidates if why)
        message = f"{OP}: only the slow reference implementation can serve this call ({reasons})"
        warnings.warn(message, PerformanceWarning, stacklevel=3)
    if result.size:
        arrays = [x, w, side] if static.reads_side and side is not None else [x, w]
        _compute(prepared, arrays, parsed, result, threads, packed)
    return result if out is None else out


def _same_place(out: Array, side: Array) -> bool:
    """Tell whether two arrays are the same elements of memory."""
    return (
        out.ctypes.data == side.ctypes.data
        and out.shape == side.shape
        and out.strides == side.strides
        and out.dtype == side.dtype
    )


def _compute(
    prepared: FusedCall, arrays: list[Array], parsed: Parsed, result: Array, threads: int, packed: PackedFilter | None
) -> None:
    call = prepared.call
    plan, epilogue = call.plan, call.problem.epilogue
    assert isinstance(plan, FusedPlan) and epilogue is not None
    bias = parsed.bias
    terms = Terms(
        conv_scale=_rounded(parsed.conv_scale, prepared.computed),
        side_scale=parsed.side_scale if epilogue.side else 0.0,
        bias=None if bias is None else _rounded(bias, INT32 if epilogue.bias == "int32" else prepared.computed),
    )
    views = arrays
    if call.transposed:
        views = [array.transpose(axes) for array, axes in zip(arrays, call.axes, strict=True)]
    if call.taps is not None:
        views = [views[0], views[1][call.taps], *views[2:]]
    out = result.transpose(call.out_axes)
    plan.run_fused(views, terms, out, threads, None if packed is None else _keeper(packed, call.taps))


def _keeper(packed: PackedFilter, taps: tuple[slice, slice] | None) -> Callable[..., Any]:
    """Return what keeps packed copies of a filter for a plan's specification."""

    def pack(plan: Any, make: Callable[[], Any]) -> Any:
        return packed.packed(plan, taps, make)

    return pack
