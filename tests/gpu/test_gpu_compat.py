"""The functions of `convkit.compat`'s drop-in, called as sigpy and Chainer call them."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import reference
import standin_device

import convkit
from convkit import compat

CALLS = json.loads((Path(__file__).parents[1] / "data" / "sigpy_calls.json").read_text(encoding="utf-8"))
FUNCTIONS = ("convolution_forward", "convolution_backward_data", "convolution_backward_filter")
MORE = {"auto_tune": True, "tensor_core": "auto"}
# One layer whose results are whole numbers: pads, strides, dilations, groups.
REST = (2, 1), (2, 1), (1, 2), 2
X, W, Y = (2, 4, 9, 8), (6, 2, 3, 2), (2, 6, 6, 8)
GEOMETRY = {"padding": ((2, 2), (1, 1)), "strides": (2, 1), "dilations": (1, 2), "groups": 2}


@pytest.fixture
def cudnn(cupy):
    """The module that ``from cupy import cudnn`` gives."""
    compat.install()
    try:
        from cupy import cudnn

        cudnn.set_max_workspace_size(8 * 2**20)
        yield cudnn
        cudnn.set_max_workspace_size(8 * 2**20)
    finally:
        compat.uninstall()


def laid_out(cupy, values, strides):
    """Return a device array with those values and those strides, whose memory is no larger than it must be."""
    reach = [(size - 1) * step for size, step in zip(values.shape, strides, strict=True)]
    first = -sum(step for step in reach if step < 0)
    memory = cupy.cuda.alloc(first + sum(step for step in reach if step > 0) + values.itemsize)
    array = cupy.ndarray(values.shape, values.dtype, memory + first, strides)
    array[...] = cupy.asarray(values)
    assert array.strides == tuple(strides)
    return array


def whole(rng, shape, dtype):
    return rng.integers(-3, 4, shape).astype(dtype)


def nhwc(array):
    return array.transpose(0, 2, 3, 1).astype(np.float64)


def hwio(array):
    return array.transpose(2, 3, 1, 0).astype(np.float64)


def expected(function, first, second, target, geometry):
    """Return what a function should write to its target, from arrays in NCHW and OIHW."""
    if function == "convolution_forward":
        return reference.conv2d(nhwc(first), hwio(second), **geometry).transpose(0, 3, 1, 2)
    if function == "convolution_backward_data":
        n, c, h, w = target
        return reference.backprop_input((n, h, w, c), hwio(first), nhwc(second), **geometry).transpose(0, 3, 1, 2)
    k, c, h, w = target
    return reference.backprop_filter(nhwc(first), (h, w, c, k), nhwc(second), **geometry).transpose(3, 2, 0, 1)


def test_sigpys_calls_are_of_every_kind():
    """1-D and 2-D, full and valid, strided, of many channels, flipped, and parts of complex arrays."""
    found = {(call["function"], len(call["arrays"])) for call in CALLS}
    assert {name for name, _ in found} == set(FUNCTIONS)
    forms = [form for call in CALLS for form in call["arrays"].values() if form]
    sizes = {"float32": 4, "float64": 8}
    assert any(min(form["strides"]) < 0 for form in forms)
    assert any(form["strides"][-1] == 2 * sizes[form["dtype"]] for form in forms)
    assert any(form["shape"][3] == 1 for form in forms) and any(form["shape"][1] > 1 for form in forms)
    assert {tuple(call["rest"][1]) for call in CALLS} >= {(1, 1), (2, 2), (2, 1)}
    assert any(max(call["rest"][0]) > 0 for call in CALLS) and any(max(call["rest"][0]) == 0 for call in CALLS)


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_a_call_of_sigpys(cupy, cudnn, call, rng):
    (first, second, *_), (*_, target) = ([form for form in call["arrays"].values() if form],) * 2
    values = [whole(rng, form["shape"], form["dtype"]) for form in (first, second)]
    given = dict.fromkeys(call["arrays"])
    names = [name for name, form in call["arrays"].items() if form]
    for name, form, array in zip(names, (first, second), values, strict=False):
        given[name] = laid_out(cupy, array, form["strides"])
    out = given[names[-1]] = laid_out(cupy, np.full(target["shape"], np.nan, target["dtype"]), target["strides"])
    pads, strides, dilations, groups = call["rest"]
    rest = tuple(pads), tuple(strides), tuple(dilations), groups
    with convkit.options(precision="high"):
        assert getattr(cudnn, call["function"])(*given.values(), *rest, **call["keywords"]) is None
    geometry = {"padding": tuple((p, p) for p in pads), "strides": rest[1], "dilations": rest[2], "groups": groups}
    np.testing.assert_array_equal(out.get(), expected(call["function"], *values, target["shape"], geometry))


def three(cupy, cudnn, rng, dtype, data="NCHW", filters="OIHW", bias=False, more=MORE):
    """Yield, for each function, what it gives and should give for one layer."""
    x, w, dy = (whole(rng, shape, dtype) for shape in (X, W, Y))
    to_data, to_filter = (lambda a: a), (lambda a: a)
    layouts = {}
    if data == "NHWC":
        layouts["d_layout"] = cudnn.CUDNN_TENSOR_NHWC
        to_data = lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1))  # noqa: E731
    if filters == "OHWI":
        layouts["w_layout"] = cudnn.CUDNN_TENSOR_NHWC
        to_filter = lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1))  # noqa: E731
    gx, gw, gdy = (cupy.asarray(turn(a)) for turn, a in ((to_data, x), (to_filter, w), (to_data, dy)))
    both = {**more, **layouts}

    def fresh(like):
        return cupy.asarray(np.full(like.shape, np.nan, dtype))

    y_bias = whole(rng, Y[1:2], dtype) if bias else None
    x_bias = whole(rng, X[1:2], dtype) if bias else None
    added = [0 if b is None else b.astype(np.float64)[:, np.newaxis, np.newaxis] for b in (y_bias, x_bias)]
    on_gpu = [None if b is None else cupy.asarray(b) for b in (y_bias, x_bias)]
    out = fresh(gdy)
    cudnn.convolution_forward(gx, gw, on_gpu[0], out, *REST, **both)
    wanted = expected("convolution_forward", x, w, Y, GEOMETRY) + added[0]
    yield out.get(), to_data(wanted).astype(dtype)
    out = fresh(gx)
    cudnn.convolution_backward_data(gw, gdy, on_gpu[1], out, *REST, deterministic=False, **both)
    wanted = expected("convolution_backward_data", w, dy, X, GEOMETRY) + added[1]
    yield out.get(), to_data(wanted).astype(dtype)
    out = fresh(gw)
    cudnn.convolution_backward_filter(gx, gdy, out, *REST, deterministic=False, **both)
    yield out.get(), to_filter(expected("convolution_backward_filter", x, dy, W, GEOMETRY)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("data, filters", [("NCHW", "OIHW"), ("NHWC", "OHWI"), ("NHWC", "OIHW"), ("NCHW", "OHWI")])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_layouts_groups_dilation_and_bias(cupy, cudnn, rng, dtype, data, filters, bias):
    with convkit.options(precision="high"):
        for found, wanted in three(cupy, cudnn, rng, dtype, data, filters, bias):
            np.testing.assert_array_equal(found, wanted)


def test_a_bias_may_be_of_any_shape_and_the_dilation_none(cupy, cudnn, rng):
    x, w, b = whole(rng, (1, 2, 5, 5), "f"), whole(rng, (3, 2, 3, 3), "f"), whole(rng, (1, 3, 1, 1), "f")
    out = cupy.empty((1, 3, 3, 3), "f")
    cudnn.convolution_forward(*map(cupy.asarray, (x, w, b)), out, (0, 0), (1, 1), None, 1, **MORE)
    geometry = {"padding": "VALID", "strides": (1, 1), "dilations": (1, 1), "groups": 1}
    np.testing.assert_array_equal(out.get(), expected("convolution_forward", x, w, None, geometry) + b)


@pytest.mark.parametrize("tensor_core", ["auto", "always", "never"])
@pytest.mark.parametrize("auto_tune", [False, True])
def test_every_mode_gives_the_same(cupy, cudnn, rng, tensor_core, auto_tune):
    more = {"auto_tune": auto_tune, "tensor_core": tensor_core}
    with convkit.options(precision="high"):
        for found, wanted in three(cupy, cudnn, rng, "float32", more=more):
            np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def seen(monkeypatch):
    """The options that convolutions are called under."""
    from convkit import _compat_cudnn
    from convkit._options import current

    found = []

    def spied(function):
        def spy(*arguments, **keywords):
            found.append(current())
            return function(*arguments, **keywords)

        return spy

    for name in ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input"):
        monkeypatch.setattr(_compat_cudnn, name, spied(getattr(_compat_cudnn, name)))
    return found


def gradient(cupy, cudnn, **keywords):
    x, dy, dw = cupy.zeros((1, 1, 4, 4), "f"), cupy.zeros((1, 1, 2, 2), "f"), cupy.empty((1, 1, 3, 3), "f")
    cudnn.convolution_backward_filter(x, dy, dw, (0, 0), (1, 1), (1, 1), 1, **{**MORE, **keywords})


def test_what_the_arguments_say_becomes_options(cupy, cudnn, seen):
    gradient(cupy, cudnn, deterministic=False)
    gradient(cupy, cudnn, deterministic=True)
    gradient(cupy, cudnn, deterministic=False, auto_tune=False)
    with convkit.options(deterministic=True, precision="fast"):
        gradient(cupy, cudnn, deterministic=False)
        gradient(cupy, cudnn, deterministic=False, tensor_core="never")
    assert [(s.deterministic, s.autotune, s.precision) for s in seen] == [
        (False, True, "default"),
        (True, False, "default"),
        (False, False, "default"),
        # What the user has asked of convkit stays.
        (True, True, "fast"),
        (True, True, "default"),
    ]
    assert {s.workspace_limit for s in seen} == {8 * 2**20}


def test_workspace_is_eight_mebibytes_unless_it_is_set(cupy, cudnn, seen):
    import cupyx.cudnn

    assert cudnn.get_max_workspace_size() == cupyx.cudnn.get_max_workspace_size() == 8 * 2**20
    cudnn.set_max_workspace_size(np.int64(2**20))
    assert cupyx.cudnn.get_max_workspace_size() == 2**20
    with convkit.options(workspace_limit=2**30):
        gradient(cupy, cudnn, deterministic=False)
    assert seen[0].workspace_limit == 2**20
    for wrong in (-1, "8 MiB", None, 1.5):
        with pytest.raises((convkit.ArgumentError, convkit.ArgumentTypeError), match="set_max_workspace_size: size"):
            cudnn.set_max_workspace_size(wrong)
    assert cudnn.get_max_workspace_size() == 2**20


def test_a_workspace_that_does_not_suffice_is_named_with_what_sets_it(cupy, cudnn, monkeypatch):
    from convkit import _compat_cudnn

    def too_small(*arguments, **keywords):
        raise convkit.WorkspaceError("conv2d_backprop_filter: needs 9 bytes")

    monkeypatch.setattr(_compat_cudnn, "conv2d_backprop_filter", too_small)
    told = r"needs 9 bytes; here the limit is what cupy.cudnn.set_max_workspace_size was given last, 8388608 bytes"
    with pytest.raises(convkit.WorkspaceError, match=told):
        gradient(cupy, cudnn, deterministic=False)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_three_dimensions_are_refused_in_a_sentence(cupy, cudnn, function):
    volume = cupy.zeros((1, 1, 3, 3, 3), "f")
    bias = () if function == "convolution_backward_filter" else (None,)
    more = MORE if function == "convolution_forward" else {**MORE, "deterministic": False}
    with pytest.raises(convkit.UnsupportedError, match=f"{function}: . has 5 dimensions, as for a 3-D convolution"):
        getattr(cudnn, function)(volume, volume, *bias, volume, (0,) * 3, (1,) * 3, (1,) * 3, 1, **more)


@pytest.mark.parametrize("dtype, told", [
    ("complex64", "x has dtype complex64, .*convolve real and imaginary parts one by one"),
    ("int8", "x has dtype int8, but must be one of"),
    ("int32", "x has dtype int32, but must be one of"),
])  # fmt: skip
def test_dtypes_that_the_bindings_refused_are_refused_as_type_errors(cupy, cudnn, dtype, told):
    x = cupy.empty((1, 1, 3, 3), dtype)
    with pytest.raises(TypeError, match=told):
        cudnn.convolution_forward(x, x, None, x.copy(), (1, 1), (1, 1), (1, 1), 1, **MORE)


def forward(cupy, cudnn, **changed):
    given = {
        "x": cupy.zeros((1, 2, 5, 5), "f"), "W": cupy.zeros((3, 2, 3, 3), "f"), "b": None,
        "y": cupy.empty((1, 3, 3, 3), "f"), "pad": (0, 0), "stride": (1, 1), "dilation": (1, 1), "groups": 1, **MORE,
    }  # fmt: skip
    cudnn.convolution_forward(**{**given, **changed})


class Rude:
    """Cannot be looked at."""

    def _refuse(self, *_):
        raise RuntimeError("no")

    __hash__ = __eq__ = __bool__ = __index__ = __repr__ = _refuse


class Foreign:
    """An array on a GPU, of another library."""

    __cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False), "version": 3}  # noqa: RUF012


@pytest.mark.parametrize(
    "change, error, told",
    [
        ({"x": np.zeros((1, 2, 5, 5), "f")}, TypeError, r"x is of type numpy.ndarray, but must be a cupy.ndarray"),
        ({"b": np.zeros(3, "f")}, TypeError, r"b is of type numpy.ndarray, but must be a cupy.ndarray"),
        ({"y": None}, TypeError, r"y is of type NoneType"),
        ({"d_layout": 2}, ValueError, r"d_layout is 2, but must be one of 0, 1"),
        ({"w_layout": []}, ValueError, r"w_layout is \[\], but must be one of 0, 1"),
        ({"tensor_core": "maybe"}, ValueError, r"tensor_core is 'maybe', but must be one of 'auto', 'always', 'never'"),
        ({"tensor_core": Rude()}, ValueError, r"tensor_core is <Rude instance at \w+>"),
        ({"auto_tune": Rude()}, TypeError, r"auto_tune is <Rude instance at \w+>, but must be True or False"),
        ({"x": Foreign()}, TypeError, r"x is of type test_gpu_compat.Foreign, .* must be a cupy.ndarray"),
        ({"groups": Rude()}, TypeError, r"groups"),
        ({"pad": (0, 0, 0)}, ValueError, r"padding"),
        ({"stride": (0, 1)}, ValueError, r"strides"),
        ({"pad": (1, 1)}, ValueError, r"out has shape"),
        ({"groups": 2}, ValueError, r"groups|channels"),
    ],
)
def test_impossible_arguments(cupy, cudnn, change, error, told):
    with pytest.raises(error, match=told) as caught:
        forward(cupy, cudnn, **change)
    assert isinstance(caught.value, convkit.ConvkitError)


def test_arrays_of_different_dtypes_are_refused(cupy, cudnn):
    with pytest.raises(convkit.DTypeError):
        forward(cupy, cudnn, W=cupy.zeros((3, 2, 3, 3), "d"))
    with pytest.raises(convkit.DTypeError):
        forward(cupy, cudnn, y=cupy.zeros((1, 3, 3, 3), "d"))


def test_an_output_that_overlaps_an_input_is_refused(cupy, cudnn):
    x = cupy.zeros((1, 1, 4, 4), "f")
    with pytest.raises(convkit.ArgumentError, match="shares memory"):
        forward(cupy, cudnn, x=x, W=cupy.zeros((1, 1, 1, 1), "f"), y=x)


def transposed(cupy, cudnn, b, y=None, dtype="f", w=None):
    """A transposed convolution of two channels with a bias."""
    y = cupy.zeros((1, 2, 5, 5), dtype) if y is None else y
    w = cupy.ones((3, 2, 3, 3), dtype) if w is None else w
    x = cupy.ones((1, 3, 3, 3), dtype)
    cudnn.convolution_backward_data(w, x, b, y, (0, 0), (1, 1), (1, 1), 1, deterministic=False, **MORE)
    return y


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "told"),
    [
        *(((n,), "f", convkit.ShapeError, rf"b has shape \({n},\), .* 2 channels of y") for n in (0, 1, 3, 4)),
        ((1, 1), "f", convkit.ShapeError, r"b has shape \(1, 1\)"),
        ((2,), "d", convkit.DTypeError, "b has dtype float64, but y has dtype float32"),
        ((2,), "e", convkit.DTypeError, "b has dtype float16, but y has dtype float32"),
    ],
)
def test_a_bias_that_does_not_go_with_the_output_is_refused_unwritten(cupy, cudnn, shape, dtype, error, told):
    y = cupy.full((1, 2, 5, 5), 7, "f")
    with pytest.raises(error, match=rf"^cudnn.convolution_backward_data: {told}"):
        transposed(cupy, cudnn, cupy.ones(shape, dtype), y)
    np.testing.assert_array_equal(y.get(), 7)


def test_a_bias_in_the_output_or_on_another_device_is_refused(cupy, cudnn):
    whole = cupy.ones((1, 2, 5, 5), "f")
    with pytest.raises(convkit.ArgumentError, match="shares memory with b"):
        transposed(cupy, cudnn, whole.reshape(-1)[:2], whole)
    with cupy.cuda.Device(1):
        there = cupy.ones((2,), "f")
    with pytest.raises(convkit.ArgumentError, match="b is on device 1"):
        transposed(cupy, cudnn, there)
    with pytest.raises(convkit.DTypeError):
        transposed(cupy, cudnn, cupy.ones((2,), "e"), dtype="e", w=cupy.ones((3, 2, 3, 3), "f"))


def test_halves_with_a_bias_are_rounded_once(cupy, cudnn):
    """2049 is no float16: rounded to 2048 before 2.5 is added it would become 2050, and not 2052."""
    w, b = cupy.asarray(np.full((3, 2, 3, 3), 683, "e")), cupy.asarray(np.array([0.0, 2.5], "e"))
    y = transposed(cupy, cudnn, b, dtype="e", w=w)
    assert y.get()[0, :, 0, 0].tolist() == [2048, 2052]


def test_memory_that_runs_out_under_a_bias_is_a_workspace_error(cupy, cudnn, world):
    arrays = cupy.ones((2,), "e"), cupy.zeros((1, 2, 5, 5), "e"), cupy.ones((3, 2, 3, 3), "e")
    transposed(cupy, cudnn, *arrays[:2], dtype="e", w=arrays[2])
    for left in range(1, 8):  # the first is the image that is made here
        world.allocations_left = left
        try:
            transposed(cupy, cudnn, *arrays[:2], dtype="e", w=arrays[2])
            break
        except convkit.WorkspaceError as error:
            assert "conv" in str(error)
        finally:
            world.allocations_left = None
    assert 1 < left < 7


def test_empty_batches(cupy, cudnn):
    forward(cupy, cudnn, x=cupy.zeros((0, 2, 5, 5), "f"), y=cupy.empty((0, 3, 3, 3), "f"))
    dw = cupy.asarray(np.full((3, 2, 3, 3), np.nan, "f"))
    nothing = cupy.zeros((0, 2, 5, 5), "f"), cupy.zeros((0, 3, 3, 3), "f")
    cudnn.convolution_backward_filter(*nothing, dw, (0, 0), (1, 1), (1, 1), 1, deterministic=False, **MORE)
    np.testing.assert_array_equal(dw.get(), 0)


def test_a_layer_on_another_device_with_a_bias(cupy, cudnn, rng):
    with cupy.cuda.Device(1):
        x, w, b = (cupy.asarray(whole(rng, shape, "f")) for shape in ((1, 3, 3, 3), (3, 2, 3, 3), (2,)))
        out = cupy.empty((1, 2, 5, 5), "f")
    cudnn.convolution_backward_data(w, x, b, out, (0, 0), (1, 1), (1, 1), 1, deterministic=False, **MORE)
    geometry = {"padding": "VALID", "strides": (1, 1), "dilations": (1, 1), "groups": 1}
    wanted = expected("convolution_backward_data", w.get(), x.get(), out.shape, geometry)
    np.testing.assert_array_equal(out.get(), wanted + b.get()[:, np.newaxis, np.newaxis])


def test_signatures_are_those_of_cupy_13(cudnn):
    """As its compiled modules tell them, but for the types."""
    plain = {name: ", ".join(_bare(inspect.signature(getattr(cudnn, name)))) for name in FUNCTIONS}
    shape = "pad, stride, dilation, groups, *"
    tail = "auto_tune, tensor_core, d_layout=0, w_layout=0"
    assert plain == {
        "convolution_forward": f"x, W, b, y, {shape}, {tail}",
        "convolution_backward_data": f"W, x, b, y, {shape}, deterministic, {tail}",
        "convolution_backward_filter": f"x, gy, gW, {shape}, deterministic, {tail}",
    }


def _bare(signature):
    """Yield the parameters without their types."""
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        empty = parameter.default is parameter.empty
        yield parameter.name if empty else f"{parameter.name}={parameter.default}"


def test_the_version_is_that_of_the_cudnn_in_use_or_zero(cupy, cudnn, monkeypatch):
    from convkit._gpu import loader

    monkeypatch.setattr(loader, "status", lambda: (92800, ""))
    assert cupy.cuda.cudnn.getVersion() == 92800
    monkeypatch.setattr(loader, "status", lambda: (None, "cuDNN is not there"))
    assert cupy.cuda.cudnn.getVersion() == 0
    assert cupy.cuda.cudnn.available is True
    assert issubclass(cupy.cuda.cudnn.CuDNNError, RuntimeError)


@pytest.mark.parametrize("world", [{"driver": False}], indirect=True)
def test_it_installs_where_there_is_no_gpu(cupy, cudnn):
    """A script that may use a GPU runs where there is none, too."""
    assert cudnn.get_max_workspace_size() == 8 * 2**20
    with pytest.raises(standin_device.CUDARuntimeError):
        cupy.zeros(3)
