"""NVIDIA's run-time compiler from its wheel, which needs no driver and no GPU."""

import ctypes
import functools
from importlib.metadata import files
from pathlib import Path


@functools.cache
def _library() -> ctypes.CDLL:
    """Load the library of the wheel ``nvidia-cuda-nvrtc``; without the wheel that is an error."""
    paths = [Path(path.locate()) for path in files("nvidia-cuda-nvrtc") or () if path.name.startswith("libnvrtc.so")]
    return ctypes.CDLL(str(paths[0]))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"NVRTC's status is {status}")


def compile_for(architecture: str, source: str, options: tuple[str, ...]) -> tuple[bool, str, int]:
    """Compile to machine code; return whether that was possible, what the compiler said, and the bytes it made."""
    nvrtc, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        encoded = [option.encode() for option in (*options, f"--gpu-architecture={architecture}")]
        status = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, log))
        if status == 0:
            _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        return status == 0, log.value.decode().strip(), size.value if status == 0 else 0
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
