"""The stand-in itself: it computes what CuPy would, and refuses what CuPy or a GPU would refuse."""

import sys
import threading

import ml_dtypes
import numpy as np
import pytest
import standin
from standin_device import CUDARuntimeError, StandinError

COPY = """
extern "C" __global__ void copy(const float *from, float *to, long long n) {
  for (long long i = 0; i < n; ++i) to[i] = from[i];
}
"""


def test_views_are_those_of_numpy(cupy, rng):
    host = rng.standard_normal((4, 6, 3)).astype(np.float32)
    array = cupy.asarray(host)
    views = [
        lambda a: a[1:, ::-2],
        lambda a: a[..., None, 1],
        lambda a: a[2, -1],
        lambda a: a.transpose(2, 0, 1)[::-1],
        lambda a: a.T.reshape(3, 6, 4),
        lambda a: a.reshape(8, 9)[:, 1:4],
        lambda a: a[:, :0],
        lambda a: a.view(np.int32),
    ]
    for view in views:
        ours, theirs = view(array), view(host)
        assert ours.strides == theirs.strides or not theirs.size
        np.testing.assert_array_equal(ours.get(), theirs)
        if theirs.size:
            assert ours.data.ptr - array.data.ptr == theirs.ctypes.data - host.ctypes.data or ours.base is None
    assert cupy.broadcast_to(array, (2, 4, 6, 3)).strides == (0, *array.strides)


def test_nothing_becomes_an_array_of_numpy(cupy):
    array = cupy.zeros((2, 3), np.float32)
    for convert in (np.asarray, np.sum, memoryview, lambda a: np.add(a, a), lambda a: a + np.ones((2, 3), np.float32)):
        with pytest.raises(TypeError):
            convert(array)


def test_fresh_memory_is_nan_in_every_dtype(cupy):
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        assert np.isnan(cupy.empty(7, dtype).get().astype(np.float64)).all()


def test_a_write_outside_is_found():
    with pytest.raises(StandinError, match="around a block of 12 bytes"), standin.installed():
        array = sys.modules["cupy"].zeros(3, np.float32)
        block = array.data.mem._block
        block.raw[block.offset + 12] = 0


def test_memory_is_counted_and_runs_out(cupy, world):
    pool = cupy.get_default_memory_pool()
    array = cupy.empty(1000, np.uint8)
    assert pool.used_bytes() == 1024
    world.cards[0].limit = 4096
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="4,608"):
        cupy.empty(4097, np.uint8)
    del array
    assert pool.used_bytes() == 0
    world.allocations_left = 1
    kept = cupy.empty(1)
    with pytest.raises(MemoryError):
        cupy.empty(1)
    assert kept.size == 1


def test_devices_do_not_mix(cupy):
    with cupy.cuda.Device(1):
        far = cupy.zeros(3)
    assert far.device == cupy.cuda.Device(1) and cupy.cuda.Device().id == 0
    with pytest.raises(ValueError, match="current device"):
        far + cupy.zeros(3)
    with pytest.raises(ValueError, match="current device"):
        cupy.RawModule(code=COPY).get_function("copy")((1,), (1,), (far, far, np.int64(3)))
    with pytest.raises(CUDARuntimeError, match="InvalidDevice"):
        cupy.cuda.Device(2).use()


def test_kernels_run_by_the_shim(cupy, world):
    kernel = cupy.RawModule(code=COPY).get_function("copy")
    source, target = cupy.asarray(np.arange(5, dtype=np.float32)), cupy.empty(5, np.float32)
    kernel((1,), (1,), (source, target, np.int64(5)))
    np.testing.assert_array_equal(target.get(), np.arange(5))
    assert "kernel copy" in world.log
    with pytest.raises(TypeError):
        kernel((1,), (1,), (np.zeros(5, np.float32), target, np.int64(5)))


