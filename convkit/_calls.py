"""From arguments to a result: check, choose and plan a call once, then run it as often as it comes."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arguments import as_text, is_a, show
from ._arrays import (
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
from ._cpu.machine import available_memory, this_machine
from ._cpu.table import TABLE
from ._cpu.threads import resolve
from ._errors import ArgumentError, ArgumentTypeError, UnsupportedError, WorkspaceError
from ._formats import DATA_AXES, DEFAULT_FILTER_FORMAT, VIEW_AXES
from ._geometry import ConvGeometry, make_geometry, without_idle_taps
from ._int8 import check_terms
from ._keys import plain_settings
from ._options import Options, current
from ._packed import PackedFilter
from ._registry import FAMILIES, Choice, Plan, Problem, Table, choose
from ._repeated import Repeats, frozen

logger = logging.getLogger("convkit")
logger.addHandler(logging.NullHandler())

Array = npt.NDArray[Any]

IN_ORDER = (0, 1, 2, 3)

# Results below this size are allocated without asking how much memory there is, which takes some microseconds.
LARGE_BYTES = 16 * 2**20
# Results of at least so many bytes begin with a line of the cache, so that their vectors can be stored past the caches,
# which takes some microseconds.
ALIGNED_BYTES, ALIGNMENT = 4 * 2**20, 64


class PerformanceWarning(UserWarning):
    """A call is served, but by a slow implementation."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Which operand of an operation is an array, which a shape, and what the result is."""

    arrays: tuple[str, ...]
    shape_argument: str | None
    image: str | None
    result: str


# The first array may be an integer image where `image` names it; the dtype is that of the last array.
SIGNATURES = {
    "conv2d": Signature(("input", "filter"), None, "input", "output"),
    "conv2d_backprop_filter": Signature(("input", "out_backprop"), "filter_shape", "input", "filter"),
    "conv2d_backprop_input": Signature(("filter", "out_backprop"), "input_shape", None, "input"),
}


class Limits(NamedTuple):
    """The options in force that a plan depends on."""

    workspace_limit: int
    precision: str
    deterministic: bool = False
    autotune: bool = False


class Settings(NamedTuple):
    """The keyword arguments that shape a call, as given."""

    strides: Any
    padding: Any
    dilations: Any
    groups: Any
    data_format: Any
    filter_format: Any
    out_dtype: Any
    algorithm: Any


@dataclass(frozen=True, slots=True)
class Checked:
    """A call that is legal: its sizes, its problem, and how its arrays are seen by plans."""

    geometry: ConvGeometry
    problem: Problem
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[tuple[int, ...], ...]
    out_axes: tuple[int, ...]
    taps: tuple[slice, slice] | None


@dataclass(frozen=True, slots=True)
class Call(Checked):
    """Everything about a call but its values: checked, chosen and planned."""

    choice: Choice
    plan: Plan
    nothing_to_sum: bool
    slow: bool
    # Whether an array is not stored in the order that plans see it in.
    transposed: bool


def axes_of(role: str, geometry: ConvGeometry) -> tuple[int, ...]:
    """Return how to transpose an array to the order that plans see it in."""
    return VIEW_AXES[geometry.filter_format if role == "filter" else geometry.data_format]


def check_format(op: str, geometry: ConvGeometry, dtype: str) -> None:
    """Raise if the format does not go with the dtype."""
    if geometry.data_format not in DATA_AXES and dtype != "int8":
        raise UnsupportedError(
            f"{op}: data_format is {geometry.data_format!r}, which holds int8 arrays only, but the arrays are {dtype}"
        )


def check_algorithm(op: str, algorithm: Any, table: Table = TABLE) -> str:
    """Return the name of a family, or ``"auto"``."""
    name = as_text(algorithm)
    if name is None:
        raise ArgumentTypeError(f"{op}: algorithm is of type {type(algorithm).__name__}, but must be a string")
    algorithm = name
    if algorithm != "auto" and algorithm not in FAMILIES:
        here = ", ".join(sorted({repr(candidate.family) for row in table.values() for candidate in row}))
        raise ArgumentError(f"{op}: algorithm is {show(algorithm)}, but must be 'auto' or one of {here}")
    return name


