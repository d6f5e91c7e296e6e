"""Random geometries: each has a number, which is all it takes to make it again."""

from dataclasses import dataclass

import harness
import numpy as np
import reference
from harness import ALL_LAYOUTS, BFLOAT16, Layout

SEED = 20
DTYPES = (*harness.WIDE, *harness.HALVES, np.dtype(np.int8))
# How an array may lie in memory.
PLACES = ("dense", "every other", "reversed", "transposed")
MODES = ("VALID", "SAME", "SAME_LOWER", "FULL")
_MOST_TRIES = 100


@dataclass(frozen=True)
class Random:
    """One drawn layer."""

    number: int
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    geometry: dict
    layout: Layout
    dtype: np.dtype
    place: str

    def __str__(self) -> str:
        return (
            f"--case {self.number}: x {self.x_shape} w {self.w_shape} {self.geometry} {self.layout.data} "
            f"{self.layout.filter} {self.dtype} {self.place}"
        )

    def rng(self) -> np.random.Generator:
        """Return the source of the layer's data."""
        return np.random.default_rng([SEED, self.number, 1])


def _padding(rng: np.random.Generator, spread: int) -> str | tuple:
    """Return a mode, or zeros of each side of their own."""
    if rng.random() < 0.6:
        return str(rng.choice(MODES))
    sides = rng.integers(0, spread, 4)
    return (int(sides[0]), int(sides[1])), (int(sides[2]), int(sides[3]))


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Return groups, channels and filters: ordinary, grouped, depthwise."""
    kind = rng.random()
    if kind < 0.6:
        return 1, int(rng.integers(1, 40)), int(rng.integers(1, 40))
    groups = int(rng.integers(2, 9))
    if kind < 0.8:
        return groups, groups * int(rng.integers(1, 9)), groups * int(rng.integers(1, 9))
    return groups, groups, groups * int(rng.integers(1, 3))


def draw(number: int) -> Random:
    """Return the layer of that number."""
    rng = np.random.default_rng([SEED, number])
    dtype = DTYPES[number % len(DTYPES)]
    for _ in range(_MOST_TRIES):
        groups, channels, filters = _channels(rng)
        taps = tuple(int(size) for size in rng.choice((1, 1, 2, 3, 3, 5, 7), 2))
        size = tuple(int(size) for size in rng.integers(1, 24, 2))
        geometry = {
            "strides": tuple(int(step) for step in rng.choice((1, 1, 1, 2, 3), 2)),
            "dilations": tuple(int(step) for step in rng.choice((1, 1, 1, 2, 3), 2)),
            "padding": _padding(rng, max(taps)),
        }
        x_shape, w_shape = (int(rng.integers(1, 5)), *size, channels), (*taps, channels // groups, filters)
        try:
            y_shape = reference.output_shape(x_shape, w_shape, **geometry)
        except ValueError:  # the window does not fit
            continue
        layout = ALL_LAYOUTS[int(rng.integers(len(ALL_LAYOUTS)))]
        place = PLACES[int(rng.integers(len(PLACES)))]
        return Random(number, x_shape, w_shape, y_shape, {**geometry, "groups": groups}, layout, dtype, place)
    raise AssertionError(f"no window of case {number} fits")


def put(cupy, array, place: str):
    """Return the values of a device array, lying in memory in another way."""
    if place == "every other":
        wide = cupy.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        view = wide[..., ::2]
    elif place == "reversed":
        view = cupy.empty(array.shape, array.dtype)[(slice(None, None, -1),) * array.ndim]
    elif place == "transposed":
        view = cupy.empty(array.shape[::-1], array.dtype).transpose()
    else:
        return array
    view[...] = array
    return view


def filled(cupy, shape, dtype, place: str):
    """Return an output to write to, full of what no result is."""
    dtype = np.dtype(dtype)
    value = np.nan if dtype.kind == "f" or dtype == BFLOAT16 else 99
    # Filled on the host: not every CuPy fills arrays of bfloat16.
    return put(cupy, cupy.asarray(np.full(shape, value, dtype)), place)
