"""SciPy: signal.oaconvolve (tiles of FFTs) or ndimage.correlate, on images of one channel."""

import numpy as np
import scipy
from scipy import ndimage, signal

from .job import UnsupportedError


class Peer:
    """One image after the other; neither function uses threads."""

    version = scipy.__version__

    def __init__(self, threads, setting):
        self.setting = setting

    def prepare(self, job):
        """Return the filtering of all images."""
        if job.op != "conv2d" or job.dtype not in ("float32", "float64"):
            raise UnsupportedError("SciPy filters are the forward operation, in float32 and float64")
        if job.x_shape[3] * job.w_shape[3] != 1 or (*job.strides, *job.dilations) != (1, 1, 1, 1):
            raise UnsupportedError("SciPy filters take one channel and one filter, without stride or dilation")
        if not job.even_pads or job.y_shape != job.x_shape:
            raise UnsupportedError("SciPy is asked for results of the size of the image, with even padding")
        x, w, _ = job.arrays()
        images, taps = x[..., 0], np.ascontiguousarray(w[:, :, 0, 0])
        if self.setting == "oaconvolve":
            turned = np.ascontiguousarray(taps[::-1, ::-1])
            return lambda: signal.oaconvolve(images, turned[np.newaxis], "same", axes=(1, 2))
        return lambda: ndimage.correlate(images, taps[np.newaxis], mode="constant")

    def result(self, value, job):
        """Return the result with its channel."""
        return value[..., np.newaxis]
