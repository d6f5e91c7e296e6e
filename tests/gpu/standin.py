"""A stand-in for CuPy on machines without a GPU: NumPy in its place, kernels through the shim.

``installed()`` puts it under the name ``cupy``.  What it offers is what CuPy 13 and 14 offer, by the same names and
with the same arguments; ``tests/gpu_planning`` compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import standin_array as arrays
import standin_blas as blas
import standin_device as device
from standin_device import WORLD, StandinError, World, reset


class CompileException(Exception):
    """A source that the compiler refuses."""

    def __init__(self, msg: str, source: str, name: str, options: Any, backend: str = "nvrtc") -> None:
        self._msg, self.source, self.name, self.options, self.backend = msg, source, name, options, backend
        super().__init__(msg)

    def __str__(self) -> str:
        return self._msg


class _Pointer:
    """An address, as the shim takes it."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class RawKernel:
    """A kernel of a `RawModule`."""

    def __init__(self, function: Any, name: str) -> None:
        self._function, self.name = function, name

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
        """Launch on the current stream."""
        if not isinstance(grid, tuple) or not isinstance(block, tuple) or not isinstance(args, tuple):
            raise TypeError("grid, block and args must be tuples")
        addresses, passed = [], []
        for argument in args:
            if isinstance(argument, arrays.ndarray):
                if argument.size and argument.data.device_id != WORLD.device:
                    raise ValueError(f"Array device must be same as the current device, but is {argument.device}")
                if argument.size:
                    addresses.append(argument.data.ptr)
                passed.append(_Pointer(argument.data.ptr))
            elif isinstance(argument, (bool, int, float, np.generic)):
                passed.append(argument)
            else:
                raise TypeError(f"Unsupported type {type(argument)}")

        def run() -> None:
            for address in addresses:
                WORLD.find(address, 1)
            self._function(grid, block, tuple(passed), shared_mem=shared_mem)

        WORLD.do(f"kernel {self.name}", run)


