"""The golden data beside the tests, as plain Python objects."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Golden:
    """One case of TensorFlow's own kernels: NHWC and HWIO arrays of small integers, and their exact results."""

    x: np.ndarray
    w: np.ndarray
    dy: np.ndarray
    y: np.ndarray
    dw: np.ndarray
    dx: np.ndarray
    geometry: dict


@functools.cache
def archive(kind: str) -> dict[str, np.ndarray]:
    """Return the arrays of the float cases, ``"c"``, or of the int8 cases, ``"q"``."""
    with np.load(DATA / "tf_conv2d.npz") as file:
        return {name: file[name] for name in file.files if name.startswith(kind)}


def golden_ids() -> list[str]:
    """Return the names of the float cases."""
    return sorted({name.split("/")[0] for name in archive("c")})


@functools.cache
def golden(case: str) -> Golden:
    """Return one float case."""
    arrays = archive("c")
    meta = json.loads(str(arrays[f"{case}/meta"]))
    explicit = tuple(map(tuple, meta["explicit"]))
    geometry = {
        "strides": tuple(meta["strides"]),
        "dilations": tuple(meta["dilations"]),
        "padding": explicit if meta["padding"] == "EXPLICIT" else meta["padding"],
    }
    return Golden(*(arrays[f"{case}/{name}"] for name in ("x", "w", "dy", "y", "dw", "dx")), geometry)


@functools.cache
def tf_file() -> dict:
    """Return the whole of ``tf_cases.json``."""
    return json.loads((DATA / "tf_cases.json").read_text(encoding="utf-8"))


def tf_cases() -> list[dict]:
    """Return the cases taken from TensorFlow's tests."""
    return tf_file()["cases"]


@functools.cache
def known_bugs() -> dict[str, dict]:
    """Return the known failures of other libraries, by id."""
    return {bug["id"]: bug for bug in json.loads((DATA / "known_bugs.json").read_text(encoding="utf-8"))}


def fill(rule: str | list, shape) -> np.ndarray:
    """Return the float64 array that an input rule of ``tf_cases.json`` stands for."""
    if isinstance(rule, list):
        return np.array(rule, np.float64).reshape(shape)
    size = int(np.prod(shape))
    values = {
        "iota1": lambda: np.arange(1.0, size + 1),
        "ones": lambda: np.ones(size),
        "half_iota1": lambda: np.arange(1.0, size + 1) / 2,
        "iota1_norm": lambda: np.arange(1.0, size + 1) / size,
        "iota0_norm": lambda: np.arange(0.0, size) / size,
    }
    return values[rule]().reshape(shape)
