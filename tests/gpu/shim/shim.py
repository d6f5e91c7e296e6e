"""Compiles the sources of CUDA kernels with g++ and launches them on the CPU, as CuPy's RawModule does on a GPU.

``cuda_shim.h`` says what a launch is here.  What a driver would refuse or, worse, would not notice is refused: grids
and blocks beyond the limits, arguments of other kinds or sizes than the kernel's parameters.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HEADER = Path(__file__).with_name("cuda_shim.h")
CACHE = Path(__file__).parent.parent / "build"
COMPILER = os.environ.get("CXX", "g++")
# -ffp-contract=off is what --fmad=false says; NVRTC's kernels see no errno and no traps either.
FLAGS = [
    *("-std=c++17", "-shared", "-fPIC", "-O2", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    *("-U_FORTIFY_SOURCE", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *("-Wno-unused-function", "-Wno-unused-variable"),
]
ASAN_FLAGS = ["-fsanitize=address", "-fno-omit-frame-pointer"]
# What a build for the shim and one for a GPU have in common without a flag of g++.
ELSEWHERE = ("--fmad=false", "--std=c++17", "-std=c++17", "--device-as-default-execution-space")
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
MOST_THREADS = (1024, 1024, 64)
ERRORS = {
    1: "some threads of a block ended while others waited at __syncthreads()",
    2: "__syncthreads() is called through a function before the kernel; write it into the kernel",
    3: "no memory for the threads of a block",
}
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(')
_lock = threading.Lock()
_modules: dict[str, ctypes.CDLL] = {}


class ShimError(RuntimeError):
    """A launch that a GPU would refuse, or that would go wrong on it."""


def sanitized() -> bool:
    """Tell whether kernels are compiled for AddressSanitizer, whose library the process must have loaded first."""
    return os.environ.get("CONVKIT_SHIM_ASAN") == "1"


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([COMPILER, "--version"], check=True, capture_output=True, text=True).stdout


def _definitions(options: Sequence[str]) -> str:
    """Return the macros of NVRTC's options as lines; they come after the header, whose names they may change."""
    lines = []
    for option in options:
        if option.startswith("-D"):
            name, _, value = option[2:].partition("=")
            lines.append(f"#define {name} {value or 1}\n")
        elif option not in ELSEWHERE:
            raise ShimError(f"option {option!r} means nothing to the shim")
    return "".join(lines)


def _cache() -> Path:
    """Return where builds are kept."""
    try:
        CACHE.mkdir(exist_ok=True)
        if os.access(CACHE, os.W_OK):
            return CACHE
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"convkit-shim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def build(code: str, options: Sequence[str] = ()) -> Path:
    """Compile a source, unless that was done before, and return the library's path."""
    flags = [*FLAGS, *(ASAN_FLAGS if sanitized() else [])]
    exports = "".join(f"SHIM_EXPORT({name})\n" for name in _KERNEL.findall(code))
    source = f'#include "{HEADER}"\n{_definitions(options)}#line 1 "kernels.cu"\n{code}\n{exports}'
    key = "\0".join([source, *flags, HEADER.read_text(), _compiler_version()])
    library = _cache() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        command = [COMPILER, *flags, "-x", "c++", "-", "-o", str(partial)]
        done = subprocess.run(command, input=source, text=True, capture_output=True)
        if done.returncode:
            raise ShimError(f"g++ refuses the kernels:\n{done.stderr}")
        os.replace(partial, library)
    return library


def _load(code: str, options: Sequence[str]) -> ctypes.CDLL:
    path = str(build(code, options))
    with _lock:
        if path not in _modules:
            _modules[path] = ctypes.CDLL(path)
        return _modules[path]


def _bodies(code: str) -> dict[str, str]:
    """Return what stands between each kernel's name and the next kernel."""
    found = list(_KERNEL.finditer(code))
    ends = [match.start() for match in found[1:]] + [len(code)]
    return {match[1]: code[match.end() : end] for match, end in zip(found, ends, strict=True)}


