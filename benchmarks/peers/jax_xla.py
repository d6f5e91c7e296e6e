"""JAX on the CPU, compiled; a gradient is the transpose of the convolution, without the forward pass.

XLA takes as many threads as the process has processors, so the caller pins the process.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import numpy as np
from jax import lax


class Peer:
    """NHWC arrays and HWIO filters, which XLA's CPU convolutions work on."""

    version = jax.__version__

    def __init__(self, threads, setting):
        pass

    def prepare(self, job):
        """Return the compiled function."""
        job.refuse_int8()
        x, w, dy = (jax.device_put(array) for array in job.typed_arrays())

        def conv(image, taps):
            return lax.conv_general_dilated(
                image, taps, job.strides, job.pads, rhs_dilation=job.dilations, feature_group_count=job.groups,
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )  # fmt: skip

        if job.op == "conv2d":
            function, arguments = conv, (x, w)
        elif job.op == "conv2d_backprop_filter":
            function, arguments = lambda x, dy: jax.linear_transpose(lambda w: conv(x, w), w)(dy)[0], (x, dy)
        else:
            function, arguments = lambda w, dy: jax.linear_transpose(lambda x: conv(x, w), x)(dy)[0], (w, dy)
        compiled = jax.jit(function)
        compiled.lower(*arguments).compile()
        return lambda: compiled(*arguments).block_until_ready()

    def result(self, value, job):
        """Return the array."""
        return np.asarray(value)
