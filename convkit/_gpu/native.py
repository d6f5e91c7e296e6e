"""The ways that need no cuDNN: patches and cuBLAS, and kernels of the project's own."""

from .direct import Direct
from .direct_int8 import Int8Direct
from .im2col import Im2col

__all__ = ["Direct", "Im2col", "Int8Direct"]
