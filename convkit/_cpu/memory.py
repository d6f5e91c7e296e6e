"""CONVKIT_MEMORY_LIMIT: the bytes of scratch memory that all calls of the process may take together."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .._errors import ArgumentError


@functools.cache
def process_limit() -> int | None:
    """Return the limit in bytes, or None where the environment sets none."""
    text = os.environ.get("CONVKIT_MEMORY_LIMIT", "").strip()
    if not text:
        return None
    if not text.isdigit():
        raise ArgumentError(
            f"convkit: environment variable CONVKIT_MEMORY_LIMIT is {text!r:.60}, but must be a number of bytes"
        )
    return int(text)


class _Budget:
    """What is left of the process's limit; whoever wants more than that waits for the others to give back."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Start from nothing taken; in a forked child the other threads' calls are gone."""
        self.changed = threading.Condition()
        self.taken = 0


_budget = _Budget()


# What `reserved_ahead` has granted to the calls of a thread: a number of workers.
_ahead = threading.local()


@contextmanager
def reserved(shared: int, each: int, wanted: int) -> Iterator[int]:
    """Reserve memory for as many workers as fit, one at least, and yield their number; only where there is a limit."""
    granted = getattr(_ahead, "workers", 0)
    if granted:
        yield min(wanted, granted)
        return
    limit = process_limit() or 0
    with _budget.changed:
        # A planner never admits a call whose least need exceeds the limit, so that the wait ends.
        while _budget.taken and _budget.taken + shared + each > limit:
            _budget.changed.wait(0.1)
        workers = max(1, min(wanted, (limit - _budget.taken - shared) // max(1, each)))
        taken = shared + each * workers
        _budget.taken += taken
    try:
        yield workers
    finally:
        with _budget.changed:
            _budget.taken -= taken
            _budget.changed.notify_all()


@contextmanager
def reserved_ahead(shared: int, each: int, wanted: int) -> Iterator[None]:
    """Reserve likewise for several calls of this thread, one after the other, which then reserve nothing themselves."""
    with reserved(shared, each, wanted) as workers:
        _ahead.workers = workers
        try:
            yield
        finally:
            _ahead.workers = 0
