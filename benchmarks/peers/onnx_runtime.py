"""ONNX Runtime, forward only: a model of one Conv node whose filter is a constant, so that it is packed once."""

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from .job import UnsupportedError

TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}
# What any ONNX Runtime of the last years reads.
OPSET, IR_VERSION = 17, 8


def session_options(threads):
    """Return the settings of a session on so many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


class Peer:
    """NCHW arrays."""

    version = onnxruntime.__version__

    def __init__(self, threads, setting):
        self.options = session_options(threads)

    def prepare(self, job):
        """Return a run of the session."""
        if job.op != "conv2d":
            raise UnsupportedError("ONNX Runtime is asked for the forward operation alone")
        if job.dtype not in TYPES:
            raise UnsupportedError(f"ONNX Runtime is not asked for {job.dtype}")
        x, w, _ = job.arrays()
        x, w = x.transpose(0, 3, 1, 2).copy(), w.transpose(3, 2, 0, 1).copy()
        (top, bottom), (left, right) = job.pads
        node = helper.make_node(
            "Conv", ["x", "w"], ["y"], strides=job.strides, dilations=job.dilations, group=job.groups,
            pads=[top, left, bottom, right],
        )  # fmt: skip
        kind = TYPES[job.dtype]
        graph = helper.make_graph(
            [node], "conv", [helper.make_tensor_value_info("x", kind, x.shape)],
            [helper.make_tensor_value_info("y", kind, None)], [numpy_helper.from_array(w, "w")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        session = onnxruntime.InferenceSession(model.SerializeToString(), self.options, ["CPUExecutionProvider"])
        return lambda: session.run(None, {"x": x})[0]

    def result(self, value, job):
        """Return the result in NHWC order."""
        return value.transpose(0, 2, 3, 1)
