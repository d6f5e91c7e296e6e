"""Repeated calls: found again without planning, only where they are equal, and checked as the first was."""

import gc
import itertools
import sys
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from refusals import refused

import convkit
from convkit import ArgumentError, ArgumentTypeError, ShapeError, WorkspaceError, _calls, _fused
from convkit._arrays import form_of
from convkit._repeated import Repeats

OPS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input")
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ">f4")
SHAPES = {
    "NHWC": ((1, 8, 8, 4), (3, 3, 4, 8), (1, 6, 6, 8)),
    "NCHW": ((1, 4, 8, 8), (8, 4, 3, 3), (1, 8, 6, 6)),
}


@pytest.fixture(autouse=True)
def fresh():
    convkit.clear_caches()
    yield
    convkit.clear_caches()


@pytest.fixture
def planned(monkeypatch):
    """The operations planned so far."""
    plans, real = [], _calls.prepare

    def prepare(op, *arguments):
        plans.append(op)
        return real(op, *arguments)

    monkeypatch.setattr(_calls, "prepare", prepare)
    return plans


def arrays(dtype=np.float32, data_format="NHWC", seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, shape).astype(dtype) for shape in SHAPES[data_format]]


def call(op, x, w, y, **keywords):
    if op == "conv2d":
        return convkit.conv2d(x, w, **keywords)
    if op == "conv2d_backprop_filter":
        return convkit.conv2d_backprop_filter(x, w.shape, y, **keywords)
    return convkit.conv2d_backprop_input(x.shape, w, y, **keywords)


def result_like(op, x, w, y):
    return dict(zip(OPS, (y, w, x), strict=True))[op]


@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_a_repeated_call_plans_nothing(op, dtype, data_format, planned):
    first, second = arrays(dtype, data_format), arrays(dtype, data_format, seed=1)
    expected = [call(op, *values, data_format=data_format, algorithm="reference") for values in (first, second)]
    planned.clear()
    for values, right in zip((first, second) * 2, expected * 2, strict=True):
        assert np.array_equal(call(op, *values, data_format=data_format), right)
    assert planned == [op]
    for values, right in zip((first, second) * 2, expected * 2, strict=True):
        out = np.full_like(right, np.nan)
        assert call(op, *values, data_format=data_format, out=out) is out
        assert np.array_equal(out, right)
    assert len(planned) <= 2
    assert set(planned) == {op}


@pytest.mark.parametrize("data_format", SHAPES)
@pytest.mark.parametrize("op", ["conv2d", "conv2d_backprop_input"])
def test_a_repeated_call_with_a_packed_filter_plans_and_packs_nothing(op, data_format, planned):
    x, w, y = arrays(data_format=data_format)
    # Which packs filters.
    form = {"data_format": data_format, "algorithm": "direct"}
    right = call(op, x, w, y, **form)
    packed = convkit.pack_filter(w, op=op, data_format=data_format)
    planned.clear()
    assert np.array_equal(call(op, x, packed, y, **form), right)
    packs = dict(packed._packs)
    assert len(packs) == 1
    for _ in range(3):
        assert np.array_equal(call(op, x, packed, y, **form), right)
    assert planned == [op]
    assert packed._packs == packs
    # Another filter of the same kind finds the plan, but not the pack.
    other = convkit.pack_filter(-w, op=op, data_format=data_format)
    for _ in range(2):
        assert np.array_equal(call(op, x, other, y, **form), -right)
    assert planned == [op]


@pytest.mark.parametrize(
    "values",
    [
        {"strides": [2, 1]},
        {"strides": (2, 1)},
        {"padding": [[1, 0], (2, 1)]},
        {"padding": ((0, 0), (1, 0), (2, 1), (0, 0)), "dilations": (1, 2)},
        {"out_dtype": "float32"},
        {"out_dtype": np.float32},
        {"out_dtype": np.dtype("float32")},
        {"num_threads": 1},
        {"groups": 2},
    ],
)
def test_equal_arguments_are_found(values, planned):
    x, w, _ = arrays()
    if "groups" in values:
        w = np.ascontiguousarray(w[:, :, :2])
    right = convkit.conv2d(x, w, **values)
    for _ in range(2):
        copied = {name: type(value)(value) if type(value) is list else value for name, value in values.items()}
        assert np.array_equal(convkit.conv2d(x, w, **copied), right)
    assert planned == ["conv2d"]


def test_a_list_that_changed_is_another_argument():
    x, w, _ = arrays()
    strides, padding = [1, 1], [[0, 0], [0, 0]]
    for _ in range(2):
        assert convkit.conv2d(x, w, strides=strides, padding=padding).shape == (1, 6, 6, 8)
    strides[0], padding[1][1] = 2, 3
    assert convkit.conv2d(x, w, strides=strides, padding=padding).shape == (1, 3, 9, 8)


