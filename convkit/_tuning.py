"""What autotuning has chosen on GPUs, kept in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ._arguments import is_a, show
from ._arrays import type_name
from ._errors import ArgumentError, ArgumentTypeError


def save_gpu_tuning(path: str | os.PathLike[str]) -> int:
    """Write what autotuning has chosen for GPU convolutions to a file.

    With ``options(autotune=True)`` each new geometry is tuned at its first call, which takes some hundredths of a
    second.  A program that starts with :func:`load_gpu_tuning` is spared that.

    Parameters
    ----------
    path : str or os.PathLike
        File to write, in JSON; one that is there is replaced at once and as a whole.

    Returns
    -------
    int
        Number of choices written.

    Raises
    ------
    ArgumentTypeError
        ``path`` is no path.
    ArgumentError
        ``path`` cannot be the name of a file.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "tuning.json")
    >>> convkit.save_gpu_tuning(path)
    0
    >>> convkit.load_gpu_tuning(path)
    0
    """
    from ._gpu import cache

    return cache.save(_checked("save_gpu_tuning", path))


def load_gpu_tuning(path: str | os.PathLike[str]) -> int:
    """Read choices that :func:`save_gpu_tuning` wrote, to those that there are.

    A choice counts for the model of GPU and the version of cuDNN that it was made with; on others, or where cuDNN does
    not offer the plan any more, geometries are tuned anew.

    Parameters
    ----------
    path : str or os.PathLike
        File to read.

    Returns
    -------
    int
        Number of choices read.

    Raises
    ------
    ArgumentTypeError
        ``path`` is no path.
    ArgumentError
        ``path`` cannot be the name of a file, or the file holds something else; then nothing is taken from it.
    OSError
        The file cannot be read.
    """
    from ._gpu import cache

    return cache.load(_checked("load_gpu_tuning", path), "load_gpu_tuning")


def _checked(op: str, path: Any) -> str:
    """Return a path as a string that can name a file."""
    if not is_a(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"{op}: path is of type {type_name(path)}, but must be a string or a path")
    try:
        name = os.fsdecode(path)
        can_be = bool(Path(name).name) and b"\0" not in os.fsencode(name)
    except Exception:  # of the path's own, or of characters that no name of a file has
        can_be, name = False, show(path)
    if not can_be:
        raise ArgumentError(f"{op}: path is {show(name)}, but must name a file")
    return name
