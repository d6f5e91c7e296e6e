"""What a GPU is and has, as far as a plan may depend on it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from . import access, loader


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """The abilities of one device; an argument everywhere, so that a test can describe another GPU.

    Attributes
    ----------
    device : int
        CUDA's number of the device.
    name : str
        The model.
    capability : tuple of two ints
        Compute capability, such as (9, 0).
    memory : int
        Bytes of memory in all.
    processors : int
        Number of streaming multiprocessors.
    cudnn : int or None
        Version of cuDNN, such as 92800; None where it cannot be used.
    no_cudnn : str
        A sentence saying why not, else an empty string.
    """

    device: int
    name: str
    capability: tuple[int, int]
    memory: int
    processors: int
    cudnn: int | None
    no_cudnn: str


@functools.cache
def this_machine(device: int) -> GpuMachine:
    """Return what one device of this machine is."""
    facts = access.cupy().cuda.runtime.getDeviceProperties(device)
    cudnn, no_cudnn = loader.status()
    return GpuMachine(
        device=device,
        name=facts["name"].decode(errors="replace"),
        capability=(facts["major"], facts["minor"]),
        memory=facts["totalGlobalMem"],
        processors=facts["multiProcessorCount"],
        cudnn=cudnn,
        no_cudnn=no_cudnn,
    )


def forget() -> None:
    """Ask again at the next call."""
    this_machine.cache_clear()
    loader.forget()
