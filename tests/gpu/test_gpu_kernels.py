"""The kernels and what launches them, one by one, on CuPy's stand-in: bit for bit what NumPy or the CPU gives."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import reference

from convkit._cpu import epilogue as cpu
from convkit._epilogue import ACTIVATIONS, Epilogue, Terms
from convkit._gpu import epilogue, launch, layout, patches, redzone

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# One dtype of each size in bytes.
SIZES = ("int8", "float16", "float32", "float64")
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def bits(array):
    """Return an array as whole numbers, so that NaNs and zeros are compared by their bits."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def assert_same_bits(result, expected):
    """Check that two arrays are equal to the last bit, but for which NaN is meant."""
    assert result.dtype == expected.dtype
    nan = np.isnan(expected) if expected.dtype.kind not in "iub" else np.zeros(expected.shape, bool)
    assert not (~np.isnan(result[nan])).any()
    np.testing.assert_array_equal(bits(result)[~nan], bits(expected)[~nan])


def rubbish(rng, shape, dtype):
    """Return an array of any bits; a bool is 0 or 1."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()


@pytest.fixture(params=[launch.MOST_BLOCKS, 2], ids=["any grid", "a grid of two blocks"])
def grid(request, monkeypatch):
    """Grids as large as they need be, and so small that every block has more than one turn."""
    monkeypatch.setattr(launch, "MOST_BLOCKS", request.param)


def copied(cupy, source, dtype=None):
    """Return a copy by the project's own kernels."""
    target = cupy.empty(source.shape, dtype or source.dtype)
    layout.copy(source, target)
    return cupy.asnumpy(target)


def test_every_half_number_is_widened(cupy):
    every = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), BFLOAT16):
        values = every.view(dtype)
        with np.errstate(all="ignore"):
            expected = values.astype(np.float32)
        assert_same_bits(copied(cupy, cupy.asarray(values), np.float32), expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_numbers_are_rounded_to_halves_as_numpy_rounds_them(cupy, rng, dtype):
    halves = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        wide = halves.astype(np.float32)
        bound = np.float32(np.inf)
        between = (wide + np.nextafter(halves, dtype.type(np.inf)).astype(np.float32)) / 2
        near = [np.nextafter(between, bound), np.nextafter(between, -bound)]
        values = np.concatenate([wide, between, *near, rubbish(rng, 100_000, np.float32)])
        expected = values.astype(dtype)
    assert_same_bits(copied(cupy, cupy.asarray(values), dtype), expected)


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_become_the_floats_that_numpy_makes_of_them(cupy, rng, source):
    values = rubbish(rng, 1000, source)
    for target in (np.float16, BFLOAT16, np.float32, np.float64):
        if np.can_cast(source, target, "safe"):
            assert_same_bits(copied(cupy, cupy.asarray(values), target), values.astype(target))


def test_doubles_are_rounded_once(cupy, rng):
    halves = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32)):
        few = halves.view(dtype) if dtype.itemsize == 2 else rubbish(rng, 100_000, dtype)
        with np.errstate(all="ignore"):
            few = few[np.isfinite(few)]
            wide = few.astype(np.float64)
            tie = (wide + np.nextafter(few, dtype.type(np.inf)).astype(np.float64)) / 2
            tie = tie[np.isfinite(tie)]
            above, below = np.nextafter(tie, np.inf), np.nextafter(tie, -np.inf)
            # What lies next to a tie, and closer to it than float32 tells, goes to the side it is on.
            small, large = (dtype.type(side) for side in (-np.inf, np.inf))
            even = tie.astype(np.float32).astype(dtype)
            up = np.where(even.astype(np.float64) > tie, even, np.nextafter(even, large))
            down = np.where(even.astype(np.float64) < tie, even, np.nextafter(even, small))
        for values, expected in ((wide, few), (tie, even), (above, up), (below, down)):
            assert_same_bits(copied(cupy, cupy.asarray(values), dtype), expected)


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_that_do_not_fit_are_rounded_as_numpy_rounds_them(cupy, rng, source):
    values = rubbish(rng, 1000, source)
    for target in (np.float16, np.float32, np.float64):
        with np.errstate(all="ignore"):
            assert_same_bits(copied(cupy, cupy.asarray(values), target), values.astype(target))


