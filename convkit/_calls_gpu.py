"""From CuPy arrays to a result: as `_calls`, with the GPU's table; imported when an array on a GPU is first seen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ._arrays import FLOATS, Form, is_cuda
from ._calls import (
    SIGNATURES,
    Call,
    Limits,
    Settings,
    check,
    check_accumulate,
    check_algorithm,
    has_idle_sums,
    logger,
    planned,
    seen_by_plans,
)
from ._cpu.threads import resolve
from ._epilogue import Terms
from ._errors import DTypeError
from ._fused import OP, Door, Given, Static, check_fused, computed_dtype, numbers, parse
from ._gpu import access, constants, memory, route
from ._gpu import machine as machines
from ._gpu.arrays import Array, as_gpu, as_gpu_out, check_one_kind, check_overlap, form_of, one_device, same_place
from ._gpu.machine import GpuMachine, this_machine
from ._gpu.nothing import Nothing, SumsOfNothing
from ._keys import plain_settings
from ._options import Options, current
from ._registry import FusedPlan, choose

# What is going on as long as no plan runs, to say it of errors.
PREPARING = "preparing the call"

# Calls kept ready to be repeated.
MOST_REPEATS = 512


class Fixed(NamedTuple):
    """What is no array of a call: the shape argument and the settings."""

    shape_argument: Any
    strides: Any
    padding: Any
    dilations: Any
    groups: Any
    data_format: Any
    filter_format: Any
    out_dtype: Any
    algorithm: Any


def prepare(
    op: str,
    forms: tuple[Form, ...],
    fixed: Fixed,
    out: Form | None,
    accumulate: bool,
    limits: Limits,
    machine: GpuMachine,
    capturing: bool,
) -> Call:
    """Check a call, choose its implementation and plan it.

    ``capturing`` is there to be part of the key: implementations ask for themselves.
    """
    settings = Settings(*fixed[1:])
    algorithm = check_algorithm(op, settings.algorithm, route.TABLE)
    checked = check(op, forms, fixed.shape_argument, settings, out, accumulate, limits)
    choice = choose(route.TABLE, checked.problem, machine, algorithm)
    logger.debug("%s: %s serves %s on device %d", op, choice.chosen.name, checked.geometry, machine.device)
    plan = Nothing() if checked.problem.empty else choice.chosen.plan(checked.problem, machine)
    return planned(checked, choice, plan, slow=False)


_prepared = lru_cache(maxsize=MOST_REPEATS)(prepare)


def limits_of(options: Options, machine: GpuMachine) -> Limits:
    """Return the options that a plan for a GPU depends on."""
    limit = options.workspace_limit if options.workspace_limit_given else memory.default_limit(machine)
    return Limits(limit, options.precision, options.deterministic, options.autotune)


def execute(
    op: str,
    values: Sequence[Any],
    shape_argument: Any,
    settings: Settings,
    out: Any,
    num_threads: Any,
    accumulate: Any,
) -> Array:
    """Carry out one call of an operation; filters that were packed come as they are."""
    signature = SIGNATURES[op]
    check_one_kind(op, [*zip(signature.arrays, values, strict=True), ("out", out)])
    arrays = [as_gpu(op, role, value) for role, value in zip(signature.arrays, values, strict=True)]
    named = list(zip(signature.arrays, arrays, strict=True))
    target = None if out is None else as_gpu_out(op, out)
    device = one_device(op, named if target is None else [*named, ("out", target)])
    if accumulate is not False:
        check_accumulate(op, accumulate, target)
    options = current()
    resolve(op, num_threads, options)
    with access.failures(op, PREPARING), access.on_device(device):
        machine = this_machine(device)
        fixed = Fixed(shape_argument, *settings)
        plain = plain_settings(fixed)
        call = (prepare if plain is None else _prepared)(
            op,
            tuple(map(form_of, arrays)),
            fixed if plain is None else plain,
            None if target is None else form_of(target),
            accumulate,
            limits_of(options, machine),
            machine,
            access.is_capturing(),
        )
        if target is None:
            result = memory.new(op, call.shape, call.dtype)
        else:
            result = target
            check_overlap(op, result, named)
        if has_idle_sums(call) or (call.nothing_to_sum and not accumulate):
            memory.clear(result)
        if not call.nothing_to_sum:
            views, view = seen_by_plans(call, arrays, result)
            with access.failures(op, call.geometry):
                call.plan.run(views, view, 1)
    return result if out is None else out


def prepare_fused(
    forms: tuple[Form, Form],
    static: Static,
    fixed: Fixed,
    out: Form | None,
    limits: Limits,
    machine: GpuMachine,
    capturing: bool,
) -> Call:
    """Check a fused call, choose its implementation and plan it."""
    settings = Settings(*fixed[1:])
    algorithm = check_algorithm(OP, settings.algorithm, route.TABLE)
    checked = check_fused(forms, static, settings, out, limits)
    problem = checked.problem
    choice = choose(route.TABLE, problem, machine, algorithm)
    logger.debug("%s: %s serves %s on device %d", OP, choice.chosen.name, checked.geometry, machine.device)
    plan = SumsOfNothing(problem) if problem.empty else choice.chosen.plan(problem, machine)
    return planned(checked, choice, plan, slow=False)


_prepared_fused = lru_cache(maxsize=MOST_REPEATS)(prepare_fused)


def _numbers(name: str, value: Any) -> Any:
    """Return numbers: on the GPU, or single ones and lists; arrays on the CPU are refused, as others are."""
    if is_cuda(value):
        array = as_gpu(OP, name, value)
        if array.dtype.name not in FLOATS and array.dtype.kind not in "iu":
            raise DTypeError(f"{OP}: {name} has dtype {array.dtype!s:.60}, but must be floating-point or integer")
        return array
    return as_gpu(OP, name, value) if isinstance(value, np.ndarray) and value.ndim else numbers(name, value)


GPU = Door(_numbers, lambda role, value, dtype: as_gpu(OP, role, value), form_of)


def execute_fused(
    values: Sequence[Any],
    bias: Any,
    side_input: Any,
    settings: Settings,
    given: Given,
    out: Any,
    num_threads: Any,
) -> Array:
    """Carry out one fused convolution."""
    terms_given = ("bias", bias), ("side_input", side_input), ("conv_scale", given.conv_scale), ("out", out)
    check_one_kind(OP, [*zip(("input", "filter"), values, strict=True), *terms_given])
    arrays = [as_gpu(OP, role, value) for role, value in zip(("input", "filter"), values, strict=True)]
    parsed = parse(given, bias, side_input, arrays[1].dtype, side_input is not None, GPU)
    static, side = parsed.static, parsed.side
    named = [("input", arrays[0]), ("filter", arrays[1])]
    named += [(name, array) for name, array in (("bias", parsed.bias), ("side_input", side)) if array is not None]
    named += [("conv_scale", parsed.conv_scale)] if is_cuda(parsed.conv_scale) else []
    target = None if out is None else as_gpu_out(OP, out)
    device = one_device(OP, named if target is None else [*named, ("out", target)])
    if target is not None:
        onto_side = side is not None and same_place(target, side)
        static = static._replace(onto_side=onto_side and static.reads_side)
        check_overlap(OP, target, [pair for pair in named if not (onto_side and pair[0] == "side_input")])
    options = current()
    resolve(OP, num_threads, options)
    with access.failures(OP, PREPARING), access.on_device(device):
        machine = this_machine(device)
        fixed = Fixed(None, *settings)
        plain = plain_settings(fixed)
        call = (prepare_fused if plain is None else _prepared_fused)(
            (form_of(arrays[0]), form_of(arrays[1])),
            static,
            fixed if plain is None else plain,
            None if target is None else form_of(target),
            limits_of(options, machine),
            machine,
            access.is_capturing(),
        )
        result = memory.new(OP, call.shape, call.dtype) if target is None else target
        if result.size:
            plan, epilogue = call.plan, call.problem.epilogue
            assert isinstance(plan, FusedPlan) and epilogue is not None
            computed = computed_dtype(arrays[1].dtype)
            if static.reads_side:
                arrays.append(side)
            views, view = seen_by_plans(call, arrays, result)
            with access.failures(OP, call.geometry):
                terms = Terms(
                    conv_scale=constants.vector(parsed.conv_scale, computed),
                    side_scale=parsed.side_scale if epilogue.side else 0.0,
                    bias=None if epilogue.bias is None else constants.vector(parsed.bias, np.dtype(epilogue.bias)),
                )
                plan.run_fused(views, terms, view, 1, None)
    return result if out is None else out


def clear_prepared() -> None:
    """Forget every cached call and what is known of the GPUs."""
    _prepared.cache_clear()
    _prepared_fused.cache_clear()
    for module in (constants, route, memory, machines, access):
        module.forget()
