"""What will run, and why: the answer to `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._arguments import is_a, show
from ._arrays import (
    FLOATS,
    INT8_IMAGES,
    INT8_RESULTS,
    INTEGERS,
    Form,
    as_array,
    as_out,
    form_of,
    fresh_form,
    is_cuda,
    settle_weak,
)
from ._calls import SIGNATURES, Call, Settings, check_accumulate, prepare
from ._cpu.threads import resolve
from ._errors import ArgumentError, ArgumentTypeError, DTypeError
from ._foreign import check_names
from ._fused import CPU, Door, Given, Static, parse, prepare_fused_cached
from ._geometry import ConvGeometry
from ._options import Options, current
from ._packed import PackedFilter

_KEYWORDS: dict[str, Any] = {
    "strides": 1,
    "padding": "VALID",
    "dilations": 1,
    "groups": 1,
    "data_format": "NHWC",
    "filter_format": None,
    "out_dtype": None,
    "algorithm": "auto",
}
_NAMES = ("op", "arrays_or_shapes", "device", "dtype", *_KEYWORDS, "out", "num_threads")
# What goes by keyword to one operation alone; a bias and a side input go either way.
_OWN_KEYWORDS: dict[str, dict[str, Any]] = {
    "fused_conv2d": {
        "conv_scale": 1.0,
        "side_scale": None,
        "activation": None,
        "alpha": 0.2,
        "input_zero_point": 0,
        "output_zero_point": 0,
    }
}
# Arguments of each operation in order.
_ARGUMENTS = {
    "conv2d": ("input", "filter"),
    "conv2d_backprop_filter": ("input", "filter_shape", "out_backprop"),
    "conv2d_backprop_input": ("input_shape", "filter", "out_backprop"),
    "fused_conv2d": ("input", "filter", "bias", "side_input"),
}
# How many of them there must be.
_NEEDED = {"fused_conv2d": 2}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which implementation serves a call, why the others do not, and what it costs.

    Attributes
    ----------
    op : str
        The operation.
    implementation : str
        Name of the implementation that serves, such as ``"cpu:im2col_f32"``.
    candidates : tuple of (str, str or None)
        Every implementation in the order of preference, with its objection, or None if it could serve.
    reluctances : tuple of (str, str)
        Implementations that could serve, but were passed over as likely to be slower, with the reason.
    workspace : int
        Most bytes of scratch memory that the call takes on `num_threads` threads.
    copies : tuple of str
        What is converted or copied on the way, one sentence each.
    flops : int
        Multiplications plus additions.
    geometry : ConvGeometry
        Sizes, strides, dilations and padding, all explicit.
    output_shape : tuple of int
        Shape of the result.
    num_threads : int
        Threads that the call may use; 1 on a GPU.
    """

    op: str
    implementation: str
    candidates: tuple[tuple[str, str | None], ...]
    reluctances: tuple[tuple[str, str], ...]
    workspace: int
    copies: tuple[str, ...]
    flops: int
    geometry: ConvGeometry
    output_shape: tuple[int, ...]
    num_threads: int

    def __str__(self) -> str:
        g = self.geometry
        lines = [
            f"{self.op}: {self.implementation}, {self.num_threads} thread{'s' if self.num_threads > 1 else ''}",
            f"  input {g.input_shape} {g.data_format}, filter {g.filter_shape} {g.filter_format}, "
            f"output {g.output_shape}",
            f"  strides {g.strides}, dilations {g.dilations}, padding before {g.pad_before} after {g.pad_after}, "
            f"groups {g.groups}",
            f"  result {self.output_shape}; {self.flops} FLOPs; workspace {self.workspace} bytes",
            *(f"  copied: {sentence}" for sentence in self.copies or ("nothing",)),
        ]
        doubts, passed = dict(self.reluctances), False
        for name, objection in self.candidates:
            passed |= name == self.implementation
            other = "comes later in the list" if passed else "another algorithm is asked for"
            status = objection or "could serve, but " + doubts.get(name, other)
            status = "serves" if name == self.implementation else status
            lines.append(f"  {name}: {status}")
        return "\n".join(lines)


