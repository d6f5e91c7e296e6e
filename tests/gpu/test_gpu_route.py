"""Which implementation serves what on the GPU, with cuDNN and without, and how `explain` tells it."""

import sys

import fake_cudnn
import numpy as np
import pytest
import standin
from child import run_python
from conftest import forget_gpu

import convkit
from convkit._gpu import route

SAME = {"padding": "SAME"}
# Operation, shapes, other arguments; who serves it without cuDNN, and who with it.
CALLS = {
    "1x1": ("conv2d", ((8, 28, 28, 64), (1, 1, 64, 256)), {}, "gemm_f32", "gemm_f32"),
    "1x1, NCHW": ("conv2d", ((8, 64, 28, 28), (256, 64, 1, 1)), {"data_format": "NCHW"}, "gemm_f32", "gemm_f32"),
    "1x1, strides": ("conv2d", ((8, 28, 28, 64), (1, 1, 64, 256)), {"strides": 2}, "im2col_f32", "cudnn_f32"),
    "whole image": ("conv2d", ((32, 7, 7, 512), (7, 7, 512, 100)), {"dtype": "float16"}, "gemm_f16", "gemm_f16"),
    "3x3": ("conv2d", ((8, 28, 28, 64), (3, 3, 64, 64)), SAME, "im2col_f32", "cudnn_f32"),
    "3x3, float64": ("conv2d", ((8, 28, 28, 64), (3, 3, 64, 64)), {"dtype": "float64"}, "im2col_f64", "cudnn_f64"),
    "depthwise": ("conv2d", ((8, 28, 28, 64), (3, 3, 1, 64)), {"groups": 64}, "direct_f32", "cudnn_f32"),
    "depthwise 1x1": ("conv2d", ((8, 28, 28, 64), (1, 1, 1, 64)), {"groups": 64}, "direct_f32", "cudnn_f32"),
    "filter gradient": (
        "conv2d_backprop_filter", ((8, 28, 28, 64), (3, 3, 64, 64), (8, 28, 28, 64)), SAME, "im2col_f32", "cudnn_f32",
    ),
    "filter gradient, 1x1": (
        "conv2d_backprop_filter", ((8, 28, 28, 64), (1, 1, 64, 64), (8, 28, 28, 64)), SAME, "gemm_f32", "gemm_f32",
    ),
    "filter gradient, 1x1, sums over many small images": (
        "conv2d_backprop_filter", ((64, 512, 7, 7), (512, 512, 1, 1), (64, 512, 7, 7)),
        {"data_format": "NCHW"}, "gemm_f32", "cudnn_f32",
    ),
    "input gradient": (
        "conv2d_backprop_input", ((8, 28, 28, 64), (3, 3, 64, 64), (8, 28, 28, 64)), SAME, "im2col_f32", "cudnn_f32",
    ),
    "fused": ("fused_conv2d", ((8, 28, 28, 64), (3, 3, 64, 64)), {"dtype": "bfloat16"}, "im2col_bf16", "cudnn_bf16"),
    "fused, 1x1": ("fused_conv2d", ((8, 28, 28, 64), (1, 1, 64, 64)), {}, "gemm_f32", "gemm_f32"),
    "fused, int8": ("fused_conv2d", ((8, 28, 28, 64), (3, 3, 64, 64)), {"dtype": "int8"}, "direct_int8", "cudnn_int8"),
    "int8": ("conv2d", ((8, 28, 28, 64), (3, 3, 64, 64)), {"dtype": "int8"}, "direct_int8", "cudnn_int8"),
}  # fmt: skip


def served(name):
    op, shapes, keywords, *_ = CALLS[name]
    return convkit.explain(op, *shapes, device="gpu", **keywords).implementation


@pytest.mark.parametrize("name", CALLS)
def test_who_serves(cupy, name):
    *_, native, with_cudnn = CALLS[name]
    assert served(name) == f"gpu:{native}"
    with fake_cudnn.installed():
        forget_gpu()
        assert served(name) == f"gpu:{with_cudnn}"
        forget_gpu()


def test_every_operation_and_dtype_has_someone_who_serves_all_of_it():
    assert {op for op, _ in route.TABLE} == {*route.OPS, "fused_conv2d"}
    for (op, dtype), row in route.TABLE.items():
        families = [each.family for each in row]
        assert families == (["cudnn", "direct"] if dtype == "int8" else ["gemm", "cudnn", "direct", "im2col"])
        assert all(each.device == "gpu" and (each.op, each.dtype) == (op, dtype) for each in row)
    assert {dtype for op, dtype in route.TABLE if op == "conv2d_backprop_filter"} == {
        "float16", "bfloat16", "float32", "float64",
    }  # fmt: skip


