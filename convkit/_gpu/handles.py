"""cuDNN's handles: one for each thread and device at a time, set to the caller's stream at every call."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from . import loader

# Handles whose threads have ended, by device: creating one takes milliseconds and device memory.
_free: defaultdict[int, list[Any]] = defaultdict(list)


class _Held:
    """The handles of one thread; given back when the thread ends."""

    def __init__(self) -> None:
        self.by_device: dict[int, Any] = {}

    def __del__(self, free: defaultdict[int, list[Any]] = _free) -> None:
        # Bound here: when the interpreter ends, the module's names are gone before the main thread's handles.
        for device, handle in self.by_device.items():
            free[device].append(handle)


class _Local(threading.local):
    def __init__(self) -> None:
        self.held = _Held()


_local = _Local()


def handle(device: int, stream: int) -> Any:
    """Return this thread's handle of a device, set to a stream; the device must be the current one.

    Parameters
    ----------
    device : int
        Number of the device.
    stream : int
        Address of the stream.
    """
    held = _local.held.by_device
    own = held.get(device)
    cudnn = loader.module()
    if own is None:
        try:
            own = _free[device].pop()
        except IndexError:
            own = cudnn.create_handle()
        held[device] = own
    cudnn.set_stream(own, stream)
    return own


def forget() -> None:
    """Destroy this thread's handles and those whose threads have ended."""
    own = _local.held.by_device
    for device in list(own):
        _free[device].append(own.pop(device))
    for handles in list(_free.values()):
        # Other threads take handles meanwhile: whether there is one left is known when it has been taken.
        for unused in _taken(handles):
            loader.module().destroy_handle(unused)


def _taken(handles: list[Any]) -> Iterator[Any]:
    """Take handles, one by one, until there are none."""
    while True:
        try:
            yield handles.pop()
        except IndexError:
            return
