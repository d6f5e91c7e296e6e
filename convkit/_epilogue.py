"""What a fused convolution does with its sums: which terms there are, and their values in the form that plans take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

ACTIVATIONS = (None, "relu", "relu6", "elu", "leaky_relu")
INT8_ACTIVATIONS = (None, "relu")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The terms of one fused call, without the values that may change from call to call.

    Attributes
    ----------
    per_channel : bool
        Whether the scale is one number per output channel, and not one for all.
    bias : str or None
        Dtype of the bias: of int8 convolutions ``"float32"``, or ``"int32"``, which is added to the sums themselves.
    side : bool
        Whether a side input is read; it is then the third operand of the problem.
    activation : str or None
        One of ACTIVATIONS.
    alpha : float
        The slope of ``"leaky_relu"``, 0 for the others.
    input_zero_point, output_zero_point : int
        What stands for zero in the input and the result; 0 for floating-point dtypes.
    onto_side : bool
        Whether the result takes the place of the side input.
    """

    per_channel: bool
    bias: str | None
    side: bool
    activation: str | None
    alpha: float
    input_zero_point: int
    output_zero_point: int
    onto_side: bool


class Terms(NamedTuple):
    """The values that belong to an `Epilogue`: native, contiguous, of the dtype that the epilogue computes with."""

    # One number or one per output channel; float32, or float64 for float64 convolutions.
    conv_scale: npt.NDArray[Any]
    # Already rounded to the dtype of `conv_scale`; 0.0 where the epilogue has no side input.
    side_scale: float
    # One per output channel, of the dtype that the epilogue names.
    bias: npt.NDArray[Any] | None
