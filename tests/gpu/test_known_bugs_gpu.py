"""Known failures of other libraries on GPUs, by id, on stand-ins for CuPy and cuDNN."""

import threading

import cudnn_calls
import numpy as np
import pytest
from fake_cudnn import FakePlan

import convkit
from convkit import ArgumentError, ArgumentTypeError

FAMILIES = ("cudnn", "direct", "im2col")


@pytest.fixture
def script(cupy):
    """The stand-in for cuDNN, installed."""
    with cudnn_calls.installed() as script:
        convkit.clear_caches()
        yield script
        convkit.clear_caches()


def layer(rng, image, filters, gradient):
    """Small whole numbers."""
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in (image, filters, gradient)]


def three(x, w, dy, **keywords):
    """The three operations on one layer, by name."""
    return {
        "conv2d": lambda **more: convkit.conv2d(x, w, **keywords, **more),
        "conv2d_backprop_filter": lambda **more: convkit.conv2d_backprop_filter(x, w.shape, dy, **keywords, **more),
        "conv2d_backprop_input": lambda **more: convkit.conv2d_backprop_input(x.shape, w, dy, **keywords, **more),
    }


@pytest.mark.parametrize(
    "size, kernel, channels, padding",
    [
        ((1, 1), (1, 1), (1, 1), ((1, 0), (1, 0))),
        ((32, 32), (5, 5), (16, 4), ((1, 2), (2, 2))),
        ((9, 8), (2, 2), (3, 5), "SAME"),
        ((9, 8), (4, 4), (3, 5), "SAME"),
    ],
)
def test_B05_padding_that_differs_from_side_to_side(cupy, script, rng, size, kernel, channels, padding):
    c, k = channels
    out = convkit.conv2d_output_shape((1, *size, c), (*kernel, c, k), padding=padding)
    host = layer(rng, (1, *size, c), (*kernel, c, k), out)
    device = [cupy.asarray(array) for array in host]
    for op, on_cpu in three(*host, padding=padding).items():
        wanted = on_cpu(algorithm="reference")
        for family in FAMILIES:
            result = three(*device, padding=padding)[op](algorithm=family)
            np.testing.assert_array_equal(result.get(), wanted, err_msg=f"{op} {family}")
    assert script.runs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_D07_more_elements_than_32_bits_count(cupy, script, dtype):
    shapes = (1, 514, 2048, 2048), (1, 514, 3, 3)
    told = convkit.explain("conv2d", *shapes, device="gpu", data_format="NCHW", padding=1, dtype=dtype)
    objections = dict(told.candidates)
    assert "elements" in objections[f"gpu:cudnn_{'f16' if dtype == 'float16' else 'bf16'}"]
    assert told.implementation.startswith(("gpu:direct", "gpu:im2col"))
    assert told.workspace <= 2**30


@pytest.mark.parametrize("limit", [0, 8 * 2**20, 256 * 2**20])
def test_D09_scratch_within_the_limit(cupy, script, world, rng, limit):
    script.plans = {
        "A": (FakePlan("huge", workspace=8 * 2**30), FakePlan("large", workspace=200 * 2**20), FakePlan("none")),
        "FALLBACK": (),
    }
    # Channels first, which need no copies.
    host = layer(rng, (1, 4, 6, 5), (4, 4, 3, 3), (1, 4, 4, 3))
    device = [cupy.asarray(array) for array in host]
    for op, on_cpu in three(*host, data_format="NCHW").items():
        with convkit.options(workspace_limit=limit):
            result = three(*device, data_format="NCHW")[op](algorithm="cudnn")
        np.testing.assert_array_equal(result.get(), on_cpu())
    wanted = "large" if limit > 200 * 2**20 else "none"
    assert {name for name, _ in script.runs} == {wanted}
    # When even what is within the limit cannot be had, the plan without scratch serves.
    with convkit.options(workspace_limit=limit):
        x, w = device[:2]
        out = cupy.empty((1, 4, 4, 3), np.float32)
        cupy.get_default_memory_pool().free_all_blocks()
        world.allocations_left = 0
        convkit.conv2d(x, w, out=out, algorithm="cudnn", data_format="NCHW")
    world.allocations_left = None
    assert script.runs[-1] == ("none", 0)


def test_H01_threads_have_handles_and_streams_of_their_own(cupy, script, rng):
    host = layer(rng, (1, 6, 5, 4), (3, 3, 4, 4), (1, 4, 3, 4))
    wanted = {op: call() for op, call in three(*host).items()}
    wrong = []

    def work():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            device = [cupy.asarray(array) for array in host]
            for _ in range(20):
                for op, call in three(*device).items():
                    result = call(algorithm="cudnn")
                    mine = [handle for handle in script.handles if handle.thread == threading.get_ident()]
                    if [handle.stream for handle in mine] != [stream.ptr] or not (result.get() == wanted[op]).all():
                        wrong.append(op)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(script.handles) == 8


