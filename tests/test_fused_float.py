"""Fused floating-point convolutions: every family, dtype, activation and layout; memory; onto the side input."""

import tracemalloc

import harness
import numpy as np
import pytest
import reference
from child import run_python
from harness import BFLOAT16, DTYPES, HALVES, LAYOUTS

import convkit
from convkit._cpu import fused as cpu_fused

FLOAT32 = np.dtype(np.float32)
ACTIVATIONS = {
    None: lambda t: t,
    "relu": lambda t: np.maximum(t, 0),
    "relu6": lambda t: np.clip(t, 0, 6),
    "elu": lambda t: np.where(t > 0, t, np.expm1(np.minimum(t, 0))),
    "leaky_relu": lambda t: np.where(t > 0, t, 0.25 * t),
}


def expected(x, w, bias, side, activation, geometry):
    """Return the result in float64; all but the exponential is exact on small integers."""
    t = reference.conv2d(x, w, **geometry) * 0.5 + (0 if side is None else 2 * side) + (0 if bias is None else bias)
    return ACTIVATIONS[activation](t)


def arrays(rng, x_shape=(3, 9, 8, 6), w_shape=(3, 2, 6, 10), **geometry):
    shapes = x_shape, w_shape, w_shape[3:], reference.output_shape(x_shape, w_shape, **geometry)
    return [harness.integers(rng, shape) for shape in shapes]


def check(x, w, bias, side, activation, dtype, layout, geometry, **more) -> None:
    """Check every family, into a new array and onto the side input."""
    wide = expected(x, w, bias, side, activation, geometry)
    to_data = harness.reference.to_data_format
    call = harness.Call("conv2d", (x, w), geometry)
    x, w = call.in_layout(layout, dtype)
    side = to_data(side, layout.data).astype(dtype) if side is not None else None
    bias = None if bias is None else bias.astype(dtype)
    keywords = {
        **geometry, **layout.keywords, **more, "conv_scale": 0.5, "activation": activation, "alpha": 0.25,
        "side_scale": 0 if side is None else 2,
    }  # fmt: skip
    out_dtype = np.dtype(more.get("out_dtype", dtype))
    narrow = wide.astype(np.float32).astype(out_dtype) if out_dtype in HALVES else wide.astype(out_dtype)
    # expm1 is not the same to the last bit in every precision.
    eps = float(np.finfo(np.float32).eps) if out_dtype not in HALVES else 0.01
    for family in harness.families("fused_conv2d", x, w, bias, side, **keywords):
        outs = [None]
        if side is not None and side.dtype == out_dtype:
            outs.append(side.copy())
        for out in outs:
            beside = side if out is None else out
            y = convkit.fused_conv2d(x, w, bias, beside, algorithm=family, out=out, **keywords)
            assert y.dtype == out_dtype
            y = call.result_from(y, layout)
            if activation == "elu":
                np.testing.assert_allclose(y.astype(np.float64), wide, rtol=2 * eps, atol=eps, err_msg=family)
            else:
                np.testing.assert_array_equal(y, narrow, err_msg=f"{family} {layout} {out is not None}")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_family(activation, dtype, layout, rng):
    geometry = {"padding": "SAME", "strides": (1, 2)}
    x, w, bias, side = arrays(rng, **geometry)
    for b, s in ((None, None), (bias, None), (None, side), (bias, side)):
        check(x, w, b, s, activation, dtype, layout, geometry)
        if dtype in HALVES:
            check(x, w, b, s, activation, dtype, layout, geometry, out_dtype=np.float32)


GEOMETRIES = [
    {"padding": "VALID"},
    {"padding": ((5, 1), (0, 7))},
    {"padding": "FULL", "dilations": (3, 2)},
    {"padding": "SAME_LOWER", "strides": (3, 1), "dilations": (2, 2)},
    {"padding": ((9, 8), (1, 1)), "strides": (2, 2)},
]


@pytest.mark.parametrize("part_bytes", [1, 1000, 5000])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_parts_of_any_size(geometry, part_bytes, rng, monkeypatch):
    """Rows at the borders, parts of padding only, images that do not divide by the part."""
    monkeypatch.setattr(cpu_fused, "PART_BYTES", part_bytes)
    convkit.clear_caches()
    x, w, bias, side = arrays(rng, (5, 7, 8, 6), (3, 2, 6, 10), **geometry)
    for layout in LAYOUTS:
        for dtype in (FLOAT32, np.dtype(np.float16)):
            check(x, w, bias, side, "relu", dtype, layout, geometry)
    convkit.clear_caches()


