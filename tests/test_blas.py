"""NumPy's BLAS: how it is found, that it is held to one thread, and the way without it."""

import threading

import numpy as np
import pytest
import reference
from bit_problems import DTYPES, PROBLEMS
from child import run_python

import convkit
from convkit import _calls
from convkit._cpu import _engine, blas


class Library:
    """Stands for a BLAS library with one number of threads for the process."""

    def __init__(self, threads):
        self.threads = threads
        self.history = []

    def get(self):
        return self.threads

    def put(self, threads):
        self.threads = threads
        self.history.append(threads)


@pytest.fixture
def without_native_products(monkeypatch):
    """Plans made here multiply by numpy.matmul under the GIL."""
    _, hold, library = blas._found()
    monkeypatch.setattr(blas, "_lookup", (_engine.Blas(), hold, library))
    convkit.clear_caches()
    yield
    convkit.clear_caches()


def test_numpys_own_library_is_called_directly():
    assert blas.products().native
    assert "called directly" in blas.describe()


def test_the_first_in_sets_and_the_last_out_restores():
    library = Library(8)
    hold = blas._ProcessHold(library.get, library.put)
    hold.leave(hold.enter())
    assert library.history == [1, 8]
    first, second = hold.enter(), hold.enter()
    hold.leave(first)
    assert library.threads == 1
    hold.leave(second)
    assert library.threads == 8
    assert library.history == [1, 8, 1, 8]


def test_a_single_thread_is_left_as_it_is():
    library = Library(1)
    hold = blas._ProcessHold(library.get, library.put)
    hold.leave(hold.enter())
    assert library.history == []


def test_a_number_set_by_someone_else_meanwhile_is_kept():
    library = Library(8)
    hold = blas._ProcessHold(library.get, library.put)
    entered = hold.enter()
    library.put(3)
    hold.leave(entered)
    assert library.threads == 3


def test_a_forked_child_gets_the_number_back():
    library = Library(8)
    hold = blas._ProcessHold(library.get, library.put)
    entered = hold.enter()
    hold._forget_other_threads()  # what runs in the child while another thread of the parent is inside
    assert library.threads == 8
    hold.leave(hold.enter())
    assert library.threads == 8
    assert entered is None


def test_openmp_is_restored_for_the_calling_thread():
    library = Library(4)
    hold = blas._ThreadHold(library.get, library.put)
    entered = hold.enter()
    library.put(1)  # what each product does on its own thread
    hold.leave(entered)
    assert library.threads == 4


def test_many_threads_at_once_leave_the_number_as_it_was():
    library = Library(8)
    hold = blas._ProcessHold(library.get, library.put)
    seen = set()

    def user():
        for _ in range(2000):
            entered = hold.enter()
            seen.add(library.threads)
            hold.leave(entered)

    threads = [threading.Thread(target=user) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1}
    assert library.threads == 8


def test_products_are_checked_before_use():
    class Wrong:
        def multiply(self, a, b, out, add=False):
            out[...] = a @ b + 1

    assert blas._computes(blas.products())
    assert blas._computes(_engine.Blas())
    assert not blas._computes(Wrong())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_ways_multiply_and_add(dtype, rng):
    a, b = rng.integers(-5, 6, (7, 300)), rng.integers(-5, 6, (300, 11))
    for way in (blas.products(), _engine.Blas()):
        out = np.full((7, 11), np.nan, dtype)
        way.multiply(a.astype(dtype), b.astype(dtype), out)
        way.multiply(a.astype(dtype), b.astype(dtype), out, add=True)
        assert np.array_equal(out, 2 * (a @ b))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_numpy_alone_computes_the_same(without_native_products, data_format, threads, rng):
    x = rng.integers(-4, 5, (3, 14, 13, 6)).astype(np.float32)
    w = rng.integers(-4, 5, (3, 2, 3, 8)).astype(np.float32)
    geometry = {"strides": (2, 1), "padding": "SAME", "groups": 2}
    y = reference.conv2d(x, w, strides=(2, 1), padding="SAME", groups=2)
    dy = rng.integers(-4, 5, y.shape).astype(np.float32)
    to, back = ((0, 3, 1, 2), (0, 2, 3, 1)) if data_format == "NCHW" else ((0, 1, 2, 3),) * 2
    keywords = {**geometry, "data_format": data_format, "filter_format": "HWIO", "num_threads": threads}
    given_x, given_dy = x.transpose(to), dy.transpose(to)
    assert np.array_equal(convkit.conv2d(given_x, w, **keywords).transpose(back), y)
    dw = reference.backprop_filter(x, w.shape, dy, **geometry)
    assert np.array_equal(convkit.conv2d_backprop_filter(given_x, w.shape, given_dy, **keywords), dw)
    dx = reference.backprop_input(x.shape, w, dy, **geometry)
    taken = convkit.conv2d_backprop_input(given_x.shape, w, given_dy, **keywords)
    assert np.array_equal(taken.transpose(back), dx)


@pytest.mark.parametrize("name", ["3x3", "strided", "long sums, few filters"])
def test_numpy_alone_gives_bits_that_do_not_depend_on_threads(without_native_products, name):
    problem = PROBLEMS[name]
    assert problem.digests(DTYPES[0], num_threads=1) == problem.digests(DTYPES[0], num_threads=3)


def test_without_any_blas_library_nothing_is_held(monkeypatch):
    monkeypatch.setattr(blas, "_libraries", list)
    way, hold, library = blas._look_up()
    hold.leave(hold.enter())
    assert not way.native
    assert library is None


def test_the_lookup_happens_once():
    program = """
        import threading
        import numpy as np, convkit
        from convkit._cpu import blas
        taken, look_up = [], blas._look_up
        blas._look_up = lambda: taken.append(1) or look_up()
        x, w = np.ones((1, 8, 8, 2), np.float32), np.ones((3, 3, 2, 2), np.float32)
        threads = []
        for _ in range(12):
            threads.append(threading.Thread(target=convkit.conv2d, args=(x, w), kwargs={"algorithm": "im2col"}))
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(taken))
    """
    assert run_python(program) == "1"


def test_the_guard_survives_an_error_in_the_engine(monkeypatch):
    class Failing:
        def run(self, *arguments):
            raise RuntimeError("the native engine ended with code 16")

    x, w = np.ones((1, 8, 8, 2), np.float32), np.ones((3, 3, 2, 2), np.float32)
    convkit.clear_caches()
    real = _calls.prepare

    def failing(*arguments):
        call = real(*arguments)
        call.plan.engine = Failing()
        return call

    monkeypatch.setattr(_calls, "prepare", failing)
    hold = blas.hold()
    for _ in ("first", "repeated"):
        with pytest.raises(convkit.BackendError, match=r"^conv2d: .*code 16"):
            convkit.conv2d(x, w, algorithm="im2col")
        assert getattr(hold, "inside", 0) == 0
    convkit.clear_caches()
