"""convkit itself, on arrays in the layout of the problem."""

from functools import partial

import numpy as np

import convkit

from .job import int8_terms

DATA = {"NHWC": (0, 1, 2, 3), "NCHW": (0, 3, 1, 2)}
FILTER = {"NHWC": (0, 1, 2, 3), "NCHW": (3, 2, 0, 1)}


class Peer:
    """The public operations, with the allocation of their result."""

    version = convkit.__version__

    def __init__(self, threads, setting):
        convkit.set_options(num_threads=threads)
        self.details = {}

    def prepare(self, job):
        """Return the call; what explain says about it is kept in ``details``."""
        x, w, dy = job.typed_arrays()
        if job.op == "fused_conv2d":
            return self._fused(job, x, w, dy)
        x, dy = (np.ascontiguousarray(array.transpose(DATA[job.data_format])) for array in (x, dy))
        w = np.ascontiguousarray(w.transpose(FILTER[job.data_format]))
        arguments = {
            "conv2d": (x, w),
            "conv2d_backprop_filter": (x, w.shape, dy),
            "conv2d_backprop_input": (x.shape, w, dy),
        }[job.op]
        keywords = {
            "strides": job.strides, "padding": job.pads, "dilations": job.dilations, "groups": job.groups,
            "data_format": job.data_format,
        }  # fmt: skip
        found = convkit.explain(job.op, *arguments, **keywords)
        self.details = {"implementation": found.implementation, "workspace": found.workspace}
        return partial(getattr(convkit, job.op), *arguments, **keywords)

    def _fused(self, job, x, w, dy):
        """Return a call on a filter packed beforehand, as the peers' are."""
        scale, bias = int8_terms(dy)
        x = np.ascontiguousarray(x.transpose(DATA[job.data_format]))
        keywords = {
            "strides": job.strides, "padding": job.pads, "dilations": job.dilations, "groups": job.groups,
            "data_format": job.data_format,
        }  # fmt: skip
        w = convkit.pack_filter(w.transpose(FILTER[job.data_format]), op=job.op, **keywords)
        found = convkit.explain(job.op, x, w, bias, activation="relu", **keywords)
        self.details = {"implementation": found.implementation, "workspace": found.workspace}
        return partial(convkit.fused_conv2d, x, w, bias, conv_scale=scale, activation="relu", **keywords)

    def result(self, value, job):
        """Return the result in NHWC or HWIO order."""
        axes = (FILTER if job.op == "conv2d_backprop_filter" else DATA)[job.data_format]
        return value.transpose(np.argsort(axes))