def explain(
    op: Any = None, *arrays_or_shapes: Any, device: Any = "cpu", dtype: Any = "float32", **keywords: Any
) -> Explanation:
    """Tell which implementation would serve a call, why the others would not, and what it takes.

    Parameters
    ----------
    op : {"conv2d", "conv2d_backprop_filter", "conv2d_backprop_input", "fused_conv2d"}
        The operation.
    *arrays_or_shapes
        The operation's positional arguments; for every array its shape will do, as a tuple of ints.
    device : {"cpu", "gpu"}
        Where the call would run, if only shapes are given; ``"gpu"`` is CuPy's current device.
    dtype : dtype, default float32
        The dtype of arrays that are given as shapes; with ``"int8"`` and ``"uint8"`` images the filter is int8 where it
        can be, and a bias float32.
    **keywords
        The operation's keyword arguments.

    Returns
    -------
    Explanation
        Printable; nothing is computed.

    Raises
    ------
    ConvkitError
        What the operation itself would raise, other than for an overlap of `out` with an input, or a result too
        large for the memory there is.
    """
    if not is_a(op, str):
        raise ArgumentTypeError(f"explain: op is of type {type(op).__name__}, but must be a string")
    if op not in _ARGUMENTS:
        raise ArgumentError(f"explain: op is {show(op)}, but must be one of {', '.join(map(repr, _ARGUMENTS))}")
    if not is_a(device, str):
        raise ArgumentTypeError(f"explain: device is of type {type(device).__name__}, but must be a string")
    if device not in ("cpu", "gpu"):
        raise ArgumentError(f"explain: device is {show(device)}, but must be 'cpu' or 'gpu'")
    keywords = dict(keywords)
    out, num_threads = keywords.pop("out", None), keywords.pop("num_threads", None)
    accumulates = op == "conv2d_backprop_filter"
    accumulate = check_accumulate(op, keywords.pop("accumulate", False), out) if accumulates else False
    expected, own = _ARGUMENTS[op], _OWN_KEYWORDS.get(op, {})
    needed = _NEEDED.get(op, len(expected))
    given = dict(zip(expected, arrays_or_shapes, strict=False))
    given.update((name, keywords.pop(name)) for name in expected[needed:] if name in keywords and name not in given)
    names = (*_NAMES, *own, *expected[needed:], *(["accumulate"] if accumulates else []))
    known = _KEYWORDS.keys() | own.keys()
    check_names("explain", {}, {name: None for name in keywords if name not in known}, names)
    if not needed <= len(arrays_or_shapes) <= len(expected):
        raise ArgumentTypeError(
            f"explain: {op} takes {len(expected)} arguments ({', '.join(expected)}), "
            f"but {len(arrays_or_shapes)} are given"
        )
    options = current()
    threads = resolve(op, num_threads, options)
    settings = Settings(**{name: keywords.pop(name, default) for name, default in _KEYWORDS.items()})
    if device == "gpu" or any(is_cuda(unpacked(value)) for value in given.values()):
        # Nothing imports the GPU side before it is asked for.
        from . import _explain_gpu

        terms = Given(**{**own, **keywords}) if own else None
        call = _explain_gpu.call_of(op, given, settings, terms, dtype, out, accumulate, options)
        threads = 1
    elif op == "fused_conv2d":
        out_form = None if out is None else form_of(as_out(op, out))
        call = _fused_call(given, settings, Given(**{**own, **keywords}), dtype, out_form, options)
    else:
        out_form = None if out is None else form_of(as_out(op, out))
        shape_argument = given.pop(SIGNATURES[op].shape_argument or "", None)
        limit, precision = options.workspace_limit, options.precision
        packed = any(type(value) is PackedFilter for value in given.values())
        forms = _forms(op, given, dtype)
        call = prepare(op, forms, shape_argument, settings, out_form, accumulate, limit, precision, packed)
    return Explanation(
        op=op,
        implementation=call.choice.chosen.name,
        candidates=call.choice.candidates,
        reluctances=call.choice.reluctances,
        workspace=0 if call.nothing_to_sum or 0 in call.shape else call.plan.workspace(threads),
        copies=call.plan.copies,
        flops=call.geometry.flops,
        geometry=call.geometry,
        output_shape=call.shape,
        num_threads=threads,
    )


