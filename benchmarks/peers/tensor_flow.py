"""TensorFlow's CPU kernels, called eagerly without the layers of Python above them; oneDNN by the environment."""

import os

import numpy as np
import tensorflow as tf

from .job import UnsupportedError


class Peer:
    """NHWC tensors, the only layout of its CPU kernels; depthwise operations where every channel is a group."""

    def __init__(self, threads, setting):
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.version = f"{tf.__version__}, oneDNN {'on' if os.environ['TF_ENABLE_ONEDNN_OPTS'] == '1' else 'off'}"

    def prepare(self, job):
        """Return one raw operation."""
        job.refuse_int8()
        if job.groups > 1 and job.groups != job.x_shape[3]:
            raise UnsupportedError("TensorFlow has no gradients of grouped convolutions on the CPU")
        if job.groups > 1 and job.strides[0] != job.strides[1]:
            raise UnsupportedError("TensorFlow's depthwise kernels take equal strides")
        if job.op != "conv2d" and job.dilations != (1, 1):
            raise UnsupportedError("TensorFlow has no gradients of dilated convolutions on the CPU")
        x, w, dy = job.typed_arrays()
        if job.groups > 1:
            w = w.reshape(*w.shape[:2], job.groups, -1)
        shape = tf.constant(x.shape if job.op == "conv2d_backprop_input" else w.shape, tf.int32)
        x, w, dy = (tf.constant(array) for array in (x, w, dy))
        keywords = {"strides": [1, *job.strides, 1], "dilations": [1, *job.dilations, 1]}
        if job.same or not np.any(job.pads):
            keywords["padding"] = "SAME" if job.same else "VALID"
        else:
            keywords |= {"padding": "EXPLICIT", "explicit_paddings": [0, 0, *job.pads[0], *job.pads[1], 0, 0]}
        raw = tf.raw_ops
        if job.op == "conv2d":
            call = raw.DepthwiseConv2dNative if job.groups > 1 else raw.Conv2D
            return lambda: call(input=x, filter=w, **keywords)
        if job.op == "conv2d_backprop_filter":
            call = raw.DepthwiseConv2dNativeBackpropFilter if job.groups > 1 else raw.Conv2DBackpropFilter
            return lambda: call(input=x, filter_sizes=shape, out_backprop=dy, **keywords)
        call = raw.DepthwiseConv2dNativeBackpropInput if job.groups > 1 else raw.Conv2DBackpropInput
        return lambda: call(input_sizes=shape, filter=w, out_backprop=dy, **keywords)

    def result(self, value, job):
        """Return the array; a depthwise filter [H, W, C, M] as (H, W, 1, C*M)."""
        array = value.numpy()
        return array.reshape(job.w_shape) if job.op == "conv2d_backprop_filter" else array
