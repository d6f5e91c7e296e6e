"""Which numbers of channels and groups go together, and what to write when only the layout was taken for another."""

from ._errors import ShapeError
from ._formats import (
    DATA_AXES,
    DATA_FORMATS,
    DEFAULT_FILTER_FORMAT,
    FILTER_AXES,
    VECTOR,
    is_packed,
    take_apart,
)

# Square filters up to this size are what a hint expects to find.
_LARGEST_USUAL = 11


def check_channels(
    op: str,
    input_dims: tuple[int, ...],
    filter_dims: tuple[int, ...],
    groups: int,
    data_format: str,
    filter_format: str,
    *,
    filter_format_given: bool,
) -> None:
    """The filter's I must be C/groups."""
    channels = take_apart(data_format, input_dims)[1]
    group_in = take_apart(filter_format, filter_dims)[1]
    if channels == group_in * groups:
        return
    if channels % groups:
        fault = f"groups is {groups}, which does not divide the {channels} channels of input"
    else:
        fault = (
            f"filter has {group_in} in channels, but it must have {channels // groups} = {channels}/{groups}, "
            f"the channels of input over groups"
        )
    if filter_format == "HWIO" and group_in == channels == groups:
        raise ShapeError(f"{op}: {fault}; {_depthwise(filter_dims)}")
    fits = _other_groups(input_dims, filter_dims, data_format, filter_format)
    # One channel per filter, and as many filters as there are channels, or a multiple: depthwise, and nothing else.
    if not (fits and group_in == 1) and not is_packed(data_format):
        fits += _other_formats(
            input_dims, filter_dims, groups, data_format, filter_format, filter_format_given=filter_format_given
        )
    hint = f"; the shapes would fit {' or '.join(fits)}" if fits else ""
    raise ShapeError(f"{op}: {fault}{hint}")


def check_out_channels(op: str, out_channels: int, groups: int, *, packed: bool) -> None:
    """K must be a multiple of groups, and of the vector in a packed format."""
    if out_channels % groups:
        raise ShapeError(f"{op}: groups is {groups}, which does not divide the {out_channels} out channels of filter")
    if packed and out_channels % VECTOR:
        raise ShapeError(
            f"{op}: filter has {out_channels} out channels, but NCHW_VECT_C needs a multiple of {VECTOR} "
            f"for the output: {DATA_FORMATS['NCHW_VECT_C']}"
        )


def _depthwise(filter_dims: tuple[int, ...]) -> str:
    """What to write for TensorFlow's depthwise filter, (height, width, channels, multiplier)."""
    height, width, channels, multiplier = filter_dims
    hwio = (height, width, 1, channels * multiplier)
    return f"TensorFlow's depthwise filter {filter_dims} is HWIO after filter.reshape{hwio}"


def _other_groups(
    input_dims: tuple[int, ...], filter_dims: tuple[int, ...], data_format: str, filter_format: str
) -> list[str]:
    """The number of groups with which the channels would fit; a depthwise filter without `groups` is the usual case."""
    channels = take_apart(data_format, input_dims)[1]
    out_channels, group_in, _ = take_apart(filter_format, filter_dims)
    if group_in == 0 or channels % group_in or channels == 0:
        return []
    groups = channels // group_in
    return [f"groups={groups}"] if out_channels % groups == 0 else []


def _other_formats(
    input_dims: tuple[int, ...],
    filter_dims: tuple[int, ...],
    groups: int,
    data_format: str,
    filter_format: str,
    *,
    filter_format_given: bool,
) -> list[str]:
    """The shortest change of the format arguments with which the channels would fit, if its sizes make sense."""
    image = take_apart(data_format, input_dims)[2]
    kernel = take_apart(filter_format, filter_dims)[2]
    fits: list[list[str]] = []
    for data in DATA_AXES:
        _, channels, other_image = take_apart(data, input_dims)
        # Square images are the rule: one is not read as another that is not.
        if image[0] == image[1] and other_image[0] != other_image[1]:
            continue
        for candidate in FILTER_AXES:
            out_channels, group_in, other_kernel = take_apart(candidate, filter_dims)
            if channels != group_in * groups or out_channels % groups:
                continue
            if not _as_likely(other_kernel, kernel, other_image):
                continue
            change = [f"data_format={data!r}"] if data != data_format else []
            if candidate != (filter_format if filter_format_given else DEFAULT_FILTER_FORMAT[data]):
                change.append(f"filter_format={candidate!r}")
            fits.append(change)
    if not fits:
        return []
    shortest = min(fits, key=len)
    return [" with ".join(shortest)]


def _as_likely(other: tuple[int, int], kernel: tuple[int, int], image: tuple[int, int]) -> bool:
    """Whether a filter of size `other` on an image of this size makes as much sense as one of size `kernel`."""
    # From twice the image's size on, taps meet nothing but padding.
    if any(k >= 2 * n for k, n in zip(other, image, strict=True)):
        return False
    rank = _rank(other)
    if rank == 0:
        return _rank(kernel) == 0 and other[0] * other[1] <= kernel[0] * kernel[1]
    # Reading 1x1 says little: one channel in and one out, taken for sizes, look the same.
    return rank == 2 or kernel == (1, 1) or rank >= _rank(kernel)


def _rank(kernel: tuple[int, int]) -> int:
    """How usual a filter size is: 2 for small squares, 1 for large squares, rows and columns, 0 for all others."""
    height, width = kernel
    if height == width:
        return 2 if height <= _LARGEST_USUAL else 1
    return 1 if 1 in kernel else 0
