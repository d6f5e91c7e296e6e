"""Bits depend neither on the number of threads, nor on who else is calling, nor on BLAS's own threads."""

import functools
import operator
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl
from bit_problems import DTYPES, PROBLEMS, digest
from child import run_python

import convkit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_threads_do_not_change_the_bits(name, dtype):
    alone = PROBLEMS[name].digests(dtype, num_threads=1)
    for threads in (2, 3, 16):
        assert PROBLEMS[name].digests(dtype, num_threads=threads) == alone, threads


def test_repetition_does_not_change_the_bits():
    for name in PROBLEMS:
        first = PROBLEMS[name].digests(DTYPES[0], num_threads=2)
        for _ in range(3):
            assert PROBLEMS[name].digests(DTYPES[0], num_threads=2) == first, name


def test_twelve_callers_at_once_get_the_bits_of_one():
    calls = [(name, call) for name in PROBLEMS for call in PROBLEMS[name].calls(DTYPES[0])]
    serial = [digest(call(num_threads=1)) for _, call in calls]
    barrier = threading.Barrier(12)

    def caller(number):
        barrier.wait()
        order = np.random.default_rng(number).permutation(len(calls))[:20]
        threads = 1 + number % 4
        return [calls[i][0] for i in order if digest(calls[i][1](num_threads=threads)) != serial[i]]

    with ThreadPoolExecutor(12) as pool:
        assert functools.reduce(operator.iadd, pool.map(caller, range(12)), []) == []


def test_blas_threads_do_not_change_the_bits():
    program = "import runpy; runpy.run_module('bit_problems', run_name='__main__')"
    digests = {threads: run_python(program, OPENBLAS_NUM_THREADS=threads) for threads in ("1", "2", "16")}
    assert len(set(digests.values())) == 1, digests


def test_matrix_products_of_other_threads_do_not_change_the_bits():
    serial = {name: PROBLEMS[name].digests(DTYPES[0], num_threads=1) for name in PROBLEMS}
    a = np.random.default_rng(0).standard_normal((400, 400), np.float32)
    stop = threading.Event()

    def hammer():
        while not stop.is_set():
            a @ a

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for name, expected in serial.items():
            assert PROBLEMS[name].digests(DTYPES[0], num_threads=2) == expected, name
    finally:
        stop.set()
        thread.join()


def test_a_matrix_product_between_calls_keeps_its_own_threads():
    """What NumPy computes after a call of convkit is what it would compute without convkit."""
    program = """
        import sys, hashlib
        import numpy as np
        a = np.random.default_rng(0).standard_normal((700, 900), np.float32)
        if sys.argv[1] == "after":
            import convkit
            convkit.conv2d(np.ones((2, 20, 20, 8), np.float32), np.ones((3, 3, 8, 8), np.float32), num_threads=2)
        print(hashlib.sha256((a @ a.T).tobytes()).hexdigest())
    """
    assert run_python(program, "after") == run_python(program, "without")


@pytest.mark.parametrize("limit", [256 << 10, 1 << 20, 8 << 20])
def test_a_workspace_limit_keeps_results_within_rounding(limit):
    for name, problem in PROBLEMS.items():
        bounds = [call(num_threads=1) for call in magnitudes(problem)]
        for call, bound in zip(problem.calls(DTYPES[0]), bounds, strict=True):
            free = call()
            with convkit.options(workspace_limit=limit):
                try:
                    limited = call()
                except convkit.WorkspaceError:
                    assert limit < 1 << 20, name
                    continue
            assert (np.abs(limited - free) <= 16 * np.finfo(np.float32).eps * bound).all(), name


def magnitudes(problem):
    """The same operations on absolute values: the scale of each element's rounding error."""
    x, w, dy = map(np.abs, problem.arrays(DTYPES[0]))
    return (
        lambda **more: convkit.conv2d(x, w, **problem.keywords, **more),
        lambda **more: convkit.conv2d_backprop_filter(x, w.shape, dy, **problem.keywords, **more),
        lambda **more: convkit.conv2d_backprop_input(x.shape, w, dy, **problem.keywords, **more),
    )


@pytest.mark.slow
def test_thread_switches_at_every_chance_do_not_change_the_bits():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        test_twelve_callers_at_once_get_the_bits_of_one()
    finally:
        sys.setswitchinterval(before)


def test_limits_set_by_another_thread_do_not_change_the_bits():
    names = ("3x3", "1x1", "long sums, few filters")
    serial = {name: PROBLEMS[name].digests(DTYPES[0], num_threads=1) for name in names}
    stop = threading.Event()

    def flip():
        while not stop.is_set():
            for limit in (1, 2):
                with threadpoolctl.threadpool_limits(limit, user_api="blas"):
                    stop.wait(0.0005)

    before = threadpoolctl.threadpool_info()
    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(15):
            for name in names:
                assert PROBLEMS[name].digests(DTYPES[0], num_threads=2) == serial[name], name
    finally:
        stop.set()
        thread.join()
        for info in before:
            if info["user_api"] == "blas":
                threadpoolctl.threadpool_limits(info["num_threads"], user_api="blas")
