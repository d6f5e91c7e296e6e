"""Streams, captured graphs, devices and threads: work goes where the caller says, and nothing waits."""

import threading
from contextlib import nullcontext

import fake_cudnn
import harness
import numpy as np
import pytest
from conftest import forget_gpu
from harness import NCHW, NHWC
from int8_cases import PACKED, Fused

import convkit
from convkit import _calls_gpu
from convkit._gpu import memory

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)
LAYERS = {
    "1x1": ((2, 6, 7, 8), (1, 1, 8, 16), {}),
    "3x3": ((2, 6, 7, 8), (3, 3, 8, 16), {"padding": "SAME"}),
    "depthwise": ((2, 6, 7, 8), (3, 3, 1, 8), {"groups": 8}),
}


class OnDevice:
    """An operation with its arrays on the current device."""

    def __init__(self, cupy, op, arguments, keywords):
        def there(value):
            return cupy.asarray(value) if isinstance(value, np.ndarray) else value

        self.op = op
        self.keywords = {key: there(value) for key, value in keywords.items()}
        self.arguments = [there(value) for value in arguments]
        # Without transforms, which round even whole numbers.
        with convkit.options(precision="high"):
            self.expected = getattr(convkit, op)(*arguments, **keywords)

    def __call__(self, **more):
        return getattr(convkit, self.op)(*self.arguments, **self.keywords, **more)

    def check(self, result):
        np.testing.assert_array_equal(result.get(), self.expected, err_msg=self.op)


def calls(cupy, rng, name="3x3", layout=NHWC, dtype=FLOAT):
    """Return each operation of a layer, its arrays on the current device."""
    image, weights, geometry = LAYERS[name]
    found = []
    for call in harness.layer(rng, image, weights, limit=1, **geometry):
        keywords = {**geometry, **layout.keywords}
        arguments = call.in_layout(layout, dtype)
        found.append(OnDevice(cupy, call.op, arguments, keywords))
        if call.op == "conv2d":
            bias = rng.integers(-3, 4, weights[3]).astype(dtype)
            more = {"conv_scale": rng.choice([0.5, 1, 2], weights[3]), "activation": "relu"}
            found.append(OnDevice(cupy, "fused_conv2d", (*arguments, bias), {**keywords, **more}))
    return found


def int8_calls(cupy, rng, layout=NHWC):
    """Return a fused convolution of int8 with everything that it may have."""
    x, w = rng.integers(-9, 9, (2, 6, 7, 8), np.int8), rng.integers(-9, 9, (3, 3, 8, 4), np.int8)
    bias, side = rng.normal(size=4).astype(np.float32), rng.integers(-9, 9, (2, 4, 5, 4), np.int8)
    fused = Fused(x, w, bias, side, {"conv_scale": 0.1, "side_scale": 0.5})
    return [OnDevice(cupy, "fused_conv2d", fused.arguments(layout), {**fused.terms, **layout.keywords})]


def all_calls(cupy, rng):
    """Return calls of every kind."""
    found = [call for name in LAYERS for dtype in (FLOAT, HALF) for call in calls(cupy, rng, name, NHWC, dtype)]
    return [*found, *calls(cupy, rng, "3x3", NCHW), *int8_calls(cupy, rng), *int8_calls(cupy, rng, PACKED)]


@pytest.mark.parametrize("with_cudnn", [False, True])
def test_all_work_is_on_the_current_stream_and_the_host_never_waits(cupy, world, rng, with_cudnn):
    with fake_cudnn.installed() if with_cudnn else nullcontext():
        forget_gpu()
        for call in all_calls(cupy, rng):
            call.check(call())
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                world.used_streams.clear()
                world.log.clear()
                result = call()
                assert world.used_streams <= {stream.ptr}
                assert "wait" not in world.log, call.op
            call.check(result)
        forget_gpu()


def test_repeated_calls_plan_nothing(cupy, world, rng, monkeypatch):
    found = all_calls(cupy, rng)
    for call in found:
        call.check(call())

    def again(*arguments, **keywords):
        raise AssertionError("a repeated call is checked or planned again")

    for name in ("check", "check_fused", "choose"):
        monkeypatch.setattr(_calls_gpu, name, again)
    world.log.clear()
    for call in found:
        call.check(call())
    assert "compile" not in world.log


