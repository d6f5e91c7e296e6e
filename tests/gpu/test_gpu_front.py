"""CuPy arrays at the public operations: what is taken, what is refused by name, where results lie."""

import pickle
import re
import sys
import threading
from contextlib import nullcontext
from importlib import _bootstrap
from importlib.machinery import ModuleSpec
from types import ModuleType

import fake_cudnn
import numpy as np
import pytest
import standin_device
from conftest import forget_gpu

import convkit
from convkit import ArgumentError, ArgumentTypeError, ShapeError
from convkit._gpu import access

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input", "fused_conv2d")


def arrays(dtype=np.float32):
    """Small whole numbers: images (2, 5, 6, 3), filters (3, 2, 3, 4) and gradients under SAME padding."""
    rng = np.random.default_rng(7)
    return tuple(rng.integers(-4, 5, shape).astype(dtype) for shape in ((2, 5, 6, 3), (3, 2, 3, 4), (2, 5, 6, 4)))


def calls(x, w, dy):
    """Each operation on the arrays, by name; keywords may be added."""
    same = {"padding": "SAME"}
    return {
        "conv2d": lambda **more: convkit.conv2d(x, w, **same, **more),
        "conv2d_backprop_filter": lambda **more: convkit.conv2d_backprop_filter(x, (3, 2, 3, 4), dy, **same, **more),
        "conv2d_backprop_input": lambda **more: convkit.conv2d_backprop_input((2, 5, 6, 3), w, dy, **same, **more),
        "fused_conv2d": lambda **more: convkit.fused_conv2d(x, w, **same, **more),
    }


def refused(error, op, *words):
    """Expect an error whose sentence opens with the operation and holds the words."""
    return pytest.raises(error, match=rf"^{op}: " + "".join(f".*{re.escape(word)}" for word in words))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_results_are_those_of_the_cpu_and_stay_on_the_gpu(cupy, op, dtype):
    host = arrays(dtype)
    result = calls(*map(cupy.asarray, host))[op]()
    assert type(result) is cupy.ndarray
    expected = calls(*host)[op]()
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(cupy.asnumpy(result), expected)


@pytest.mark.parametrize("op", OPS)
def test_out_is_written_and_returned(cupy, op):
    host = arrays()
    expected = calls(*host)[op]()
    for make in (cupy.empty, lambda shape, dtype: cupy.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]):
        out = make(expected.shape, np.float32)
        out.fill(np.nan)
        assert calls(*map(cupy.asarray, host))[op](out=out) is out
        np.testing.assert_array_equal(cupy.asnumpy(out), expected)


def test_filter_gradients_are_added_up(cupy):
    x, w, dy = arrays()
    expected = calls(x, w, dy)["conv2d_backprop_filter"]()
    out = cupy.full(w.shape, 5, np.float32)
    calls(cupy.asarray(x), None, cupy.asarray(dy))["conv2d_backprop_filter"](out=out, accumulate=True)
    np.testing.assert_array_equal(cupy.asnumpy(out), 5 + expected)
    with refused(ArgumentError, "conv2d_backprop_filter", "accumulate", "out"):
        calls(cupy.asarray(x), None, cupy.asarray(dy))["conv2d_backprop_filter"](accumulate=True)


@pytest.mark.parametrize("op", OPS)
def test_numpy_arrays_are_not_mixed_with_cupy_arrays(cupy, op):
    host = arrays()
    device = tuple(map(cupy.asarray, host))
    roles = {
        "conv2d": ("input", "filter", None),
        "conv2d_backprop_filter": ("input", None, "out_backprop"),
        "conv2d_backprop_input": (None, "filter", "out_backprop"),
        "fused_conv2d": ("input", "filter", None),
    }[op]
    for place, role in enumerate(roles):
        if role is not None:
            mixed = [host[i] if i == place else device[i] for i in range(3)]
            with refused(ArgumentTypeError, op, role, "numpy.ndarray", f"cupy.asarray({role})"):
                calls(*mixed)[op]()
    expected = calls(*host)[op]()
    with refused(ArgumentTypeError, op, "out", "numpy.ndarray"):
        calls(*device)[op](out=np.empty_like(expected))
    with refused(ArgumentTypeError, op, "out", "on a GPU"):
        calls(*host)[op](out=cupy.empty(expected.shape, np.float32))


@pytest.mark.parametrize("role", ["bias", "side_input", "conv_scale"])
def test_terms_of_an_epilogue_are_not_mixed_either(cupy, role):
    x, w, _ = arrays()
    values = {"bias": np.ones(4, np.float32), "side_input": np.ones((2, 5, 6, 4), np.float32)}
    value = values.get(role, np.ones(4, np.float32))
    with refused(ArgumentTypeError, "fused_conv2d", role, "numpy.ndarray"):
        convkit.fused_conv2d(cupy.asarray(x), cupy.asarray(w), padding="SAME", **{role: value})
    with refused(ArgumentTypeError, "fused_conv2d", role, "on a GPU"):
        convkit.fused_conv2d(x, w, padding="SAME", **{role: cupy.asarray(value)})


