"""GPU memory: all of it comes back, running out of it anywhere is one clear error, and limits hold."""

import dataclasses
from contextlib import nullcontext

import fake_cudnn
import harness
import numpy as np
import pytest
from conftest import forget_gpu
from harness import NCHW, NHWC

import convkit
from convkit._gpu import memory
from convkit._gpu.machine import this_machine

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
LAYERS = {
    "1x1": ((2, 6, 7, 8), (1, 1, 8, 16), {}),
    "1x1, long sums": ((1, 1, 3, 520), (1, 1, 520, 4), {}),
    "1x1, many pixels": ((1, 20, 30, 3), (1, 1, 3, 4), {}),
    "3x3": ((2, 6, 7, 8), (3, 3, 8, 16), {"padding": "SAME"}),
    "strides": ((2, 9, 7, 4), (3, 2, 4, 8), {"strides": (2, 3), "padding": "SAME"}),
    "depthwise": ((2, 6, 7, 8), (3, 3, 1, 8), {"groups": 8}),
    "groups": ((2, 6, 7, 8), (3, 3, 4, 8), {"groups": 2}),
}


def device_calls(cupy, rng, name, layout, dtype, bias_dtype=None):
    """Return each operation of a layer as a function without arguments, its arrays on the GPU."""
    image, weights, geometry = LAYERS[name]
    calls = {}
    for call in harness.layer(rng, image, weights, limit=1, **geometry):
        arguments = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in call.in_layout(layout, dtype)]
        keywords = {**geometry, **layout.keywords}
        operation = getattr(convkit, call.op)
        calls[call.op] = lambda *, f=operation, a=arguments, k=keywords, **more: f(*a, **k, **more)
        if call.op == "conv2d":
            bias = cupy.ones(weights[3], bias_dtype or dtype)
            calls["fused_conv2d"] = lambda *, a=arguments, b=bias, k=keywords, **more: convkit.fused_conv2d(
                *a, b, activation="relu", **k, **more
            )
    return calls


