"""GPUs that are not there: memory with guards, devices, streams, events and captured graphs, as CuPy shows them.

Device memory is host memory with guards around each block, filled with bytes that are NaN in every floating-point
dtype.  Work runs at once, in order, unless its stream is being captured: then it runs when the graph is launched, and
whatever it touches must still be there.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GUARD_BYTES = 512
GUARD, FRESH, FREED = 0xA5, 0xFF, 0xDB
UNIT = 512  # CuPy's pool hands out multiples of it
# What the runtime calls its errors.
ERRORS = {
    1: "cudaErrorInvalidValue: invalid argument",
    2: "cudaErrorMemoryAllocation: out of memory",
    35: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    100: "cudaErrorNoDevice: no CUDA-capable device is detected",
    101: "cudaErrorInvalidDevice: invalid device ordinal",
    400: "cudaErrorInvalidResourceHandle: invalid resource handle",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
    901: "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during capture",
}


class StandinError(AssertionError):
    """Something that a GPU would not notice, or not at once, and that is always a fault of the caller."""


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(ERRORS[status])


class OutOfMemoryError(MemoryError):
    """The device's memory, or the pool's limit, is used up."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        limited = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{limited}).")


@dataclass
class Card:
    """One GPU: what it has, and what is taken of it."""

    name: str = "Stand-in"
    capability: tuple[int, int] = (9, 0)
    memory: int = 4 * 2**30
    processors: int = 132
    # Bytes handed out by the pool, the most so far, and bytes that the pool keeps for later.
    used: int = 0
    most_used: int = 0
    kept: int = 0
    limit: int = 0


class Block:
    """A piece of device memory between two guards."""

    def __init__(self, device: int, size: int, alignment: int) -> None:
        self.device, self.size, self.live = device, size, True
        self.raw = np.full(size + 2 * GUARD_BYTES + alignment, GUARD, np.uint8)
        base = self.raw.ctypes.data
        self.offset = GUARD_BYTES + (-(base + GUARD_BYTES)) % alignment
        self.ptr = base + self.offset
        self.raw[self.offset : self.offset + size] = FRESH

    def damage(self) -> str | None:
        """Return what was written outside, or None."""
        before, after = self.raw[: self.offset], self.raw[self.offset + self.size :]
        if (before == GUARD).all() and (after == GUARD).all():
            return None
        return f"memory around a block of {self.size} bytes was written to"