class RawModule:
    """Kernels compiled from source by the shim."""

    def __init__(
        self, code: str | None = None, *, path: str | None = None, options: tuple[str, ...] = (),
        backend: str = "nvrtc", translate_cucomplex: bool = False, enable_cooperative_groups: bool = False,
        name_expressions: Any = None, jitify: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(options, tuple):
            raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
        if not isinstance(code, str) or path is not None or backend != "nvrtc" or enable_cooperative_groups:
            raise StandinError("the stand-in compiles sources alone")
        self.code, self.options, self.backend = code, options, backend
        self._module: Any = None

    def compile(self, log_stream: Any = None) -> None:
        """Compile, which a driver is needed for."""
        from shim import shim

        WORLD.need_driver()
        if self._module is None:
            WORLD.log.append("compile")
            try:
                self._module = shim.ShimModule(self.code, self.options)
            except shim.ShimError as error:
                raise CompileException(str(error), self.code, "kernels.cu", self.options) from error

    def get_function(self, name: str) -> RawKernel:
        """Return a kernel."""
        self.compile()
        return RawKernel(self._module.get_function(name), name)


def _get_device_count() -> int:
    WORLD.need_driver()
    return len(WORLD.cards)


def _set_device(device: int) -> None:
    WORLD.local.device = WORLD.check_device(device)


def _properties(device: int) -> dict[str, Any]:
    card = WORLD.cards[WORLD.check_device(device)]
    return {
        "name": card.name.encode(),
        "totalGlobalMem": card.memory,
        "multiProcessorCount": card.processors,
        "major": card.capability[0],
        "minor": card.capability[1],
    }


def _attribute(attrib: int, device: int) -> int:
    card = WORLD.cards[WORLD.check_device(device)]
    return {16: card.processors, 75: card.capability[0], 76: card.capability[1]}[attrib]


def _is_capturing(stream: int) -> bool:
    WORLD.need_driver()
    found = WORLD.streams.get(stream)
    return found is not None and found._capturing is not None


def _driver_version() -> int:
    return 13000 if WORLD.driver else 0


def _is_available() -> bool:
    return WORLD.driver and bool(WORLD.cards)


def _device_id() -> int:
    return WORLD.device


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    return module


RUNTIME = _module(
    "cupy.cuda.runtime",
    CUDARuntimeError=device.CUDARuntimeError,
    getDeviceCount=_get_device_count,
    getDevice=_device_id,
    setDevice=_set_device,
    getDeviceProperties=_properties,
    deviceGetAttribute=_attribute,
    memGetInfo=lambda: device.Device().mem_info,
    driverGetVersion=_driver_version,
    runtimeGetVersion=lambda: 12090,
    streamIsCapturing=_is_capturing,
    is_hip=False,
    CUDA_R_32F=0,
    CUDA_R_64F=1,
    CUDA_R_16F=2,
    CUDA_R_8I=3,
    CUDA_R_8U=8,
)
MEMORY = _module(
    "cupy.cuda.memory",
    OutOfMemoryError=device.OutOfMemoryError,
    MemoryPointer=device.MemoryPointer,
    MemoryPool=device.MemoryPool,
    BaseMemory=device.BaseMemory,
    UnownedMemory=device.UnownedMemory,
    alloc=device.alloc,
)
COMPILER = _module("cupy.cuda.compiler", CompileException=CompileException)
CUDA = _module(
    "cupy.cuda",
    runtime=RUNTIME,
    memory=MEMORY,
    compiler=COMPILER,
    cublas=blas,
    Device=device.Device,
    Stream=device.Stream,
    ExternalStream=device.ExternalStream,
    Event=device.Event,
    Graph=device.Graph,
    MemoryPointer=device.MemoryPointer,
    MemoryPool=device.MemoryPool,
    BaseMemory=device.BaseMemory,
    UnownedMemory=device.UnownedMemory,
    alloc=device.alloc,
    get_current_stream=device.current_stream,
    get_elapsed_time=device.get_elapsed_time,
    get_cublas_handle=lambda: device.Device().cublas_handle,
    get_device_id=_device_id,
    is_available=_is_available,
)
STRIDE_TRICKS = _module("cupy.lib.stride_tricks", as_strided=arrays.as_strided)
LIB = _module("cupy.lib", stride_tricks=STRIDE_TRICKS)
_FUNCTIONS = (
    *("empty", "full", "zeros", "ones", "array", "asarray", "asnumpy", "ascontiguousarray", "broadcast_to"),
    *("may_share_memory", "get_array_module", "ndarray"),
)
_DTYPES = ("dtype", "float16", "float32", "float64", "int8", "uint8", "int32", "int64")
CUPY = _module(
    "cupy",
    __path__=[],
    cuda=CUDA,
    lib=LIB,
    RawModule=RawModule,
    get_default_memory_pool=lambda: device.POOL,
    **{name: getattr(arrays, name) for name in _FUNCTIONS},
    **{
        name: getattr(np, name)
        for name in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "dtype")
    },
)
CUPYX = _module("cupyx", __path__=[])
CUDA.__dict__["__path__"] = []
LIB.__dict__["__path__"] = []
MODULES = {module.__name__: module for module in (CUPY, CUDA, RUNTIME, MEMORY, COMPILER, LIB, STRIDE_TRICKS, CUPYX)}
for _name, _made in MODULES.items():
    _made.__spec__ = ModuleSpec(_name, None, is_package="__path__" in vars(_made))
MODULES["cupy.cuda.cublas"] = blas


def _loaded() -> list[str]:
    """Return the names of all modules of CuPy, whosever they are."""
    return [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx")]


@contextmanager
def installed(**settings: Any) -> Iterator[World]:
    """Let ``import cupy`` find the stand-in, with the settings of a `World`; afterwards nothing of it is left.

    Raises
    ------
    StandinError
        At the end, if memory around a block was written to.
    """
    before = {name: sys.modules.pop(name) for name in _loaded()}
    world = reset(**settings)
    CUPY.__version__ = world.version  # type: ignore[attr-defined]
    RUNTIME.__dict__.pop("CUDA_R_16BF", None)
    if world.major >= 14:
        RUNTIME.CUDA_R_16BF = 14  # type: ignore[attr-defined]
    sys.modules.update(MODULES)
    try:
        yield world
        damages = [*world.damages, *filter(None, (block.damage() for block in world.blocks.values()))]
        if damages:
            raise StandinError("; ".join(damages))
    finally:
        for name in _loaded():
            del sys.modules[name]
        sys.modules.update(before)
        reset()