def test_nothing_is_converted_to_integers(cupy):
    with pytest.raises(ValueError, match="float32 is not converted to int32"):
        layout.copy(cupy.zeros(3, np.float32), cupy.zeros(3, np.int32))


def strange_view(rng, array):
    """Return a part of an array, in steps, backwards, and with its axes in another order."""
    index = []
    for size in array.shape:
        step = int(rng.choice([1, 1, 1, 2, -1, -2]))
        index.append(slice(int(rng.integers(0, 2)) if size > 2 and step > 0 else None, None, step))
    return array[tuple(index)].transpose(*rng.permutation(array.ndim).tolist())


@pytest.mark.parametrize("dtype", SIZES)
def test_copies_of_any_shape_and_strides(cupy, rng, grid, dtype):
    for _ in range(60):
        shape = tuple(rng.integers(1, 7, int(rng.integers(1, 7))).tolist())
        host = rubbish(rng, shape, dtype)
        seed = int(rng.integers(1 << 30))
        view, source = (strange_view(np.random.default_rng(seed), array) for array in (host, cupy.asarray(host)))
        room = rubbish(rng, tuple(2 * n + 1 for n in view.shape), dtype)
        inner = tuple(slice(1, None, 2) if rng.integers(2) else slice(1, n + 1) for n in view.shape)
        target = cupy.asarray(room)
        layout.copy(source, target[inner])
        room[inner] = view
        np.testing.assert_array_equal(bits(cupy.asnumpy(target)), bits(room))


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("shape", [(1, 40, 33, 3), (2, 5, 32, 64), (3, 31, 9, 65), (1, 64, 8, 8)])
def test_layouts_are_exchanged_in_squares(cupy, rng, grid, dtype, shape):
    host = rubbish(rng, shape, dtype)
    for axes in ((0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 1, 0)):
        result = copied(cupy, cupy.asarray(host).transpose(*axes))
        np.testing.assert_array_equal(bits(result), bits(host.transpose(axes)))


def test_vectors_of_channels_are_packed_and_unpacked(cupy, rng):
    host = rubbish(rng, (2, 5, 7, 12), np.int8)
    packed = host.reshape(2, 5, 7, 3, 4).transpose(0, 3, 1, 2, 4)
    assert (copied(cupy, cupy.asarray(host).reshape(2, 5, 7, 3, 4).transpose(0, 3, 1, 2, 4)) == packed).all()
    back = cupy.asarray(packed).transpose(0, 2, 3, 1, 4)
    assert (copied(cupy, back).reshape(host.shape) == host).all()


def test_copies_begin_anywhere(cupy, rng):
    memory = rubbish(rng, 200, np.uint8)
    for first, size in itertools.product((0, 1, 4, 8, 16), (16, 33, 64)):
        source, target = cupy.asarray(memory), cupy.zeros(200, np.uint8)
        layout.copy(source[first : first + size], target[first : first + size])
        expected = np.zeros(200, np.uint8)
        expected[first : first + size] = memory[first : first + size]
        np.testing.assert_array_equal(cupy.asnumpy(target), expected)


def test_wide_elements_move_dense_copies(cupy):
    host = np.zeros((4, 6, 8), np.float16)
    plans = [layout.plan(host.shape, host.strides, host.strides, ("float16",) * 2, (2, 2), a) for a in (16, 8, 2)]
    assert [dict(plan.types)["ELEMENT"] for plan in plans] == ["uint4", "u64", "u16"]


def test_padding_is_written_around_a_copy(cupy, rng):
    host = rubbish(rng, (2, 3, 4, 5), np.float32)
    target = cupy.full((2, 6, 8, 5), np.nan, np.float32)
    layout.pad(cupy.asarray(host), target, (0, 1, 3, 0))
    assert_same_bits(cupy.asnumpy(target), np.pad(host, ((0, 0), (1, 2), (3, 1), (0, 0))))


def test_strides_between_elements_are_refused(cupy):
    with pytest.raises(ValueError, match="no whole numbers of elements"):
        layout.plan((3,), (6,), (4,), ("float32", "float32"), (4, 4), 4)


