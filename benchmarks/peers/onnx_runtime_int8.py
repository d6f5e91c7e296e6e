"""ONNX Runtime's QLinearConv: a model of one node whose filter is a constant; uint8 results are cut off at zero."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from .job import UnsupportedError, int8_terms
from .onnx_runtime import IR_VERSION, OPSET, session_options

NAMES = ("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "bias")


class Peer:
    """NCHW arrays, uint8 images and int8 filters."""

    version = onnxruntime.__version__

    def __init__(self, threads, setting):
        self.options = session_options(threads)

    def prepare(self, job):
        """Return a run of the session."""
        if job.op != "fused_conv2d":
            raise UnsupportedError("this contestant is for int8 alone")
        x, w, dy = job.arrays()
        x, w = x.transpose(0, 3, 1, 2).astype(np.uint8), w.transpose(3, 2, 0, 1).copy()
        one, zero = np.float32(1), np.uint8(0)
        constants = {
            "x_scale": one, "x_zero_point": zero, "w": w, "w_scale": int8_terms(dy)[0],
            "w_zero_point": np.zeros(len(w), np.int8), "y_scale": one, "y_zero_point": zero,
            "bias": dy[1].astype(np.int32),
        }  # fmt: skip
        (top, bottom), (left, right) = job.pads
        node = helper.make_node(
            "QLinearConv", NAMES, ["y"], strides=job.strides, dilations=job.dilations, group=job.groups,
            pads=[top, left, bottom, right],
        )  # fmt: skip
        kind = TensorProto.UINT8
        graph = helper.make_graph(
            [node], "conv", [helper.make_tensor_value_info("x", kind, x.shape)],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        session = onnxruntime.InferenceSession(model.SerializeToString(), self.options, ["CPUExecutionProvider"])
        return lambda: session.run(None, {"x": x})[0]

    def result(self, value, job):
        """Return the result in NHWC order; uint8 goes further than int8."""
        return np.minimum(value.transpose(0, 2, 3, 1), 127)
