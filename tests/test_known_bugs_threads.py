"""Known failures of other libraries, by id: forks, thread counts, the interpreter lock and determinism."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import harness
import numpy as np
import pytest
from child import run_python
from harness import NCHW, NHWC

import convkit

FLOAT32 = np.dtype(np.float32)


def float_arguments(rng, x_shape, w_shape, layout=NHWC, **geometry):
    """Return the three calls of a layer of random floats, as (function, arguments, keywords)."""
    y_shape = harness.reference.output_shape(x_shape, w_shape, **geometry)
    arrays = (harness.floats(rng, shape) for shape in (x_shape, w_shape, y_shape))
    return [
        (harness.operation(call.op), call.in_layout(layout, FLOAT32), {**call.geometry, **layout.keywords})
        for call in harness.three_calls(*arrays, **geometry)
    ]


FORK = """
import os, sys, time
import numpy as np
import convkit

rng = np.random.default_rng(1)
x = rng.standard_normal((8, 28, 28, 32), np.float32)
w = rng.standard_normal((3, 3, 32, 32), np.float32)
dy = rng.standard_normal((8, 26, 26, 32), np.float32)

def results():
    return [
        convkit.conv2d(x, w, num_threads=4).tobytes(),
        convkit.conv2d_backprop_filter(x, w.shape, dy, num_threads=4).tobytes(),
        convkit.conv2d_backprop_input(x.shape, w, dy, num_threads=4).tobytes(),
    ]

expected = results()
for _ in range(3):
    child = os.fork()
    if child == 0:
        same = results() == expected
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if results() == expected else 1)
        os._exit(0 if same and os.waitpid(grandchild, 0)[1] == 0 else 1)
    deadline = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            sys.exit("the child hangs")
        time.sleep(0.01)
    assert done[1] == 0, f"the child ended with {done[1]}"
    assert results() == expected
"""


def test_G01_results_in_forked_children():
    # Python 3.12 warns of any fork in a process with threads, which is what is tested here.
    run_python(FORK, timeout=100)


def test_G01_multiprocessing_with_the_fork_method():
    run_python(
        """
        import multiprocessing
        import numpy as np
        import convkit

        convkit.set_options(precision="high")
        x, w = np.ones((4, 20, 20, 8), np.float32), np.ones((3, 3, 8, 8), np.float32)

        def task(number):
            return float(convkit.conv2d(x * number, w, num_threads=4).max())

        task(1)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(task, range(8)).get(20) == [72.0 * n for n in range(8)]
        """,
        timeout=60,
    )


def test_G02_default_threads_follow_the_affinity():
    program = """
        import os, sys
        cpus = sorted(os.sched_getaffinity(0))[: int(sys.argv[1])]
        os.sched_setaffinity(0, cpus)
        import convkit
        shapes = (1, 9, 9, 3), (3, 3, 3, 4)
        print(convkit.explain("conv2d", *shapes).num_threads)
        with convkit.options(num_threads=3):
            print(convkit.explain("conv2d", *shapes).num_threads)
        print(convkit.explain("conv2d", *shapes, num_threads=5).num_threads)
    """
    assert run_python(program, 1).split() == ["1", "3", "5"]
    allowed = len(os.sched_getaffinity(0))
    assert 1 <= int(run_python(program, allowed).split()[0]) <= allowed


def test_G02_the_environment_sets_the_threads():
    program = """
        import convkit
        print(convkit.explain("conv2d", (1, 9, 9, 3), (3, 3, 3, 4)).num_threads)
    """
    assert run_python(program, CONVKIT_NUM_THREADS="7", OMP_NUM_THREADS="5") == "7"
    assert run_python(program, OMP_NUM_THREADS="5") == "5"


def test_G02_user_threads_do_not_multiply_native_threads():
    peak = run_python(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        import convkit

        def threads():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("Threads"))

        x, w = np.ones((8, 28, 28, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
        before = threads()
        peaks = []

        def work(_):
            for _ in range(10):
                convkit.conv2d(x, w, num_threads=4)
                peaks.append(threads())

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        print(max(peaks) - before - 8)
        """
    )
    assert int(peak) <= 4