# Images, channels, groups, filter, strides, dilations, padding before.
GEOMETRIES = [
    ((1, 5, 6), 4, 1, (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 7, 5), 6, 2, (3, 2), (2, 1), (1, 2), (0, 2)),
    ((3, 1, 9), 3, 3, (1, 4), (1, 3), (1, 1), (0, 3)),
    ((1, 8, 8), 8, 2, (5, 5), (3, 2), (2, 1), (4, 0)),
    ((2, 3, 3), 1, 1, (7, 7), (1, 1), (1, 1), (6, 6)),
    ((1, 4, 4), 16, 1, (1, 1), (1, 1), (1, 1), (0, 0)),
]


def out_size(size, taps, step, dilation, before):
    """Return how many windows there are with as much padding after as before."""
    return max(1, (size + 2 * before - (taps - 1) * dilation - 1) // step + 1)


def expected_patches(image, windows, groups):
    """Return (groups, pixels, taps, channels) by plain loops over taps."""
    n, height, width, channels = image.shape
    rows, columns = windows.size
    reach = [f + (s - 1) * t + (k - 1) * d + 1 for f, s, t, k, d in zip(
        windows.first, windows.size, windows.steps, windows.filter_size, windows.dilations, strict=True)]  # fmt: skip
    pads = [(-f, max(0, r - n)) for f, r, n in zip(windows.first, reach, (height, width), strict=True)]
    padded = np.pad(image, ((0, 0), *((max(0, before), after) for before, after in pads), (0, 0)))
    at = [max(0, f) if before < 0 else 0 for f, (before, _) in zip(windows.first, pads, strict=True)]
    found = []
    for a, b in np.ndindex(*windows.filter_size):
        h, w = at[0] + a * windows.dilations[0], at[1] + b * windows.dilations[1]
        found.append(padded[:, h:, w:][:, :: windows.steps[0], :: windows.steps[1]][:, :rows, :columns])
    taps = np.stack(found, axis=-2).reshape(n * rows * columns, len(found), groups, channels // groups)
    return taps.transpose(2, 0, 1, 3)


def windows_of(case):
    """Return the windows of all of a case's result."""
    (_, *size), _, _, taps, steps, dilations, before = case
    result = tuple(out_size(*each) for each in zip(size, taps, steps, dilations, before, strict=True))
    return patches.Windows(result, taps, steps, dilations, tuple(-pad for pad in before))


def in_order(cupy, shape, order, dtype):
    """Return fresh (groups, pixels, taps, channels) whose axes lie in another order, full of rubbish."""
    stored = cupy.empty(tuple(shape[axis] for axis in order), dtype)
    return stored.transpose(*np.argsort(order).tolist())


PATCH_ORDERS = [(0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 2, 1), (1, 0, 2, 3)]


@pytest.mark.parametrize("case", GEOMETRIES, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_patches_are_gathered_in_every_order(cupy, rng, grid, case, dtype):
    (n, height, width), channels, groups, *_ = case
    windows = windows_of(case)
    host = rubbish(rng, (n, height, width, channels), dtype)
    expected = expected_patches(host, windows, groups)
    for axes in ((0, 1, 2, 3), (0, 3, 1, 2)):
        image = cupy.asarray(np.ascontiguousarray(host.transpose(axes))).transpose(*np.argsort(axes).tolist())
        for order in PATCH_ORDERS:
            result = in_order(cupy, expected.shape, order, dtype)
            patches.gather(image, result, windows)
            np.testing.assert_array_equal(bits(cupy.asnumpy(result)), bits(expected))


@pytest.mark.parametrize("source, target", [("int8", "float16"), ("uint8", BFLOAT16), ("int16", "float32"),
                                            ("bool", "float32"), ("int64", "float64")])  # fmt: skip
def test_patches_of_integers_are_converted(cupy, rng, source, target):
    for case in GEOMETRIES:
        (n, height, width), channels, groups, *_ = case
        windows = windows_of(case)
        host = rubbish(rng, (n, height, width, channels), source)
        expected = expected_patches(host.astype(target), windows, groups)
        result = in_order(cupy, expected.shape, (0, 1, 2, 3), target)
        patches.gather(cupy.asarray(host), result, windows)
        assert_same_bits(cupy.asnumpy(result), expected)


def expected_image(given, windows, shape):
    """Return what `patches.scatter` writes for all pixels, its sums in the same order."""
    n, height, width, channels = shape
    groups, _, _, group_channels = given.shape
    rows, columns = windows.size
    total = np.zeros(shape, given.dtype)
    seen = given.reshape(groups, n, rows, columns, *windows.filter_size, group_channels)
    for a in range(windows.filter_size[0]):
        part = np.zeros(shape, given.dtype)
        for b in range(windows.filter_size[1]):
            for i, j in np.ndindex(rows, columns):
                h = windows.first[0] + i * windows.steps[0] + a * windows.dilations[0]
                w = windows.first[1] + j * windows.steps[1] + b * windows.dilations[1]
                if 0 <= h < height and 0 <= w < width:
                    part[:, h, w] += seen[:, :, i, j, a, b].transpose(1, 0, 2).reshape(n, channels)
        total += part
    return total


@pytest.mark.parametrize("case", GEOMETRIES, ids=str)
@pytest.mark.parametrize("sums, dtype", [("float32", "float32"), ("float32", "float16"), ("float32", BFLOAT16),
                                         ("float64", "float64")])  # fmt: skip
def test_patches_are_scattered_back_in_a_fixed_order(cupy, rng, grid, case, sums, dtype):
    (n, height, width), channels, groups, taps, *_ = case
    windows = windows_of(case)
    shape = groups, n * windows.size[0] * windows.size[1], taps[0] * taps[1], channels // groups
    host = rng.standard_normal(shape).astype(sums)
    expected = expected_image(host, windows, (n, height, width, channels)).astype(dtype)
    for order, axes in zip(PATCH_ORDERS, ((0, 1, 2, 3), (0, 3, 1, 2)) * 2, strict=True):
        given = in_order(cupy, shape, order, sums)
        layout.copy(cupy.asarray(host), given)
        room = cupy.empty(tuple(expected.shape[axis] for axis in axes), dtype)
        image = room.transpose(*np.argsort(axes).tolist())
        patches.scatter(given, image, windows, (0, 0))
        assert_same_bits(cupy.asnumpy(image), expected)


def strange_numbers(rng, shape, dtype):
    """Return numbers of all kinds: infinite, not numbers, zeros of both signs, ties, very small and very large."""
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 6, 127.5, 1e-45, 3e38, -3e38])
    chosen = rng.integers(0, 4, shape) == 0
    with np.errstate(all="ignore"):
        return np.where(chosen, special[rng.integers(0, len(special), shape)], values).astype(dtype)


def in_layout(cupy, host, name):
    """Return an N, H, W, C array on the stand-in that lies in memory as a format has it."""
    dense = reference.to_data_format(host, name)
    return reference.from_data_format(cupy.asarray(dense), name) if name == "NHWC" else cupy.asarray(dense).transpose(
        0, 2, 3, 1)  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype, computed", [("float32", "float32"), ("float64", "float64"), ("float16", "float32"),
                                             (BFLOAT16, "float32")])  # fmt: skip