def test_scales_may_be_numbers_lists_or_vectors_on_the_gpu(cupy):
    x, w, _ = arrays()
    on_gpu = cupy.asarray(x), cupy.asarray(w)
    for scale in (2, 0.5, [1.0, 2.0, 0.5, -1.0]):
        expected = convkit.fused_conv2d(x, w, conv_scale=scale)
        np.testing.assert_array_equal(cupy.asnumpy(convkit.fused_conv2d(*on_gpu, conv_scale=scale)), expected)
        given = cupy.asarray(np.asarray(scale, np.float64))
        np.testing.assert_array_equal(cupy.asnumpy(convkit.fused_conv2d(*on_gpu, conv_scale=given)), expected)
    with refused(ShapeError, "fused_conv2d", "conv_scale", "(3,)"):
        convkit.fused_conv2d(*on_gpu, conv_scale=cupy.asarray(np.ones(3, np.float32)))


@pytest.mark.parametrize("op", OPS)
def test_an_out_that_overlaps_an_input_is_refused(cupy, op):
    whole = cupy.asarray(np.ones(4096, np.float32))
    x, w, dy = (whole[: np.prod(shape)].reshape(shape) for shape in ((2, 5, 6, 3), (3, 2, 3, 4), (2, 5, 6, 4)))
    shape = calls(*arrays())[op]().shape
    with refused(ArgumentError, op, "out shares memory with"):
        calls(x, w, dy)[op](out=whole[: np.prod(shape)].reshape(shape))
    calls(x, w, dy)[op](out=whole[2048 : 2048 + np.prod(shape)].reshape(shape))
    # Interleaved with an input, but no byte in common.
    pairs = cupy.asarray(np.ones((2, 5, 6, 6), np.float32))
    if op == "conv2d_backprop_input":
        calls(None, cupy.asarray(arrays()[1]), cupy.asarray(arrays()[2]))[op](out=pairs[..., ::2])


def test_a_side_input_may_be_the_result(cupy):
    x, w, side = arrays()
    expected = convkit.fused_conv2d(x, w, side_input=side, padding="SAME")
    out = cupy.asarray(side)
    convkit.fused_conv2d(cupy.asarray(x), cupy.asarray(w), side_input=out, padding="SAME", out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)


def test_sums_of_nothing(cupy):
    no_channels = cupy.empty((1, 4, 4, 0), np.float32), cupy.empty((3, 3, 0, 2), np.float32)
    np.testing.assert_array_equal(cupy.asnumpy(convkit.conv2d(*no_channels)), np.zeros((1, 2, 2, 2)))
    biased = convkit.fused_conv2d(*no_channels, cupy.asarray(np.array([1, -2], np.float32)), activation="relu")
    np.testing.assert_array_equal(cupy.asnumpy(biased), np.broadcast_to(np.float32([1, 0]), (1, 2, 2, 2)))
    empty_batch = cupy.empty((0, 4, 4, 3), np.float32), (3, 3, 3, 2), cupy.empty((0, 2, 2, 2), np.float32)
    np.testing.assert_array_equal(cupy.asnumpy(convkit.conv2d_backprop_filter(*empty_batch)), np.zeros((3, 3, 3, 2)))
    out = cupy.full((3, 3, 3, 2), 7, np.float32)
    convkit.conv2d_backprop_filter(*empty_batch, out=out, accumulate=True)
    assert (cupy.asnumpy(out) == 7).all()
    int8 = cupy.empty((1, 2, 2, 0), np.int8), cupy.empty((1, 1, 0, 4), np.int8)
    result = convkit.fused_conv2d(*int8, cupy.asarray(np.array([1, 2.5, -3, 200], np.float32)), output_zero_point=3)
    np.testing.assert_array_equal(cupy.asnumpy(result)[0, 0, 0], [4, 5, 0, 127])


@pytest.mark.parametrize("op", OPS)
def test_sizes_are_checked_as_on_the_cpu(cupy, op):
    host = arrays()
    messages = []
    for x, w, dy in (host, tuple(map(cupy.asarray, host))):
        with pytest.raises(ShapeError) as caught:
            calls(x[..., :2], w[:, :, :2, :3] if op == "conv2d_backprop_input" else w, dy)[op]()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_packed_filters(cupy):
    x, w, _ = arrays()
    packed = convkit.pack_filter(cupy.asarray(w), op="conv2d")
    expected = convkit.conv2d(x, w)
    np.testing.assert_array_equal(cupy.asnumpy(convkit.conv2d(cupy.asarray(x), packed)), expected)
    assert packed.shape == w.shape and packed.dtype == w.dtype
    with refused(ArgumentTypeError, "conv2d", "filter", "numpy.ndarray"):
        convkit.conv2d(cupy.asarray(x), convkit.pack_filter(w, op="conv2d"))
    with refused(ArgumentTypeError, "conv2d", "input", "numpy.ndarray"):
        convkit.conv2d(x, packed)
    again = pickle.loads(pickle.dumps(packed))
    np.testing.assert_array_equal(cupy.asnumpy(convkit.conv2d(cupy.asarray(x), again)), expected)


