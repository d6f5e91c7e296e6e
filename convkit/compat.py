"""The cuDNN bindings that CuPy 14 no longer has, for packages that still call them.

CuPy up to version 13 had modules `cupy.cudnn`, `cupyx.cudnn` and `cupy.cuda.cudnn`; sigpy convolves through them.
`install` puts modules of these names in place whose convolutions are convkit's:

>>> import convkit.compat
>>> convkit.compat.install()  # doctest: +SKIP
"convkit serves cupy.cudnn, cupyx.cudnn, cupy.cuda.cudnn of CuPy 14.2.0"
>>> import sigpy  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from threading import Lock

from . import _compat_modules as modules
from ._errors import BackendError

__all__ = ["install", "uninstall"]

_logger = logging.getLogger("convkit")
_lock = Lock()

# Packages that look for the bindings once, when they are imported, with the module that remembers what they found.
_MEMORIES = {"sigpy": "sigpy.config"}


def install() -> str:
    """Put modules `cupy.cudnn`, `cupyx.cudnn` and `cupy.cuda.cudnn` in place, where CuPy has none.

    To be called before packages that look for them are imported: ``convkit.compat.install()`` first, then ``import
    sigpy``.  A second call does nothing.  Where CuPy has bindings of its own (up to version 13), those stay.

    Returns
    -------
    str
        A sentence on what serves those modules now.

    Raises
    ------
    BackendError
        If CuPy is not there, or if a package that has looked for the bindings in vain is already imported; then nothing
        is changed.

    Notes
    -----
    The modules have `convolution_forward`, `convolution_backward_data`, `convolution_backward_filter`,
    `get_max_workspace_size` and `set_max_workspace_size` (8 MiB by default), `getVersion`, and the constants of the two
    layouts; 3-D convolutions are refused.
    """
    with _lock:
        told = _install()
    _logger.info("compat.install: %s", told)
    return told


def _install() -> str:
    from ._gpu import access

    cupy = access.imported()
    served = ", ".join(modules.NAMES)
    if not modules.are_there():
        real = [name for name in modules.NAMES if name in sys.modules or find_spec(name) is not None]
        if real:
            stay = "which is left as it is" if len(real) == 1 else "which are left as they are"
            return f"CuPy {cupy.__version__} has {', '.join(real)} of its own, {stay}"
        for package, memory in _MEMORIES.items():
            if getattr(sys.modules.get(memory), "cudnn_enabled", True) is False:
                raise BackendError(
                    f"compat.install: {package} is already imported, and has looked for cupy.cudnn in vain; in a new "
                    f"process call convkit.compat.install() first, and import {package} after it"
                )
        modules.add()
    return f"convkit serves {served} of CuPy {cupy.__version__}"


def uninstall() -> None:
    """Take away again what `install` has put in place; packages imported in between keep the functions they have."""
    with _lock:
        modules.remove()
