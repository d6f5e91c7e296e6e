"""What this machine has: cores, caches, memory, as the operating system tells, containers included."""

from __future__ import annotations

import functools
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from . import isa

# Used where the operating system does not tell: a small desktop's last-level cache and a common second level.
DEFAULT_LLC_BYTES = 8 * 2**20
DEFAULT_L2_BYTES = 256 * 2**10

_CPU = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """The abilities that a plan may depend on; an argument everywhere, so that a test can describe another machine."""

    llc_bytes: int = DEFAULT_LLC_BYTES
    llc_cores: int = 1
    l2_bytes: int = DEFAULT_L2_BYTES
    isa: str = "generic"

    @property
    def llc_share(self) -> int:
        """Bytes of last-level cache that one core can count on when all that share it are busy."""
        return max(self.llc_bytes // self.llc_cores, self.l2_bytes)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _parse_size(text: str | None) -> int | None:
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    if not text:
        return None
    try:
        return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)
    except ValueError:
        return None


def _count_cpus(text: str | None) -> int:
    """Return how many CPUs a kernel list such as ``0-3,8`` names."""
    count = 0
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last) - int(first) + 1 if last.isdigit() else 1
    return count


def caches() -> list[tuple[int, str, int, int]]:
    """Return (level, type, bytes, CPUs that share it) of each cache of the first CPU, as sysfs tells."""
    found = []
    for folder in sorted((_CPU / "cpu0" / "cache").glob("index*")):
        level, size = _read(folder / "level"), _parse_size(_read(folder / "size"))
        if level and level.isdigit() and size:
            shared = _count_cpus(_read(folder / "shared_cpu_list"))
            found.append((int(level), _read(folder / "type") or "", size, max(1, shared)))
    return found


@functools.cache
def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    data = [cache for cache in caches() if cache[1] != "Instruction"]
    if not data:
        return Machine(isa=isa.usable())
    _, _, llc_bytes, llc_cores = max(data)
    l2_bytes = next((size for level, _, size, _ in data if level == 2), DEFAULT_L2_BYTES)
    return Machine(llc_bytes=llc_bytes, llc_cores=llc_cores, l2_bytes=l2_bytes, isa=isa.usable())


def _own_cgroups(controller: str) -> list[Path]:
    """Return the folders of this process's cgroup and its ancestors, for cgroup v2 and the v1 controller alike."""
    folders = []
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names == "":
            roots = [_CGROUP, _CGROUP / "unified"]
        elif controller in names.split(","):
            roots = [_CGROUP / names, _CGROUP / controller]
        else:
            continue
        relative = Path(path.lstrip("/"))
        folders += [root / parent for root in roots for parent in [relative, *relative.parents]]
    return folders


def cgroup_cpus() -> float | None:
    """Return the CPU quota of the strictest enclosing cgroup in CPUs, or None where there is none."""
    quotas = []
    for folder in _own_cgroups("cpu"):
        quota, _, period = (_read(folder / "cpu.max") or "").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def affinity() -> int:
    """Return how many CPUs this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def usable_cpus() -> int:
    """Return the smaller of affinity and cgroup quota, at least 1: the default number of threads."""
    quota = cgroup_cpus()
    return affinity() if quota is None else max(1, min(affinity(), math.ceil(quota)))


def available_memory() -> int | None:
    """Return the bytes that this process can still get, the cgroup's limit included; None where nothing tells."""
    amounts = []
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith(("MemAvailable:", "SwapFree:")):
            amounts.append(int(line.split()[1]) * 1024)
    free = [sum(amounts)] if amounts else []
    for folder in _own_cgroups("memory"):
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, usage = _read(folder / limit_name), _read(folder / usage_name)
            if limit and usage and limit.isdigit() and usage.isdigit():
                # Page cache counts as used, but gives way to allocations.
                free.append(int(limit) - int(usage) + _page_cache(folder))
    return max(0, min(free)) if free else None


def _page_cache(folder: Path) -> int:
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("file", "total_cache"):
            return int(value)
    return 0


def model_name() -> str:
    """Return the processor's name."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
