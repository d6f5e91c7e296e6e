"""Descriptions of GPUs, from which cuDNN plans without having one.

Written from NVIDIA's published figures; only what a planner looks at matters.
"""

import json

_COMMON = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxRegistersPerSM": 65536,
    "pciDeviceId": 0,
    "maxThreadsPerBlock": 1024,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "driverVer": 13000,
    "cudaDeviceId": 0,
    "oversizedSharedMemoryPerBlock": 0,
}
_COLUMNS = (
    "deviceName", "deviceVer", "multiProcessorCount", "smClockRateKHz", "memClockRateKHz", "memoryBusWidth",
    "l2CacheSize", "maxSharedMemoryPerBlockOptin", "reservedSharedMemoryPerBlock", "maxThreadsPerSM", "maxCtasPerSM",
    "totalGlobalMem",
)  # fmt: skip
MIB, GIB = 2**20, 2**30
_ROWS = (
    ("NVIDIA T4", 750, 40, 1590000, 5001000, 256, 4 * MIB, 65536, 0, 1024, 16, 16 * GIB),
    ("NVIDIA A100", 800, 108, 1410000, 1512000, 5120, 40 * MIB, 166912, 1024, 2048, 32, 80 * GIB),
    ("NVIDIA L4", 890, 58, 2040000, 6251000, 192, 48 * MIB, 101376, 1024, 1536, 24, 24 * GIB),
    ("NVIDIA H200", 900, 132, 1980000, 3201000, 6144, 60 * MIB, 232448, 1024, 2048, 32, 140 * GIB),
    ("NVIDIA B200", 1000, 148, 1965000, 3996000, 8192, 126 * MIB, 232448, 1024, 2048, 32, 180 * GIB),
    ("NVIDIA GeForce RTX 5090", 1200, 170, 2407000, 14001000, 512, 96 * MIB, 101376, 1024, 1536, 24, 32 * GIB),
)
CARDS = {row[1] // 10: {**_COMMON, **dict(zip(_COLUMNS, row, strict=True))} for row in _ROWS}


def text(sm: int) -> str:
    """Return the description of a GPU of a compute capability, such as 90, as cuDNN reads it."""
    return json.dumps(CARDS[sm])