class ShimModule:
    """The kernels of one source, as ``cupy.RawModule`` offers them."""

    def __init__(self, code: str, options: Sequence[str] = ()) -> None:
        self._library = _load(code, options)
        self._bodies = _bodies(code)

    def get_function(self, name: str) -> ShimFunction:
        """Return a kernel by its name."""
        if name not in self._bodies:
            raise ShimError(f"there is no kernel {name!r}, but {', '.join(self._bodies)}")
        return ShimFunction(self._library, name, "__syncthreads" in self._bodies[name])


class ShimFunction:
    """A kernel that is launched by calling it."""

    def __init__(self, library: ctypes.CDLL, name: str, barriers: bool) -> None:
        self.name = name
        self._barriers = barriers
        self._run = getattr(library, f"shim_run_{name}")
        kinds, sizes = getattr(library, f"shim_kinds_{name}"), getattr(library, f"shim_sizes_{name}")
        kinds.restype, sizes.restype = ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)
        self.kinds: str = kinds().decode()
        self.sizes = sizes()[: len(self.kinds)]

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        """Run every thread of the grid, one block after the other."""
        grid, block = self._size("grid", grid, MOST_BLOCKS), self._size("block", block, MOST_THREADS)
        if block[0] * block[1] * block[2] > 1024:
            raise ShimError(f"{self.name}: a block of {block} has more than 1024 threads")
        if shared_mem:
            raise ShimError(f"{self.name}: the shim has no dynamic shared memory")
        if len(args) != len(self.kinds):
            raise ShimError(f"{self.name}: {len(args)} arguments, but the kernel has {len(self.kinds)} parameters")
        values = [self._value(*each) for each in zip(range(len(args)), args, self.kinds, self.sizes, strict=True)]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(value.ctypes.data for value in values))
        # Kernels have static variables: one launch at a time.
        with _lock:
            error = self._run(pointers, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), int(self._barriers))
        if error:
            raise ShimError(f"{self.name}: {ERRORS[error]}")

    def _size(self, what: str, size: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(size, tuple) or not 1 <= len(size) <= 3 or not all(type(n) is int for n in size):
            raise ShimError(f"{self.name}: {what} is {size!r}, but must be one to three integers")
        whole = (*size, 1, 1)[:3]
        if not all(1 <= n <= limit for n, limit in zip(whole, most, strict=True)):
            raise ShimError(f"{self.name}: {what} is {size}, but must be from 1 to {most}")
        return whole

    def _value(self, place: int, argument: Any, kind: str, size: int) -> np.ndarray:
        """Return an argument as the bytes that the kernel reads, by CuPy's rules; also those that CuPy leaves open."""
        address = _address(argument)
        if address is not None:
            given, value = "p", np.array(address, np.uint64)
        else:
            if isinstance(argument, (bool, int, float)) and not isinstance(argument, np.generic):
                argument = np.float64(argument) if isinstance(argument, float) else np.int64(argument)
            if not isinstance(argument, np.generic) or argument.dtype.char not in "?bhilqBHILQefd":
                raise ShimError(f"{self.name}: argument {place} is of type {type(argument).__name__}")
            given, value = "f" if argument.dtype.kind == "f" else "i", np.array(argument)
            if kind == "p" and type(argument) is np.uint64:
                given = "p"
        if given != kind or value.itemsize != size:
            raise ShimError(
                f"{self.name}: argument {place} is {given}{value.itemsize}, but the kernel's parameter is {kind}{size} "
                "(p for pointers, f for floating point, i for integers, and bytes)"
            )
        return value


def _address(argument: Any) -> int | None:
    """Return where an array begins, or None if it is no array."""
    for interface in ("__cuda_array_interface__", "__array_interface__"):
        if not isinstance(argument, np.generic) and hasattr(argument, interface):
            return int(getattr(argument, interface)["data"][0])
    ptr = getattr(argument, "ptr", None)
    return ptr if isinstance(ptr, int) else None
