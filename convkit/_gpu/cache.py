"""What has been chosen: cuDNN's plans by problem, shared by all threads and kept in files; built plans by thread.

A choice is the name that cuDNN gives a plan, and the mode of asking in which it was offered; both are the same wherever
the same version of cuDNN plans for the same GPU.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from .._errors import ArgumentError
from .cudnn_graph import Spec

# A network has some hundreds of layers, forwards and backwards.
MOST_CHOICES = 8192
# Built plans of one thread; each holds some kilobytes, and a few of them a kernel compiled for it.
MOST_BUILT = 256

_FORMAT = "convkit cuDNN choices, version 1"
K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The values used last; safe to use from several threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a value, or None."""
        with self._lock:
            value = self._kept.get(key)
            if value is not None:
                self._kept.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of the one least recently used."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Forget the values under some keys."""
        with self._lock:
            for key in [key for key in self._kept if unwanted(key)]:
                del self._kept[key]

    def items(self) -> list[tuple[K, V]]:
        """Return all keys and values."""
        with self._lock:
            return list(self._kept.items())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()


@dataclass(frozen=True)
class Key:
    """Everything that a choice depends on; the values of scales are no part of it."""

    spec: Spec
    gpu: str
    capability: tuple[int, int]
    cudnn: int
    # The most bytes of workspace that a plan may take.
    limit: int
    tuned: bool

    def __post_init__(self) -> None:
        # Every call looks for its key, and hashing two dozen fields takes as long as all the rest of that.
        everything = self.spec, self.gpu, self.capability, self.cudnn, self.limit, self.tuned
        object.__setattr__(self, "_hash", hash(everything))

    def __hash__(self) -> int:
        return self.__dict__["_hash"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan by name."""

    mode: str
    name: str
    workspace: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan to run, and the one to run where no workspace can be had; both None where cuDNN cannot serve."""

    first: Plan | None
    spare: Plan | None
    # Why there is none.
    why_not: str = ""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that there are, the one to run first."""
        both = (self.first, self.spare)
        return tuple(dict.fromkeys(plan for plan in both if plan is not None))


choices: Recent[Key, Choice] = Recent(MOST_CHOICES)


class _Local(threading.local):
    def __init__(self) -> None:
        self.built: Recent[Any, Any] = Recent(MOST_BUILT)
        self.generation = _generation


_generation = 0
_local = _Local()


def built() -> Recent[Any, Any]:
    """Return this thread's built plans: cuDNN does not let two threads run one."""
    if _local.generation != _generation:
        _local.built.clear()
        _local.generation = _generation
    return _local.built


def forget() -> None:
    """Forget all choices, and every thread's built plans at its next call."""
    global _generation
    choices.clear()
    _generation += 1


def save(path: str | os.PathLike[str]) -> int:
    """Write what autotuning has chosen to a file; return the number of choices."""
    entries = [
        {**asdict(key), "first": asdict(choice.first), "spare": choice.spare and asdict(choice.spare)}
        for key, choice in choices.items()
        if key.tuned and choice.first is not None
    ]
    text = json.dumps({"format": _FORMAT, "choices": entries}, indent=1)
    file = Path(path)
    # A reader of the old file, or a second writer, never sees half of one.
    beside = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    return len(entries)


def load(path: str | os.PathLike[str], op: str) -> int:
    """Read what `save` wrote, also on another machine; return the number of choices.

    A choice is used for the GPU and the version of cuDNN that it was made with, and if that offers the plan.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError("it is of another format")
        read = [_entry(entry) for entry in content["choices"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArgumentError(
            f"{op}: path is {str(path)!r:.200}, but must be a file of saved choices: {type(error).__name__}: {reason}"
        ) from None
    for key, choice in read:
        choices.put(key, choice)
    return len(read)


def _entry(entry: dict[str, Any]) -> tuple[Key, Choice]:
    """Read one choice; a value of a wrong type is refused here, so that it cannot fail later."""
    spec: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in _object(entry["spec"]).items()
    }
    _check(Spec, spec.items())
    capability = tuple(entry["capability"])
    values = {name: entry[name] for name in ("gpu", "cudnn", "limit", "tuned")}
    _check(Key, {**values, "capability": capability}.items())
    first, spare = (None if entry[name] is None else _plan(entry[name], values["limit"]) for name in ("first", "spare"))
    if first is None or values["tuned"] is not True:
        raise ValueError("a choice is not a tuned one")
    return Key(spec=Spec(**spec), capability=capability, **values), Choice(first, spare)


def _plan(entry: object, limit: int) -> Plan:
    _check(Plan, _object(entry).items())
    plan = Plan(**_object(entry))
    if not 0 <= plan.workspace <= limit:
        raise ValueError(f"workspace is {plan.workspace!r:.60}, and the limit {limit!r:.60}")
    return plan


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} stands where names and values must")
    return value


# What the annotations of the fields mean.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int,
    "int | None": lambda value: value is None or type(value) is int,
    "str | None": lambda value: value is None or isinstance(value, str),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(type(n) is int for n in value),
    "tuple[int, int]": lambda value: isinstance(value, tuple) and [type(n) for n in value] == [int, int],
}


def _check(kind: type, values: Iterable[tuple[str, Any]]) -> None:
    known = {field.name: str(field.type) for field in fields(kind)}
    for name, value in values:
        if name not in known or not _KINDS[known[name]](value):
            raise ValueError(f"{name} is {value!r:.60}")
