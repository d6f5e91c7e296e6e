"""The one validator: what is a legal convolution, how large is its result, where does the padding go.

Per spatial dimension, with input size n, filter size k, stride s, dilation d and e = (k - 1)*d + 1:

==============  ===========================  =================================================================
padding         output size                  padding before, after
==============  ===========================  =================================================================
VALID           (n - e)//s + 1               0, 0
explicit, FULL  (n + pb + pa - e)//s + 1     pb, pa as given; e - 1, e - 1
SAME            o = ceil(n/s)                total = max(0, (o - 1)*s + e - n); total//2 before, the rest after
SAME_LOWER      o = ceil(n/s)                the same total; total//2 after, the rest before
==============  ===========================  =================================================================

No other file computes an output size or a padding.
"""

from dataclasses import dataclass, replace
from math import prod

from ._arguments import (
    LIMIT,
    PaddingLike,
    ShapeLike,
    StridesLike,
    as_int,
    check_limit,
    parse_array_shape,
    parse_format,
    parse_padding,
    parse_shape,
    parse_spatial,
)
from ._channels import check_channels, check_out_channels
from ._errors import ShapeError
from ._foreign import own_names_only
from ._formats import (
    DATA_AXES,
    DATA_FORMATS,
    DEFAULT_FILTER_FORMAT,
    FILTER_AXES,
    FILTER_FORMATS,
    arrange,
    is_packed,
    take_apart,
)

__all__ = ["DATA_AXES", "FILTER_AXES", "ConvGeometry", "conv2d_output_shape", "make_geometry"]

