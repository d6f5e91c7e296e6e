"""Fused int8 convolutions as test cases: by every family and in every layout, on NHWC and HWIO arrays."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import cases
import harness
import int8_reference
import numpy as np
import reference
from harness import Layout

import convkit

PACKED = Layout("NCHW_VECT_C", "OIHW_VECT_I")
LAYOUTS = (*harness.LAYOUTS, PACKED)


def to_layout(array: np.ndarray, name: str) -> np.ndarray:
    """Return an NHWC array in a data format, or an HWIO one in a filter format, as a dense copy."""
    if name == "NCHW_VECT_C":
        n, h, w, c = array.shape
        array = array.reshape(n, h, w, c // 4, 4).transpose(0, 3, 1, 2, 4)
    elif name == "OIHW_VECT_I":
        h, w, i, o = array.shape
        array = array.reshape(h, w, i // 4, 4, o).transpose(4, 2, 0, 1, 3)
    elif name in reference.DATA_AXES:
        return reference.to_data_format(array, name)
    else:
        return reference.to_filter_format(array, name)
    return np.ascontiguousarray(array)


def from_layout(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array in a data format as NHWC."""
    if name != "NCHW_VECT_C":
        return reference.from_data_format(array, name)
    n, blocks, h, w, lanes = array.shape
    return array.transpose(0, 2, 3, 1, 4).reshape(n, h, w, blocks * lanes)


@dataclass(frozen=True)
class Fused:
    """One call of fused_conv2d, said in NHWC and HWIO, its geometry apart from its other keywords."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None = None
    side: np.ndarray | None = None
    terms: dict = field(default_factory=dict)
    geometry: dict = field(default_factory=dict)

    def fits(self, layout: Layout) -> bool:
        """Tell whether the channels allow the layout."""
        return layout != PACKED or not any(size % 4 for size in self.w.shape[2:])

    def arguments(self, layout: Layout) -> tuple:
        """Return the positional arguments in ``layout``."""
        side = None if self.side is None else to_layout(self.side, layout.data)
        return to_layout(self.x, layout.data), to_layout(self.w, layout.filter), self.bias, side

    def results(self, layout: Layout, **keywords) -> Iterator[tuple[str, np.ndarray]]:
        """Yield what each family gives, in NHWC."""
        arguments = self.arguments(layout)
        keywords = {**self.terms, **self.geometry, **layout.keywords, **keywords}
        for family in harness.families("fused_conv2d", *arguments, **keywords):
            result = convkit.fused_conv2d(*arguments, algorithm=family, **keywords)
            yield family, from_layout(result, layout.data)

    def expected(self) -> np.ndarray:
        """Return what the independent reference gives."""
        return int8_reference.fused(self.x, self.w, self.bias, self.side, geometry=self.geometry, **self.terms)

    def check(self, expected: np.ndarray | None = None, layouts=LAYOUTS, **keywords) -> None:
        """Check that every family gives the expected values, to the last bit, in each layout that fits."""
        expected = self.expected() if expected is None else expected
        for layout in layouts:
            if not self.fits(layout):
                continue
            for family, result in self.results(layout, **keywords):
                assert result.dtype == np.dtype(self.terms.get("out_dtype", "int8"))
                np.testing.assert_array_equal(result, expected, err_msg=f"{family} in {layout}")


def single(x: float | list, w: float | list, terms: dict | None = None, **arrays) -> Fused:
    """Return a case of 1x1 filters whose images are one row of pixels of one channel."""
    pixels = np.atleast_1d(np.asarray(x, np.int8)).reshape(1, 1, -1, 1)
    return Fused(pixels, np.asarray(w, np.int8).reshape(1, 1, 1, -1), terms=terms or {}, **arrays)


def golden_ids() -> list[str]:
    """Return the names of the int8 cases of TensorFlow's own kernel."""
    return sorted({name.split("/")[0] for name in cases.archive("q")})


def golden(case: str) -> tuple[Fused, np.ndarray]:
    """Return one of them, and TensorFlow's result."""
    archive = cases.archive("q")
    x, w, bias, side, scale, y = (archive[f"{case}/{name}"] for name in ("x", "w", "bias", "side", "conv_scale", "y"))
    meta = json.loads(str(archive[f"{case}/meta"]))
    geometry = {
        "strides": tuple(meta["strides"]),
        "dilations": tuple(meta.get("dilations", (1, 1))),
        "padding": tuple(map(tuple, meta["explicit"])) if meta["padding"] == "EXPLICIT" else meta["padding"],
    }
    terms = {"conv_scale": scale, "activation": meta["activation"]}
    if side.size:
        terms["side_scale"] = meta["side_scale"]
    return Fused(x, w, bias, side if side.size else None, terms, geometry), y
