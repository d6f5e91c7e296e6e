"""Data on which Winograd convolutions are measured: images, filters and output gradients, as float32 holds them."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_image

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def _rounded(*arrays: np.ndarray) -> Arrays:
    """Return float64 arrays of numbers that float32 holds."""
    x, w, dy = (a.astype(np.float32).astype(np.float64) for a in arrays)
    return x, w, dy


def _centred(array: np.ndarray) -> np.ndarray:
    """Return filters or output gradients of mean zero wherever they are summed."""
    return array - array.mean(axis=(0, 1, 2))


def random(channels: int = 64, size: int = 28, images: int = 4) -> Arrays:
    """Normal numbers."""
    rng = np.random.default_rng(7)
    shapes = (images, size + 2, size + 2, channels), (3, 3, channels, channels), (images, size, size, channels)
    return _rounded(*map(rng.standard_normal, shapes))


def deep() -> Arrays:
    """Normal numbers, 512 channels."""
    return random(512, 14)


def large_mean() -> Arrays:
    """Pixels of 100 +- 1; filters and output gradients of mean zero."""
    x, w, dy = random()
    return _rounded(100 + np.random.default_rng(8).uniform(-1, 1, x.shape), _centred(w), _centred(dy))


def natural() -> Arrays:
    """A photograph of 0 to 255, whose channels are the pixels of blocks of 4x4 in three colours.

    Filters and output gradients have the mean zero.
    """
    photograph = load_sample_image("china.jpg")[:424, :640].astype(np.float64)
    x = photograph.reshape(1, 106, 4, 160, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(1, 106, 160, 48)
    rng = np.random.default_rng(9)
    return _rounded(x, *map(_centred, map(rng.standard_normal, ((3, 3, 48, 48), (1, 104, 158, 48)))))


def trained(epochs: int = 4) -> Arrays:
    """What the second layer of the digits example reads, has learned, and is told, without padding."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        digits = importlib.import_module("digits")
    finally:
        sys.path.remove(str(EXAMPLES))
    (images, labels), (few, their_labels) = digits.load_split()
    rng = np.random.default_rng(0)
    network, told = digits.Network(rng), []
    digits.train(network, images, labels, epochs, rng)
    _, gradient = digits.cross_entropy(network.forward(few[:128]), their_labels[:128])
    layer = network.hidden[1]
    layer.backward = told.append
    network.backward(gradient)
    return _rounded(np.pad(layer.x, ((0, 0), (1, 1), (1, 1), (0, 0))), layer.filter, told[0])


KINDS: dict[str, Callable[[], Arrays]] = {
    "random, 64 channels": random,
    "random, 512 channels": deep,
    "large mean": large_mean,
    "natural": natural,
    "trained": trained,
}