# The operations whose user gives a shape, and not an array, for one or both operands: (input, filter) in messages.
_OPERANDS = {
    "conv2d_backprop_filter": ("input", "filter_shape"),
    "conv2d_backprop_input": ("input_shape", "filter"),
    "conv2d_output_shape": ("input_shape", "filter_shape"),
}
_SPATIAL = ("height", "width")
_Explicit = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """The sizes of one legal convolution; only `make_geometry` builds it.

    Spatial entries are tuples in the order (height, width). `op` is the operation in whose name errors are raised.
    The padding is explicit here, whatever form the user gave it in.
    """

    op: str
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    in_size: tuple[int, ...]
    filter_size: tuple[int, ...]
    out_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pad_before: tuple[int, ...]
    pad_after: tuple[int, ...]
    data_format: str
    filter_format: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input array in `data_format`."""
        return arrange(self.data_format, self.batch, self.in_channels, self.in_size)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Shape of the filter array in `filter_format`."""
        return arrange(self.filter_format, self.out_channels, self.group_in, self.filter_size)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output array in `data_format`."""
        return arrange(self.data_format, self.batch, self.out_channels, self.out_size)

    @property
    def group_in(self) -> int:
        """Input channels of one group, the filter's I."""
        return self.in_channels // self.groups

    @property
    def group_out(self) -> int:
        """Output channels of one group."""
        return self.out_channels // self.groups

    @property
    def effective_filter(self) -> tuple[int, ...]:
        """Pixels that the dilated filter spans, (k - 1)*d + 1 per spatial dimension."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.filter_size, self.dilations, strict=True))

    @property
    def flops(self) -> int:
        """Multiplications plus additions, those with padding included; the same for both gradients."""
        return 2 * self.batch * prod(self.out_size) * self.out_channels * prod(self.filter_size) * self.group_in


def make_geometry(
    op: str,
    input_shape: object,
    filter_shape: object,
    out_backprop_shape: object = None,
    *,
    strides: object = 1,
    padding: object = "VALID",
    dilations: object = 1,
    groups: object = 1,
    data_format: object = "NHWC",
    filter_format: object = None,
) -> ConvGeometry:
    """Check the arguments of a convolution or a gradient and return its geometry.

    Parameters
    ----------
    op : str
        Operation that starts every message.
    input_shape, filter_shape : sequence of int
        Shapes in `data_format` and `filter_format`. For ``"conv2d_backprop_input"`` the input shape may also be
        (height, width) alone: the batch is then that of `out_backprop_shape`, the channels are the filter's I * groups.
    out_backprop_shape : sequence of int, optional
        Shape of the gradient by the output; must equal the shape of the output. None where there is none.
    strides, padding, dilations, groups, data_format, filter_format
        As in `conv2d_output_shape`.

    Returns
    -------
    ConvGeometry

    Raises
    ------
    ShapeError
        The arguments do not go together, or a size does not fit 64 bits.
    ArgumentTypeError
        An argument is of a type that it cannot have.
    """
    layout = parse_format(op, "data_format", data_format, DATA_FORMATS)
    filter_layout = DEFAULT_FILTER_FORMAT[layout]
    if filter_format is not None:
        filter_layout = parse_format(op, "filter_format", filter_format, FILTER_FORMATS)
    if is_packed(layout) != is_packed(filter_layout):
        raise ShapeError(
            f"{op}: data_format is {layout!r} and filter_format {filter_layout!r}, but 'NCHW_VECT_C' and 'OIHW_VECT_I' "
            f"only go with each other"
        )
    stride = parse_spatial(op, "strides", strides, layout)
    dilation = parse_spatial(op, "dilations", dilations, layout)
    pads = parse_padding(op, padding, layout)
    group_count = as_int(op, "groups", groups, least=1)

    input_name, filter_name = _OPERANDS.get(op, ("input", "filter"))
    filter_dims = parse_array_shape(op, filter_name, filter_shape, filter_layout, FILTER_FORMATS)
    out_channels, group_in, filter_size = take_apart(filter_layout, filter_dims)
    gradient = None
    if out_backprop_shape is not None:
        gradient = parse_array_shape(op, "out_backprop", out_backprop_shape, layout, DATA_FORMATS)
    if op == "conv2d_backprop_input" and gradient is not None:
        input_shape = _complete(op, input_name, input_shape, layout, gradient, group_in * group_count)
    input_dims = parse_array_shape(op, input_name, input_shape, layout, DATA_FORMATS)
    batch, channels, in_size = take_apart(layout, input_dims)
    given = filter_format is not None
    check_channels(op, input_dims, filter_dims, group_count, layout, filter_layout, filter_format_given=given)
    check_out_channels(op, out_channels, group_count, packed=is_packed(layout))

    per_side = (pads, pads) if isinstance(pads, str) else pads
    windows = tuple(
        _window(op, *one) for one in zip(_SPATIAL, in_size, filter_size, stride, dilation, per_side, strict=True)
    )
    geometry = ConvGeometry(
        op=op,
        batch=batch,
        in_channels=channels,
        out_channels=out_channels,
        groups=group_count,
        in_size=in_size,
        filter_size=filter_size,
        out_size=tuple(out for out, _, _ in windows),
        strides=stride,
        dilations=dilation,
        pad_before=tuple(before for _, before, _ in windows),
        pad_after=tuple(after for _, _, after in windows),
        data_format=layout,
        filter_format=filter_layout,
    )
    _check_products(geometry)
    if gradient is not None and gradient != geometry.output_shape:
        raise ShapeError(_gradient_mismatch(geometry, gradient, pads))
    return geometry


def check_pack_arguments(
    op: str,
    filter_shape: tuple[int, ...],
    strides: object,
    padding: object,
    dilations: object,
    groups: object,
    data_format: object,
    filter_format: object,
) -> str:
    """Check what can be checked of a convolution without its image, and return the filter's format."""
    layout = parse_format(op, "data_format", data_format, DATA_FORMATS)
    filter_layout = DEFAULT_FILTER_FORMAT[layout]
    if filter_format is not None:
        filter_layout = parse_format(op, "filter_format", filter_format, FILTER_FORMATS)
    parse_spatial(op, "strides", strides, layout)
    parse_spatial(op, "dilations", dilations, layout)
    parse_padding(op, padding, layout)
    group_count = as_int(op, "groups", groups, least=1)
    filter_dims = parse_array_shape(op, "filter", filter_shape, filter_layout, FILTER_FORMATS)
    check_out_channels(op, take_apart(filter_layout, filter_dims)[0], group_count, packed=is_packed(layout))
    if 0 in take_apart(filter_layout, filter_dims)[2]:
        raise ShapeError(f"{op}: filter has shape {filter_shape}, but its height and width must be at least 1")
    return filter_layout


