"""NumPy's BLAS: its matrix product found once, and its threads held to one while convkit uses it.

The pool cuts the work, so that a threaded BLAS would only get in its way; and a result must not depend on how many
threads BLAS has (docs/decisions/0002-blas.md).
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

from . import _engine

logger = logging.getLogger("convkit")

# Names of the row-major single-precision product; NumPy's own wheels prefix and suffix those of their OpenBLAS.
_SGEMM_NAMES = ("scipy_cblas_sgemm64_", "cblas_sgemm64_", "scipy_cblas_sgemm", "cblas_sgemm")


def _libraries() -> list[Any]:
    """Return threadpoolctl's controllers of the BLAS libraries in this process, the one that NumPy brought first."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    home = Path(np.__file__).resolve().parent
    own = (str(home), str(home.parent / "numpy.libs"))
    return sorted(found, key=lambda library: not os.path.realpath(library.filepath).startswith(own))


def _native(library: Any) -> Any:
    """Return the library's products as a `Blas`, or None if it does not export them or they do not compute right."""
    try:
        handle = ctypes.CDLL(library.filepath)
    except OSError:
        return None
    count, limit = _thread_functions(library)
    for name in _SGEMM_NAMES:
        products = [_function(handle, name.replace("sgemm", kind)) for kind in ("sgemm", "dgemm")]
        if None in products:
            continue
        wide = "64_" in name or "USE64BITINT" in _configuration(handle)
        sgemm, dgemm = map(_address, products)
        blas = _engine.Blas(sgemm, dgemm, wide, _address(count), _address(limit))
        if _computes(blas):
            return blas
    return None


def _function(handle: Any, name: str) -> Any:
    return getattr(handle, name, None)


def _address(function: Any) -> int:
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _thread_functions(library: Any) -> tuple[Any, Any]:
    """Return the functions that tell and set OpenBLAS's number of threads, or None twice for another library.

    OpenBLAS is called directly: from version 3.8 on, threadpoolctl changes its threads for one thread of the process
    only and ignores all others.
    """
    if library.internal_api != "openblas":
        return None, None
    handle = ctypes.CDLL(library.filepath)
    if _is_openmp(library):
        return _function(handle, "omp_get_max_threads"), _function(handle, "omp_set_num_threads")
    return _affixed(handle, "openblas_get_num_threads"), _affixed(handle, "openblas_set_num_threads")


def _affixed(handle: Any, name: str) -> Any:
    """Return a function of OpenBLAS under any of the names that builds give it."""
    for affixes in ("scipy_{}64_", "{}64_", "scipy_{}", "{}"):
        function = _function(handle, affixes.format(name))
        if function is not None:
            return function
    return None


def _is_openmp(library: Any) -> bool:
    return getattr(library, "threading_layer", None) == "openmp"


def _configuration(handle: Any) -> str:
    """Return OpenBLAS's build configuration, which tells of 64-bit integers behind plain names."""
    try:
        get_config = handle.openblas_get_config
    except AttributeError:
        return ""
    get_config.restype = ctypes.c_char_p
    return str(get_config() or b"", "ascii", "replace")


def _computes(blas: Any) -> bool:
    """Compare products of small integers, exact in any order of summation, with int64 arithmetic."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for m, n, k in ((3, 5, 7), (33, 17, 65)):
            a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, n))
            out = np.full((m, n), np.nan, dtype)
            for add in (False, True):
                blas.multiply(a.astype(dtype), b.astype(dtype), out, add)
                if not np.array_equal(out, (1 + add) * (a @ b)):
                    return False
    return True


class Hold(ABC):
    """Holds a library to one thread while anyone is inside."""

    @abstractmethod
    def enter(self) -> Any:
        """Begin; what it returns goes to `leave`."""

    @abstractmethod
    def leave(self, entered: Any) -> None:
        """End."""


class _NoHold(Hold):
    """For a library that nothing controls."""

    def enter(self) -> None:
        return None

    def leave(self, entered: None) -> None:
        return None


NO_HOLD = _NoHold()


class _ProcessHold(Hold):
    """For a library with one number of threads for the process: the first in sets it, the last out restores it."""

    def __init__(self, get: Callable[[], int], put: Callable[[int], Any]) -> None:
        self.get, self.put = get, put
        self.lock = threading.RLock()  # a signal handler may fork while its thread holds it
        self.inside = 0
        self.threads = 1
        # No thread may be inside `put` when another forks: OpenBLAS starts threads there, under a lock of its own.
        os.register_at_fork(
            before=self._lock_for_fork,
            after_in_parent=self._unlock_after_fork,
            after_in_child=self._forget_other_threads,
        )

    def _lock_for_fork(self) -> None:
        self.lock.acquire()

    def _unlock_after_fork(self) -> None:
        self.lock.release()

    def _forget_other_threads(self) -> None:
        """In the child of a fork only the forking thread goes on, and it was not inside."""
        self.lock = threading.RLock()  # a signal handler may fork while its thread holds it
        if self.inside:
            self.inside = 0
            self.put(self.threads)

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.threads = self.get()
                if self.threads != 1:
                    self.put(1)
            self.inside += 1

    def leave(self, entered: None) -> None:
        with self.lock:
            self.inside -= 1
            # Someone who has set another number in the meantime is left alone.
            if self.inside == 0 and self.threads != 1 and self.get() == 1:
                self.put(self.threads)


class _ThreadHold(Hold):
    """For OpenMP, which keeps the number per thread: each product limits its own thread, the caller's is restored."""

    def __init__(self, get: Callable[[], int], put: Callable[[int], Any]) -> None:
        self.get, self.put = get, put

    def enter(self) -> int:
        return self.get()

    def leave(self, entered: int) -> None:
        self.put(entered)


def _hold(library: Any) -> Hold:
    """Return the hold for a library."""
    get, put = _thread_functions(library)
    if get is None or put is None:
        return _ProcessHold(library.get_num_threads, library.set_num_threads)
    return _ThreadHold(get, put) if _is_openmp(library) else _ProcessHold(get, put)


_lookup: tuple[Any, Hold, Any] | None = None
_lookup_lock = threading.Lock()


def _found() -> tuple[Any, Hold, Any]:
    """Return the way to multiply matrices, the hold on its threads and the library; looked up at the first use."""
    global _lookup
    if _lookup is None:
        with _lookup_lock:  # two holds on one library would restore each other's thread count
            if _lookup is None:
                _lookup = _look_up()
    return _lookup


def _look_up() -> tuple[Any, Hold, Any]:
    libraries = _libraries()
    for library in libraries:
        hold = _hold(library)
        entered = hold.enter()
        try:
            blas = _native(library)
        finally:
            hold.leave(entered)
        if blas is not None:
            logger.debug("matrix products by %s", library.filepath)
            return blas, hold, library
    logger.debug("no BLAS library exports a usable product; matrix products by numpy.matmul")
    if libraries:
        return _engine.Blas(), _hold(libraries[0]), libraries[0]
    return _engine.Blas(), NO_HOLD, None


def products() -> Any:
    """Return the `Blas` that multiplies matrices."""
    return _found()[0]


def hold() -> Hold:
    """Return the hold on NumPy's BLAS: between its `enter` and `leave` it computes on one thread."""
    return _found()[1]


def describe() -> str:
    """Return a line on the BLAS in use."""
    blas, _, library = _found()
    way = "called directly" if blas.native else "through numpy.matmul"
    if library is None:
        return f"unknown library, {way}; its threads cannot be controlled"
    return f"{library.internal_api} {library.version} ({library.filepath}), {way}"