def test_an_explanation_gives_every_reason(cupy):
    told = str(convkit.explain("conv2d", (8, 28, 28, 64), (3, 3, 64, 64), device="gpu"))
    for words in (
        "conv2d: gpu:im2col_f32", "gpu:gemm_f32: in height, a 3x3 filter on a 28x28 image",
        "gpu:cudnn_f32: ", "nvidia-cudnn-frontend", "gpu:direct_f32: could serve, but groups of 64 by 64 channels",
        "workspace", "copied: input: its patches, piece by piece",
    ):  # fmt: skip
        assert words in told


def test_arrays_say_which_device_is_meant(cupy, rng):
    x, w = rng.standard_normal((1, 4, 4, 3), np.float32), rng.standard_normal((1, 1, 3, 2), np.float32)
    assert convkit.explain("conv2d", x, w).implementation.startswith("cpu:")
    assert convkit.explain("conv2d", cupy.asarray(x), cupy.asarray(w)).implementation == "gpu:gemm_f32"


@pytest.mark.parametrize("family", ["gemm", "cudnn", "direct", "im2col"])
def test_a_family_can_be_asked_for(gpu, rng, family):
    x, w = rng.integers(-3, 4, (2, 4, 4, 3)).astype(np.float32), rng.integers(-3, 4, (1, 1, 3, 2)).astype(np.float32)
    if family == "cudnn":
        with pytest.raises(convkit.UnsupportedError, match=r"^conv2d: .*cudnn.*nvidia-cudnn-frontend"):
            gpu.conv2d(x, w, algorithm=family)
        return
    np.testing.assert_array_equal(gpu.conv2d(x, w, algorithm=family), convkit.conv2d(x, w))
    assert convkit.explain("conv2d", x.shape, w.shape, device="gpu", algorithm=family).implementation.startswith(
        f"gpu:{family}"
    )


def test_families_of_the_cpu_are_refused_by_name(cupy):
    x, w = cupy.zeros((1, 4, 4, 3), np.float32), cupy.zeros((3, 3, 3, 2), np.float32)
    for family in ("winograd", "fft", "reference", "planar"):
        with pytest.raises(convkit.UnsupportedError, match=rf"^conv2d: algorithm is '{family}'.* on the GPU"):
            convkit.conv2d(x, w, algorithm=family)


# What is missing, and what is said of it.
ABSENT = {
    "a driver": ({"version": "14.2.0", "driver": False}, "finds no usable driver or GPU"),
    "a GPU": ({"version": "14.2.0", "cards": []}, "finds no GPU"),
    "a new CuPy": ({"version": "12.3.0"}, "CuPy is version 12.3.0, but must be at least 13"),
}


def refusal(version=None):
    """Return what is said where no GPU can be used; what is told of CuPy must be `version`."""
    forget_gpu()
    with pytest.raises(convkit.BackendError) as caught:
        convkit.explain("conv2d", (1, 4, 4, 3), (3, 3, 3, 2), device="gpu")
    assert convkit.gpu_info() == {
        "available": False, "reason": str(caught.value), "cupy": version, "driver": None, "devices": [],
    }  # fmt: skip
    return str(caught.value)


@pytest.mark.parametrize("what", ABSENT)
def test_what_is_missing_is_said_in_one_sentence(what):
    settings, sentence = ABSENT[what]
    with standin.installed(**settings):
        told = refusal(settings["version"])
    assert sentence in told and told.count(". ") == 0
    forget_gpu()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModuleNotFoundError("No module named 'cupy'", name="cupy"), "CuPy is not installed"),
        (ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock"), "cannot be imported: No module named"),
        (ImportError("libcudart.so.12: no such file"), "cannot be imported: ImportError: libcudart.so.12"),
    ],
)
def test_a_cupy_that_cannot_be_imported_is_told_with_its_reason(monkeypatch, error, sentence):
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "cupy":
                raise error

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert sentence in refusal()


def test_importing_convkit_leaves_cuda_alone():
    """Neither the package nor a convolution on the CPU imports CuPy or the GPU side."""
    program = """
        import sys
        import numpy as np
        import convkit
        convkit.conv2d(np.ones((1, 3, 3, 1), np.float32), np.ones((2, 2, 1, 1), np.float32))
        convkit.clear_caches()
        found = [name for name in sys.modules if name.split(".")[0] in ("cupy", "cudnn") or "._gpu" in name]
        print(found)
    """
    assert run_python(program) == "[]"
