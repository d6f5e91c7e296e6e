"""What will run, and why: the answer to `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._arguments import show
from ._arrays import FLOATS, INTEGERS, as_array, as_out, form_of, fresh_form, settle_weak
from ._calls import SIGNATURES, Settings, check_accumulate, prepare
from ._cpu.threads import resolve
from ._errors import ArgumentError, ArgumentTypeError, DTypeError, UnsupportedError
from ._foreign import check_names
from ._geometry import ConvGeometry
from ._options import current
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
# Arguments of each operation in order.
_ARGUMENTS = {
    "conv2d": ("input", "filter"),
    "conv2d_backprop_filter": ("input", "filter_shape", "out_backprop"),
    "conv2d_backprop_input": ("input_shape", "filter", "out_backprop"),
}


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
        Threads that the call may use.
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
        doubts = dict(self.reluctances)
        for name, objection in self.candidates:
            status = objection or "could serve, but " + doubts.get(name, "comes later in the list")
            status = "serves" if name == self.implementation else status
            lines.append(f"  {name}: {status}")
        return "\n".join(lines)


def explain(
    op: Any = None, *arrays_or_shapes: Any, device: Any = "cpu", dtype: Any = "float32", **keywords: Any
) -> Explanation:
    """Tell which implementation would serve a call, why the others would not, and what it takes.

    Parameters
    ----------
    op : {"conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"}
        The operation.
    *arrays_or_shapes
        The operation's positional arguments; for every array its shape will do, as a tuple of ints.
    device : {"cpu"}
        Where the call would run, if only shapes are given.
    dtype : dtype, default float32
        The dtype of arrays that are given as shapes.
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
    if not isinstance(op, str):
        raise ArgumentTypeError(f"explain: op is of type {type(op).__name__}, but must be a string")
    if op not in SIGNATURES:
        raise ArgumentError(f"explain: op is {show(op)}, but must be one of {', '.join(map(repr, SIGNATURES))}")
    if not isinstance(device, str):
        raise ArgumentTypeError(f"explain: device is of type {type(device).__name__}, but must be a string")
    if device != "cpu":
        raise UnsupportedError(f"explain: device is {show(device)}, but this version has only 'cpu' implementations")
    keywords = dict(keywords)
    out, num_threads = keywords.pop("out", None), keywords.pop("num_threads", None)
    accumulates = op == "conv2d_backprop_filter"
    accumulate = check_accumulate(op, keywords.pop("accumulate", False), out) if accumulates else False
    names = (*_NAMES, "accumulate") if accumulates else _NAMES
    check_names("explain", {}, {name: None for name in keywords if name not in _KEYWORDS}, names)
    expected = _ARGUMENTS[op]
    if len(arrays_or_shapes) != len(expected):
        raise ArgumentTypeError(
            f"explain: {op} takes {len(expected)} arguments ({', '.join(expected)}), "
            f"but {len(arrays_or_shapes)} are given"
        )
    given = dict(zip(expected, arrays_or_shapes, strict=True))
    signature = SIGNATURES[op]
    shape_argument = given.pop(signature.shape_argument) if signature.shape_argument else None
    forms, arrays = [], []
    for role, value in given.items():
        if _is_shape(value):
            forms.append(fresh_form(tuple(map(int, value)), _dtype(dtype)))
        else:
            array = value.filter if isinstance(value, PackedFilter) else value
            arrays.append((len(forms), as_array(op, role, array)))
            forms.append(fresh_form((), np.dtype(np.float32)))
    settled = settle_weak([pair for _, pair in arrays])
    for (place, _), array in zip(arrays, settled, strict=True):
        forms[place] = form_of(array)
    options = current()
    threads = resolve(op, num_threads, options)
    call = prepare(
        op,
        tuple(forms),
        shape_argument,
        Settings(**{**_KEYWORDS, **keywords}),
        None if out is None else form_of(as_out(op, out)),
        accumulate,
        options.workspace_limit,
        options.precision,
    )
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


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, (int, np.integer)) and not isinstance(item, bool) and item >= 0 for item in value
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