@pytest.mark.parametrize("family", FAMILIES)
def test_H02_scratch_belongs_to_the_stream_of_the_launch(cupy, script, world, rng, family):
    device = [cupy.asarray(array) for array in layer(rng, (1, 6, 5, 4), (3, 3, 4, 4), (1, 4, 3, 4))]
    wanted = convkit.conv2d(*device[:2]).get()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    results = []
    for turn in range(6):
        with streams[turn % 2]:
            results.append(convkit.conv2d(*device[:2], algorithm=family))
            # Whatever was given back is poisoned by the next owner.
            cupy.full((4096,), np.nan, np.float32)
    for result in results:
        np.testing.assert_array_equal(result.get(), wanted)


def test_H03_arrays_on_different_gpus(cupy, script, rng):
    host = layer(rng, (1, 6, 5, 4), (3, 3, 4, 4), (1, 4, 3, 4))
    x, w, dy = map(cupy.asarray, host)
    with cupy.cuda.Device(1):
        there = [cupy.asarray(array) for array in host]
    with pytest.raises(ArgumentError, match=r"^conv2d: filter is on device 1, but input is on device 0"):
        convkit.conv2d(x, there[1])
    for op, call in three(*there).items():
        result = call(algorithm="cudnn")
        assert result.data.device_id == 1 and script.handles[-1].device == 1
        np.testing.assert_array_equal(result.get(), three(*host)[op]())
    with pytest.raises(ArgumentTypeError, match=r"^conv2d_backprop_filter: .*ndarray.*out_backprop is .*, on a GPU"):
        convkit.conv2d_backprop_filter(host[0], w.shape, dy)


@pytest.mark.parametrize("offered", [True, False])
def test_H06_deterministic_and_dilated(cupy, script, rng, offered):
    """A deterministic plan, or else another way that is."""
    plans = (FakePlan("wild", notes=("NONDETERMINISTIC",)), *([FakePlan("steady")] if offered else []))
    script.plans = {"A": plans, "FALLBACK": ()}
    host = layer(rng, (2, 4, 3, 3), (3, 3, 3, 2), (2, 4, 3, 2))
    device = [cupy.asarray(array) for array in host]
    geometry = {"dilations": 2, "padding": 2}
    with convkit.options(deterministic=True):
        for op, call in three(*device, **geometry).items():
            np.testing.assert_array_equal(call(algorithm="cudnn").get(), three(*host, **geometry)[op]())
    assert {name for name, _ in script.runs} == ({"steady"} if offered else set())


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_H07_a_side_input_never_goes_through_a_fused_engine(cupy, script, dtype):
    rng = np.random.default_rng(1)
    x = np.ones((4, 8, 8, 8), dtype)
    w = rng.integers(-3, 4, (3, 3, 8, 8)).astype(dtype)
    result = convkit.fused_conv2d(cupy.asarray(x), cupy.asarray(w), side_input=cupy.asarray(x), padding="SAME")
    wanted = convkit.fused_conv2d(x, w, side_input=x, padding="SAME", algorithm="direct")
    np.testing.assert_array_equal(result.get(), wanted)
    assert script.runs
    assert all(len(graph.nodes) == 1 for graph in script.graphs), "a convolution alone; the rest is ours"


def test_H07_an_int8_plan_with_wrong_sums_is_found_out(cupy, script):
    script.plans = {"A": (FakePlan("wrong", fault="wrong"),), "FALLBACK": ()}
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 6, 6, 8), (3, 3, 8, 8)))
    for _ in range(2):
        result = convkit.conv2d(cupy.asarray(x), cupy.asarray(w))
        np.testing.assert_array_equal(result.get(), convkit.conv2d(x, w))


@pytest.mark.parametrize("fault", ["outside", "before", "workspace"])
def test_H08_a_plan_that_writes_outside_its_buffers(cupy, script, rng, fault):
    script.plans = {"A": (FakePlan("wild", workspace=256, fault=fault), FakePlan("tame")), "FALLBACK": ()}
    device = [cupy.asarray(array) for array in layer(rng, (1, 6, 5, 4), (3, 3, 4, 4), (1, 4, 3, 4))]
    with convkit.options(autotune=True):
        convkit.conv2d(*device[:2], algorithm="cudnn")
        convkit.conv2d(*device[:2], algorithm="cudnn")
    assert [name for name, _ in script.runs[-2:]] == ["tame", "tame"]


def test_H10_tuning_leaves_the_result_alone(cupy, script, rng):
    script.plans = {"A": (FakePlan("first", seconds=0.002), FakePlan("second")), "FALLBACK": ()}
    host = layer(rng, (1, 6, 5, 4), (3, 3, 4, 4), (1, 4, 3, 4))
    wanted = 3 + three(*host)["conv2d_backprop_filter"]()
    out = cupy.full((3, 3, 4, 4), 3, np.float32)
    with convkit.options(autotune=True):
        three(*map(cupy.asarray, host))["conv2d_backprop_filter"](out=out, accumulate=True, algorithm="cudnn")
    np.testing.assert_array_equal(out.get(), wanted)
    assert {name for name, _ in script.runs} == {"first", "second"}


def test_H11_a_new_shape_builds_one_plan(cupy, script, rng):
    for width in range(4, 12):
        x, w, _ = map(cupy.asarray, layer(rng, (1, 5, width, 2), (2, 2, 2, 3), (1, 1, 1, 1)))
        convkit.conv2d(x, w, algorithm="cudnn")
    assert len(script.builds) == 8
    assert {mode for mode, _ in script.builds} == {"A"}
