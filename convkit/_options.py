"""Settings: for one context (`options`), for the process (`set_options`), from the environment.

The first that is set wins, in that order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from ._arguments import as_text, is_a, show
from ._errors import ArgumentError, ArgumentTypeError
from ._foreign import own_names_only

MAX_THREADS = 1024
DEFAULT_WORKSPACE_LIMIT = 64 * 2**20
PRECISIONS = ("high", "default", "fast")


def check_threads(op: str, argument: str, value: Any) -> int:
    """Return ``value`` as a number of threads, or raise."""
    return _check_int(op, argument, value, 1, MAX_THREADS)


def _check_int(op: str, argument: str, value: Any, low: int, high: int) -> int:
    try:
        number = value.__index__()
    except Exception:
        number = None
    if is_a(value, bool) or not isinstance(number, int):
        raise ArgumentTypeError(f"{op}: {argument} is of type {type(value).__name__}, but must be an integer")
    if not low <= number <= high:
        raise ArgumentError(f"{op}: {argument} is {show(number)}, but must be between {low} and {high}")
    return number


def _check_bytes(op: str, argument: str, value: Any) -> int:
    return _check_int(op, argument, value, 0, 2**63 - 1)


def _check_flag(op: str, argument: str, value: Any) -> bool:
    if not is_a(value, bool):
        raise ArgumentTypeError(f"{op}: {argument} is of type {type(value).__name__}, but must be True or False")
    return bool(value)


def _check_precision(op: str, argument: str, value: Any) -> str:
    name = as_text(value)
    if name is None:
        raise ArgumentTypeError(f"{op}: {argument} is of type {type(value).__name__}, but must be a string")
    if name not in PRECISIONS:
        raise ArgumentError(f"{op}: {argument} is {show(value)}, but must be one of {', '.join(map(repr, PRECISIONS))}")
    return name


def _parse_int(text: str) -> Any:
    return int(text)


def _parse_flag(text: str) -> Any:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.strip().lower()]


@dataclass(frozen=True, slots=True)
class Options:
    """The settings in force, all merged."""

    num_threads: int | None = None
    workspace_limit: int = DEFAULT_WORKSPACE_LIMIT
    precision: str = "default"
    deterministic: bool = False
    autotune: bool = False
    # Whether `workspace_limit` is somebody's wish; GPUs have a default of their own.
    workspace_limit_given: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    check: Callable[[str, str, Any], Any]
    parse: Callable[[str], Any]
    # What `parse` can read, where it may fail.
    expected: str = ""


_FLAGS = "one of 1, true, yes, 0, false, no"
_RULES: Mapping[str, _Rule] = {
    "num_threads": _Rule(check_threads, _parse_int, "an integer"),
    "workspace_limit": _Rule(_check_bytes, _parse_int, "an integer number of bytes"),
    "precision": _Rule(_check_precision, str),
    "deterministic": _Rule(_check_flag, _parse_flag, _FLAGS),
    "autotune": _Rule(_check_flag, _parse_flag, _FLAGS),
}


def read_environment(name: str, rule_name: str) -> Any:
    """Return the checked value of environment variable ``name``, or None where it is unset or empty."""
    text = os.environ.get(name, "")
    if not text.strip():
        return None
    rule = _RULES[rule_name]
    try:
        value = rule.parse(text)
    except (ValueError, KeyError):
        raise ArgumentError(
            f"convkit: environment variable {name} is {text!r:.60}, but must be {rule.expected}"
        ) from None
    return rule.check("convkit", f"environment variable {name}", value)


class _Scope:
    """The settings made explicitly in one context, and what they give when merged with the process's."""

    __slots__ = ("explicit", "merged", "process_version")

    def __init__(self, explicit: dict[str, Any]) -> None:
        self.explicit = explicit
        self.process_version = -1
        self.merged = Options()


_process: dict[str, Any] = {}
_process_version = 0
_ROOT = _Scope({})
_scope: ContextVar[_Scope] = ContextVar("convkit_options", default=_ROOT)


