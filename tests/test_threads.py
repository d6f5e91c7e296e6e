"""Many callers at once, the BLAS thread count, the number of helper threads, and the GIL."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from child import run_python

import convkit

X = np.random.default_rng(1).standard_normal((2, 8, 8, 4), np.float32)
W = np.random.default_rng(2).standard_normal((3, 3, 4, 5), np.float32)
DY = np.ones((2, 6, 6, 5), np.float32)


def blas_threads():
    return [info["num_threads"] for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"]


@pytest.fixture
def three_blas_threads():
    """A count that no one would set by chance."""
    with threadpoolctl.threadpool_limits(limits=3, user_api="blas"):
        yield blas_threads()


def in_threads(count, work):
    """Calls work(number) in `count` threads that start together; returns the results."""
    barrier = threading.Barrier(count)

    def start(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_a_call_restores_the_blas_thread_count(three_blas_threads):
    convkit.conv2d(X, W)
    assert blas_threads() == three_blas_threads
    convkit.conv2d_backprop_filter(X, W.shape, DY, num_threads=2)
    convkit.conv2d_backprop_input(X.shape, W, DY, num_threads=2)
    assert blas_threads() == three_blas_threads


def test_blas_is_held_to_one_thread_whichever_thread_calls(three_blas_threads):
    """threadpoolctl ignores limits on OpenBLAS from all threads but the first that set one, here the main thread."""
    assert 3 in three_blas_threads
    convkit.conv2d(X, W)
    x, w = np.ones((4, 48, 48, 16), np.float32), np.ones((7, 7, 16, 32), np.float32)
    stop = threading.Event()

    def work():
        while not stop.is_set():
            convkit.conv2d(x, w, num_threads=1, algorithm="im2col")

    thread = threading.Thread(target=work)
    thread.start()
    seen = set()
    for _ in range(50):
        seen.update(blas_threads())
        time.sleep(0.002)
    stop.set()
    thread.join()
    assert 1 in seen
    assert blas_threads() == three_blas_threads


def test_many_callers_restore_the_blas_thread_count(three_blas_threads):
    expected = convkit.conv2d(X, W)

    def work(number):
        calls = (convkit.conv2d(X, W, num_threads=1 + number % 2) for _ in range(1000))
        return all((result == expected).all() for result in calls)

    assert in_threads(8, work) == [True] * 8
    assert blas_threads() == three_blas_threads


def test_errors_restore_the_blas_thread_count(three_blas_threads):
    def work(number):
        for _ in range(100):
            with pytest.raises(convkit.ShapeError):
                convkit.conv2d(X, W, strides=0)
            with pytest.raises(convkit.WorkspaceError), convkit.options(workspace_limit=1):
                convkit.conv2d(X, W, algorithm="im2col")
            convkit.conv2d(X, W)

    in_threads(4, work)
    assert blas_threads() == three_blas_threads


def test_every_caller_gets_its_own_result():
    images = [np.full((1, 40, 40, 8), n, np.float32) for n in range(8)]
    w = np.ones((3, 3, 8, 16), np.float32)

    def work(number):
        with convkit.options(precision="high"):
            return all((convkit.conv2d(images[number], w, num_threads=1) == 72 * number).all() for _ in range(30))

    assert in_threads(8, work) == [True] * 8


def test_callers_do_not_wait_for_each_other():
    """A short call comes back while a long one is running."""
    long = (np.ones((8, 64, 64, 32), np.float32), np.ones((15, 15, 32, 32), np.float32))
    running = threading.Thread(target=convkit.conv2d, args=long, kwargs={"num_threads": 1})
    running.start()
    count = 0
    while running.is_alive():
        convkit.conv2d(X, W, num_threads=1)
        count += 1
    running.join()
    assert count > 20


def test_the_gil_is_released():
    """A Python thread keeps its rhythm during a call of a second or so."""
    x, w = np.ones((4, 96, 96, 32), np.float32), np.ones((21, 21, 32, 32), np.float32)
    beats, stop = [], threading.Event()

    def beat():
        while not stop.is_set():
            beats.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        start = time.monotonic()
        convkit.conv2d(x, w, padding="SAME", num_threads=1)
        end = time.monotonic()
    finally:
        stop.set()
        thread.join()
    inside = [start, *(at for at in beats if start <= at <= end), end]
    gap = max(b - a for a, b in itertools.pairwise(inside))
    assert gap < max(0.25, 0.5 * (end - start)), f"no beat for {gap:.3f} s in a call of {end - start:.3f} s"
    assert end - start < 0.05 or len(inside) > 10


def test_helper_threads_are_few_however_many_call():
    """Threads inside the process: the callers, and at most one helper less than the largest limit asked for."""
    program = """
        import os, threading, time
        import numpy as np, convkit
        x, w = np.ones((4, 32, 32, 16), np.float32), np.ones((5, 5, 16, 32), np.float32)
        convkit.conv2d(x, w, num_threads=1)

        def tasks():
            return len(os.listdir("/proc/self/task"))

        before = tasks()
        stop = threading.Event()

        def user():
            while not stop.is_set():
                convkit.conv2d(x, w, num_threads=4)

        def outer():
            inner = [threading.Thread(target=user) for _ in range(2)]
            for thread in inner:
                thread.start()
            user()
            for thread in inner:
                thread.join()

        users = [threading.Thread(target=outer) for _ in range(3)]
        for thread in users:
            thread.start()
        most, end = 0, time.monotonic() + 1
        while time.monotonic() < end:
            most = max(most, tasks())
            time.sleep(0.002)
        stop.set()
        for thread in users:
            thread.join()
        print(most - before - 9)
    """
    assert int(run_python(program)) <= 3


def test_one_thread_means_no_helper():
    program = """
        import os
        import numpy as np, convkit
        before = len(os.listdir("/proc/self/task"))
        x, w = np.ones((4, 32, 32, 16), np.float32), np.ones((5, 5, 16, 32), np.float32)
        convkit.conv2d(x, w, num_threads=1)
        convkit.conv2d_backprop_filter(x, w.shape, np.ones((4, 28, 28, 32), np.float32), num_threads=1)
        print(len(os.listdir("/proc/self/task")) - before)
    """
    assert run_python(program) == "0"


AFFINITY_PROGRAM = """
    import os, sys
    import numpy as np, convkit
    x, w = np.ones((4, 32, 32, 16), np.float32), np.ones((5, 5, 16, 32), np.float32)

    def calls():
        for _ in range(30):
            convkit.conv2d(x, w, num_threads=2)

    def helper():
        names = {int(task): open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")}
        (task,) = (task for task, name in names.items() if name == "convkit\\n")
        return task

    def apart(cpus, caller):
        return cpus - {caller} or cpus

    calls()
    cpus, task = os.sched_getaffinity(0), helper()
"""


def test_helpers_are_kept_off_the_cpu_of_their_caller():
    """A kernel that wakes a helper where its caller runs would let the one wait for the other."""
    program = """
    for caller in cpus:
        os.sched_setaffinity(0, {caller})
        calls()
        assert os.sched_getaffinity(task) == apart(cpus, caller), (caller, os.sched_getaffinity(task))
    print("fine")
"""
    assert run_python(AFFINITY_PROGRAM + program) == "fine"


def test_a_restriction_of_helpers_from_outside_is_kept():
    program = """
    own = {min(cpus)}
    os.sched_setaffinity(0, own)
    calls()  # so that the restriction differs from what the helper is given
    os.sched_setaffinity(task, own)
    for caller in cpus:
        os.sched_setaffinity(0, {caller})
        calls()
        assert os.sched_getaffinity(task) == own, (caller, os.sched_getaffinity(task))
    print("fine")
"""
    assert run_python(AFFINITY_PROGRAM + program) == "fine"


def test_helpers_sleep_between_calls():
    program = """
        import time
        import numpy as np, convkit
        x, w = np.ones((4, 32, 32, 16), np.float32), np.ones((5, 5, 16, 32), np.float32)
        convkit.conv2d(x, w, num_threads=4)
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        print(time.process_time() - before)
    """
    assert float(run_python(program)) < 0.1


def test_a_process_that_can_start_no_threads_still_computes():
    """A failed start of a thread means fewer helpers, not an error."""
    program = """
        import os, resource, sys
        if "AGAIN" not in os.environ:
            # The size of a thread's stack is read from this limit when a program starts.
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 32, resource.getrlimit(resource.RLIMIT_STACK)[1]))
            os.environ["AGAIN"] = "yes"
            os.execv(sys.executable, sys.orig_argv)
        import numpy as np, convkit
        x, w = np.ones((4, 32, 32, 16), np.float32), np.ones((5, 5, 16, 32), np.float32)
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), resource.RLIM_INFINITY))
        print(float(convkit.conv2d(x, w, num_threads=16).max()))
    """
    assert run_python(program, OPENBLAS_NUM_THREADS="1") == "400.0"


@pytest.mark.parametrize("threads", [1, 2])
def test_daemon_threads_inside_at_exit_do_no_harm(threads):
    program = """
        import sys, threading, time
        import numpy as np, convkit
        x, w = np.ones((4, 48, 48, 16), np.float32), np.ones((7, 7, 16, 32), np.float32)

        def forever():
            while True:
                convkit.conv2d(x, w, num_threads=int(sys.argv[1]))

        for _ in range(4):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.15)
        print("end")
    """
    for _ in range(3):
        assert run_python(program, threads, timeout=30) == "end"