def check(
    op: str,
    forms: tuple[Form, ...],
    shape_argument: Any,
    settings: Settings,
    out: Form | None,
    accumulate: bool,
    limits: Limits,
    packed: bool = False,
) -> Checked:
    """Check a call, the same on every device; depends on nothing but the arguments."""
    signature = SIGNATURES[op]
    shapes = {role: form[0] for role, form in zip(signature.arrays, forms, strict=True)}
    geometry = make_geometry(
        op,
        shapes.get("input", shape_argument),
        shapes.get("filter", shape_argument),
        shapes.get("out_backprop"),
        strides=settings.strides,
        padding=settings.padding,
        dilations=settings.dilations,
        groups=settings.groups,
        data_format=settings.data_format,
        filter_format=settings.filter_format,
    )
    dtypes = [(role, form[2]) for role, form in zip(signature.arrays, forms, strict=True)]
    image = dtypes.pop(0) if signature.image else None
    dtype = check_dtypes(op, image, dtypes)
    check_format(op, geometry, dtype)
    if dtype == "int8":
        check_terms(geometry, forms[0][2].name, 0)
    out_dtype = check_out_dtype(op, settings.out_dtype, dtypes[0][1].newbyteorder("="))
    shape = {
        "output": geometry.output_shape,
        "filter": geometry.filter_shape,
        "input": geometry.input_shape,
    }[signature.result]
    if out is not None:
        check_out_form(op, out, shape, out_dtype)
    axes = tuple(axes_of(role, geometry) for role in signature.arrays)
    out_axes = axes_of(signature.result, geometry)
    served, taps = without_idle_taps(geometry)
    operands = [Operand.of(role, form, order) for role, form, order in zip(signature.arrays, forms, axes, strict=True)]
    result = Operand.of("out", out or fresh_form(shape, out_dtype), out_axes)
    if taps is not None:
        operands = [with_taps(operand, taps) if operand.role == "filter" else operand for operand in operands]
        result = with_taps(result, taps) if signature.result == "filter" else result
    problem = Problem(
        geometry=served,
        dtype=dtype,
        operands=tuple(operands),
        out=result,
        accumulate=accumulate,
        workspace_limit=limits.workspace_limit,
        precision=limits.precision,
        deterministic=limits.deterministic,
        autotune=limits.autotune,
        packed=packed,
    )
    return Checked(geometry, problem, shape, out_dtype, axes, out_axes, taps)


def planned(checked: Checked, choice: Choice, plan: Plan, slow: bool) -> Call:
    """Return a call that was checked, with who serves it and how."""
    return Call(
        geometry=checked.geometry,
        problem=checked.problem,
        choice=choice,
        plan=plan,
        shape=checked.shape,
        dtype=checked.dtype,
        axes=checked.axes,
        out_axes=checked.out_axes,
        nothing_to_sum=checked.problem.empty,
        taps=checked.taps,
        slow=slow,
        transposed=any(order != IN_ORDER for order in checked.axes),
    )


def prepare(
    op: str,
    forms: tuple[Form, ...],
    shape_argument: Any,
    settings: Settings,
    out: Form | None,
    accumulate: bool,
    workspace_limit: int,
    precision: str,
    packed: bool = False,
) -> Call:
    """Check a call, choose its implementation and plan it; depends on nothing but the arguments and the machine."""
    algorithm = check_algorithm(op, settings.algorithm)
    limits = Limits(workspace_limit, precision)
    checked = check(op, forms, shape_argument, settings, out, accumulate, limits, packed)
    machine = this_machine()
    choice = choose(TABLE, checked.problem, machine, algorithm)
    logger.debug("%s: %s serves %s", op, choice.chosen.name, checked.geometry)
    slow = choice.by_default and choice.chosen.family == "reference"
    return planned(checked, choice, choice.chosen.plan(checked.problem, machine), slow)