def test_values_that_equal_others_do_not_find_their_calls():
    x, w, _ = arrays()
    for _ in range(2):
        convkit.conv2d(x, w, strides=1, groups=1, padding=(1, 1))
        for name, value in itertools.product(("strides", "dilations", "groups"), (True, 1.0)):
            with refused((ArgumentTypeError, ArgumentError), "conv2d", name):
                convkit.conv2d(x, w, **{"padding": (1, 1), name: value})
        with pytest.raises(convkit.ConvkitError, match="padding"):
            convkit.conv2d(x, w, padding=(True, 1))


def test_values_that_are_not_looked_up_still_work():
    x, w, y = arrays()
    right = convkit.conv2d_backprop_filter(x, w.shape, y)
    for shape in ([*w.shape], tuple(map(np.int64, w.shape)), np.array(w.shape)):
        for _ in range(2):
            assert np.array_equal(convkit.conv2d_backprop_filter(x, shape, y), right)

    class Text(str):
        __slots__ = ()

    assert convkit.conv2d(x, w, padding=Text("SAME")).shape == (1, 8, 8, 8)
    with pytest.raises(ShapeError, match="padding"):
        convkit.conv2d(x, w, padding=10**30)


def test_threads_are_checked_in_every_call():
    x, w, _ = arrays()
    for _ in range(2):
        convkit.conv2d(x, w, num_threads=1)
        for value in (0, -1, 1025, True, "1", 1.0):
            with refused((ArgumentTypeError, ArgumentError), "conv2d", "num_threads"):
                convkit.conv2d(x, w, num_threads=value)


@pytest.mark.parametrize("op", OPS)
def test_out_is_checked_in_every_call(op):
    x, w, y = arrays()
    like = result_like(op, x, w, y)
    out = np.empty_like(like)
    for _ in range(2):
        right = call(op, x, w, y, out=out)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match=rf"^{op}: out is read-only"):
        call(op, x, w, y, out=out)
    # The form of `out`, but in the memory of an input.
    memory = np.zeros(4096, np.float32)
    shared = {name: memory[64 : 64 + a.size].reshape(a.shape) for name, a in (("x", x), ("w", w), ("y", y))}
    for at in (0, 64, 100):
        overlapping = memory[at : at + like.size].reshape(like.shape)
        for name in {"x", "w", "y"} - {dict(zip(OPS, "ywx", strict=True))[op]}:
            with pytest.raises(ArgumentError, match=rf"^{op}: out shares memory"):
                call(op, **{"x": x, "w": w, "y": y, name: shared[name]}, out=overlapping)
    # Rows of one array, between each other's.
    rows = np.zeros((like.shape[0], like.shape[1], 2, *like.shape[2:]), np.float32)
    for _ in range(2):
        assert np.array_equal(call(op, x, w, y, out=rows[:, :, 0]), right)
    assert not rows[:, :, 1].any()


def test_interleaved_memory_is_no_overlap():
    _, w, _ = arrays()
    both = np.zeros((1, 8, 8, 8), np.float32)
    x, out = both[:, :6, :6, :4], both[:, :4, :4, 4:]
    x[...] = 1
    right = convkit.conv2d(x.copy(), w[..., :4])
    for _ in range(3):
        assert np.array_equal(convkit.conv2d(x, w[..., :4], out=out), right)
        assert (x == 1).all()


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")  # NumPy 2.5's; it is still possible
def test_arrays_changed_in_place_between_calls():
    x, w, _ = arrays()
    for _ in range(2):
        assert convkit.conv2d(x, w).shape == (1, 6, 6, 8)
    x.shape = (1, 4, 16, 4)
    assert convkit.conv2d(x, w).shape == (1, 2, 14, 8)
    x.shape = (16, 16)
    with pytest.raises(ShapeError, match="input"):
        convkit.conv2d(x, w)
    x.shape = (1, 8, 8, 4)
    x.dtype = np.int32
    with pytest.raises(convkit.DTypeError, match="input"):
        convkit.conv2d(x, w)
    x.dtype = np.dtype(">f4")
    assert np.array_equal(convkit.conv2d(x, w), convkit.conv2d(x.astype("=f4"), w))


def test_a_packed_filter_in_another_place_is_refused_each_time():
    square = np.ones((2, 2, 2, 2), np.float32)
    packed = convkit.pack_filter(square, op="conv2d")
    for _ in range(2):
        convkit.conv2d(square, packed)
        with pytest.raises(ArgumentTypeError, match="packed filter"):
            convkit.conv2d(packed, square)
        with pytest.raises(ArgumentError, match="packed for conv2d"):
            convkit.conv2d_backprop_input((1, 3, 3, 2), packed, np.ones((1, 2, 2, 2), np.float32))
        with pytest.raises(ArgumentTypeError, match="packed filter"):
            convkit.conv2d_backprop_filter(packed, (1, 1, 2, 2), square)
        with pytest.raises(ArgumentError, match="packed in HWIO"):
            convkit.conv2d(square, packed, filter_format="OHWI")


