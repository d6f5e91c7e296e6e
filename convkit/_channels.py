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
    fits = _other_groups(input_dims, filter_dims, data_format, filter_format)
    if not is_packed(data_format):
        given = filter_format if filter_format_given else None
        fits += _other_formats(input_dims, filter_dims, groups, data_format, given)
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
    filter_format: str | None,
) -> list[str]:
    """The shortest change of the format arguments with which the channels would fit."""
    fits: list[list[str]] = []
    for data in DATA_AXES:
        for candidate in FILTER_AXES:
            channels = take_apart(data, input_dims)[1]
            out_channels, group_in, _ = take_apart(candidate, filter_dims)
            if channels != group_in * groups or out_channels % groups:
                continue
            change = [f"data_format={data!r}"] if data != data_format else []
            if candidate != (filter_format or DEFAULT_FILTER_FORMAT[data]):
                change.append(f"filter_format={candidate!r}")
            fits.append(change)
    if not fits:
        return []
    shortest = min(fits, key=len)
    return [" with ".join(shortest)]
