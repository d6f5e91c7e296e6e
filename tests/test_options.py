"""Where a setting comes from, how far it reaches, and what threadpoolctl can do to it."""

import asyncio
import contextvars
import os
import threading

import numpy as np
import pytest
import threadpoolctl
from child import run_python
from refusals import refused

import convkit
from convkit import ArgumentError, ArgumentTypeError

SHAPES = ((16, 56, 56, 64), (3, 3, 64, 64))


def threads_in_force(**keywords):
    return convkit.explain("conv2d", *SHAPES, **keywords).num_threads


@pytest.fixture
def process_options():
    """`set_options` with its effects taken back."""
    yield convkit.set_options
    convkit.set_options(num_threads=None, workspace_limit=None, precision=None, deterministic=None, autotune=None)


def test_argument_wins_over_options_and_options_over_the_process(process_options):
    before = threads_in_force()
    process_options(num_threads=5)
    assert threads_in_force() == 5
    with convkit.options(num_threads=3):
        assert threads_in_force() == 3
        assert threads_in_force(num_threads=2) == 2
    assert threads_in_force() == 5
    process_options(num_threads=None)
    assert threads_in_force() == before


ASK = "import convkit; print(convkit.explain('conv2d', (16, 56, 56, 64), (3, 3, 64, 64)).num_threads)"


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({"CONVKIT_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"CONVKIT_NUM_THREADS": "1"}, 1),
    ],
)
def test_environment_sets_the_threads(environment, expected):
    assert run_python(ASK, **environment) == str(expected)


def test_set_options_wins_over_the_environment():
    program = "import convkit; convkit.set_options(num_threads=2); " + ASK
    assert run_python(program, CONVKIT_NUM_THREADS="3", OMP_NUM_THREADS="5") == "2"


def test_affinity_is_the_last_word():
    one = min(os.sched_getaffinity(0))
    assert run_python(f"import os; os.sched_setaffinity(0, {{{one}}}); {ASK}") == "1"
    assert int(run_python(ASK)) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "name", ["CONVKIT_NUM_THREADS", "CONVKIT_WORKSPACE_LIMIT", "CONVKIT_PRECISION", "CONVKIT_MEMORY_LIMIT"]
)
def test_a_bad_value_in_the_environment_is_named(name):
    program = """
        try:
            import convkit
            convkit.conv2d([[[[1.0]]]], [[[[1.0]]]])
        except Exception as error:
            print(type(error).__name__, error)
    """
    assert name in run_python(program, **{name: "many"})


def test_environment_sets_the_workspace_limit():
    program = "import convkit; print(convkit.explain('conv2d', (16, 56, 56, 64), (3, 3, 64, 64)).workspace)"
    free = int(run_python(program))
    assert 0 < int(run_python(program, CONVKIT_WORKSPACE_LIMIT=str(1 << 20))) <= 1 << 20
    assert free <= 64 << 20


# The reach of options()


def test_options_do_not_enter_other_threads():
    before = threads_in_force()
    seen = []
    with convkit.options(num_threads=7):
        thread = threading.Thread(target=lambda: seen.append(threads_in_force()))
        thread.start()
        thread.join()
    assert seen == [before]


def test_set_options_enters_other_threads(process_options):
    process_options(num_threads=7)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threads_in_force()))
    thread.start()
    thread.join()
    assert seen == [7]


def test_options_nest_and_are_restored_after_exceptions():
    before = threads_in_force()
    with convkit.options(num_threads=5, workspace_limit=1 << 20):
        with pytest.raises(ZeroDivisionError), convkit.options(num_threads=3):
            assert threads_in_force() == 3
            assert convkit.explain("conv2d", *SHAPES).workspace <= 1 << 20
            raise ZeroDivisionError
        assert threads_in_force() == 5
    assert threads_in_force() == before


def test_options_are_part_of_the_context():
    with convkit.options(num_threads=6):
        context = contextvars.copy_context()
    assert context.run(threads_in_force) == 6
    assert threads_in_force() != 6