def with_taps(operand: Operand, taps: tuple[slice, slice]) -> Operand:
    """Return a filter's operand with some of its taps only."""
    rows, columns = (part.stop - part.start for part in taps)
    return replace(operand, shape=(rows, columns, *operand.shape[2:]))


# Calls kept ready to be repeated.
MOST_REPEATS = 1024
_repeats = Repeats(MOST_REPEATS)
repeat = _repeats.serve
# Calls in the packed format, whose arrays have more axes than those are looked up with.
_of_five_axes = lru_cache(maxsize=256)(prepare)


def prepare_cached(
    op: str,
    arrays: Sequence[Array],
    shape_argument: Any,
    settings: Settings,
    out: Array | None,
    accumulate: bool,
    options: Options,
    packed: PackedFilter | None,
) -> Call:
    """Return the prepared call, from the cache where the same one came before."""
    signature = SIGNATURES[op]
    packed_at = 0 if packed is None else 1 + signature.arrays.index("filter")
    kind = None if packed is None else packed.kind
    given = (op, shape_argument, *settings, kind, options.workspace_limit, options.precision)
    first, second = arrays
    call: Call | None = _repeats.find(given, first, second, out, accumulate, packed_at)
    if call is None:
        # What is prepared and what it is kept under are the same copies: another thread may change a list or an array.
        given = frozen(given)
        forms = (form_of(first), form_of(second))
        out_form = None if out is None else form_of(out)
        packed_format = first.ndim > len(IN_ORDER) and shape_argument is None
        plain = plain_settings(Settings(*given[2:10])) if packed_format else None
        if plain is None:
            called, limit, precision = Settings(*given[2:10]), options.workspace_limit, options.precision
            keeps = packed is not None
            call = prepare(op, forms, given[1], called, out_form, accumulate, limit, precision, keeps)
        else:
            call = _of_five_axes(op, forms, None, plain, out_form, accumulate, *given[-2:])
        simple = not (call.nothing_to_sum or call.slow or call.taps)
        start = call.plan.start() if simple else None
        _repeats.keep(given, *forms, out_form, accumulate, packed_at, call, start, is_plain(call.shape, call.dtype))
    return call


def clear_prepared() -> None:
    """Forget every cached call."""
    _repeats.clear()
    _of_five_axes.cache_clear()


def execute(
    op: str,
    values: tuple[Any, ...],
    shape_argument: Any,
    settings: Settings,
    out: Any,
    num_threads: Any,
    accumulate: Any = False,
) -> Array:
    """Carry out one call of an operation; the public functions of `_ops` are thin over this."""
    signature = SIGNATURES[op]
    packed = None
    if PackedFilter in map(type, values):
        place = signature.arrays.index("filter") if "filter" in signature.arrays else 0
        packed = check_packed(op, values[place] if signature.arrays[place] == "filter" else None, settings)
        values = tuple([packed.filter if i == place else value for i, value in enumerate(values)])
    arrays: list[Array] = [value for value in values if type(value) is np.ndarray]
    if len(arrays) < len(values):
        if any(map(is_cuda, values)):
            on_device: Array = on_gpu().execute(op, values, shape_argument, settings, out, num_threads, accumulate)
            return on_device
        arrays = settle_weak([as_array(op, role, value) for role, value in zip(signature.arrays, values, strict=True)])
    given = out
    if out is not None:
        out = as_out(op, out)
    if accumulate is not False:
        check_accumulate(op, accumulate, out)
    options = current()
    threads = resolve(op, num_threads, options)
    call = prepare_cached(
        op,
        arrays,
        shape_argument,
        settings,
        out,
        accumulate,
        options,
        packed,
    )
    result: Array = allocate(op, call.shape, call.dtype) if out is None else out
    if out is not None:
        check_overlap(op, result, tuple(zip(signature.arrays, arrays, strict=True)))
    if call.nothing_to_sum:
        if not accumulate:
            result[...] = 0
    else:
        if call.slow:
            reasons = "; ".join(f"{name}: {why}" for name, why in call.choice.candidates if why)
            message = f"{op}: only the slow reference implementation can serve this call ({reasons})"
            warnings.warn(message, PerformanceWarning, stacklevel=3)
        _compute(call, arrays, result, threads, packed)
    return result if given is None else given


