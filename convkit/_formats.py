"""Data and filter formats: which letter sits on which axis, and shapes in a format."""

# Positions of N, H, W, C: ``x.transpose(DATA_AXES[data_format])`` is an NHWC view.
DATA_AXES = {"NHWC": (0, 1, 2, 3), "NCHW": (0, 2, 3, 1)}

# Positions of H, W, I, O: ``w.transpose(FILTER_AXES[filter_format])`` is an HWIO view.
FILTER_AXES = {"HWIO": (0, 1, 2, 3), "OIHW": (2, 3, 1, 0), "OHWI": (1, 2, 3, 0)}

# All formats; the packed ones become views in the orders N, H, W, C/4, 4 and H, W, I/4, 4, O.
VIEW_AXES = {**DATA_AXES, **FILTER_AXES, "NCHW_VECT_C": (0, 2, 3, 1, 4), "OIHW_VECT_I": (2, 3, 1, 4, 0)}

# The packed formats keep groups of VECTOR channels in a fifth, innermost dimension.
VECTOR = 4

DEFAULT_FILTER_FORMAT = {"NHWC": "HWIO", "NCHW": "OIHW", "NCHW_VECT_C": "OIHW_VECT_I"}

# Each format with its dimensions in words, for messages about a wrong rank.
DATA_FORMATS = {
    "NHWC": "(batch, height, width, channels)",
    "NCHW": "(batch, channels, height, width)",
    "NCHW_VECT_C": "(batch, channels/4, height, width, 4)",
}
FILTER_FORMATS = {
    "HWIO": "(height, width, in channels/groups, out channels)",
    "OIHW": "(out channels, in channels/groups, height, width)",
    "OHWI": "(out channels, height, width, in channels/groups)",
    "OIHW_VECT_I": "(out channels, in channels/groups/4, height, width, 4)",
}


def is_packed(name: str) -> bool:
    """Whether the format has a fifth dimension of VECTOR channels."""
    return "_VECT_" in name


def letters(name: str) -> str:
    """The order of the four dimensions; strides, dilations and padding follow it in the packed formats too."""
    return name[:4]


def rank(name: str) -> int:
    """The number of dimensions of an array in this format."""
    return 5 if is_packed(name) else 4


def arrange(name: str, first: int, channels: int, spatial: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in format `name`.

    `first` is the batch or the number of out channels, `channels` those that are convolved over.
    """
    if is_packed(name):
        return (first, channels // VECTOR, *spatial, VECTOR)
    if name == "HWIO":
        return (*spatial, channels, first)
    if name in ("NHWC", "OHWI"):
        return (first, *spatial, channels)
    return (first, channels, *spatial)


def take_apart(name: str, shape: tuple[int, ...]) -> tuple[int, int, tuple[int, int]]:
    """The inverse of `arrange`: (batch or out channels, channels, spatial sizes)."""
    size = dict(zip(letters(name), shape, strict=False))
    first = size["N"] if "N" in size else size["O"]
    channels = size["C"] if "C" in size else size["I"]
    return first, channels * (VECTOR if is_packed(name) else 1), (size["H"], size["W"])
