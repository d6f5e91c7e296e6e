"""A user can always see which implementation runs, why the others did not, and what it takes."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from refusals import refused

import convkit
from convkit import ArgumentError, ArgumentTypeError, ConvkitError, ShapeError, UnsupportedError, _calls
from convkit._cpu import _engine

X, W, DY = (4, 12, 11, 6), (3, 3, 6, 8), (4, 10, 9, 8)
ARGUMENTS = {
    "conv2d": (X, W),
    "conv2d_backprop_filter": (X, W, DY),
    "conv2d_backprop_input": (X, W, DY),
}
# Which of an operation's arguments are arrays, not shapes, when it is called.
ARRAYS = {"conv2d": (0, 1), "conv2d_backprop_filter": (0, 2), "conv2d_backprop_input": (1, 2)}
RESULTS = {"conv2d": DY, "conv2d_backprop_filter": W, "conv2d_backprop_input": X}
VAST = np.broadcast_to(1.0, (1, 2**22, 2**22, 1))
FAMILIES = ("fft", "direct", "gemm", "im2col", "reference")
DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", np.dtype(ml_dtypes.bfloat16): "bf16"}


def with_arrays(op, change=lambda array: array, dtype=np.float32):
    return [change(np.ones(shape, dtype)) if i in ARRAYS[op] else shape for i, shape in enumerate(ARGUMENTS[op])]


@pytest.mark.parametrize("op", ARGUMENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fields(op, dtype):
    told = convkit.explain(op, *ARGUMENTS[op], dtype=dtype, num_threads=2)
    suffix = DTYPES[dtype]
    assert told.op == op
    assert told.implementation.endswith(f"_{suffix}")
    assert not told.implementation.startswith("cpu:reference")
    assert dict(told.candidates)[told.implementation] is None
    assert {name for name, _ in told.candidates} >= {f"cpu:{family}_{suffix}" for family in FAMILIES}
    assert told.candidates[-1][0] == f"cpu:reference_{suffix}"
    assert 0 <= told.workspace <= 64 << 20
    assert told.flops == 2 * 4 * 10 * 9 * 8 * 3 * 3 * 6
    assert told.output_shape == RESULTS[op]
    assert told.num_threads == 2
    assert isinstance(told.copies, tuple)


@pytest.mark.parametrize("op", ARGUMENTS)
def test_every_objection_is_a_sentence(op):
    objections = dict(convkit.explain(op, *ARGUMENTS[op]).candidates)
    assert "1x1" in objections["cpu:gemm_f32"]
    for objection in filter(None, objections.values()):
        assert len(objection.split()) >= 4


@pytest.mark.parametrize("op", ARGUMENTS)
def test_shapes_and_arrays_agree(op):
    for keywords in ({}, {"num_threads": 3}, {"algorithm": "reference"}):
        assert convkit.explain(op, *with_arrays(op), **keywords) == convkit.explain(op, *ARGUMENTS[op], **keywords)


@pytest.mark.parametrize("op", ARGUMENTS)
def test_text_holds_everything(op):
    told = convkit.explain(op, *with_arrays(op, lambda a: a.astype(">f4")))
    text = str(told)
    assert op in text and told.implementation in text
    for name, objection in told.candidates:
        assert name in text and (objection or "") in text
    for sentence in told.copies:
        assert sentence in text
    for number in (told.workspace, told.flops):
        assert str(number) in text.replace(",", "").replace("_", "").replace(" ", "") or f"{number:,}" in text
    assert all(str(size) in text for size in told.output_shape)


@pytest.mark.parametrize("algorithm", ["im2col", "reference"])
def test_the_algorithm_asked_for_is_the_one_told(algorithm):
    for op, arguments in ARGUMENTS.items():
        assert convkit.explain(op, *arguments, algorithm=algorithm).implementation == f"cpu:{algorithm}_f32"


def test_families_before_the_one_asked_for_do_not_come_later():
    lines = str(convkit.explain("conv2d", (2, 64, 64, 3), (5, 5, 3, 16), algorithm="direct")).splitlines()
    (planar,) = (line for line in lines if "planar" in line)
    assert planar.endswith("could serve, but another algorithm is asked for")
    (reference,) = (line for line in lines if "reference" in line)
    assert reference.endswith("could serve, but comes later in the list")


def test_matrix_products_serve_where_they_can():
    for shapes in (((4, 12, 11, 6), (1, 1, 6, 8)), ((4, 5, 7, 6), (5, 7, 6, 8))):
        assert dict(convkit.explain("conv2d", *shapes).candidates)["cpu:gemm_f32"] is None
    assert convkit.explain("conv2d", (4, 5, 7, 6), (5, 7, 6, 64)).implementation == "cpu:gemm_f32"
    for keywords in ({"strides": 2}, {"padding": 1}):
        objection = dict(convkit.explain("conv2d", (4, 12, 11, 6), (1, 1, 6, 8), **keywords).candidates)["cpu:gemm_f32"]
        assert objection


def test_falling_to_the_reference_by_itself_is_worth_a_warning(monkeypatch):
    monkeypatch.setattr(_calls, "TABLE", {key: candidates[-1:] for key, candidates in _calls.TABLE.items()})
    x, w = np.ones(X, np.float32), np.ones(W, np.float32)
    convkit.clear_caches()
    try:
        with pytest.warns(convkit.PerformanceWarning, match="reference"):
            convkit.conv2d(x, w)
        convkit.conv2d(x, w, algorithm="reference")  # asked for: every warning is an error in these tests
    finally:
        convkit.clear_caches()


def test_explanations_are_frozen_and_pickle():
    told = convkit.explain("conv2d", X, W)
    with pytest.raises(AttributeError):
        told.workspace = 0
    assert pickle.loads(pickle.dumps(told)) == told
    assert told.geometry == pickle.loads(pickle.dumps(told.geometry))


def copies(op, *arguments, **keywords):
    return " ".join(convkit.explain(op, *arguments, **keywords).copies).lower()


def test_copies_name_what_is_converted():
    x, w = np.ones(X, np.float32), np.ones(W, np.float32)
    assert "byte order" in copies("conv2d", x.astype(">f4"), w)
    assert "input" in copies("conv2d", x.astype(">f4"), w)
    assert "filter" in copies("conv2d", x, w.astype(">f4"))
    assert "float16" in copies("conv2d", x.astype(np.float16), w.astype(np.float16))
    multiplied = "in pairs" if "avx512bf16" in _engine.ISA_RUNS else "bfloat16"
    assert multiplied in copies("conv2d", X, W, dtype=ml_dtypes.bfloat16)
    assert "uint8" in copies("conv2d", x.astype(np.uint8), w)
    plain = copies("conv2d", x, w)
    for word in ("byte order", "float16", "uint8"):
        assert word not in plain
    nchw = (4, 6, 12, 11), (8, 6, 3, 3)
    assert copies("conv2d", *nchw, data_format="NCHW") != plain
    told = str(convkit.explain("conv2d", *nchw, data_format="NCHW"))
    assert "NCHW" in told and "OIHW" in told


def test_a_plain_list_says_that_it_is_copied():
    assert convkit.explain("conv2d", np.ones(X).tolist(), np.ones(W)).copies


@pytest.mark.parametrize("op", ARGUMENTS)
def test_flops_scale_with_batch_and_groups(op):
    shapes = ((6, 12, 11, 6), (3, 3, 2, 9), (6, 10, 9, 9))[: len(ARGUMENTS[op])]
    assert convkit.explain(op, *shapes, groups=3).flops == 2 * 6 * 10 * 9 * 9 * 3 * 3 * 2


def test_geometry_is_told():
    told = convkit.explain("conv2d", X, W, padding="SAME", strides=2)
    assert isinstance(told.geometry, convkit.ConvGeometry)
    assert told.geometry != convkit.explain("conv2d", X, W, padding=1, strides=2).geometry
    assert told.output_shape == (4, 6, 6, 8)


def test_explain_computes_nothing():
    told = convkit.explain("conv2d", (1024, 4096, 4096, 64), (7, 7, 64, 64), padding="SAME")
    assert told.flops == 2 * 1024 * 4096 * 4096 * 64 * 49 * 64
    assert told.workspace <= 64 << 20


def test_refusals():
    with pytest.raises(ConvkitError, match="conv3d"):
        convkit.explain("conv3d", X, W)
    with pytest.raises(ArgumentTypeError, match="strides"):
        convkit.explain("conv2d", X, W, stride=2)
    with pytest.raises(ShapeError):
        convkit.explain("conv2d", X, (3, 3, 5, 8))
    with pytest.raises(UnsupportedError, match="gemm"):
        convkit.explain("conv2d", X, W, algorithm="gemm")
    with pytest.raises((UnsupportedError, ArgumentError), match="device"):
        convkit.explain("conv2d", X, W, device="cuda")
    with pytest.raises((UnsupportedError, ArgumentError), match="device"):
        convkit.explain("conv2d", X, W, device="tpu")
    with pytest.raises(ConvkitError, match="int16"):
        convkit.explain("conv2d", X, W, dtype="int16")
    for wrong in ((), (X,), (X, W, DY, X)):
        with pytest.raises(TypeError) as caught:
            convkit.explain("conv2d", *wrong)
        assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "error",
    [
        lambda: convkit.conv2d(np.ones(X), np.ones((3, 3, 5, 8))),
        lambda: convkit.conv2d(np.ones(X), np.ones(W), stride=2),
        lambda: convkit.conv2d(np.ones(X), np.ones(W, np.float32)),
        lambda: convkit.conv2d(np.ones(X), np.ones(W), algorithm="gemm"),
        lambda: convkit.conv2d(np.ones(X), np.ones(W), num_threads=0),
        lambda: convkit.conv2d_backprop_input((*VAST.shape[:3], 8), np.ones((1, 1, 8, 1)), VAST),
    ],
    ids=["shape", "keyword", "dtype", "algorithm", "threads", "memory"],
)  # fmt: skip
def test_errors_pickle(error):
    with pytest.raises(ConvkitError) as caught:
        error()
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(
    "name, parent",
    [
        ("ArgumentError", ValueError),
        ("ArgumentTypeError", TypeError),
        ("ShapeError", ValueError),
        ("DTypeError", TypeError),
        ("UnsupportedError", NotImplementedError),
        ("WorkspaceError", MemoryError),
        ("BackendError", RuntimeError),
    ],
)
def test_errors_have_the_documented_parents(name, parent):
    error = getattr(convkit, name)
    assert issubclass(error, ConvkitError) and issubclass(error, parent)
    assert name in convkit.__all__


def test_a_repeated_call_is_explained_alike_after_clear_caches():
    before = convkit.explain("conv2d", X, W)
    assert convkit.clear_caches() is None
    assert convkit.explain("conv2d", X, W) == before
    x, w = np.ones(X, np.float32), np.ones(W, np.float32)
    first = convkit.conv2d(x, w)
    convkit.clear_caches()
    np.testing.assert_array_equal(convkit.conv2d(x, w), first)


def test_cpu_info_tells_the_machine():
    info = convkit.cpu_info()
    assert pickle.loads(pickle.dumps(info)) == info
    text = str(info).lower()
    for word in ("cache", "thread"):
        assert word in text


def test_show_versions_names_what_matters(capsys):
    convkit.show_versions()
    text = capsys.readouterr().out
    for word in ("convkit", convkit.__version__, "numpy", np.__version__, "threadpoolctl", "python"):
        assert word.lower() in text.lower()


def test_explain_checks_shapes_as_the_operation_does():
    with refused(ShapeError, "out_backprop", op="conv2d_backprop_filter"):
        convkit.explain("conv2d_backprop_filter", X, W, (4, 10, 9, 7))
