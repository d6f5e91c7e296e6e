"""Filters prepared once and used for many calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arguments import as_text, show
from ._arrays import FLOATS, INT8_RESULTS, as_array, is_cuda
from ._errors import ArgumentError, ArgumentTypeError, DTypeError
from ._foreign import own_names_only
from ._geometry import check_pack_arguments

# Operations that read a filter.
PACK_OPS = ("conv2d", "conv2d_backprop_input", "fused_conv2d")
# Packed copies that one filter keeps, for as many kinds of calls; the oldest goes first.
MOST_PACKS = 4


class PackedFilter:
    """A read-only copy of a filter with what implementations have made of it; see `pack_filter`.

    Attributes
    ----------
    filter : ndarray
        The copy, read-only; of a CuPy array on its device, where calls read it as it is.
    op : str
        The operation that it is for.
    kind : tuple
        The operation and the format, which a call must agree with.
    """

    __slots__ = ("_arguments", "_packs", "filter", "kind", "op")

    def __init__(self, op: str, filter: npt.NDArray[Any], arguments: tuple[tuple[str, Any], ...]) -> None:
        self.op = op
        if is_cuda(filter):
            self.filter = filter.copy(order="C")
        else:
            self.filter = np.array(filter, order="C", subok=False)
            self.filter.flags.writeable = False
        self._arguments = arguments
        self.kind = (op, str(dict(arguments)["filter_format"]))
        self._packs: dict[Any, tuple[Any, Any]] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the filter in its format."""
        return self.filter.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the filter."""
        return self.filter.dtype

    @property
    def filter_format(self) -> str:
        """Format of the filter."""
        return self.kind[1]

    def packed(self, plan: Any, taps: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` has made for a plan's specification and its taps, now or before.

        Two threads may both make it, and one of the copies stays: nothing is ever waited for.
        """
        key = (id(plan), taps if taps is None else (taps[0].start, taps[0].stop, taps[1].start, taps[1].stop))
        found = self._packs.get(key)
        if found is not None and found[0] is plan:
            return found[1]
        made = make()
        packs = {**self._packs, key: (plan, made)}
        while len(packs) > MOST_PACKS:
            del packs[next(iter(packs))]
        self._packs = packs
        return made

    def __repr__(self) -> str:
        return f"PackedFilter(op={self.op!r}, shape={self.shape}, dtype={self.dtype}, {self.filter_format})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the plain filter; it is packed again after loading."""
        return _load, (self.op, self.filter.copy(), self._arguments)


def _load(op: str, filter: npt.NDArray[Any], arguments: tuple[tuple[str, Any], ...]) -> PackedFilter:
    return PackedFilter(op, filter, arguments)


@own_names_only
def pack_filter(
    filter: npt.ArrayLike,
    *,
    op: str,
    strides: Any = 1,
    padding: Any = "VALID",
    dilations: Any = 1,
    groups: int = 1,
    data_format: str = "NHWC",
    filter_format: str | None = None,
) -> PackedFilter:
    """Prepare a filter that many calls will use.

    Implementations bring a filter into an order of their own in every call; for small images and many channels that
    is a large part of the work.  The result is accepted wherever `filter` is, and packed at the first call for the
    implementation that serves it; a few such packs are kept.  It may be another one than for the plain filter,
    one for which preparing a large filter would take longer than a call.

    Parameters
    ----------
    filter : array_like
        The filter, in `filter_format`; float32, float64, float16 or bfloat16, and int8 but for gradients.  It is
        copied, so that later changes do not reach the pack; a CuPy array on its device.
    op : {"conv2d", "conv2d_backprop_input", "fused_conv2d"}
        The operation whose calls it is for.
    strides, padding, dilations, groups, data_format, filter_format
        As in that operation.  They are checked here; only `filter_format` must be the same in the calls.

    Returns
    -------
    PackedFilter
        Pickles as the plain filter and these arguments.

    Raises
    ------
    ArgumentError, ArgumentTypeError, ShapeError, DTypeError
        As the operation would.

    Examples
    --------
    >>> import numpy as np, convkit
    >>> w = convkit.pack_filter(np.ones((3, 3, 4, 8), np.float32), op="conv2d")
    >>> convkit.conv2d(np.ones((1, 8, 8, 4), np.float32), w).shape
    (1, 6, 6, 8)
    """
    name = as_text(op)
    if name is None:
        raise ArgumentTypeError(f"pack_filter: op is of type {type(op).__name__}, but must be a string")
    if name not in PACK_OPS:
        raise ArgumentError(f"pack_filter: op is {show(op)}, but must be one of {', '.join(map(repr, PACK_OPS))}")
    array: Any
    array, weak = (filter, False) if is_cuda(filter) else as_array("pack_filter", "filter", filter)
    if weak:
        array = array.astype(np.float64)
    allowed = (*FLOATS, "int8") if name in INT8_RESULTS else FLOATS
    if array.dtype.name not in allowed:
        raise DTypeError(
            f"pack_filter: filter has dtype {array.dtype!s:.60}, but for {name} must be one of {', '.join(allowed)}"
        )
    layout = check_pack_arguments(
        "pack_filter", array.shape, strides, padding, dilations, groups, data_format, filter_format
    )
    arguments = (
        ("strides", strides),
        ("padding", padding),
        ("dilations", dilations),
        ("groups", groups),
        ("data_format", data_format),
        ("filter_format", layout),
    )
    return PackedFilter(name, array, arguments)
