"""Arguments as keys of a cache in Python, for the calls that `_repeated` does not look up."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

_Settings = TypeVar("_Settings", bound=tuple[Any, ...])


class _NotPlainError(Exception):
    """A value that cannot be part of a cache key."""


# Values of other types can equal these (True, 1.0 and 1 do), and must not find their plans.
_PLAIN_TYPES = frozenset((int, str, type(None)))
_DTYPES = (np.dtype, type)


def _plain(value: Any, depth: int = 2) -> Any:
    """Return a value as a hashable that equals no value of another type."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if depth and (kind is tuple or kind is list) and len(value) <= 8:
        return tuple([_plain(item, depth - 1) for item in value])
    raise _NotPlainError


def plain_settings(settings: _Settings) -> _Settings | None:
    """Return a named tuple of settings that can be part of a cache key, or None."""
    if _PLAIN_TYPES.issuperset(map(type, settings)):
        return settings
    make: Any = type(settings)
    try:
        plain: _Settings = make(*[value if issubclass(type(value), _DTYPES) else _plain(value) for value in settings])
    except _NotPlainError:
        return None
    return plain