def test_a_captured_stream_runs_when_its_graph_is_launched(cupy):
    target = cupy.zeros(5, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        target.fill(3)
        with pytest.raises(CUDARuntimeError, match="StreamCapture"):
            target.get()
        graph = stream.end_capture()
    assert target.get().sum() == 0
    graph.launch(stream)
    assert target.get().sum() == 15


def test_a_graph_must_not_outlive_its_memory(cupy):
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        cupy.ones(5)
        graph = stream.end_capture()
    with pytest.raises(StandinError, match="not any more"):
        graph.launch()


def test_streams_belong_to_threads(cupy):
    stream, seen = cupy.cuda.Stream(), []
    with stream:
        thread = threading.Thread(target=lambda: seen.append(cupy.cuda.get_current_stream().ptr))
        thread.start()
        thread.join()
        assert cupy.cuda.get_current_stream() is stream
    assert seen == [0] and cupy.cuda.get_current_stream().ptr == 0


@pytest.mark.parametrize("world", [{"version": "13.6.0"}], indirect=True)
def test_cupy_13_has_no_kernels_for_bfloat16(cupy):
    array = cupy.ndarray((2, 2), ml_dtypes.bfloat16)
    array.fill(0)
    with pytest.raises(TypeError, match="bfloat16"):
        array[:, 0] = 0
    with pytest.raises(TypeError, match="bfloat16"):
        array.astype(np.float32)
    with pytest.raises(ValueError, match="bfloat16"):
        cupy.asarray(np.zeros(2, ml_dtypes.bfloat16))


def scalars(value, dtype=np.float32):
    return np.array([value, 0], dtype)


def test_products_are_those_of_blas(cupy, rng):
    """The order of arguments, transpositions and leading dimensions are cuBLAS's."""
    blas, handle = cupy.cuda.cublas, cupy.cuda.get_cublas_handle()
    one, a, b = scalars(1), rng.integers(-4, 4, (3, 5)), rng.integers(-4, 4, (5, 2))
    left, right = cupy.asarray(np.asfortranarray(a.astype(np.float32))), cupy.asarray(b.astype(np.float32))
    out = cupy.empty((3, 2), np.float32, "F")
    blas.gemmEx(
        *(handle, 0, 1, 3, 2, 5, one.ctypes.data, left.data.ptr, 0, 3, right.data.ptr, 0, 2),
        *(one.ctypes.data + 4, out.data.ptr, 0, 3, blas.CUBLAS_COMPUTE_32F, -1),
    )
    np.testing.assert_array_equal(out.get(), a @ b)


def test_wrong_products_are_refused(cupy):
    blas, handle = cupy.cuda.cublas, cupy.cuda.get_cublas_handle()
    one, array = scalars(1), cupy.zeros((4, 4), np.float32)

    def call(**changes):
        names = ("handle", "transa", "transb", "m", "n", "k", "alpha", "A", "Atype", "lda", "B", "Btype", "ldb")
        names += ("beta", "C", "Ctype", "ldc", "computeType", "algo")
        p, s = array.data.ptr, one.ctypes.data
        usual = (handle, 0, 0, 4, 4, 4, s, p, 0, 4, p, 0, 4, s, p, 0, 4, blas.CUBLAS_COMPUTE_32F, -1)
        blas.gemmEx(**{**dict(zip(names, usual, strict=True)), **changes})

    call()
    for changes, error in [
        ({"m": 4.0}, TypeError),
        ({"n": 2**31}, OverflowError),
        ({"A": -1}, OverflowError),
        ({"lda": 3}, blas.CUBLASError),
        ({"Ctype": 2}, blas.CUBLASError),
        ({"computeType": blas.CUBLAS_COMPUTE_16F}, blas.CUBLASError),
        ({"handle": 1}, blas.CUBLASError),
        ({"k": 5}, StandinError),
        ({"alpha": array.data.ptr}, StandinError),
        ({"C": array.data.ptr + 4}, StandinError),
    ]:
        with pytest.raises(error):
            call(**changes)
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="capture"):
            call()
        stream.end_capture()


def test_nothing_is_left_of_it():
    with standin.installed():
        import cupy

        assert cupy.cuda.is_available()
    assert "cupy" not in sys.modules and "cupy.cuda" not in sys.modules
