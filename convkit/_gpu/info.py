"""What there is of GPUs, in plain values."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from .._errors import BackendError
from . import access
from .machine import this_machine


def describe() -> dict[str, Any]:
    """Return what `gpu_info` returns."""
    try:
        with access.failures("gpu_info", "asking for the devices"):
            cupy, count = access.cupy(), access.device_count()
            devices = [asdict(this_machine(device)) for device in range(count)]
            driver = cupy.cuda.runtime.driverGetVersion()
    except BackendError as error:
        return {"available": False, "reason": str(error), "cupy": _imported(), "driver": None, "devices": []}
    for facts in devices:
        del facts["device"]
    return {"available": True, "reason": None, "cupy": cupy.__version__, "driver": driver, "devices": devices}


def _imported() -> str | None:
    """Return the version of a CuPy that was imported, whether or not it can be used."""
    version: str | None = getattr(sys.modules.get("cupy"), "__version__", None)
    return version