def _merge(explicit: dict[str, Any]) -> Options:
    environment = {}
    for name in _RULES:
        if name not in explicit and name not in _process:
            value = read_environment(f"CONVKIT_{name.upper()}", name)
            if value is not None:
                environment[name] = value
    settings = {**environment, **_process, **explicit}
    return replace(Options(), **settings, workspace_limit_given="workspace_limit" in settings)


def current() -> Options:
    """Return the settings in force in this context."""
    scope = _scope.get()
    if scope.process_version != _process_version:
        version_seen = _process_version
        scope.merged = _merge(scope.explicit)
        scope.process_version = version_seen
    return scope.merged


def _checked(op: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is None else _RULES[name].check(op, name, value) for name, value in settings.items()}


class _Unset:
    """Marks an option that is not mentioned; None has a meaning of its own."""

    def __repr__(self) -> str:
        return "<as it is>"


_UNSET: Any = _Unset()


def forget_environment() -> None:
    """Read the environment again at the next call."""
    global _process_version
    _process_version += 1


@own_names_only
@contextmanager
def options(
    *,
    num_threads: int | None = None,
    workspace_limit: int | None = None,
    precision: str | None = None,
    deterministic: bool | None = None,
    autotune: bool | None = None,
) -> Iterator[Options]:
    """Set options for the calls made inside a ``with`` block, in this context only.

    The settings live in a :class:`contextvars.ContextVar`: other threads do not see them, so a task for an executor
    opens its own ``with`` block; asyncio tasks and copied contexts see those they were made in.

    Parameters
    ----------
    num_threads : int, optional
        Most threads that one call uses, the calling one included; 1 to 1024.
    workspace_limit : int, optional
        Most bytes of scratch memory that one call takes (default 64 MiB; on a GPU 1 GiB or a tenth of its memory,
        whichever is less).
    precision : {"default", "high", "fast"}, optional
        Which fast algorithms are allowed.  On the CPU, ``"high"`` excludes the family ``winograd``, whose errors are
        relative to the largest pixel within a few pixels of a window, and dot products of bfloat16 pairs, which take
        subnormal numbers for zeros; all others count as ``"high"``.  On a GPU ``"default"`` is as exact
        as ``"high"``, and ``"fast"`` allows cuDNN and cuBLAS TF32, and cuDNN Winograd's algorithm.
    deterministic, autotune : bool, optional
        Concern cuDNN only: plans whose results are the same bits each time; plans timed at the first call of a
        geometry.  On the CPU every result is deterministic and nothing is tuned.

    Yields
    ------
    Options
        The settings in force inside the block.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an unknown option or an impossible value.  ``None`` leaves an option as it is outside the block.
    """
    settings = {
        "num_threads": num_threads,
        "workspace_limit": workspace_limit,
        "precision": precision,
        "deterministic": deterministic,
        "autotune": autotune,
    }
    explicit = {name: value for name, value in _checked("options", settings).items() if value is not None}
    token = _scope.set(_Scope({**_scope.get().explicit, **explicit}))
    try:
        yield current()
    finally:
        _scope.reset(token)


@own_names_only
def set_options(
    *,
    num_threads: int | None = _UNSET,
    workspace_limit: int | None = _UNSET,
    precision: str | None = _UNSET,
    deterministic: bool | None = _UNSET,
    autotune: bool | None = _UNSET,
) -> None:
    """Set options for the whole process; ``None`` returns one to its environment variable or default.

    Parameters
    ----------
    num_threads, workspace_limit, precision, deterministic, autotune
        As for :func:`options`, which takes precedence where both set the same option.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an unknown option or an impossible value; then nothing is changed.
    """
    global _process_version
    given = {
        "num_threads": num_threads,
        "workspace_limit": workspace_limit,
        "precision": precision,
        "deterministic": deterministic,
        "autotune": autotune,
    }
    settings = {name: value for name, value in given.items() if value is not _UNSET}
    for name, value in _checked("set_options", settings).items():
        if value is None:
            _process.pop(name, None)
        else:
            _process[name] = value
    _process_version += 1