@pytest.mark.parametrize("op", OPS)
def test_explain_names_the_implementation(cupy, op):
    shapes = {
        "conv2d": ((2, 5, 6, 3), (3, 2, 3, 4)),
        "conv2d_backprop_filter": ((2, 5, 6, 3), (3, 2, 3, 4), (2, 5, 6, 4)),
        "conv2d_backprop_input": ((2, 5, 6, 3), (3, 2, 3, 4), (2, 5, 6, 4)),
        "fused_conv2d": ((2, 5, 6, 3), (3, 2, 3, 4), (4,)),
    }[op]
    told = convkit.explain(op, *shapes, device="gpu", padding="SAME")
    assert told.implementation.startswith("gpu:")
    assert dict(told.candidates)[told.implementation] is None
    assert told.workspace <= 2**30
    given = [cupy.empty(shape, np.float32) for shape in shapes]
    if op == "conv2d_backprop_filter":
        given[1] = shapes[1]
    if op == "conv2d_backprop_input":
        given[0] = shapes[0]
    assert convkit.explain(op, *given, padding="SAME").implementation == told.implementation
    assert "serves" in str(told)


def test_the_algorithm_asked_for_serves_or_says_why_not(cupy):
    x, w, _ = map(cupy.asarray, arrays())
    for family in ("im2col", "direct"):
        assert convkit.explain("conv2d", x, w, algorithm=family).implementation.startswith(f"gpu:{family}")
    with refused(convkit.UnsupportedError, "conv2d", "gemm", "3x2"):
        convkit.conv2d(x, w, algorithm="gemm")
    with refused(convkit.UnsupportedError, "conv2d", "winograd", "GPU"):
        convkit.conv2d(x, w, algorithm="winograd")
    with refused(ArgumentError, "conv2d", "algorithm", "im2col"):
        convkit.conv2d(x, w, algorithm="fastest")


def test_arrays_of_two_devices_are_refused(cupy):
    x, w, _ = arrays()
    with cupy.cuda.Device(1):
        there = cupy.asarray(w)
    with refused(ArgumentError, "conv2d", "filter is on device 1", "input is on device 0"):
        convkit.conv2d(cupy.asarray(x), there)


def test_a_call_runs_on_the_device_of_its_arrays(cupy):
    x, w, _ = arrays()
    with cupy.cuda.Device(1):
        there = cupy.asarray(x), cupy.asarray(w)
    result = convkit.conv2d(*there)
    assert result.data.device_id == 1
    assert cupy.cuda.runtime.getDevice() == 0
    np.testing.assert_array_equal(cupy.asnumpy(result), convkit.conv2d(x, w))


def test_the_gpus_are_described(cupy):
    told = convkit.gpu_info()
    assert told["available"] and told["reason"] is None
    assert {"name", "capability", "memory", "processors", "cudnn", "no_cudnn"} == set(told["devices"][0])


@pytest.mark.parametrize("op", OPS)
def test_subclasses_are_taken_as_arrays(cupy, op):
    class Own(cupy.ndarray):
        pass

    host = arrays()
    expected = calls(*host)[op]()
    x, w, dy = (cupy.asarray(array).view(Own) for array in host)
    assert type(x) is Own
    result = calls(x, w, dy)[op]()
    assert type(result) is cupy.ndarray
    np.testing.assert_array_equal(result.get(), expected)
    out = cupy.empty(expected.shape, np.float32).view(Own)
    assert calls(x, w, dy)[op](out=out) is out
    np.testing.assert_array_equal(out.get(), expected)


# What CUDA is asked for outside of any plan, and that it may fail at, as it does after an illegal access.
ASKED = ["getDeviceProperties", "streamIsCapturing", "get_current_stream", "Device", "ndarray"]


def failing(cupy, monkeypatch, name):
    """Let one of CuPy's calls fail."""

    def fail(*arguments, **keywords):
        raise cupy.cuda.runtime.CUDARuntimeError(700)

    if name == "ndarray":
        monkeypatch.setattr(standin_device.World, "allocate", fail)
    elif name == "Device":
        monkeypatch.setattr(standin_device.Device, "use", fail)
    else:
        monkeypatch.setattr(cupy.cuda.runtime if hasattr(cupy.cuda.runtime, name) else cupy.cuda, name, fail)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ASKED)