def test_halves_are_rounded_once():
    """2049 is no float16, but 2049 * 0.5 + 0.5 is."""
    x, w = np.ones((1, 1, 1, 2049), np.float16), np.ones((1, 1, 2049, 1), np.float16)
    y = convkit.fused_conv2d(x, w, np.array([0.5], np.float32), conv_scale=0.5)
    assert y.dtype == np.float16
    assert y.item() == 1025
    x, w = np.ones((1, 1, 1, 257), BFLOAT16), np.ones((1, 1, 257, 1), BFLOAT16)
    assert float(convkit.fused_conv2d(x, w, np.array([-255.0], BFLOAT16)).item()) == 2.0


def test_scales_for_each_channel_in_the_arithmetic_of_the_dtype(rng):
    x, w, _, _ = arrays(rng)
    scale = rng.standard_normal(10)
    for dtype in (np.float32, np.float64):
        y = convkit.conv2d(x.astype(dtype), w.astype(dtype))
        fused = convkit.fused_conv2d(x.astype(dtype), w.astype(dtype), conv_scale=scale)
        np.testing.assert_array_equal(fused, y * scale.astype(dtype))


def test_integer_images_meet_float_filters(rng):
    x, w, bias, _ = arrays(rng)
    y = convkit.fused_conv2d(x.astype(np.uint8), w.astype(np.float32), bias.astype(np.float32))
    np.testing.assert_array_equal(y, expected(x.astype(np.uint8), w, None, None, None, {}) * 2 + bias)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan_and_infinities_go_to_their_ends(activation):
    x = np.array([np.nan, np.inf, -np.inf], np.float32).reshape(1, 1, 3, 1)
    y = convkit.fused_conv2d(x, np.ones((1, 1, 1, 1), np.float32), activation=activation).ravel()
    low = {None: -np.inf, "elu": -1, "leaky_relu": -np.inf}.get(activation, 0)
    np.testing.assert_array_equal(y, [np.nan, 6 if activation == "relu6" else np.inf, low])


def test_sums_of_nothing(rng):
    bias, side = rng.standard_normal(2).astype(np.float32), rng.standard_normal((2, 3, 3, 2)).astype(np.float32)
    x, w = np.zeros((2, 3, 3, 0), np.float32), np.zeros((1, 1, 0, 2), np.float32)
    y = convkit.fused_conv2d(x, w, bias, side, activation="relu")
    np.testing.assert_array_equal(y, np.maximum(side + bias, 0))
    assert convkit.fused_conv2d(x[:0], w, bias).shape == (0, 3, 3, 2)


def test_the_parts_scratch_keeps_to_the_workspace_limit(rng):
    x, w, bias, side = (a.astype(np.float16) for a in arrays(rng, (4, 32, 32, 16), (3, 3, 16, 64)))
    y = convkit.fused_conv2d(x, w, bias, side)
    with convkit.options(workspace_limit=2 << 20):
        told = convkit.explain("fused_conv2d", x, w, bias, side)
        assert told.workspace <= 2 << 20 or "reference" in told.implementation
        assert np.array_equal(convkit.fused_conv2d(x, w, bias, side), y)
    with convkit.options(workspace_limit=100), pytest.raises(convkit.WorkspaceError, match="bytes"):
        convkit.fused_conv2d(x, w, bias, side)


