"""NumPy's BLAS: its matrix product found once, and its threads held to one while convkit uses it.

The pool cuts the work, so that a threaded BLAS would only get in its way; and a result must not depend on how many
threads BLAS has (docs/decisions/0002-blas.md).
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    for name in _SGEMM_NAMES:
        try:
            handle = ctypes.CDLL(library.filepath)
            addresses = [
                ctypes.cast(getattr(handle, name.replace("sgemm", precision)), ctypes.c_void_p).value
                for precision in ("sgemm", "dgemm")
            ]
        except (OSError, AttributeError):
            continue
        wide = "64_" in name or "USE64BITINT" in _configuration(handle)
        blas = _engine.Blas(*addresses, wide)
        if _computes(blas):
            return blas
    return None


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


class _Hold:
    """Holds a library to one thread while anyone is inside: the first in sets, the last out restores."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.lock = threading.Lock()
        self.inside = 0
        self.threads = 1
        os.register_at_fork(after_in_child=self._forget_other_threads)

    def _forget_other_threads(self) -> None:
        """In the child of a fork only the forking thread goes on, and it was not inside."""
        self.lock = threading.Lock()
        if self.inside:
            self.inside = 0
            self._set(self.threads)

    def _set(self, threads: int) -> None:
        self.library.set_num_threads(threads)

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.threads = self.library.get_num_threads()
                if self.threads != 1:
                    self._set(1)
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            # Someone who has set another number in the meantime is left alone.
            if self.inside == 0 and self.threads != 1 and self.library.get_num_threads() == 1:
                self._set(self.threads)


@functools.cache
def _found() -> tuple[Any, _Hold | None]:
    """Return the way to multiply matrices and the hold on its threads; looked up at the first use."""
    libraries = _libraries()
    for library in libraries:
        blas = _native(library)
        if blas is not None:
            logger.debug("matrix products by %s", library.filepath)
            return blas, _Hold(library)
    logger.debug("no BLAS library exports a usable product; matrix products by numpy.matmul")
    return _engine.Blas(), _Hold(libraries[0]) if libraries else None


def products() -> Any:
    """Return the `Blas` that multiplies matrices."""
    return _found()[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold NumPy's BLAS to one thread inside a ``with`` block."""
    hold = _found()[1]
    if hold is None:
        yield
        return
    hold.enter()
    try:
        yield
    finally:
        hold.leave()


def describe() -> str:
    """Return a line on the BLAS in use."""
    blas, hold = _found()
    way = "called directly" if blas.native else "through numpy.matmul"
    library = hold.library if hold else None
    if library is None:
        return f"unknown library, {way}; its threads cannot be controlled"
    return f"{library.internal_api} {library.version} ({library.filepath}), {way}"