def test_foreign_names_are_refused_each_time():
    x, w, _ = arrays()
    for _ in range(2):
        convkit.conv2d(x, w)
        with pytest.raises(ArgumentTypeError, match="stride"):
            convkit.conv2d(x, w, stride=1)
        with pytest.raises(ArgumentTypeError, match="positional"):
            convkit.conv2d(x, w, None)


def test_options_take_effect_at_the_next_call_in_each_thread():
    x, w = np.ones((1, 40, 40, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    right, faults = convkit.conv2d(x, w), []

    def user(limit):
        try:
            for _ in range(50):
                assert np.array_equal(convkit.conv2d(x, w), right)
                with convkit.options(workspace_limit=limit):
                    if limit:
                        assert np.array_equal(convkit.conv2d(x, w), right)
                        continue
                    with pytest.raises(WorkspaceError):
                        convkit.conv2d(x, w)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=user, args=(limit,)) for limit in (0, 10**9, 0, 2 * 10**9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_set_options_takes_effect_at_the_next_call():
    x, w, _ = arrays()
    try:
        for _ in range(2):
            convkit.conv2d(x, w)
            convkit.set_options(workspace_limit=0)
            with pytest.raises(WorkspaceError):
                convkit.conv2d(x, w)
            convkit.set_options(workspace_limit=None)
    finally:
        convkit.set_options(workspace_limit=None)


@pytest.mark.parametrize("op", OPS)
def test_nothing_of_the_users_is_kept(op):
    values = arrays()
    out = np.empty_like(result_like(op, *values))
    gc.collect()
    before = [sys.getrefcount(a) for a in (*values, out)]
    for _ in range(3):
        call(op, *values)
        call(op, *values, out=out)
    gc.collect()
    assert [sys.getrefcount(a) for a in (*values, out)] == before


def test_accumulation_is_another_call():
    x, w, y = arrays()
    right, out = convkit.conv2d_backprop_filter(x, w.shape, y), np.zeros_like(w)
    for times in range(1, 4):
        convkit.conv2d_backprop_filter(x, w.shape, y, out=out, accumulate=True)
        assert np.array_equal(out, times * right)
    for _ in range(2):
        with pytest.raises(ArgumentTypeError, match="accumulate"):
            convkit.conv2d_backprop_filter(x, w.shape, y, out=out, accumulate=1)
        with pytest.raises(ArgumentError, match="accumulate"):
            convkit.conv2d_backprop_filter(x, w.shape, y, accumulate=True)


def test_the_slow_reference_warns_each_time(monkeypatch):
    x, w, _ = arrays()
    monkeypatch.setattr(_calls, "TABLE", {key: candidates[-1:] for key, candidates in _calls.TABLE.items()})
    for _ in range(3):
        with pytest.warns(convkit.PerformanceWarning):
            convkit.conv2d(x, w)


@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("code 16")])
def test_errors_of_the_engine_are_told_alike_each_time(error, monkeypatch):
    x, w, _ = arrays()
    real = _calls.prepare

    class Failing:
        def run(self, *arguments):
            raise error

    def failing(*arguments):
        prepared = real(*arguments)
        prepared.plan.engine = Failing()
        return prepared

    monkeypatch.setattr(_calls, "prepare", failing)
    told = []
    for _ in range(3):
        with pytest.raises(convkit.ConvkitError, match=r"^conv2d: ") as caught:
            convkit.conv2d(x, w)
        assert caught.value.__cause__ is error
        told.append((type(caught.value), str(caught.value)))
    assert len(set(told)) == 1


def test_the_cache_is_bounded_and_forgets_the_least_recently_used():
    repeats, (x, w, _) = Repeats(3), arrays()
    forms = form_of(x), form_of(w)
    prepared = SimpleNamespace(dtype=np.dtype("f4"), shape=(1, 6, 6, 8))

    def find(number):
        return repeats.find(("conv2d", number), x, w, None, False, 0)

    def keep(number):
        repeats.keep(("conv2d", number), *forms, None, False, 0, prepared, None, True)

    for number in range(3):
        keep(number)
    assert find(0) is prepared
    keep(3)
    assert [find(number) is prepared for number in range(4)] == [True, False, True, True]
    for number in range(100):
        keep(number)
    assert len(repeats) == repeats.capacity == 3
    repeats.clear()
    assert find(99) is None


def test_many_kinds_of_calls_do_not_fill_memory():
    w = np.ones((1, 1, 1, 1), np.float32)
    for width in range(1, _calls.MOST_REPEATS + 50):
        convkit.conv2d(np.ones((1, 1, width, 1), np.float32), w)
    assert len(_calls._repeats) == _calls.MOST_REPEATS
    convkit.clear_caches()
    assert len(_calls._repeats) == 0


