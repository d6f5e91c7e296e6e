"""Modules that are made on import: what Python's import system needs to find `cupy.cudnn` and its other names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

NAMES = ("cupy.cudnn", "cupyx.cudnn", "cupy.cuda.cudnn")
# What a spec says instead of a file.
ORIGIN = "convkit.compat"

CONTENTS = (
    "CUDNN_TENSOR_NCHW",
    "CUDNN_TENSOR_NHWC",
    "CuDNNError",
    "available",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "getVersion",
    "get_max_workspace_size",
    "set_max_workspace_size",
)


class _Loader(Loader):
    """Fills a module with what `_compat_cudnn` offers."""

    def exec_module(self, module: ModuleType) -> None:
        from . import _compat_cudnn

        def missing(attribute: str) -> NoReturn:
            raise AttributeError(
                f"module {module.__name__!r} has no attribute {attribute!r}; it is convkit's drop-in for CuPy's former "
                f"cuDNN bindings, and has {', '.join(CONTENTS)}"
            )

        contents: dict[str, Any] = {name: getattr(_compat_cudnn, name) for name in CONTENTS}
        vars(module).update(contents, __doc__=_compat_cudnn.__doc__, __all__=list(CONTENTS), __getattr__=missing)


class _Finder(MetaPathFinder):
    """Finds the drop-in modules; the last to be asked, so that modules that exist come first."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Loader(), origin=ORIGIN) if fullname in NAMES else None


_finder = _Finder()


def are_there() -> bool:
    """Tell whether the drop-in modules are installed."""
    return _finder in sys.meta_path


def add() -> None:
    """Make the modules, so that packages have them as attributes without an import of their own."""
    sys.meta_path.append(_finder)
    try:
        for name in NAMES:
            importlib.import_module(name)
    except BaseException:
        remove()
        raise


def remove() -> None:
    """Take the modules away again; functions that someone has kept go on working."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in NAMES:
        module = sys.modules.get(name)
        if module is None or not isinstance(getattr(module.__spec__, "loader", None), _Loader):
            continue
        del sys.modules[name]
        package, _, leaf = name.rpartition(".")
        if getattr(sys.modules.get(package), leaf, None) is module:
            delattr(sys.modules[package], leaf)