@dataclass
class World:
    """Everything that CUDA would keep: cards, memory, what threads have made current, and what was done."""

    cards: list[Card] = field(default_factory=lambda: [Card(), Card()])
    driver: bool = True
    version: str = "14.2.0"
    # How many more allocations succeed; None for all of them.
    allocations_left: int | None = None
    alignment: int = UNIT
    blocks: dict[int, Block] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    # One line for each kernel, product, copy and fill that ran, and for each time the host waited.
    log: list[str] = field(default_factory=list)
    # Streams that anything was done on.
    used_streams: set[int] = field(default_factory=set)
    allocated: int = 0
    streams: weakref.WeakValueDictionary[int, Any] = field(default_factory=weakref.WeakValueDictionary)
    handles: dict[int, tuple[int, int]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    local: threading.local = field(default_factory=threading.local)

    @property
    def major(self) -> int:
        """CuPy's major version."""
        return int(self.version.split(".")[0])

    def need_driver(self) -> None:
        """Raise as the runtime does where there is no driver."""
        if not self.driver:
            raise CUDARuntimeError(35)

    def check_device(self, device: int) -> int:
        """Return the number of a device that is there."""
        self.need_driver()
        if not 0 <= device < len(self.cards):
            raise CUDARuntimeError(101)
        return device

    @property
    def device(self) -> int:
        """The calling thread's current device."""
        self.need_driver()
        return getattr(self.local, "device", 0)

    def allocate(self, size: int) -> Block:
        """Return fresh memory of the current device."""
        device = self.device
        card, rounded = self.cards[device], -(-size // UNIT) * UNIT
        with self.lock:
            if self.allocations_left is not None:
                self.allocations_left -= 1
            failing = self.allocations_left is not None and self.allocations_left < 0
            if failing or card.used + rounded > (card.limit or card.memory):
                raise OutOfMemoryError(rounded, card.used, card.limit)
            block = Block(device, size, self.alignment)
            self.allocated += 1
            card.used += rounded
            card.most_used = max(card.most_used, card.used)
            card.kept = max(0, card.kept - rounded)
            self.blocks[block.ptr] = block
            bisect.insort(self.starts, block.ptr)
        return block

    def release(self, block: Block) -> None:
        """Take memory back."""
        with self.lock:
            if self.blocks.get(block.ptr) is not block:
                return  # of a world that has ended
            damage, rounded = block.damage(), -(-block.size // UNIT) * UNIT
            if damage:
                self.damages.append(damage)
            block.live = False
            block.raw[block.offset : block.offset + block.size] = FREED
            self.cards[block.device].used -= rounded
            self.cards[block.device].kept += rounded
            del self.blocks[block.ptr]
            self.starts.remove(block.ptr)

    def find(self, ptr: int, size: int, device: int | None = None) -> Block:
        """Return the live block of the current device that holds these bytes, or raise."""
        device = self.device if device is None else device
        with self.lock:
            place = bisect.bisect_right(self.starts, ptr) - 1
            block = self.blocks[self.starts[place]] if place >= 0 else None
        if block is None or ptr + size > block.ptr + block.size:
            raise StandinError(f"{size} bytes at {ptr:#x} are no memory of a device, or not any more")
        if block.device != device:
            raise StandinError(f"memory of device {block.device} is used while device {device} is current")
        return block

    def view(self, ptr: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """Return device memory as a NumPy array, every element of which is inside one block."""
        steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low, high = sum(min(0, s) for s in steps), sum(max(0, s) for s in steps) + np.dtype(dtype).itemsize
        block = self.find(ptr + low, high - low)
        inside = block.raw[block.offset : block.offset + block.size]
        return np.ndarray(shape, dtype, buffer=inside, offset=ptr - block.ptr, strides=strides)

    def wait(self, stream: Stream | None = None) -> None:
        """Wait for the device, as the host does; not legal while a stream is captured."""
        self.need_driver()
        if (stream or current_stream())._capturing is not None:
            raise CUDARuntimeError(900)
        self.log.append("wait")

    def do(self, what: str, work: Callable[[], None], stream: Stream | None = None) -> None:
        """Do work in the order of a stream: now, or when its graph is launched."""
        stream = stream or current_stream()
        self.used_streams.add(stream.ptr)

        def logged() -> None:
            self.log.append(what)
            work()

        if stream._capturing is not None:
            stream._capturing.append(logged)
        else:
            logged()


WORLD = World()


def reset(**settings: Any) -> World:
    """Start from cards with nothing on them."""
    fresh = World(**settings)
    for name in World.__dataclass_fields__:
        setattr(WORLD, name, getattr(fresh, name))
    return WORLD


class Stream:
    """A stream; work in it runs at once unless it is captured."""

    _numbers = itertools.count(0x1000, 16)

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None):
        WORLD.need_driver()
        if priority is not None and WORLD.major < 14:
            raise TypeError("__init__() got an unexpected keyword argument 'priority'")
        self._enter(0 if null else 2 if ptds else next(self._numbers), WORLD.device)

    def _enter(self, ptr: int, device: int) -> None:
        self.ptr, self.device_id = ptr, device
        self._capturing: list[Callable[[], None]] | None = None
        if ptr:
            WORLD.streams[ptr] = self

    def __enter__(self) -> Stream:
        stack = WORLD.local.__dict__.setdefault("stream_stack", [])
        stack.append(current_stream())
        self.use()
        return self

    def __exit__(self, *args: Any) -> None:
        WORLD.local.stream_stack.pop().use()

    def use(self) -> Stream:
        """Make this the stream of the calling thread on its device."""
        WORLD.local.__dict__.setdefault("streams", {})[WORLD.device] = self
        return self

    def synchronize(self) -> None:
        """Wait until all is done."""
        WORLD.wait(self)

    def record(self, event: Event | None = None) -> Event:
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let later work wait for an event."""
        WORLD.log.append("wait_event")

    def begin_capture(self, mode: int | None = None) -> None:
        """Keep what comes for a graph."""
        if self.ptr == 0 or self._capturing is not None:
            raise CUDARuntimeError(900 if self.ptr == 0 else 1)
        self._capturing = []

    def end_capture(self) -> Graph:
        """Return the graph of what came."""
        if self._capturing is None:
            raise CUDARuntimeError(1)
        work, self._capturing = self._capturing, None
        return Graph(work)

    def is_capturing(self) -> bool:
        """Tell whether the stream is captured."""
        return self._capturing is not None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return True


Stream.null = Stream.__new__(Stream)  # type: ignore[attr-defined]
Stream.null._enter(0, 0)  # type: ignore[attr-defined]


class ExternalStream(Stream):
    """A stream made by somebody else."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self._enter(ptr, WORLD.device if device_id < 0 else device_id)


class Event:
    """A point in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        WORLD.need_driver()
        self._time: float | None = None
        self._timed = not disable_timing

    def record(self, stream: Stream | None = None) -> None:
        """Set the point."""
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the point."""
        WORLD.wait()

    @property
    def done(self) -> bool:
        """Whether the point has been reached."""
        return True


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events."""
    if start_event._time is None or end_event._time is None or not (start_event._timed and end_event._timed):
        raise CUDARuntimeError(400)
    return 1e3 * (end_event._time - start_event._time)


class Graph:
    """What was captured."""

    def __init__(self, work: list[Callable[[], None]]) -> None:
        self._work = work

    def launch(self, stream: Stream | None = None) -> None:
        """Do all of it."""
        for step in self._work:
            step()

    def upload(self, stream: Stream | None = None) -> None:
        """Send it ahead."""


def current_stream(device_id: int = -1) -> Stream:
    """Return the calling thread's stream."""
    device = WORLD.device if device_id < 0 else WORLD.check_device(device_id)
    stream: Stream = getattr(WORLD.local, "streams", {}).get(device, Stream.null)  # type: ignore[attr-defined]
    return stream


class Device:
    """A device, which can be made current."""

    def __init__(self, device: Any = None) -> None:
        self.id = WORLD.device if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        WORLD.local.__dict__.setdefault("device_stack", []).append(WORLD.device)
        self.use()
        return self

    def __exit__(self, *args: Any) -> None:
        WORLD.local.device = WORLD.local.device_stack.pop()

    def use(self) -> None:
        """Make it the calling thread's current device."""
        WORLD.local.device = WORLD.check_device(self.id)

    def synchronize(self) -> None:
        """Wait for all its streams."""
        WORLD.wait()

    @property
    def _card(self) -> Card:
        """What the stand-in knows of it."""
        return WORLD.cards[WORLD.check_device(self.id)]

    @property
    def compute_capability(self) -> str:
        """Major and minor version without a point."""
        return "{}{}".format(*self._card.capability)

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        return self._card.memory - self._card.used - self._card.kept, self._card.memory

    @property
    def attributes(self) -> dict[str, int]:
        """Some of the device's attributes."""
        major, minor = self._card.capability
        return {
            "MultiProcessorCount": self._card.processors,
            "ComputeCapabilityMajor": major,
            "ComputeCapabilityMinor": minor,
        }

    @property
    def cublas_handle(self) -> int:
        """The calling thread's handle of cuBLAS on this device."""
        handles = WORLD.local.__dict__.setdefault("cublas", {})
        WORLD.check_device(self.id)
        if self.id not in handles:
            handles[self.id] = 0x7000 + len(WORLD.handles) * 8
            WORLD.handles[handles[self.id]] = (self.id, threading.get_ident())
        return handles[self.id]


class BaseMemory:
    """Memory on a device."""

    ptr: int
    size: int
    device_id: int

    @property
    def device(self) -> Device:
        """The device."""
        return Device(self.device_id)


class Memory(BaseMemory):
    """Memory of the stand-in, given back when nobody holds it."""

    def __init__(self, size: int) -> None:
        self._block = WORLD.allocate(size)
        self.ptr, self.size, self.device_id = self._block.ptr, size, self._block.device

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:
            WORLD.release(block)


class NoMemory(BaseMemory):
    """What arrays without elements hold."""

    def __init__(self) -> None:
        self.ptr, self.size, self.device_id = 0, 0, WORLD.device


class UnownedMemory(BaseMemory):
    """Memory that belongs to somebody else; here, some of the stand-in's own."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self._owner = owner
        self.ptr, self.size = ptr, size
        self.device_id = WORLD.device if device_id < 0 else device_id


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        self.mem, self.device_id, self.ptr = mem, mem.device_id, mem.ptr + offset

    @property
    def device(self) -> Device:
        """The device."""
        return Device(self.device_id)

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        """Fill with a byte."""
        ptr = self.ptr

        def fill() -> None:
            WORLD.view(ptr, np.uint8, (size,), (1,))[...] = value

        if size:
            WORLD.do("fill", fill, stream)

    def memset(self, value: int, size: int) -> None:
        """Fill with a byte."""
        self.memset_async(value, size)

    def copy_from_host(self, mem: Any, size: int) -> None:
        """Copy from host memory, given as an address, and wait."""
        WORLD.wait()
        address = mem.value if isinstance(mem, ctypes.c_void_p) else int(mem)
        WORLD.find(self.ptr, size)
        ctypes.memmove(self.ptr, address, size)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Stream | None = None) -> None:
        """Copy memory of a device."""
        source, target = src.ptr, self.ptr

        def copy() -> None:
            WORLD.view(target, np.uint8, (size,), (1,))[...] = WORLD.view(source, np.uint8, (size,), (1,))

        if size:
            WORLD.do("copy", copy, stream)


def alloc(size: int) -> MemoryPointer:
    """Return memory of the current device from the pool."""
    return MemoryPointer(Memory(size) if size else NoMemory(), 0)


class MemoryPool:
    """What CuPy's pool tells of itself; here all arrays share it."""

    def malloc(self, size: int) -> MemoryPointer:
        """Return memory of the current device."""
        return alloc(size)

    def used_bytes(self) -> int:
        """Bytes in use on the current device."""
        return WORLD.cards[WORLD.device].used

    def free_bytes(self) -> int:
        """Bytes kept for later."""
        return WORLD.cards[WORLD.device].kept

    def total_bytes(self) -> int:
        """Both together."""
        return self.used_bytes() + self.free_bytes()

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        """Give back what is kept."""
        WORLD.cards[WORLD.device].kept = 0

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limit the pool on the current device."""
        card = WORLD.cards[WORLD.device]
        card.limit = int(card.memory * fraction) if fraction is not None else size or 0

    def get_limit(self) -> int:
        """Return the limit, 0 for none."""
        return WORLD.cards[WORLD.device].limit


POOL = MemoryPool()