@pytest.fixture
def fused_planned(monkeypatch):
    """The fused convolutions planned so far."""
    plans, real = [], _fused.prepare_fused_cached

    def prepare(*arguments):
        plans.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(_fused, "prepare_fused_cached", prepare)
    return plans


def fused_arrays(data_format, seed=0):
    rng = np.random.default_rng(seed)
    x, w, y = [rng.integers(-90, 90, shape).astype(np.int8) for shape in SHAPES[data_format]]
    return x, w, rng.normal(0, 9, 8).astype(np.float32), y


@pytest.mark.parametrize("kind", ["float32", "int32", None])
@pytest.mark.parametrize("data_format", SHAPES)
def test_a_repeated_fused_call_starts_at_once(data_format, kind, fused_planned):
    scale = 0.01

    def run(values, filter=None, **more):
        x, w, bias, side = values
        bias = None if kind is None else bias.astype(kind)
        return convkit.fused_conv2d(
            x, w if filter is None else filter, bias, side, conv_scale=scale, side_scale=0.5, activation="relu",
            data_format=data_format, **more,
        )  # fmt: skip

    for scale in (0.01, np.linspace(0.01, 0.02, 8, dtype=np.float32)):  # noqa: B007 - of `run`
        calls = [fused_arrays(data_format, seed) for seed in (0, 1)]
        expected = [run(values, algorithm="reference") for values in calls]
        packed = [convkit.pack_filter(values[1], op="fused_conv2d", data_format=data_format) for values in calls]
        for values, filter in zip(calls, packed, strict=True):
            run(values), run(values, filter), run(values, out=np.empty_like(values[3]))
            run(values, filter, out=np.array(values[3]))
        fused_planned.clear()
        for values, filter, right in zip(calls * 2, packed * 2, expected * 2, strict=True):
            assert np.array_equal(run(values), right)
            assert np.array_equal(run(values, filter), right)
            out = np.full_like(right, 99)
            assert run(values, out=out) is out
            assert np.array_equal(out, right)
        assert not fused_planned
        # Onto the side input.
        for _ in range(2):
            x, w, bias, side = fused_arrays(data_format)
            run((x, w, bias, side), out=side)
            assert np.array_equal(side, expected[0])


def test_fused_calls_that_differ_are_not_taken_for_each_other(fused_planned):
    x, w, bias, side = fused_arrays("NHWC")
    scale = np.full(8, 0.01, np.float32)
    variants = [
        {}, {"conv_scale": scale[:1]}, {"conv_scale": scale}, {"conv_scale": 0.02}, {"activation": "relu"},
        {"output_zero_point": 5}, {"input_zero_point": -3}, {"bias": bias}, {"bias": bias.astype(np.int32)},
        {"side_input": side}, {"side_input": side, "side_scale": 0.25}, {"side_input": side, "side_scale": 0.0},
        {"side_input": side.view(np.uint8)}, {"out_dtype": "float32"}, {"out_dtype": "uint8"},
        {"conv_scale": scale.astype(np.float64)}, {"bias": [1.0] * 8}, {"side_scale": None}, {"alpha": 0.3},
    ]  # fmt: skip
    right = [convkit.fused_conv2d(x, w, algorithm="reference", **{"conv_scale": 0.01, **more}) for more in variants]
    for _ in range(3):
        for more, expected in zip(variants, right, strict=True):
            result = convkit.fused_conv2d(x, w, **{"conv_scale": 0.01, **more})
            assert result.dtype == expected.dtype
            assert np.array_equal(result, expected)


def test_a_repeated_fused_call_is_checked_as_the_first_was():
    x, w, bias, side = fused_arrays("NHWC")
    memory = np.zeros(4 * bias.size + side.size, np.uint8)
    near, out = memory[: 4 * bias.size].view(np.float32), memory[4 * bias.size :].view(np.int8).reshape(side.shape)
    for _ in range(2):
        convkit.fused_conv2d(x, w, near, side, out=out)
    with refused(ArgumentError, "out shares memory with bias", op="fused_conv2d"):
        convkit.fused_conv2d(x, w, out.reshape(-1)[:32].view(np.float32), side, out=out)
    with refused(ArgumentError, "side_scale", op="fused_conv2d"):
        convkit.fused_conv2d(x, w, side_scale=1e-60)
    for threads in (0, True, 1.0):
        with refused((ArgumentError, ArgumentTypeError), "num_threads", op="fused_conv2d"):
            convkit.fused_conv2d(x, w, near, side, num_threads=threads)
    out.flags.writeable = False
    with refused(ArgumentError, "read-only", op="fused_conv2d"):
        convkit.fused_conv2d(x, w, near, side, out=out)
