"""The `onnx` package's node tests of ConvInteger and QLinearConv.

They have uint8 filters with zero points, which convkit's int8 filters have not: `int8_filters` is the recipe of
`docs/numerics.md`, which writes such a filter as a sum of int8 filters over the same image, repeated along its
channels.
"""

import json

import cases
import harness
import numpy as np
import pytest

import convkit

NODES = json.loads((cases.DATA / "onnx_conv_nodes.json").read_text(encoding="utf-8"))["cases"]


def int8_filters(w: np.ndarray, zero_point) -> np.ndarray:
    """Return an OIHW filter less its zero points as int8, with as many in channels again as it takes."""
    rest = w.astype(np.int16) - np.reshape(zero_point, (-1, 1, 1, 1))
    parts = []
    while not parts or rest.any():
        parts.append(rest.clip(-128, 127).astype(np.int8))
        rest = rest - parts[-1]
    return np.concatenate(parts, axis=1)


def arrays_of(node):
    """Return image, int8 filter and the expected result of a node."""
    x = np.array(node["x"], np.uint8).reshape(node["x_shape"])
    w = np.array(node["w"], np.uint8).reshape(node["w_shape"])
    filters = int8_filters(w, node["w_zero_point"])
    return np.tile(x, (1, filters.shape[1] // w.shape[1], 1, 1)), filters, np.reshape(node["y"], node["y_shape"])


@pytest.mark.parametrize("node", NODES, ids=lambda node: node["name"])
def test_node(node):
    x, w, expected = arrays_of(node)
    top, left, bottom, right = node["pads"]
    keywords = {
        "padding": ((top, bottom), (left, right)),
        "input_zero_point": node["x_zero_point"],
        "data_format": "NCHW",
        "out_dtype": "float32",
    }
    if node["op"] == "QLinearConv":
        scale = np.float32(node["x_scale"]) * np.float32(node["w_scale"]) / np.float32(node["y_scale"])
        keywords.update(conv_scale=scale, output_zero_point=node["y_zero_point"], out_dtype="uint8")
    for family in harness.families("fused_conv2d", x, w, **keywords):
        y = convkit.fused_conv2d(x, w, algorithm=family, **keywords)
        np.testing.assert_array_equal(y, expected, err_msg=family)


def test_a_filter_without_a_zero_point_needs_no_recipe():
    node = NODES[0]
    assert node["w_zero_point"] == [0]
    x, w, _ = arrays_of(node)
    assert w.shape == tuple(node["w_shape"])
    y = convkit.conv2d(x, w, data_format="NCHW") - node["x_zero_point"] * w.sum(dtype=np.int32)
    np.testing.assert_array_equal(y.ravel(), node["y"])


def test_every_uint8_filter_and_zero_point():
    w, zero = (array.ravel() for array in np.meshgrid(np.arange(256), np.arange(256)))
    filters = int8_filters(w.astype(np.uint8).reshape(-1, 1, 1, 1), zero)
    np.testing.assert_array_equal(filters.sum(axis=1, dtype=np.int64).ravel(), w - zero)
