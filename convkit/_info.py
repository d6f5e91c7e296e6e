"""What convkit found on this machine, and what it keeps."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import _calls, _fused
from ._cpu import _engine, blas, depthwise, families, int8, isa, machine, memory, planar, threads, winograd
from ._options import current, forget_environment
from ._version import __version__

_COMPANIONS = ("numpy", "threadpoolctl", "ml_dtypes")
# Under whatever name they are installed for one release of CUDA.
_GPU_COMPANIONS = {
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "cudnn frontend": ("nvidia-cudnn-frontend",),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}


def cpu_info() -> dict[str, Any]:
    """Return what convkit knows of the CPU.

    Returns
    -------
    dict
        ``model``: the processor's name; ``isa``: the instruction-set levels that are usable, lowest first;
        ``isa_not_built``: those that the compiler of this build did not know; ``caches``: (level, type, bytes, CPUs
        that share it) of each; ``llc_bytes``, ``llc_cores``, ``l2_bytes``: the sizes that shards are cut by, from sysfs
        or documented defaults; ``affinity``: CPUs the process may run on; ``cgroup_cpus``: the container's quota or
        None; ``num_threads``: threads that a call without settings uses; ``available_memory``: bytes that can still
        be had, or None where nothing tells.
    """
    found = machine.this_machine()
    return {
        "model": machine.model_name(),
        "isa": isa.levels(found.isa),
        "isa_not_built": tuple(level for level in _engine.ISA_LEVELS if level not in _engine.ISA_BUILT),
        "caches": machine.caches(),
        "llc_bytes": found.llc_bytes,
        "llc_cores": found.llc_cores,
        "l2_bytes": found.l2_bytes,
        "affinity": machine.affinity(),
        "cgroup_cpus": machine.cgroup_cpus(),
        "num_threads": threads.resolve("cpu_info", None, current()),
        "available_memory": machine.available_memory(),
    }


def gpu_info() -> dict[str, Any]:
    """Return what convkit knows of the GPUs; the first call initialises CUDA.

    Returns
    -------
    dict
        ``available``: whether convolutions can run on a GPU; ``reason``: one sentence saying why not, else None;
        ``cupy``: the version of a CuPy that can be imported, or None; ``driver``: the version of CUDA that the driver
        is for, such as 12080, or None; ``devices``: of each GPU a dict with ``name``, ``capability`` (major,
        minor), ``memory`` (bytes), ``processors``, ``cudnn`` (version, or None: own kernels serve all calls) and
        ``no_cudnn`` (why it is not used, else an empty string).
    """
    # Nothing imports the GPU side before it is asked for.
    from ._gpu.info import describe

    return describe()


def _installed(names: tuple[str, ...]) -> str:
    """Return the version of the first distribution that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "not installed"


def show_versions() -> None:
    """Print the versions of convkit, Python and the libraries it works with, the BLAS in use and the CPU."""
    lines = [("convkit", __version__), ("python", sys.version.split()[0]), ("platform", platform.platform())]
    lines += [(name, _installed((name,))) for name in _COMPANIONS]
    lines += [(name, _installed(names)) for name, names in _GPU_COMPANIONS.items()]
    lines.append(("blas", blas.describe()))
    lines += [(f"cpu {key}", str(value)) for key, value in cpu_info().items()]
    width = max(len(key) for key, _ in lines)
    print("\n".join(f"{key:<{width}}  {value}" for key, value in lines))


def clear_caches() -> None:
    """Forget cached plans, free retained scratch memory, and read environment and machine again at the next call."""
    _calls.clear_prepared()
    _fused.clear_prepared()
    families.forget_specs()
    depthwise.forget_specs()
    planar.forget_specs()
    int8.forget_specs()
    winograd.forget_specs()
    if "convkit._calls_gpu" in sys.modules:
        # Imported again, which waits for another thread that is about to import it first.
        _calls.on_gpu().clear_prepared()
    _engine.clear_scratch()
    memory.process_limit.cache_clear()
    threads.forget()
    machine.this_machine.cache_clear()
    forget_environment()
