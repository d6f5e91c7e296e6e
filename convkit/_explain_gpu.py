"""What would run on a GPU: the part of `explain` that knows CuPy."""

from __future__ import annotations

from typing import Any

from ._arrays import Form
from ._calls import SIGNATURES, Call, Settings
from ._calls_gpu import GPU, PREPARING, Fixed, limits_of, prepare, prepare_fused
from ._explain import form_of_shape, is_shape, static_of, unpacked
from ._fused import Given
from ._gpu import access
from ._gpu.arrays import as_gpu, as_gpu_out, form_of, one_device
from ._gpu.machine import this_machine
from ._options import Options


def call_of(
    op: str,
    given: dict[str, Any],
    settings: Settings,
    terms: Given | None,
    dtype: Any,
    out: Any,
    accumulate: bool,
    options: Options,
) -> Call:
    """Return the call that would serve, planned for the arrays' device or the current one."""
    shape_argument = None if terms else given.pop(SIGNATURES[op].shape_argument or "", None)
    named = []
    forms: list[Form] = []
    for role in ("input", "filter") if terms else given:
        value = unpacked(given[role])
        if is_shape(value):
            forms.append(form_of_shape(op, role, value, dtype))
        else:
            named.append((role, as_gpu(op, role, value)))
            forms.append(form_of(named[-1][1]))
    target = None if out is None else as_gpu_out(op, out)
    if target is not None:
        named.append(("out", target))
    out_form = None if target is None else form_of(target)
    device = one_device(op, named) if named else None
    with access.failures(op, PREPARING), access.on_device(access.current_device() if device is None else device):
        machine = this_machine(access.current_device())
        limits, fixed, capturing = limits_of(options, machine), Fixed(shape_argument, *settings), access.is_capturing()
        if terms is None:
            return prepare(op, tuple(forms), fixed, out_form, accumulate, limits, machine, capturing)
        static = static_of(given, terms, forms[1][2], GPU)
        return prepare_fused((forms[0], forms[1]), static, fixed, out_form, limits, machine, capturing)