def test_tasks_do_not_see_each_others_options():
    async def look(threads):
        with convkit.options(num_threads=threads):
            seen = []
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(threads_in_force())
        return seen

    async def both():
        return await asyncio.gather(look(3), look(4))

    assert asyncio.run(both()) == [[3] * 3, [4] * 3]


def test_options_take_effect_on_cached_plans():
    x, w = np.ones((4, 28, 28, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    wide = convkit.explain("conv2d", x, w).workspace
    with convkit.options(workspace_limit=wide // 2):
        assert convkit.explain("conv2d", x, w).workspace <= wide // 2
        convkit.conv2d(x, w)
    assert convkit.explain("conv2d", x, w).workspace == wide


@pytest.mark.parametrize("setter", ["options", "set_options"])
@pytest.mark.parametrize(
    "name, bad, error",
    [
        ("num_threads", 0, ArgumentError),
        ("num_threads", 1025, ArgumentError),
        ("num_threads", 2.0, ArgumentTypeError),
        ("num_threads", "2", ArgumentTypeError),
        ("workspace_limit", -1, ArgumentError),
        ("workspace_limit", "64MB", ArgumentTypeError),
        ("workspace_limit", 1.5, ArgumentTypeError),
        ("precision", "exact", ArgumentError),
        ("precision", 3, ArgumentTypeError),
        ("deterministic", "yes", ArgumentTypeError),
        ("autotune", 2.5, ArgumentTypeError),
    ],
)
def test_bad_options_are_refused_by_name_and_change_nothing(setter, name, bad, error):
    before = threads_in_force()
    with refused(error, name, op=setter):
        value = getattr(convkit, setter)(**{name: bad})
        with value:
            pass
    assert threads_in_force() == before


@pytest.mark.parametrize("setter", ["options", "set_options"])
def test_unknown_options_are_refused(setter):
    with refused(ArgumentTypeError, "'threads'", "num_threads", op=setter):
        value = getattr(convkit, setter)(threads=2)
        with value:
            pass
    with pytest.raises(TypeError):
        getattr(convkit, setter)(2)


@pytest.mark.parametrize("precision", ["default", "high", "fast"])
def test_every_precision_computes(precision):
    x, w = np.ones((1, 6, 6, 2), np.float32), np.ones((3, 3, 2, 2), np.float32)
    with convkit.options(precision=precision, deterministic=True, autotune=False):
        np.testing.assert_array_equal(convkit.conv2d(x, w), np.full((1, 4, 4, 2), 18, np.float32))


# threadpoolctl


def convkit_pools():
    return [info for info in threadpoolctl.threadpool_info() if "convkit" in str(info["internal_api"])]


def test_threadpoolctl_lists_convkit():
    (info,) = convkit_pools()
    assert info["num_threads"] == threads_in_force()
    assert info["version"] == convkit.__version__


def test_threadpool_limits_caps_convkit_and_restores_it(process_options):
    for before in (threads_in_force(), 6):
        if before == 6:
            process_options(num_threads=6)
        assert threads_in_force() == before
        with threadpoolctl.threadpool_limits(1):
            assert convkit_pools()[0]["num_threads"] == 1
            assert threads_in_force() == 1
        assert convkit_pools()[0]["num_threads"] == before
        assert threads_in_force() == before


def test_threadpool_limits_caps_what_the_user_has_set(process_options):
    process_options(num_threads=6)
    with threadpoolctl.threadpool_limits(4):
        assert threads_in_force() == 4
        assert threads_in_force(num_threads=5) == 4
        with convkit.options(num_threads=2):
            assert threads_in_force() == 2
        with threadpoolctl.threadpool_limits(3):
            assert threads_in_force() == 3
        assert threads_in_force() == 4
    assert threads_in_force() == 6
    process_options(num_threads=8)
    assert threads_in_force() == 8


def test_threadpool_limits_can_name_convkit():
    (info,) = convkit_pools()
    before = threads_in_force()
    with threadpoolctl.threadpool_limits(limits={info["internal_api"]: 1}):
        assert threads_in_force() == 1
    assert threads_in_force() == before


def test_a_limit_on_blas_alone_is_not_one_on_convkit():
    before = threads_in_force()
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        assert threads_in_force() == before
