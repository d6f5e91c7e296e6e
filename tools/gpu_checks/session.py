"""What every check is given: the card, how much to do, and how long it may take."""

import contextlib
import datetime
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from harness import BFLOAT16

import convkit

_PACKAGES = ("numpy", "ml_dtypes", "nvidia-cudnn-frontend", "torch", "sigpy")


@dataclass
class Session:
    """One run of the script on one device."""

    cupy: Any
    # Golden cases of each kind, and random geometries.
    golden: int
    random: int
    # The one random geometry to repeat, if that is all there is to do.
    case: int | None = None
    seconds: float = 450.0
    begin: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the run should be over."""
        return self.begin + self.seconds - time.monotonic()

    def say(self, text: str) -> None:
        """Show what runs at the moment, on one line of a terminal."""
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def to_gpu(self, array: np.ndarray) -> Any:
        """Return a dense copy on the device."""
        return self.cupy.asarray(np.ascontiguousarray(array))

    def to_cpu(self, array: Any) -> np.ndarray:
        """Return a copy on the host."""
        return self.cupy.asnumpy(array)

    def has(self, dtype: np.dtype) -> bool:
        """Tell whether this CuPy holds arrays of that dtype; older ones have no bfloat16."""
        if dtype != BFLOAT16:
            return True
        try:
            return self.to_gpu(np.ones(2, dtype)).dtype == dtype
        except Exception:  # whatever it says of a dtype that it does not know
            return False

    def dtypes(self, wanted: tuple) -> list[np.dtype]:
        """Return those of the dtypes that this CuPy has."""
        return [np.dtype(dtype) for dtype in wanted if self.has(np.dtype(dtype))]


def _kernel_driver() -> str | None:
    """Return the version of NVIDIA's driver, which CUDA itself does not tell."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
        return told[0] if told else None
    return None


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def machine() -> dict:
    """Return what the outcome depends on."""
    found = convkit.gpu_info()
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "convkit": convkit.__version__,
        "host": f"{convkit.cpu_info()['model']}, {os.cpu_count()} CPUs",
        "kernel_driver": _kernel_driver(),
        **{key: found[key] for key in ("available", "reason", "cupy", "driver", "devices")},
        "packages": _versions(),
    }


def print_machine(found: dict) -> None:
    """Print it in some lines."""
    for number, device in enumerate(found["devices"]):
        print(f"device {number}: {', '.join(f'{key} {value}' for key, value in device.items())}")
    print(f"driver {found['kernel_driver'] or 'unknown'}, CUDA {found['driver']}, CuPy {found['cupy']}")
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    print(f"convkit {found['convkit']}, Python {found['python']}, {packages}; {found['host']}; {found['date']}\n")
