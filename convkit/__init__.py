"""2-D convolutions and their gradients for plain arrays, without a deep-learning framework."""

from . import compat as compat
from . import quantize as quantize
from ._calls import PerformanceWarning
from ._errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendError,
    ConvkitError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    WorkspaceError,
)
from ._explain import Explanation, explain
from ._geometry import ConvGeometry, conv2d_output_shape
from ._info import clear_caches, cpu_info, gpu_info, show_versions
from ._ops import conv2d, conv2d_backprop_filter, conv2d_backprop_input
from ._ops_fused import fused_conv2d
from ._options import options, set_options
from ._packed import PackedFilter, pack_filter
from ._tuning import load_gpu_tuning, save_gpu_tuning
from ._version import __version__

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BackendError",
    "ConvGeometry",
    "ConvkitError",
    "DTypeError",
    "Explanation",
    "PackedFilter",
    "PerformanceWarning",
    "ShapeError",
    "UnsupportedError",
    "WorkspaceError",
    "__version__",
    "clear_caches",
    "compat",
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv2d_output_shape",
    "cpu_info",
    "explain",
    "fused_conv2d",
    "gpu_info",
    "load_gpu_tuning",
    "options",
    "pack_filter",
    "quantize",
    "save_gpu_tuning",
    "set_options",
    "show_versions",
]