def test_G03_another_python_thread_advances_during_a_call(rng):
    x, w = harness.floats(rng, (8, 64, 64, 16)), harness.floats(rng, (3, 3, 16, 128))
    x, w = x.astype(np.float32), w.astype(np.float32)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1

    def rate(work):
        """Return how far the other thread gets in a second while ``work`` runs in this one."""
        start, before = time.perf_counter(), ticks[0]
        work()
        return (ticks[0] - before) / (time.perf_counter() - start)

    other = threading.Thread(target=tick, daemon=True)
    other.start()
    try:
        idle = max(rate(lambda: time.sleep(0.1)) for _ in range(3))
        busy = max(rate(lambda: convkit.conv2d(x, w, num_threads=1)) for _ in range(10))
    finally:
        stop.set()
        other.join()
    assert busy > idle / 10


def test_G04_concurrent_callers_get_the_bytes_of_a_serial_call(rng):
    jobs = [
        *float_arguments(rng, (2, 14, 14, 16), (3, 3, 16, 24), padding="SAME"),
        *float_arguments(rng, (3, 15, 9, 7), (1, 1, 7, 33)),
        *float_arguments(rng, (2, 12, 13, 9), (5, 2, 9, 11), layout=NCHW, strides=(2, 1)),
        *float_arguments(rng, (4, 8, 8, 5), (8, 8, 5, 6)),
    ]
    expected = [function(*arguments, num_threads=1, **keywords).tobytes() for function, arguments, keywords in jobs]
    gate = threading.Barrier(20)

    def caller(number):
        gate.wait()
        for turn in range(24):
            job = (number + turn) % len(jobs)
            function, arguments, keywords = jobs[job]
            if function(*arguments, num_threads=1 + number % 3, **keywords).tobytes() != expected[job]:
                return f"{function.__name__} {keywords}"
        return None

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(caller, range(20))) == {None}


def test_G05_a_pool_of_eight_with_four_threads_each(rng):
    (function, arguments, keywords), *_ = float_arguments(rng, (4, 28, 28, 16), (3, 3, 16, 32), padding="SAME")
    expected = function(*arguments, **keywords).tobytes()
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(function, *arguments, num_threads=4, **keywords) for _ in range(64)]
        assert {job.result(60).tobytes() for job in jobs} == {expected}


CALL = """
convkit.set_options(precision="high")
x, w = np.ones((2, 20, 20, 8), np.float32), np.ones((3, 3, 8, 8), np.float32)
y = convkit.conv2d(x, w, num_threads=4)
dw = convkit.conv2d_backprop_filter(x, w.shape, y, num_threads=4)
assert (y == 72).all() and (dw == 72 * 2 * 18 * 18).all()
"""
KMEANS = """
labels = KMeans(2, n_init=1, random_state=0).fit_predict(np.repeat([[0.0], [9.0]], 50, axis=0))
assert len(set(labels)) == 2
"""


@pytest.mark.parametrize(
    "imports",
    [
        "from sklearn.cluster import KMeans\nimport numpy as np\nimport convkit",
        "import numpy as np\nimport convkit\nfrom sklearn.cluster import KMeans",
    ],
    ids=["sklearn first", "convkit first"],
)
def test_G06_beside_an_openmp_runtime(imports):
    run_python(f"{imports}\n{CALL}{KMEANS}{CALL}", timeout=60)


def test_G06_no_openmp_runtime_of_our_own():
    mapped = run_python(f"import numpy as np\nimport convkit\n{CALL}\nprint(open('/proc/self/maps').read())")
    assert not [name for name in ("libgomp", "libiomp", "libomp") if name in mapped]


def test_H05_the_filter_gradient_has_the_same_bytes_every_time(rng):
    x = harness.floats(rng, (1, 2048, 2048, 1)).astype(np.float32)
    dy = np.ones((1, 2048, 2048, 1), np.float32)
    results = {
        convkit.conv2d_backprop_filter(x, (3, 3, 1, 1), dy, padding="SAME", num_threads=1 + run % 4).tobytes()
        for run in range(20)
    }
    assert len(results) == 1
