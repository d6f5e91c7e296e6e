"""The contestants, each in a file of its own: a class Peer(threads, setting) with

* ``version``, the text for the report;
* ``prepare(job)``, which returns the operation as a function without arguments, all data converted beforehand to
  what the library likes best, or raises UnsupportedError (any other error counts as that too);
* ``result(value, job)``, which returns what that function returned as a NumPy array in NHWC or HWIO order.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contestant:
    """Where a contestant comes from: a module here, the packages it needs, one of its settings, its environment."""

    module: str
    requires: tuple[str, ...]
    setting: str = ""
    environment: dict[str, str] = field(default_factory=dict)


OURS = "convkit"
TABLE = {
    OURS: Contestant("ours", ("convkit",)),
    "torch": Contestant("pytorch", ("torch",), "contiguous_format"),
    "torch-channels-last": Contestant("pytorch", ("torch",), "channels_last"),
    "tensorflow": Contestant("tensor_flow", ("tensorflow",), "", {"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "tensorflow-onednn": Contestant("tensor_flow", ("tensorflow",), "", {"TF_ENABLE_ONEDNN_OPTS": "1"}),
    "torch-int8-x86": Contestant("pytorch_int8", ("torch",), "x86"),
    "torch-int8-onednn": Contestant("pytorch_int8", ("torch",), "onednn"),
    "jax": Contestant("jax_xla", ("jax", "jaxlib")),
    "onnxruntime": Contestant("onnx_runtime", ("onnxruntime", "onnx")),
    "onnxruntime-int8": Contestant("onnx_runtime_int8", ("onnxruntime", "onnx")),
    "tensorflow-int8": Contestant("tensor_flow_int8", ("tensorflow",)),
    "opencv": Contestant("opencv", ("cv2",)),
    "scipy-oaconvolve": Contestant("scipy_imaging", ("scipy",), "oaconvolve"),
    "scipy-ndimage": Contestant("scipy_imaging", ("scipy",), "ndimage"),
}