def test_float_epilogues_are_those_of_the_cpu(cupy, rng, grid, activation, dtype, computed):
    for per_channel, has_bias, has_side, name in itertools.product((0, 1), (0, 1), (0, 1), ("NHWC", "NCHW")):
        shape = (2, 3, 5, 7)
        e = Epilogue(bool(per_channel), computed if has_bias else None, bool(has_side), activation, 0.3, 0, 0, False)
        scale = strange_numbers(rng, 7 if per_channel else 1, computed)
        bias = strange_numbers(rng, 7, computed) if has_bias else None
        sums, side = strange_numbers(rng, shape, computed), strange_numbers(rng, shape, dtype) if has_side else None
        expected = np.empty(shape, dtype)
        with np.errstate(all="ignore"):
            terms = Terms(scale, float(np.dtype(computed).type(0.7)), bias)
            cpu.FloatEpilogue(e).run(sums.copy(), terms, side, expected, 1)
        out = in_layout(cupy, np.zeros(shape, dtype), name)
        there = Terms(cupy.asarray(scale), terms.side_scale, None if bias is None else cupy.asarray(bias))
        beside = None if side is None else in_layout(cupy, side, name)
        epilogue.run_float(e, there, in_layout(cupy, sums, name), beside, out)
        assert_same_bits(cupy.asnumpy(out), expected)