def captured(cupy, world, call, **more):
    """Return the graph of a call, its stream and its result."""
    stream = cupy.cuda.Stream(non_blocking=True)
    out = cupy.empty(call.expected.shape, call.expected.dtype)
    with stream:
        call(out=out, **more)
        out.fill(0)
        stream.begin_capture()
        call(out=out, **more)
        graph = stream.end_capture()
    return graph, stream, out


@pytest.mark.parametrize("with_cudnn", [False, True])
def test_captured_calls_run_whenever_their_graph_is_launched(cupy, world, rng, with_cudnn):
    """The values of the arrays at launch count; scratch lives on; cuBLAS, which CuPy refuses, is not called."""
    with fake_cudnn.installed() if with_cudnn else nullcontext():
        forget_gpu()
        for call in all_calls(cupy, rng):
            graph, stream, out = captured(cupy, world, call)
            assert not out.get().any()
            # What has been given back is used by others meanwhile.
            others = [cupy.full(shape, 7, np.uint8) for shape in (64, 512, 4096, 65536)]
            world.log.clear()
            graph.launch(stream)
            assert not any(line.startswith("gemm") for line in world.log)
            call.check(out)
            next(a for a in call.arguments if isinstance(a, cupy.ndarray)).fill(0)
            graph.launch(stream)
            np.testing.assert_array_equal(out.get(), call().get())
            for array in others:
                assert (array.get() == 7).all()
        forget_gpu()


def test_captured_calls_name_who_cannot_serve(cupy, rng):
    call = calls(cupy, rng, "1x1")[0]
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        told = convkit.explain(call.op, *call.arguments, **call.keywords)
        with pytest.raises(convkit.UnsupportedError, match="CuPy refuses cuBLAS while a stream is being captured"):
            call(algorithm="gemm")
        stream.end_capture()
    assert told.implementation == "gpu:direct_f32"
    assert convkit.explain(call.op, *call.arguments, **call.keywords).implementation == "gpu:gemm_f32"


def test_scratch_of_captured_calls_is_kept_until_caches_are_cleared(cupy, world):
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        memory.scratch("conv2d", 1000).fill(3)
        graph = stream.end_capture()
        assert pool.used_bytes() == before + 1024
        graph.launch()
    del graph
    convkit.clear_caches()
    assert pool.used_bytes() == before


def test_arrays_decide_the_device(cupy, world, rng):
    with cupy.cuda.Device(1):
        found = [*calls(cupy, rng), *int8_calls(cupy, rng)]
    for call in found:
        assert cupy.cuda.Device().id == 0
        result = call()
        assert result.device.id == 1 and cupy.cuda.Device().id == 0
        call.check(result)
    # The same calls on the other device share nothing with them.
    for call in calls(cupy, rng):
        result = call()
        assert result.device.id == 0
        call.check(result)


def test_arrays_of_two_devices_are_refused_by_name(cupy, rng):
    call = calls(cupy, rng)[0]
    with cupy.cuda.Device(1):
        far = cupy.asarray(call.arguments[1].get())
        out = cupy.empty(call.expected.shape, np.float32)
    with pytest.raises(convkit.ArgumentError, match=r"^conv2d: filter is on device 1, but input is on device 0"):
        convkit.conv2d(call.arguments[0], far, **call.keywords)
    with pytest.raises(convkit.ArgumentError, match=r"^conv2d: out is on device 1, but input is on device 0"):
        call(out=out)


@pytest.mark.parametrize("with_cudnn", [False, True])
def test_threads_on_streams_of_their_own(cupy, world, rng, with_cudnn):
    """Handles, plans, compiled kernels and scratch are each thread's own, or shared without harm."""
    with fake_cudnn.installed() if with_cudnn else nullcontext():
        forget_gpu()
        found, failures = all_calls(cupy, rng), []

        def work(device):
            try:
                with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True):
                    for call in found:
                        for _ in range(2):
                            call.check(call())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        forget_gpu()