def test_no_second_image_of_the_result(rng):
    x, w = np.ones((4, 128, 128, 8), np.float32), np.ones((3, 3, 8, 64), np.float32)
    out = np.empty((4, 128, 128, 64), np.float32)
    bias = np.ones(64, np.float32)
    for side in (None, out):
        out[...] = 1
        convkit.fused_conv2d(x, w, bias, side, activation="relu6", padding="SAME", out=out)
        tracemalloc.start()
        convkit.fused_conv2d(x, w, bias, side, activation="relu6", padding="SAME", out=out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < out.nbytes / 2, side is None


def test_packed_filters(rng):
    x, w, bias, _ = (a.astype(np.float32) for a in arrays(rng))
    packed = convkit.pack_filter(w, op="fused_conv2d")
    for activation in ACTIVATIONS:
        y = convkit.fused_conv2d(x, w, bias, activation=activation)
        for _ in range(2):
            np.testing.assert_array_equal(convkit.fused_conv2d(x, packed, bias, activation=activation), y)
    with pytest.raises(convkit.ArgumentError, match="packed for fused_conv2d"):
        convkit.conv2d(x, packed)


def misaligned(array):
    """Return the same values, a byte off."""
    moved = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


STRANGE = {
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "reversed": lambda a: a[:, ::-1, :, ::-1].copy()[:, ::-1, :, ::-1],
    "planes": lambda a: np.ascontiguousarray(a.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1),
    "misaligned": misaligned,
    "apart": lambda a: np.repeat(a, 2, axis=3)[..., ::2],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("how", STRANGE)
@pytest.mark.parametrize("channels", [1, 3, 40, 1100])
def test_results_and_side_inputs_in_any_order_of_memory(channels, how, dtype, rng):
    x, w, bias, side = arrays(rng, (2, 6, 5, 2), (3, 2, 2, channels))
    wide = expected(x, w, bias, side, "leaky_relu", {})
    keywords = {"conv_scale": np.full(channels, 0.5), "side_scale": 2, "activation": "leaky_relu", "alpha": 0.25}
    x, w, bias, side = (a.astype(dtype) for a in (x, w, bias, side))
    out, beside = STRANGE[how](np.full_like(side, np.nan)), STRANGE[how](side)
    for into in (out, beside):
        result = convkit.fused_conv2d(x, w, bias, beside, out=into, **keywords)
        assert result is into
        np.testing.assert_array_equal(result, wide)
    assert np.array_equal(convkit.fused_conv2d(x, w, None, conv_scale=0.5), 0.5 * convkit.conv2d(x, w))


def test_threads_do_not_change_the_epilogue(rng):
    x, w, bias, side = (
        harness.floats(rng, a.shape).astype(np.float32) for a in arrays(rng, (2, 64, 65, 3), (1, 1, 3, 33))
    )
    one, *others = [
        convkit.fused_conv2d(x, w, bias, side, conv_scale=bias, activation="elu", num_threads=n) for n in (1, 2, 5)
    ]
    assert all(np.array_equal(one, other) for other in others)


def test_the_scratch_counts_towards_the_memory_limit_of_the_process():
    program = """
        import threading
        import numpy as np, convkit
        from convkit._cpu import memory
        x, w = np.ones((2, 40, 40, 16), np.float16), np.ones((3, 3, 16, 16), np.float16)
        most, outcomes, real = [0], [], memory._budget.changed.notify_all
        memory._budget.changed.notify_all = lambda: (most.append(memory._budget.taken), real())

        def work():
            outcomes.append(float(convkit.fused_conv2d(x, w, np.ones(16, np.float16)).max()))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [145.0] * 4 and memory._budget.taken == 0 and max(most) <= 1 << 20, (outcomes, most)
        told = convkit.explain("fused_conv2d", x, w, np.ones(16, np.float16))
        print(told.workspace > 2 * 38 * 38 * 16 * 4)
    """
    assert run_python(program, CONVKIT_MEMORY_LIMIT=str(1 << 20)) == "True"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("role", ["input", "filter", "bias", "side_input", "conv_scale", "all"])
def test_numbers_in_the_other_byte_order(role, dtype, rng):
    given = {
        "input": rng.integers(-3, 4, (2, 5, 6, 3)),
        "filter": rng.integers(-3, 4, (3, 2, 3, 5)),
        "bias": rng.integers(-3, 4, 5),
        "side_input": rng.integers(-3, 4, (2, 3, 5, 5)),
        "conv_scale": 2.0 ** rng.integers(-2, 3, 5),
    }
    given = {name: array.astype(dtype) for name, array in given.items()}
    swapped = {
        name: array.astype(array.dtype.newbyteorder()) if role in (name, "all") else array
        for name, array in given.items()
    }
    expected = convkit.fused_conv2d(**given, activation="relu")
    assert (convkit.fused_conv2d(**swapped, activation="relu") == expected).all()
    packed = convkit.pack_filter(swapped["filter"], op="fused_conv2d")
    assert (convkit.fused_conv2d(**{**swapped, "filter": packed}, activation="relu") == expected).all()
