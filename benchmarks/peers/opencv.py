"""OpenCV's filter2D: images of one channel, one filter of odd height and width, the result as large as the image."""

import cv2
import numpy as np

from .job import UnsupportedError


class Peer:
    """One image after the other."""

    version = cv2.__version__

    def __init__(self, threads, setting):
        cv2.setNumThreads(threads)

    def prepare(self, job):
        """Return the filtering of all images."""
        if job.op != "conv2d" or job.dtype not in ("float32", "float64"):
            raise UnsupportedError("filter2D is the forward operation, in float32 and float64")
        if job.x_shape[3] * job.w_shape[3] != 1 or (*job.strides, *job.dilations) != (1, 1, 1, 1):
            raise UnsupportedError("filter2D takes one channel and one filter, without stride or dilation")
        if not job.even_pads or job.y_shape != job.x_shape:
            raise UnsupportedError("filter2D returns images of the size it got, with even padding")
        x, w, _ = job.arrays()
        images, taps = x[..., 0], np.ascontiguousarray(w[:, :, 0, 0])
        if len(images) == 1:
            return lambda: cv2.filter2D(images[0], -1, taps, borderType=cv2.BORDER_CONSTANT)[np.newaxis]

        def all_images():
            y = np.empty(images.shape, images.dtype)
            for image, out in zip(images, y, strict=True):
                cv2.filter2D(image, -1, taps, dst=out, borderType=cv2.BORDER_CONSTANT)
            return y

        return all_images

    def result(self, value, job):
        """Return the result with its channel."""
        return value[..., np.newaxis]
