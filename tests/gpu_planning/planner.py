"""cuDNN's planner without a device: the real library over a driver that has none.

For processes of their own: it must be asked for before anything looks for a driver, and cuDNN ends the process where it
meets what it does not expect.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import cards

from convkit._gpu import loader
from convkit._gpu.machine import GpuMachine

SOURCE = Path(__file__).with_name("stub_driver.c")


def load_stub_driver() -> None:
    """Compile the driver, once for each version of its source, and load it before any other."""
    mark = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"convkit-stub-driver-{os.getuid()}-{mark}"
    library = folder / "libcuda.so.1"
    if not library.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        made = folder / f"{os.getpid()}.so"
        flags = ["-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wl,-soname,libcuda.so.1"]
        subprocess.run([os.environ.get("CC", "cc").split()[-1], *flags, str(SOURCE), "-o", str(made)], check=True)
        made.replace(library)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Planner:
    """cuDNN for one GPU that is not there."""

    def __init__(self, sm: int) -> None:
        self.cudnn = loader.module()
        self.place = {"device_property": self.cudnn.create_device_properties(cards.text(sm))}
        card = cards.CARDS[sm]
        self.machine = GpuMachine(
            device=0,
            name=card["deviceName"],
            capability=divmod(sm, 10),
            memory=card["totalGlobalMem"],
            processors=card["multiProcessorCount"],
            cudnn=self.cudnn.backend_version(),
            no_cudnn="",
        )