def _compute(call: Call, arrays: list[Array], result: Array, threads: int, packed: PackedFilter | None) -> None:
    if has_idle_sums(call):
        result[...] = 0
    views, out = seen_by_plans(call, arrays, result)
    if packed is None:
        call.plan.run(views, out, threads)
        return
    taps, keeper = call.taps, packed

    def pack(plan: Any, make: Callable[[], Any]) -> Any:
        return keeper.packed(plan, taps, make)

    call.plan.run_packed(views, out, threads, pack)


def has_idle_sums(call: Call) -> bool:
    """Tell whether plans leave some of a filter gradient to be set to zero: taps that meet nothing but padding."""
    return call.taps is not None and call.problem.op == "conv2d_backprop_filter" and not call.problem.accumulate


def seen_by_plans(call: Call, arrays: list[Any], result: Any) -> tuple[list[Any], Any]:
    """Return arrays and result as views in the orders N, H, W, C and H, W, I, O, without idle taps."""
    views = arrays
    if call.transposed:
        views = [array.transpose(axes) for array, axes in zip(arrays, call.axes, strict=True)]
    out = result.transpose(call.out_axes)
    if call.taps is not None:
        # A fused convolution names its arrays as `conv2d` does.
        signature = SIGNATURES.get(call.geometry.op, SIGNATURES["conv2d"])
        if signature.result == "filter":
            out = out[call.taps]
        else:
            place = signature.arrays.index("filter")
            views = [view[call.taps] if i == place else view for i, view in enumerate(views)]
    return views, out


def on_gpu() -> Any:
    """Return the front of the GPU side, which nothing imports before an array on a GPU is seen."""
    from . import _calls_gpu

    return _calls_gpu


def check_packed(op: str, value: Any, settings: Settings) -> PackedFilter:
    """Return a packed filter if it is where a filter belongs, and for this operation and format."""
    if type(value) is not PackedFilter:
        raise ArgumentTypeError(f"{op}: a packed filter is given for another argument than filter")
    if value.op != op:
        raise ArgumentError(f"{op}: filter was packed for {value.op}, but is used for {op}")
    wanted = settings.filter_format
    if wanted is None and is_a(settings.data_format, str):
        wanted = DEFAULT_FILTER_FORMAT.get(settings.data_format)
    if wanted != value.filter_format:
        raise ArgumentError(f"{op}: filter was packed in {value.filter_format}, but filter_format is {show(wanted)}")
    return value


def check_accumulate(op: str, accumulate: Any, out: Any) -> bool:
    """Return ``accumulate`` if it is a truth value that goes with ``out``."""
    if not is_a(accumulate, bool):
        raise ArgumentTypeError(f"{op}: accumulate is of type {type(accumulate).__name__}, but must be True or False")
    if accumulate and out is None:
        raise ArgumentError(f"{op}: accumulate=True adds to out, but out is None")
    return bool(accumulate)


def is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether a result is allocated without asking how much memory there is."""
    return math.prod(shape) * dtype.itemsize <= LARGE_BYTES


def is_plain(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether a result may begin anywhere in memory."""
    return math.prod(shape) * dtype.itemsize < ALIGNED_BYTES


def allocate(op: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array, or raise WorkspaceError if the memory there is cannot hold it."""
    need = math.prod(shape) * dtype.itemsize
    if not is_small(shape, dtype):
        free = available_memory()
        if free is not None and need > free:
            raise WorkspaceError(
                f"{op}: the result has shape {shape} and dtype {dtype.name} and takes {need} bytes, but only {free} "
                "bytes of memory are available"
            )
    try:
        if is_plain(shape, dtype):
            return np.empty(shape, dtype)
        memory = np.empty(need + ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % ALIGNMENT
        return memory[first : first + need].view(dtype).reshape(shape)
    except (MemoryError, ValueError):
        raise WorkspaceError(f"{op}: the result's {need} bytes, shape {shape}, cannot be allocated") from None