def _forms(op: str, given: dict[str, Any], dtype: Any) -> tuple[Form, ...]:
    """Return how the arrays lie in memory, new and dense where only a shape is given."""
    forms, arrays = [], []
    for role, value in given.items():
        if is_shape(value):
            forms.append(form_of_shape(op, role, value, dtype))
        else:
            array = unpacked(value)
            arrays.append((len(forms), as_array(op, role, array)))
            forms.append(fresh_form((), np.dtype(np.float32)))
    settled = settle_weak([pair for _, pair in arrays])
    for (place, _), array in zip(arrays, settled, strict=True):
        forms[place] = form_of(array)
    return tuple(forms)


def _of_role(op: str, role: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of an array of which only the shape is given."""
    if op in INT8_RESULTS and role == "filter" and dtype.name in INT8_IMAGES:
        return np.dtype(np.int8)
    return dtype


def _fused_call(
    given: dict[str, Any], settings: Settings, terms: Given, dtype: Any, out: Form | None, options: Options
) -> Call:
    """Return a fused call, prepared."""
    image, weights = _forms("fused_conv2d", {"input": given["input"], "filter": given["filter"]}, dtype)
    static = static_of(given, terms, weights[2], CPU)
    return prepare_fused_cached((image, weights), static, settings, out, options).call


def static_of(given: dict[str, Any], terms: Given, filter_dtype: np.dtype[Any], door: Door) -> Static:
    """Return what a plan may know of an epilogue of which shapes may be given in place of arrays."""
    bias: Any = given.get("bias")
    side: Any = given.get("side_input")
    parsed = parse(
        terms,
        None if is_shape(bias) else bias,
        None if is_shape(side) else side,
        filter_dtype,
        side is not None,
        door,
    )
    static, is_int8 = parsed.static, filter_dtype.name == "int8"
    if is_shape(bias):
        static = static._replace(bias=(bias, np.dtype(np.float32) if is_int8 else filter_dtype))
    if is_shape(side):
        static = static._replace(side=fresh_form(side, np.dtype(np.int8) if is_int8 else filter_dtype))
    return static


def form_of_shape(op: str, role: str, shape: Any, dtype: Any) -> Form:
    """Return the form of a new array of which only the shape is given."""
    return fresh_form(tuple(map(int, shape)), _of_role(op, role, _dtype(dtype)))


def unpacked(value: Any) -> Any:
    """Return what a packed filter was made of; of no other object anything is asked."""
    return value.filter if type(value) is PackedFilter else value


def is_shape(value: Any) -> bool:
    """Tell whether a value is a shape, and not an array."""
    return is_a(value, tuple) and all(
        is_a(item, (int, np.integer)) and not is_a(item, bool) and item >= 0 for item in value
    )


def _dtype(value: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(_bfloat16() if isinstance(value, str) and value == "bfloat16" else value)
    except Exception:
        raise DTypeError(f"explain: dtype is {show(value)}, which is no dtype") from None
    if dtype.name not in FLOATS + INTEGERS:
        raise DTypeError(f"explain: dtype is {dtype!s:.60}, but must be one of {', '.join(FLOATS + INTEGERS)}")
    return dtype


def _bfloat16() -> Any:
    """Return the dtype that NumPy knows by name only after ml_dtypes was imported."""
    import ml_dtypes

    return ml_dtypes.bfloat16
