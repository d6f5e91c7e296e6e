"""How many threads a call may use, and the handle by which threadpoolctl limits them."""

from __future__ import annotations

import functools
import os
from typing import Any

import threadpoolctl

from .._options import MAX_THREADS, Options, check_threads, current
from .._version import __version__
from .machine import usable_cpus

_cap: int | None = None


@functools.cache
def _default_threads() -> int:
    """Return OMP_NUM_THREADS, if it is a number, else the CPUs that this process may use."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) >= 1:
        return min(int(first), MAX_THREADS)
    return min(usable_cpus(), MAX_THREADS)


def resolve(op: str, argument: Any, options: Options) -> int:
    """Return the thread limit of a call: the argument, else the options, else the environment or the machine."""
    threads = _uncapped(options) if argument is None else check_threads(op, "num_threads", argument)
    return threads if _cap is None else min(threads, _cap)


def _uncapped(options: Options) -> int:
    return options.num_threads or _default_threads()


def forget() -> None:
    """Read the environment and the machine again at the next call."""
    _default_threads.cache_clear()


class ConvkitController(threadpoolctl.LibController):  # type: ignore[misc]
    """Lets ``threadpoolctl.threadpool_limits`` cap convkit, and ``threadpool_info`` list it."""

    user_api = "convkit"
    internal_api = "convkit"
    filename_prefixes = ("_engine",)
    check_symbols = ("ck_pool_run",)

    def get_num_threads(self) -> int:
        """Return the threads that a call without an argument of its own would use."""
        return resolve("threadpoolctl", None, current())

    def set_num_threads(self, num_threads: int) -> None:
        """Cap every call at ``num_threads``; what calls would use without a cap, or more, lifts it."""
        global _cap
        _cap = None if num_threads >= _uncapped(current()) else max(1, int(num_threads))

    def get_version(self) -> str:
        """Return convkit's version."""
        return __version__

    def set_additional_attributes(self) -> None:
        """Nothing more to report."""


threadpoolctl.register(ConvkitController)
