"""What a contestant is told about a case, without convkit: plain numbers, and a folder with the arrays."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

Pair = tuple[int, int]


class UnsupportedError(Exception):
    """A contestant cannot do this operation; the text says why."""


def int8_terms(dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales of an int8 job's filters, and their biases in units of the result."""
    scale = dy[0].astype(np.float32)
    return scale, dy[1].astype(np.float32) * scale


@dataclass(frozen=True)
class Job:
    """A case with everything resolved; shapes are NHWC and HWIO, pads are rows above, below and columns left, right."""

    op: str
    x_shape: tuple[int, int, int, int]
    w_shape: tuple[int, int, int, int]
    y_shape: tuple[int, int, int, int]
    strides: Pair
    dilations: Pair
    pads: tuple[Pair, Pair]
    groups: int
    data_format: str
    dtype: str
    folder: str
    part: list

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return images, filters and output gradients, NHWC and HWIO; bfloat16 as uint16; for int8 see `int8_terms`."""
        x, w, dy = (np.load(Path(self.folder) / f"{name}.npy") for name in ("x", "w", "dy"))
        if self.dtype == "float16":
            x, w, dy = (array.view(np.float16) for array in (x, w, dy))
        return x, w, dy

    def typed_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the same with bfloat16 as ml_dtypes has it."""
        x, w, dy = self.arrays()
        if self.dtype == "bfloat16":
            import ml_dtypes

            x, w, dy = (array.view(ml_dtypes.bfloat16) for array in (x, w, dy))
        return x, w, dy

    def refuse_int8(self) -> None:
        """Raise for what only contestants for int8 do."""
        if self.op == "fused_conv2d":
            raise UnsupportedError("this contestant is for floating-point numbers alone")

    @property
    def even_pads(self) -> bool:
        """Whether both sides of an axis get the same padding."""
        return all(before == after for before, after in self.pads)

    @property
    def same(self) -> bool:
        """Whether the padding is TensorFlow's SAME."""

        def total(size: int, taps: int, stride: int, dilation: int) -> int:
            return max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)

        axes = zip(self.x_shape[1:3], self.w_shape[:2], self.strides, self.dilations, strict=True)
        return all(
            (t // 2, t - t // 2) == pads for t, pads in zip((total(*axis) for axis in axes), self.pads, strict=True)
        )
