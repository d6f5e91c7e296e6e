"""cuDNN in this process: exactly one copy of the library, and the Python package that speaks to it.

`nvidia-cudnn-frontend` loads cuDNN itself while it is imported.  Two copies in one process mix silently, each calling
into the other's parts, so a copy that is there already is the one to take, and two are none.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

from .._errors import BackendError

FRONTEND = "nvidia-cudnn-frontend"
# Before 1.18 the package imports PyTorch or lacks calls that are made here; from 1.29 on it pulls half a gigabyte.
FRONTEND_FROM, FRONTEND_BELOW = (1, 18), (1, 29)
# The first version whose parts are all reached through libcudnn.so.9.
LEAST_CUDNN = 90000
_MAPS = Path("/proc/self/maps")
_importing = RLock()


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: a usable cuDNN, or a sentence on why there is none."""

    cudnn: int | None
    frontend: str | None
    path: str | None
    why_not: str
    module: Any = None


def status() -> tuple[int | None, str]:
    """Return the version of cuDNN, such as 90100, or None and a sentence that says why there is none.

    CuPy must have been imported: the CUDA runtime that it loads is the one to share.
    """
    found = look()
    return found.cudnn, found.why_not


def module() -> Any:
    """Return the module ``cudnn`` of the frontend.

    Raises
    ------
    BackendError
        If cuDNN cannot be used; the message says why.
    """
    found = look()
    if found.cudnn is None:
        raise BackendError(found.why_not)
    return found.module


def path() -> str | None:
    """Return the file that cuDNN was loaded from, or None."""
    return look().path


def forget() -> None:
    """Look again at the next call."""
    _look.cache_clear()


def look() -> Found:
    """Return what there is; the first call loads it."""
    with _importing:
        return _look()


@functools.cache
def _look() -> Found:
    frontend, objection = _frontend_version()
    if objection:
        return Found(None, frontend, None, objection)
    before = mapped("libcudnn.so")
    if len(before) > 1:
        return Found(None, frontend, None, _several(before))
    try:
        with _searched_first(before):
            cudnn = importlib.import_module("cudnn")
    except Exception as error:
        return Found(None, frontend, None, f"the Python package {FRONTEND} cannot be imported: {_short(error)}")
    if not hasattr(cudnn, "pygraph") or not hasattr(cudnn, "backend_version"):
        return Found(None, frontend, None, f"the Python module cudnn is not that of {FRONTEND}")
    after = mapped("libcudnn.so")
    if len(after) > 1:
        return Found(None, frontend, None, _several(after))
    try:
        found = int(cudnn.backend_version())
    except Exception as error:
        return Found(None, frontend, None, f"the library libcudnn.so.9 cannot be loaded: {_short(error)}")
    where = after[0] if after else None
    if found < LEAST_CUDNN:
        return Found(None, frontend, where, f"cuDNN is of version {found}, but must be {LEAST_CUDNN} or newer")
    objection = _lacks_cublas(where)
    return Found(None if objection else found, frontend, where, objection, None if objection else cudnn)


def _frontend_version() -> tuple[str | None, str]:
    """Return the version of the frontend and an objection, without importing it."""
    try:
        text = version(FRONTEND)
    except PackageNotFoundError:
        text = str(getattr(sys.modules.get("cudnn"), "__version__", ""))
        if not text:
            foreign = find_spec("cudnn") is not None
            other = "; the module cudnn that is installed is not its own" if foreign else ""
            return None, f"the Python package {FRONTEND}, which reaches cuDNN, is not installed{other}"
    numbers = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if FRONTEND_FROM <= numbers < FRONTEND_BELOW:
        return text, ""
    return text, (
        f"the Python package {FRONTEND} is of version {text}, but must be at least "
        f"{_dotted(FRONTEND_FROM)} and below {_dotted(FRONTEND_BELOW)}"
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def mapped(name: str) -> list[str]:
    """Return the different files whose name starts with ``name`` that are mapped into this process."""
    found: dict[tuple[str, str], str] = {}
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        # address, permissions, offset, device, inode, path
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.startswith(name):
            found.setdefault((fields[3], fields[4]), fields[5])
    return sorted(found.values())


def _several(paths: list[str]) -> str:
    return f"the process holds several copies of cuDNN, which mix silently: {', '.join(paths)}"


@contextmanager
def _searched_first(paths: list[str]) -> Iterator[None]:
    """Let the frontend, which looks into LD_LIBRARY_PATH first, find the copy that is mapped already."""
    if not paths or "cudnn" in sys.modules:
        yield
        return
    name = "LD_LIBRARY_PATH"
    old = os.environ.get(name)
    os.environ[name] = os.pathsep.join([str(Path(paths[0]).parent), *([old] if old else [])])
    try:
        yield
    finally:
        if old is None:
            del os.environ[name]
        else:
            os.environ[name] = old


def _lacks_cublas(where: str | None) -> str:
    """Return an objection if cuDNN would not find cuBLASLt: it ends the process where it needs that and finds none."""
    if where is None or mapped("libcublasLt.so"):
        return ""
    try:
        library = ctypes.CDLL(where)
        library.cudnnGetCudartVersion.restype = ctypes.c_size_t
        name = f"libcublasLt.so.{library.cudnnGetCudartVersion() // 1000}"
    except (OSError, AttributeError) as error:
        return f"the library {where} cannot be asked for its version of CUDA: {_short(error)}"
    folder = Path(where).parent
    # Where cuDNN's parts look themselves when they come as Python packages.
    beside = [folder / name, *sorted(folder.parent.parent.glob(f"*/lib/{name}"))]
    for candidate in (name, *map(str, beside)):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return ""
    return f"cuDNN needs the library {name}, which cannot be loaded; the package nvidia-cublas has it"


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
