"""convkit works in forked children, also when the parent was inside it at the time, and in spawned ones."""

import pytest
from child import run_python

PRELUDE = """
import os, signal, sys, threading, time, warnings
import numpy as np, convkit

# Python 3.12 warns of every fork in a process with threads; forking there is what is tested here.
warnings.filterwarnings("ignore", category=DeprecationWarning)
rng = np.random.default_rng(3)
x, w = rng.standard_normal((4, 24, 24, 16), np.float32), rng.standard_normal((3, 3, 16, 24), np.float32)
dy = rng.standard_normal((4, 22, 22, 24), np.float32)
expected = (
    convkit.conv2d(x, w, num_threads=2),
    convkit.conv2d_backprop_filter(x, w.shape, dy, num_threads=2),
    convkit.conv2d_backprop_input(x.shape, w, dy, num_threads=2),
)


def right():
    taken = (
        convkit.conv2d(x, w, num_threads=2),
        convkit.conv2d_backprop_filter(x, w.shape, dy, num_threads=2),
        convkit.conv2d_backprop_input(x.shape, w, dy, num_threads=2),
    )
    return all((a == b).all() for a, b in zip(taken, expected, strict=True))


def in_child(work, seconds=20):
    # Forks; returns whether work() was true there. A child that hangs is killed by its own alarm.
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            signal.alarm(seconds)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def helpers():
    return len(os.listdir("/proc/self/task"))
"""


def run(program, **keywords):
    return run_python(PRELUDE + program, **keywords)


def test_a_forked_child_computes_with_threads():
    assert run("print(all(in_child(right) for _ in range(5)), right())") == "True True"


def test_a_child_may_fork_again():
    assert run("print(in_child(lambda: right() and in_child(right) and right()), right())") == "True True"


def test_a_child_forked_before_any_call_computes():
    program = """
        import os
        import numpy as np, convkit
        pid = os.fork()
        taken = convkit.conv2d(np.ones((2, 20, 20, 8), np.float32), np.ones((3, 3, 8, 8), np.float32), num_threads=2)
        if pid == 0:
            os._exit(0 if (taken == 72).all() else 1)
        print(os.waitpid(pid, 0)[1])
    """
    assert run_python(program, CONVKIT_PRECISION="high") == "0"


def test_forks_while_other_threads_are_inside():
    program = """
stop = threading.Event()

def user():
    while not stop.is_set():
        convkit.conv2d(x, w, num_threads=2)
        convkit.conv2d_backprop_filter(x, w.shape, dy, num_threads=2)

users = [threading.Thread(target=user) for _ in range(3)]
for thread in users:
    thread.start()
good = sum(in_child(right) for _ in range(25))
stop.set()
for thread in users:
    thread.join()
print(good, right())
"""
    assert run(program, timeout=60) == "25 True"


def test_a_child_starts_helpers_of_its_own():
    program = """
def work():
    alone = helpers()
    return right() and helpers() >= alone

print(in_child(work))
"""
    assert run(program) == "True"


def test_the_blas_thread_count_survives_a_fork_inside_a_call():
    """The child of a process that was inside convkit gets BLAS back as it was, not at the one thread of the guard."""
    program = """
import threadpoolctl

def blas():
    return [info["num_threads"] for info in threadpoolctl.threadpool_info() if info["user_api"] == "blas"]

threadpoolctl.threadpool_limits(limits=3, user_api="blas")
before, stop = blas(), threading.Event()

def user():
    while not stop.is_set():
        convkit.conv2d(x, w, num_threads=1)

thread = threading.Thread(target=user)
thread.start()
good = sum(in_child(lambda: right() and blas() == before) for _ in range(15))
stop.set()
thread.join()
print(good, blas() == before)
"""
    assert run(program) == "15 True"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys, warnings\n"
        "import numpy as np, convkit\n"
        "warnings.filterwarnings('ignore', category=DeprecationWarning)\n"
        "def work(n):\n"
        "    x, w = np.full((2, 20, 20, 8), n, np.float32), np.ones((3, 3, 8, 8), np.float32)\n"
        "    return float(convkit.conv2d(x, w, num_threads=2).max())\n"
        "if __name__ == '__main__':\n"
        "    work(1)\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(pool.map(work, range(6)))\n"
    )
    starter = f"import runpy, sys; sys.argv = [{str(program)!r}]; runpy.run_path({str(program)!r}, run_name='__main__')"
    assert run_python(starter, CONVKIT_PRECISION="high") == str([72.0 * n for n in range(6)])


def test_a_child_forked_in_a_signal_handler_computes():
    """Also while the interrupted call is one of several threads' and will not be finished in the child."""
    program = """
stop, started, results = threading.Event(), [], []
big = rng.standard_normal((8, 96, 96, 32), np.float32)
big_w = rng.standard_normal((3, 3, 32, 64), np.float32)

def user():
    while not stop.is_set():
        convkit.conv2d(x, w, num_threads=2)
        convkit.conv2d_backprop_filter(x, w.shape, dy, num_threads=2)

def handler(number, frame):
    if len(started) < 15:  # a signal may come while the handler waits for a child
        started.append(number)
        results.append(in_child(right))

users = [threading.Thread(target=user) for _ in range(3)]
for thread in users:
    thread.start()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
whole, deadline = convkit.conv2d(big, big_w, num_threads=2), time.monotonic() + 60
good = True
while len(results) < 15 and time.monotonic() < deadline:
    good = good and (convkit.conv2d(big, big_w, num_threads=2) == whole).all()
signal.setitimer(signal.ITIMER_REAL, 0)
stop.set()
for thread in users:
    thread.join()
print(len(results), all(results), good, right())
"""
    assert run(program, timeout=150) == "15 True True True"
