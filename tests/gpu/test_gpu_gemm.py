"""The family gemm: every convolution that is a matrix product, in every layout, exactly; and when it is not."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest
from gpu_plans import H200, Run
from harness import ALL_LAYOUTS, NCHW, NHWC, layer

from convkit._gpu import products
from convkit._gpu.gemm import Gemm
from convkit._registry import NeedsWorkspace

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BFLOAT16]
# Images, filters and the rest of layers that are products.
LAYERS = {
    "1x1": ((2, 3, 4, 8), (1, 1, 8, 5), {}),
    "1x1 of one image": ((1, 5, 1, 3), (1, 1, 3, 4), {}),
    "1x1 of one channel": ((3, 4, 2, 1), (1, 1, 1, 6), {}),
    "1x1 to one channel": ((3, 4, 2, 7), (1, 1, 7, 1), {}),
    "1x1 in groups": ((2, 3, 2, 6), (1, 1, 3, 4), {"groups": 2}),
    "1x1 of one pixel": ((4, 1, 1, 6), (1, 1, 6, 3), {"strides": (2, 2), "dilations": (3, 3)}),
    "full image": ((3, 4, 2, 5), (4, 2, 5, 6), {}),
    "full image in groups": ((2, 2, 3, 4), (2, 3, 2, 6), {"groups": 2}),
    "full height": ((2, 4, 3, 5), (4, 1, 5, 6), {}),
    "full width": ((2, 4, 3, 5), (1, 3, 5, 2), {}),
    "long": ((1, 2, 2, 4), (1, 1, 4, 3), {"strides": (1, 1)}),
}


def gemm(op, dtype=np.float32):
    return Gemm("gpu", "gemm", op, np.dtype(dtype).name)


def served(run):
    """Tell whether gemm serves the call."""
    return gemm(run.call.op, run.dtype).objection(run.problem, run.machine) is None


@pytest.mark.parametrize("name", LAYERS)
def test_products_are_exact_in_every_layout(cupy, rng, name):
    x, w, geometry = LAYERS[name]
    count = 0
    for call, layout, dtype in itertools.product(layer(rng, x, w, **geometry), ALL_LAYOUTS, DTYPES):
        run = Run(call, layout, dtype)
        if served(run):
            count += 1
            np.testing.assert_array_equal(run.by(gemm(call.op, dtype)).astype(np.float64), call.reference())
    # Where filters and images are stored in the same order, nothing is left to others.
    assert count >= (12 if "full image in" in name else 24)


@pytest.mark.parametrize("layout", [NHWC, NCHW])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "full image in groups"])
def test_the_usual_layouts_are_always_served(cupy, rng, name, layout):
    x, w, geometry = LAYERS[name]
    for call in layer(rng, x, w, **geometry):
        if layout is NHWC or "full" not in name or "groups" not in geometry:
            assert served(Run(call, layout)), (name, call.op)


SPLIT = {
    # Terms of the forward sum, of the filter gradient, of the input gradient beyond what one accumulator takes.
    "conv2d": ((1, 2, 3, 1300), (1, 1, 1300, 4)),
    "conv2d_backprop_filter": ((7, 15, 13, 3), (1, 1, 3, 4)),
    "conv2d_backprop_input": ((1, 2, 3, 4), (1, 1, 4, 1300)),
}


@pytest.mark.parametrize("op", SPLIT)
@pytest.mark.parametrize("layout", [NHWC, NCHW])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["parts", "in turn", "in turn beside"])
def test_long_sums_are_cut(cupy, world, rng, monkeypatch, op, layout, dtype, way):
    monkeypatch.setitem(products.MOST_TERMS, np.dtype(dtype).name, 512)
    call = next(c for c in layer(rng, *SPLIT[op], limit=2) if c.op == op)
    limit = {"parts": 2**30, "in turn": 0, "in turn beside": call.reference().size * 4}[way]
    run = Run(call, layout, dtype, limit=limit)
    if dtype.itemsize == 2 and way == "in turn":
        assert isinstance(gemm(op, dtype).objection(run.problem, H200), NeedsWorkspace)
        return
    result = run.by(gemm(op, dtype))
    rounded = call.reference().astype(np.float32).astype(dtype)
    np.testing.assert_array_equal(result.astype(np.float64), rounded.astype(np.float64))
    lengths = [int(line.split()[2].split("x")[2]) for line in world.log if line.startswith("gemm")]
    assert lengths and (dtype == np.float64 or max(lengths) <= 512)
    assert run.plan.workspace(1) <= limit
    if way == "parts" and dtype != np.float64:
        assert run.plan.spec.scratch.parts > 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [NHWC, NCHW])
@pytest.mark.parametrize("limit", [0, 2**30])
def test_filter_gradients_are_added_to_what_is_there(cupy, rng, dtype, layout, limit):
    for shapes in (SPLIT["conv2d_backprop_filter"], LAYERS["1x1"][:2]):
        call = layer(rng, *shapes, limit=1)[1]
        before = rng.integers(-3, 4, call.arguments[1]).astype(np.float64)
        out = cupy.asarray(call.result_to(before, layout).astype(dtype))
        run = Run(call, layout, dtype, limit=limit, accumulate=True, out=out)
        if served(run):
            expected = (before + call.reference()).astype(np.float32).astype(dtype)
            np.testing.assert_array_equal(run.by(gemm(call.op, dtype)).astype(dtype), expected)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_sums_of_halves_may_stay_wide(cupy, rng, dtype):
    for call in layer(rng, (2, 3, 4, 8), (1, 1, 8, 5)):
        result = Run(call, NHWC, dtype, out_dtype=np.float32).by(gemm(call.op, dtype))
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, call.reference())


def apart(cupy):
    """Store arrays with other memory between rows, pixels or channels."""

    def store(array):
        whole = cupy.full((*array.shape[:-1], array.shape[-1] + 8), np.nan, array.dtype)
        part = whole[..., : array.shape[-1]]
        part[...] = cupy.asarray(array)
        return part

    return store


def test_arrays_may_lie_apart(cupy, rng):
    x, w, geometry = LAYERS["1x1 in groups"]
    for call in layer(rng, x, w, **geometry):
        run = Run(call, NHWC, store=apart(cupy))
        np.testing.assert_array_equal(run.by(gemm(call.op)), call.reference())


def test_results_around_the_result_are_left_alone(cupy, rng):
    for call in layer(rng, (2, 3, 4, 8), (1, 1, 8, 5)):
        shape = call.reference().shape
        whole = cupy.full((*shape[:-1], shape[-1] + 3), 7, np.float32)
        run = Run(call, NHWC, out=whole[..., :-3])
        np.testing.assert_array_equal(run.by(gemm(call.op)), call.reference())
        assert (whole[..., -3:].get() == 7).all()


@pytest.mark.parametrize(
    ("shapes", "geometry", "why"),
    [
        (((1, 4, 4, 3), (3, 3, 3, 2)), {}, "neither one pixel"),
        (((1, 4, 4, 3), (1, 1, 3, 2)), {"strides": (2, 1)}, "in height"),
        (((1, 4, 4, 3), (1, 1, 3, 2)), {"padding": ((0, 0), (1, 0))}, "in width"),
        # As many rows come out as go in, but not the same ones.
        (((1, 2, 4, 3), (1, 1, 3, 2)), {"strides": (2, 1), "padding": ((0, 1), (0, 0))}, "in height"),
        (((1, 4, 4, 3), (1, 1, 3, 2)), {"padding": ((0, 0), (0, 2))}, "in width"),
        (((1, 5, 5, 3), (3, 3, 3, 2)), {"dilations": (2, 2)}, "neither one pixel"),
    ],
)
def test_what_is_no_product_is_said(cupy, rng, shapes, geometry, why):
    for call in layer(rng, *shapes, **geometry):
        run = Run(call)
        assert why in gemm(call.op).objection(run.problem, H200)


def test_objections_name_what_is_in_the_way(cupy, rng):
    call = layer(rng, *LAYERS["1x1"][:2])[0]

    def objection(**changes):
        machine = changes.pop("machine", H200)
        run = Run(call, **changes)
        return gemm("conv2d", run.dtype).objection(run.problem, machine)

    def shifted(array):
        whole = cupy.empty(array.size + 1, array.dtype)
        part = whole[1:].reshape(array.shape)
        part.set(array)
        return part

    assert "multiple of 16" in objection(store=shifted)
    assert "order of other machines" in objection(store=lambda a: cupy.ndarray(a.shape, a.dtype.newbyteorder(">")))
    old = dataclasses.replace(H200, capability=(7, 5))
    assert "8.0" in objection(dtype=BFLOAT16, machine=old)
    assert objection(machine=old) is None
    image = cupy.zeros((2, 3, 4, 8), np.int16)
    assert "input has dtype int16" in objection(store=lambda a: image if a.shape == image.shape else cupy.asarray(a))
    assert "adjacent" in objection(store=lambda a: cupy.ndarray((*a.shape, 2), a.dtype)[..., 0])
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        assert "captured" in objection(store=lambda a: cupy.ndarray(a.shape, a.dtype))
        stream.end_capture()


def test_narrow_groups_are_left_to_others(cupy, rng):
    call = layer(rng, (1, 2, 2, 8), (1, 1, 1, 8), groups=8)[0]
    assert "1 by 1 channels" in gemm("conv2d").reluctance(Run(call).problem, H200)
    call = layer(rng, (1, 2, 2, 16), (1, 1, 8, 16), groups=2)[0]
    assert gemm("conv2d").reluctance(Run(call).problem, H200) is None


def test_a_full_gpu_adds_parts_in_turn(cupy, rng):
    """Where the result alone keeps every multiprocessor busy, partial results would only cost memory."""
    call = layer(rng, (1, 8, 8, 1024), (1, 1, 1024, 8), limit=1)[0]
    small = dataclasses.replace(H200, processors=1)
    assert Run(call, machine=small).by(gemm("conv2d")) is not None
    for machine, parts in ((small, 0), (H200, 2)):
        run = Run(call, machine=machine)
        np.testing.assert_array_equal(run.by(gemm("conv2d")), call.reference())
        assert (run.plan.spec.scratch.parts if run.plan.spec.scratch else 0) == parts


def test_scratch_goes_back(cupy, rng):
    pool = cupy.get_default_memory_pool()
    for call in layer(rng, *SPLIT["conv2d"]):
        run = Run(call)
        used = pool.used_bytes()
        run.by(gemm(call.op))
        assert pool.used_bytes() == used