def test_whatever_cuda_fails_at_is_a_backend_error(cupy, monkeypatch, op, name):
    host = arrays()
    run = calls(*map(cupy.asarray, host))[op]
    with monkeypatch.context() as patch:
        failing(cupy, patch, name)
        with refused(convkit.BackendError, op, "the GPU failed", "cudaErrorIllegalAddress"):
            run()
    np.testing.assert_array_equal(run().get(), calls(*host)[op]())


@pytest.mark.parametrize("name", ["getDeviceProperties", "streamIsCapturing", "getDevice", "Device"])
def test_what_cuda_fails_at_while_a_call_is_explained(cupy, monkeypatch, name):
    convkit.explain("conv2d", (1, 4, 4, 2), (3, 3, 2, 4), device="gpu")
    convkit.clear_caches()
    access.cupy()
    failing(cupy, monkeypatch, name)
    with refused(convkit.BackendError, "conv2d", "the GPU failed", "cudaErrorIllegalAddress"):
        convkit.explain("conv2d", (1, 4, 4, 2), (3, 3, 2, 4), device="gpu")


def test_what_cuda_fails_at_while_gpus_are_described(cupy, monkeypatch):
    access.cupy()
    failing(cupy, monkeypatch, "getDeviceProperties")
    told = convkit.gpu_info()
    assert not told["available"] and told["reason"].startswith("gpu_info: the GPU failed")


@pytest.mark.parametrize("op", OPS)
def test_arrays_of_cupy_are_known_as_such_when_cuda_has_failed(cupy, world, op):
    """As in a child that was forked after CUDA had been used."""
    host = arrays()
    run = calls(*map(cupy.asarray, host))[op]
    run()
    world.driver = False
    try:
        with refused(convkit.BackendError, op, "the GPU failed", "cudaErrorInsufficientDriver"):
            run()
    finally:
        world.driver = True
    np.testing.assert_array_equal(run().get(), calls(*host)[op]())


def test_clearing_waits_for_a_front_that_is_being_imported(cupy):
    """A thread may be importing the front while another one clears what it keeps."""
    ours, there, gate = sys.modules["convkit._calls_gpu"], ModuleType("convkit._calls_gpu"), threading.Event()
    there.__spec__ = ModuleSpec("convkit._calls_gpu", None)
    there.__spec__._initializing = True
    failed = []

    def clear():
        gate.set()
        try:
            convkit.clear_caches()
        except Exception as error:
            failed.append(error)

    with _bootstrap._ModuleLockManager("convkit._calls_gpu"):
        sys.modules["convkit._calls_gpu"] = there
        del convkit._calls_gpu
        thread = threading.Thread(target=clear)
        thread.start()
        gate.wait()
        thread.join(0.2)
        assert thread.is_alive()
        sys.modules["convkit._calls_gpu"] = convkit._calls_gpu = ours
    thread.join()
    assert not failed


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("with_cudnn", [False, True])
def test_strides_of_parts_of_elements_are_refused_by_name(cupy, op, with_cudnn):
    host = arrays()
    x, w, dy = map(cupy.asarray, host)
    odd = [cupy.lib.stride_tricks.as_strided(array, array.shape, (6, 4, 4, 4)) for array in (x, w, dy)]
    roles = {"conv2d_backprop_filter": ("input", None), "conv2d_backprop_input": (None, "filter")}.get(op)
    with fake_cudnn.installed() if with_cudnn else nullcontext():
        forget_gpu()
        for place, role in enumerate(roles or ("input", "filter")):
            if role is not None:
                given = [odd[i] if i == place else (x, w, dy)[i] for i in range(3)]
                with refused(convkit.UnsupportedError, op, f"{role} has strides (6, 4, 4, 4)", "4 bytes"):
                    calls(*given)[op]()
        if op == "fused_conv2d":
            vector = cupy.lib.stride_tricks.as_strided(x, (4,), (6,))
            with refused(convkit.UnsupportedError, op, "bias has strides (6,)"):
                calls(x, w, dy)[op](bias=vector)
        # The stride of an axis of one element means nothing.
        expected = convkit.conv2d(host[0][:1], host[1])
        one = cupy.lib.stride_tricks.as_strided(x, (1, 5, 6, 3), (7, *x.strides[1:]))
        np.testing.assert_array_equal(convkit.conv2d(one, w).get(), expected)
        forget_gpu()


def test_quantizing_reads_arrays_on_the_cpu_alone(cupy):
    x = cupy.zeros((1, 2, 2, 3), np.float32)
    with pytest.raises(ArgumentTypeError, match=r"^quantize: array .* on the CPU here.*cupy\.asnumpy\(array\)$"):
        convkit.quantize.quantize(x, 1.0)
