"""Compiles the project's CUDA kernels, once per device and types, and launches them on the current stream.

A source is put together from files of ``kernels/`` and compiled at run time; types and the like are macros.  All grids
are one-dimensional and every kernel walks over its work in steps of the grid, so that no size makes an illegal launch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from . import access

Types = tuple[tuple[str, str], ...]

# As the enumeration in prelude.cu; a bool is a byte of 0 or 1.
_CODED = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
          "uint64")  # fmt: skip
CODES = {name: np.int32(code) for code, name in enumerate(_CODED)} | {"bool": np.int32(_CODED.index("uint8"))}
# Types of numbers in kernels, and those that their sums are kept in.
TYPES = {"float32": "float", "float64": "double", "float16": "f16", "bfloat16": "bf16"}
SUMS = {"float32": "float", "float64": "double", "float16": "float", "bfloat16": "float"}
# Types of elements that are only moved, by their bytes.
BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "uint4"}


class Source(NamedTuple):
    """What a kernel is compiled from: files, after ``prelude.cu``, and the macros that it may be compiled with."""

    files: tuple[str, ...]
    variants: tuple[Types, ...]


def _each(macro: str, values: Iterable[str]) -> tuple[Types, ...]:
    return tuple(((macro, value),) for value in values)


_NUMBERS, _SUMS = ("float", "double"), tuple(dict.fromkeys(SUMS.values()))
_BITS = _each("ELEMENT", BITS.values())
_FLOATS = tuple((("ELEMENT", TYPES[name]), ("ACC", SUMS[name])) for name in TYPES)
_COPY = Source(("axes.cu", "copy.cu"), _BITS)
_DIRECT = Source(("finish.cu", "direct.cu"), _FLOATS)
_DIRECT_FILTER = Source(("direct_filter.cu",), _FLOATS)
_INT8 = Source(("finish_int8.cu", "int8.cu"), ((),))
_REDZONE = Source(("redzone.cu",), ((),))

KERNELS: dict[str, Source] = {
    "copy_bits": _COPY,
    "copy_tiles": _COPY,
    "copy_values": Source(("axes.cu", "convert.cu"), _each("NUMBER", _NUMBERS)),
    "gather": Source(("windows.cu", "gather.cu"), _BITS + _each("NUMBER", _NUMBERS)),
    "scatter_back": Source(("windows.cu", "scatter.cu"), _each("SUM", _SUMS)),
    "float_epilogue": Source(("finish.cu", "epilogue.cu"), _each("ACC", _SUMS)),
    "int8_epilogue": Source(("finish_int8.cu", "epilogue_int8.cu"), ((),)),
    "direct_forward": _DIRECT,
    "direct_backward": _DIRECT,
    "filter_by_channels": _DIRECT_FILTER,
    "filter_by_pixels": _DIRECT_FILTER,
    "sum_slices": Source(("gradient.cu",), _each("ACC", _SUMS)),
    "int8_tiles": _INT8,
    "int8_narrow": _INT8,
    "fill_zones": _REDZONE,
    "count_damage": _REDZONE,
}
OPTIONS = ("--std=c++17", "--fmad=false")

# A pointer to nothing: CuPy would pass None on as an argument that is not there.
NULL = np.uint64(0)

THREADS = 256
# The driver's limit on one-dimensional grids.
MOST_BLOCKS = 2**31 - 1


@functools.cache
def text_of(files: tuple[str, ...]) -> str:
    """Return the whole source that kernels are compiled from."""
    folder = resources.files(__package__).joinpath("kernels")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in ("prelude.cu", *files))


def options_of(types: Types) -> tuple[str, ...]:
    """Return the compiler's options."""
    return (*OPTIONS, *(f"-D{name}={value}" for name, value in types))


_lock = threading.Lock()
_modules: dict[tuple[int, tuple[str, ...], Types], Any] = {}
_kernels: dict[tuple[int, str, Types], Any] = {}


def _kernel(kernel: str, types: Types) -> Any:
    """Return a kernel compiled for the current device."""
    cupy = access.cupy()
    device = access.current_device()
    found = _kernels.get((device, kernel, types))
    if found is None:
        source = KERNELS[kernel]
        if types not in source.variants:
            raise ValueError(f"{kernel} is not among the kernels that are compiled and tested with {types}")
        key = device, source.files, types
        with _lock:
            if key not in _modules:
                _modules[key] = cupy.RawModule(code=text_of(source.files), options=options_of(types))
            found = _kernels[device, kernel, types] = _modules[key].get_function(kernel)
    return found


def forget() -> None:
    """Compile again at the next launch."""
    with _lock:
        _modules.clear()
        _kernels.clear()


def run(kernel: str, types: Types, items: int, args: Sequence[Any], block: int = THREADS) -> None:
    """Launch a kernel with a thread for each item, ``block`` of them in a block."""
    run_blocks(kernel, types, -(-items // block), (block,), args)


def run_blocks(kernel: str, types: Types, blocks: int, block: tuple[int, ...], args: Sequence[Any]) -> None:
    """Launch a kernel with so many blocks, or as many as a grid may have; nothing where there is no work."""
    if blocks > 0:
        _kernel(kernel, types)((min(blocks, MOST_BLOCKS),), block, tuple(args))