@pytest.mark.parametrize("out_dtype", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("bias_dtype", [None, "float32", "int32"])
def test_int8_epilogues_are_those_of_the_cpu(cupy, rng, grid, out_dtype, activation, bias_dtype):
    shape = (2, 3, 5, 8)
    for per_channel, side_dtype, name in itertools.product(
        (False, True), (None, "int8", "uint8", "float32"), ("NHWC", "NCHW", "NCHW_VECT_C")
    ):
        zero = 0 if out_dtype == "float32" else 3 if out_dtype == "int8" else 130
        e = Epilogue(per_channel, bias_dtype, side_dtype is not None, activation, 0.0, 0, zero, False)
        scale = strange_numbers(rng, 8 if per_channel else 1, np.float32)
        scale[::2] = 0.5
        bias = None if bias_dtype is None else strange_numbers(rng, 8, np.float32)
        if bias_dtype == "int32":
            bias = rng.integers(-(2**31), 2**31, 8).astype(np.int32)
        sums = rng.integers(-300, 300, shape).astype(np.int32)
        sums[..., ::3] = rng.integers(-(2**31), 2**31, sums[..., ::3].shape)
        side = None
        if side_dtype is not None:
            integral = np.dtype(side_dtype).kind in "iu"
            side = rubbish(rng, shape, side_dtype) if integral else strange_numbers(rng, shape, np.float32)
        terms = Terms(scale, float(np.float32(0.25)), bias)
        with np.errstate(all="ignore"):
            expected = cpu.of_integers(sums.astype(np.int64), slice(0, 8), e, terms, side, np.dtype(out_dtype))

        def there(host, vectors=name == "NCHW_VECT_C", format=name):
            if host is None or not vectors:
                return None if host is None else in_layout(cupy, host, format)
            packed = host.reshape(*host.shape[:3], 2, 4).transpose(0, 3, 1, 2, 4)
            return cupy.asarray(np.ascontiguousarray(packed)).transpose(0, 2, 3, 1, 4)

        out = there(np.zeros(shape, out_dtype))
        on_gpu = Terms(cupy.asarray(scale), terms.side_scale, None if bias is None else cupy.asarray(bias))
        epilogue.run_int8(e, on_gpu, there(sums), there(side), out)
        np.testing.assert_array_equal(cupy.asnumpy(out).reshape(shape), expected)


@pytest.mark.parametrize("nbytes", [1, 4096, 100_001])
def test_red_zones_see_what_is_written_around_a_buffer(cupy, nbytes):
    guarded = redzone.Guarded("conv2d", nbytes)
    assert guarded.array.shape == (nbytes,) and guarded.array.data.ptr % 256 == 0
    guarded.array.fill(7)
    assert guarded.intact()
    whole = guarded._memory
    for at in (0, redzone.ZONE - 1, redzone.ZONE + nbytes, len(whole) - 1):
        before = int(whole[at : at + 1].get()[0])
        whole[at : at + 1].fill(before ^ 1)
        assert not guarded.intact()
        whole[at : at + 1].fill(before)
    assert guarded.intact()


def test_variants_that_nothing_tests_are_not_compiled(cupy):
    with pytest.raises(ValueError, match="not among the kernels"):
        launch.run("sum_slices", (("ACC", "f16"),), 1, ())


def test_no_amount_of_work_makes_an_illegal_launch(cupy, monkeypatch):
    launched = []
    monkeypatch.setattr(
        launch, "_kernel", lambda kernel, types: lambda grid, block, args: launched.append((grid, block))
    )
    for items in (1, 256, 257, 2**31, 2**45, 2**63 - 1):
        launch.run("sum_slices", (), items, ())
    blocks = [1, 1, 2, 2**23, 2**31 - 1, 2**31 - 1]
    assert launched == [((count,), (256,)) for count in blocks]


def test_nothing_is_launched_where_there_is_no_work(cupy, world):
    before = len(world.log)
    layout.copy(cupy.empty((0, 3), np.float32), cupy.empty((0, 3), np.float32))
    launch.run("fill_zones", (), 0, ())
    assert not any("kernel" in line for line in world.log[before:])