def without_idle_taps(g: ConvGeometry) -> tuple[ConvGeometry, tuple[slice, slice] | None]:
    """Leave out the taps that meet padding only, whatever the output pixel.

    A filter far larger than the image has taps that no pixel is ever multiplied with; they take no part in a result,
    and get a zero gradient. The padding of the geometry returned may be negative.

    Returns
    -------
    ConvGeometry
        The same convolution with the filter's other taps.
    tuple of two slices, or None
        Which rows and columns of taps those are; None if all.
    """
    kept = []
    for n, k, o, s, d, before in zip(
        g.in_size, g.filter_size, g.out_size, g.strides, g.dilations, g.pad_before, strict=True
    ):
        # Tap t meets pixels t*d - before to t*d - before + (o - 1)*s.
        first = max(0, -(((o - 1) * s - before) // d)) if o else 0
        last = min(k - 1, (n - 1 + before) // d)
        kept.append(slice(min(first, k), max(min(first, k), last + 1)))
    if all(part == slice(0, k) for part, k in zip(kept, g.filter_size, strict=True)):
        return g, None
    trimmed = replace(
        g,
        filter_size=tuple(part.stop - part.start for part in kept),
        pad_before=tuple(
            before - part.start * d for before, part, d in zip(g.pad_before, kept, g.dilations, strict=True)
        ),
    )
    return trimmed, (kept[0], kept[1])


@own_names_only
def conv2d_output_shape(
    input_shape: ShapeLike,
    filter_shape: ShapeLike,
    *,
    strides: StridesLike = 1,
    padding: PaddingLike = "VALID",
    dilations: StridesLike = 1,
    groups: int = 1,
    data_format: str = "NHWC",
    filter_format: str | None = None,
) -> tuple[int, ...]:
    """Shape of the result of `conv2d`, without computing it.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of the input in `data_format`.
    filter_shape : sequence of int
        Shape of the filter in `filter_format`, with I = C/groups input channels.
    strides, dilations : int, pair or four ints, default 1
        One number for both dimensions, (height, width), or four in the order of `data_format` (N, C, H, W for
        ``"NCHW_VECT_C"`` too) that are 1 for batch and channels. At least 1.
    padding : str, int, pair, two pairs or four pairs, default "VALID"
        ``"VALID"`` (none), ``"SAME"`` (an odd pixel goes to the bottom and right), ``"SAME_LOWER"`` (to the top and
        left), ``"FULL"`` (every position that overlaps the image), in any case; or the number of zeros: one for all
        sides, (height, width), ((top, bottom), (left, right)), or four pairs in the order of `data_format`.
    groups : int, default 1
        Number of independent convolutions that the channels are split into; divides C and K.
    data_format : {"NHWC", "NCHW", "NCHW_VECT_C"}, default "NHWC"
        Order of the dimensions of input and output; the last is (N, C/4, H, W, 4).
    filter_format : {"HWIO", "OIHW", "OHWI", "OIHW_VECT_I"}, optional
        Order of the filter's dimensions. By default HWIO for NHWC, OIHW for NCHW, OIHW_VECT_I for NCHW_VECT_C.

    Returns
    -------
    tuple of int
        Shape of the output in `data_format`. With input size n, filter size k, stride s, dilation d and
        e = (k - 1)*d + 1, a spatial dimension has ceil(n/s) pixels under SAME and SAME_LOWER, else
        (n + before + after - e)//s + 1.

    Raises
    ------
    ShapeError
        The arguments do not go together (a filter larger than the padded input, for one), or a size does not fit
        64 bits.
    ArgumentTypeError
        An argument is of a type that it cannot have.

    Examples
    --------
    >>> conv2d_output_shape((8, 32, 32, 3), (5, 5, 3, 16), strides=2, padding="SAME")
    (8, 16, 16, 16)
    """
    return make_geometry(
        "conv2d_output_shape",
        input_shape,
        filter_shape,
        strides=strides,
        padding=padding,
        dilations=dilations,
        groups=groups,
        data_format=data_format,
        filter_format=filter_format,
    ).output_shape


def _complete(op: str, argument: str, value: object, layout: str, gradient: tuple[int, ...], channels: int) -> object:
    """The full input shape where only (height, width) is given, any other value as it is."""
    shape = parse_shape(op, argument, value, most=2)
    if len(shape) != 2:
        return value
    return arrange(layout, take_apart(layout, gradient)[0], channels, (shape[0], shape[1]))


def _window(op: str, name: str, n: int, k: int, s: int, d: int, pads: str | tuple[int, int]) -> tuple[int, int, int]:
    """(output size, padding before, padding after) of one dimension."""
    if k == 0:
        raise ShapeError(f"{op}: filter has {name} 0, but it must be at least 1")
    e = check_limit(op, f"the {name} that filter spans", (k - 1) * d + 1, f" = ({k} - 1)*{d} + 1")
    if pads in ("SAME", "SAME_LOWER"):
        out = -(-n // s)
        total = max(0, (out - 1) * s + e - n)
        check_limit(op, f"the padded {name} of input", n + total, f" = {n} + {total}")
        less, more = total // 2, total - total // 2
        return (out, less, more) if pads == "SAME" else (out, more, less)
    before, after = _explicit(pads, e)
    padded = check_limit(op, f"the padded {name} of input", n + before + after, f" = {n} + {before} + {after}")
    if e > padded:
        spans = f" and spans {e} = ({k} - 1)*{d} + 1" if d > 1 else ""
        raise ShapeError(
            f"{op}: filter has {name} {k}{spans}, more than the padded input's {padded} = {n} + {before} + {after}"
        )
    return (padded - e) // s + 1, before, after


def _explicit(pads: str | tuple[int, int], e: int) -> tuple[int, int]:
    """(before, after) where neither depends on the stride."""
    if isinstance(pads, tuple):
        return pads
    return (e - 1, e - 1) if pads == "FULL" else (0, 0)


def _check_products(g: ConvGeometry) -> None:
    """Refuse what 64-bit offsets cannot address.

    Zero sizes are left out, as NumPy leaves them out when it checks the size of a new array.
    """
    spatial = (g.batch, *g.out_size)
    patches = (*spatial, *g.filter_size, g.group_in)
    arrays = {"input": g.input_shape, "filter": g.filter_shape, "output": g.output_shape, "patch matrix": patches}
    for name, shape in arrays.items():
        count = prod(size for size in shape if size)
        if count > LIMIT:
            product = " * ".join(str(size) for size in shape if size)
            raise ShapeError(
                f"{g.op}: the number of elements of the {name} is {count} = {product}, beyond the 64-bit limit "
                f"2**63 - 1 = {LIMIT}"
            )


def _gradient_mismatch(g: ConvGeometry, shape: tuple[int, ...], pads: str | _Explicit) -> str:
    """The sentence for an `out_backprop` that is not of the output's shape."""
    batch, channels, size = take_apart(g.data_format, shape)
    hint = ""
    for other in DATA_AXES:
        if other != g.data_format and shape == arrange(other, g.batch, g.out_channels, g.out_size):
            hint = f"; its shape is that of data_format={other!r}"
    if batch != g.batch:
        return f"{g.op}: out_backprop has batch {batch}, but input has batch {g.batch}{hint}"
    for i, name in enumerate(_SPATIAL):
        if size[i] != g.out_size[i]:
            return (
                f"{g.op}: out_backprop has {name} {size[i]}, but the geometry gives {g.out_size[i]} = "
                f"{_formula(g, i, pads)}{hint}"
            )
    return f"{g.op}: out_backprop has {channels} channels, but filter has {g.out_channels} out channels{hint}"


def _formula(g: ConvGeometry, i: int, pads: str | _Explicit) -> str:
    """How the output size of spatial dimension `i` comes about, with its numbers."""
    n, s, e = g.in_size[i], g.strides[i], g.effective_filter[i]
    if pads in ("SAME", "SAME_LOWER"):
        return f"ceil({n}/{s})"
    padded = f"{n}" if pads == "VALID" else f"{n} + {g.pad_before[i]} + {g.pad_after[i]}"
    dilated = f" with {e} = ({g.filter_size[i]} - 1)*{g.dilations[i]} + 1" if g.dilations[i] > 1 else ""
    return f"({padded} - {e})//{s} + 1{dilated}"