def families(call_name, run):
    """Yield the families that serve a call."""
    for family in ("gemm", "cudnn", "direct", "im2col"):
        try:
            run(algorithm=family)
        except convkit.UnsupportedError:
            continue
        yield family


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("with_cudnn", [False, True])
def test_all_scratch_comes_back(cupy, rng, name, dtype, with_cudnn):
    pool = cupy.get_default_memory_pool()
    with fake_cudnn.installed() if with_cudnn else nullcontext():
        forget_gpu()
        for layout in (NHWC, NCHW):
            for op, run in device_calls(cupy, rng, name, layout, dtype).items():
                for family in families(op, run):
                    before = pool.used_bytes()
                    result = run(algorithm=family)
                    assert pool.used_bytes() == before + -(-result.nbytes // 512) * 512, f"{op} by {family}"
                    del result
                    assert pool.used_bytes() == before
        forget_gpu()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_running_out_of_memory_anywhere_is_one_error_and_does_no_damage(cupy, world, rng, name, dtype):
    """Every allocation of every call fails once; the call then works as if nothing had been."""
    pool, failures = cupy.get_default_memory_pool(), 0
    for op, run in device_calls(cupy, rng, name, NHWC, dtype).items():
        for family in families(op, run):
            wanted, before = run(algorithm=family).get(), pool.used_bytes()
            for left in range(20):
                world.allocations_left, result = left, None
                try:
                    result = run(algorithm=family)
                except convkit.WorkspaceError as error:
                    failures += 1
                    assert str(error).startswith(f"{op}: ") and "bytes" in str(error)
                finally:
                    world.allocations_left = None
                if result is not None:
                    np.testing.assert_array_equal(result.get(), wanted)
                    del result
                    break
                assert pool.used_bytes() == before, f"{op} by {family} after {left} allocations"
            else:
                raise AssertionError("a call takes more than 20 allocations")
            np.testing.assert_array_equal(run(algorithm=family).get(), wanted)
            assert pool.used_bytes() == before
    assert failures >= 4


@pytest.mark.parametrize("limit", [0, 4000, 2**20])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_workspace_keeps_to_its_limit(cupy, world, rng, name, dtype, limit):
    """Whatever serves takes no more than the limit and what `explain` says; nothing else is an answer but an error."""
    card = world.cards[0]
    for layout in (NHWC, NCHW):
        # A bias of another dtype than that of the sums is converted, outside of any plan.
        for op, run in device_calls(cupy, rng, name, layout, dtype, FLOAT).items():
            wanted = run().get()
            for family in families(op, run):
                with convkit.options(workspace_limit=limit):
                    try:
                        run(algorithm=family)
                    except convkit.WorkspaceError as error:
                        assert str(error).startswith(f"{op}: ")
                        continue
                    card.most_used = before = card.used
                    result = run(algorithm=family)
                    np.testing.assert_array_equal(result.get(), wanted)
                    # The pool hands out multiples of 512 bytes, in a few pieces.
                    taken = card.most_used - before - result.nbytes
                    assert taken <= limit + 8 * 512 if limit else taken <= 512, (
                        f"{op} by {family} in {layout.data} takes {taken}"
                    )
                    del result


def test_the_default_limit_is_a_tenth_of_a_small_card(cupy):
    machine = this_machine(0)
    assert memory.default_limit(machine) == machine.memory // 10
    assert memory.default_limit(dataclasses.replace(machine, memory=80 * 2**30)) == 2**30


@pytest.mark.parametrize("world", [{"alignment": 16}], indirect=True)
def test_scratch_is_aligned_whatever_the_allocator_gives(cupy, world):
    arrays = [memory.scratch("conv2d", size) for size in (1, 100, 5000, 256) for _ in range(5)]
    for array in arrays:
        assert array.data.ptr % 256 == 0
        array.fill(1)
    assert any(array.base is not None for array in arrays)


def test_a_result_that_no_gpu_holds_is_refused_with_its_size(cupy):
    x = cupy.broadcast_to(cupy.ones((1, 1, 1, 1), np.float32), (1, 60000, 60000, 1))
    with pytest.raises(convkit.WorkspaceError, match=r"^conv2d: the result has shape .* takes 14400000000 bytes"):
        convkit.conv2d(x, cupy.ones((1, 1, 1, 1), np.float32))


@pytest.mark.parametrize("world", [{"version": "13.6.0"}], indirect=True)
def test_zeros_of_any_dtype_and_strides_on_cupy_13(cupy):
    import ml_dtypes

    for dtype in (ml_dtypes.bfloat16, np.dtype(">f4"), np.float64, np.int8):
        whole = cupy.ndarray((4, 6), dtype)
        memory.clear(whole[:, 1:5])
        assert not whole.view(np.uint8).get().reshape(4, 6, -1)[:, 1:5].any()
        assert whole.view(np.uint8).get().reshape(4, 6, -1)[:, 0].all()


def test_bytes_in_another_order_are_refused_by_name(cupy, rng):
    """CuPy makes such arrays by views only; a library would take them for its own order and compute nonsense."""
    x, w, vector = cupy.ones((1, 4, 4, 8), np.float32), cupy.ones((3, 3, 8, 4), np.float32), cupy.ones(4, np.float32)
    gradient = cupy.ones((1, 2, 2, 4), np.float32)

    def swapped(array):
        return array.view(np.dtype(">f4"))

    calls = {
        "input": lambda: convkit.conv2d(swapped(x), w),
        "filter": lambda: convkit.conv2d_backprop_input((4, 4), swapped(w), gradient),
        "out_backprop": lambda: convkit.conv2d_backprop_filter(x, w.shape, swapped(gradient)),
        "out": lambda: convkit.conv2d(x, w, out=swapped(gradient)),
        "bias": lambda: convkit.fused_conv2d(x, w, swapped(vector)),
        "side_input": lambda: convkit.fused_conv2d(x, w, None, swapped(gradient)),
        "conv_scale": lambda: convkit.fused_conv2d(x, w, conv_scale=swapped(vector)),
    }
    for role, call in calls.items():
        with pytest.raises(convkit.DTypeError, match=rf"^\w+: {role} has dtype >f4"):
            call()


@pytest.mark.parametrize("world", [{"version": "13.6.0"}], indirect=True)
def test_bfloat16_needs_no_kernels_of_cupy(cupy, rng):
    """CuPy 13 holds arrays of bfloat16, but computes nothing with them."""
    import ml_dtypes

    def on_cupy_13(array):
        made = cupy.ndarray(array.shape, array.dtype)
        made.view(np.uint16).set(array.view(np.uint16))
        return made

    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    for layout in (NHWC, NCHW):
        for call in harness.layer(rng, (2, 5, 4, 8), (3, 3, 8, 16), limit=1, padding="SAME"):
            given = call.in_layout(layout, bfloat16)
            arguments = [on_cupy_13(a) if isinstance(a, np.ndarray) else a for a in given]
            keywords = {**call.geometry, **layout.keywords}
            result = getattr(convkit, call.op)(*arguments, **keywords).view(np.uint16).get().view(bfloat16)
            np.testing.assert_array_equal(call.result_from(result, layout), call.reference().astype(bfloat16))
            if call.op == "conv2d":
                bias = on_cupy_13(np.ones(16, bfloat16))
                fused = convkit.fused_conv2d(*arguments, bias, conv_scale=bias, **keywords)
                wanted = call.result_to(call.reference() + 1, layout).astype(bfloat16)
                np.testing.assert_array_equal(fused.view(np.uint16).get().view(bfloat16), wanted)
