"""For pytest under AddressSanitizer: device memory of the stand-in ends where a block ends, for reading too.

``asan_run`` starts such a pytest.  The guards around a block are poisoned, so that a kernel that touches them ends the
process with a report.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from shim.shim import COMPILER


def environment() -> dict[str, str]:
    """Return the environment of a process that runs under the sanitizer."""
    asked = [COMPILER, "-print-file-name=libasan.so"]
    library = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *filter(None, sys.path)]
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "CONVKIT_SHIM_ASAN": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def asan_run(*arguments: str) -> subprocess.CompletedProcess:
    """Run pytest under the sanitizer."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "asan_plugin",
        "-p",
        "no:faulthandler",
        "-q",
        "-x",
        "-s",
        *arguments,
    ]
    root = Path(__file__).parents[2]
    return subprocess.run(command, env=environment(), cwd=root, capture_output=True, text=True, timeout=280)


def pytest_configure() -> None:
    """Poison the guards of every block that the stand-in hands out."""
    import standin_device

    process = ctypes.CDLL(None)
    poison, clean = process.__asan_poison_memory_region, process.__asan_unpoison_memory_region
    for function in (poison, clean):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    class Block(standin_device.Block):
        """A block whose surroundings nobody may touch."""

        def __init__(self, device: int, size: int, alignment: int) -> None:
            super().__init__(device, size, alignment)
            start, end = self.raw.ctypes.data, self.raw.ctypes.data + self.raw.nbytes
            poison(start, self.ptr - start)
            poison(self.ptr + size, end - self.ptr - size)

        def __del__(self) -> None:
            clean(self.raw.ctypes.data, self.raw.nbytes)

    standin_device.Block = Block
