"""Autotuning on stand-ins: with plans that are slow, raise, write where they must not, or want too much memory."""

import json
import logging
import threading
from dataclasses import replace

import cudnn_calls
import harness
import numpy as np
import pytest
from cudnn_calls import MIB, Bystander, cache, carried
from fake_cudnn import FakePlan
from harness import NCHW

import convkit
from convkit import ArgumentError
from convkit._calls import Limits
from convkit._gpu import redzone

F32 = np.dtype(np.float32)
TUNED = Limits(64 * MIB, "default", autotune=True)
SLOW = 0.004


# What may stand in a file where an object must.
LOOSE = ([], 3, "", "x", True, [[1]], 1.5)


class Unpathlike:
    """A path by type that is none."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        if self.path is None:
            raise KeyError("no path today")
        return self.path if isinstance(self.path, int) else self.path + "\0"


@pytest.fixture
def script(cupy, monkeypatch):
    """The stand-in for cuDNN, installed."""
    monkeypatch.delenv("CONVKIT_VERBOSE", raising=False)
    with cudnn_calls.installed() as script:
        yield script


@pytest.fixture
def call(rng):
    """A forward convolution of small integers; NCHW needs no copies."""
    return harness.layer(rng, (1, 5, 6, 2), (2, 2, 2, 3))[0]


def tuned(call, limits=TUNED, **more):
    """Carry out a call that is tuned, and check its result."""
    made = carried(call, NCHW, F32, limits=limits, **more)
    np.testing.assert_array_equal(made.run(), call.result_to(call.reference(), NCHW))
    return made


def chosen():
    """Return the only choice there is."""
    ((_, choice),) = cache.choices.items()
    return choice.first and choice.first.name, choice.spare and choice.spare.name


def test_the_fastest_and_the_fastest_without_workspace_are_kept(script, call, world):
    script.plans["A"] = (
        FakePlan("slowest", seconds=4 * SLOW), FakePlan("bare", seconds=2 * SLOW), FakePlan("roomy", workspace=1024),
        FakePlan("slow", workspace=64, seconds=2 * SLOW),
    )  # fmt: skip
    made = tuned(call)
    assert chosen() == ("roomy", "bare")
    runs = len(script.runs)
    made.run()
    assert [name for name, _ in script.runs[runs:]] == ["roomy"], "a choice is made once"
    world.allocations_left = 0
    made.run()
    assert script.runs[-1] == ("bare", 0)


def test_without_autotune_nothing_is_timed(script, call):
    script.plans["A"] = (FakePlan("first", seconds=SLOW), FakePlan("fast"))
    carried(call, NCHW, F32).run()
    assert script.runs == [("first", 0)]


def test_a_missing_plan_without_workspace_is_no_error(script, call):
    script.plans = {"A": (FakePlan("roomy", workspace=1024),)}
    tuned(call)
    assert chosen() == ("roomy", None)


def test_fallback_plans_are_tried_only_if_no_other_works(script, call):
    script.plans = {"A": (FakePlan("good", seconds=SLOW),), "FALLBACK": (FakePlan("faster"),)}
    tuned(call)
    assert chosen()[0] == "good" and "faster" not in [name for name, _ in script.runs]
    cache.forget()
    script.plans["A"] = (FakePlan("bad", fault="run"), FakePlan("worse", fault="build"))
    tuned(call)
    assert chosen()[0] == "faster"


def test_at_most_ten_plans_are_timed(script, call):
    script.plans["A"] = tuple(FakePlan(f"plan{i}") for i in range(30))
    tuned(call)
    assert len({name for name, _ in script.runs}) == 10


def test_plans_that_compile_are_left_out_where_others_work(script, call):
    compiling = tuple(FakePlan(f"compiling{i}", compiled=True) for i in range(9))
    script.plans["A"] = (*compiling, FakePlan("ready", seconds=SLOW))
    tuned(call)
    assert chosen()[0] == "ready" and {name for _, name in script.builds} == {"ready"}
    cache.forget()
    script.plans["A"] = compiling
    tuned(call)
    assert chosen()[0].startswith("compiling") and len({name for _, name in script.builds}) == 5


def test_a_hopeless_plan_is_run_once(script, call):
    script.plans["A"] = (FakePlan("quick"), FakePlan("hopeless", seconds=0.05))
    tuned(call)
    assert [name for name, _ in script.runs].count("hopeless") == 1


@pytest.mark.parametrize("fault", ["outside", "before", "workspace"])
def test_a_plan_that_writes_outside_is_never_taken(script, call, fault):
    script.plans["A"] = (FakePlan("wild", workspace=1024, fault=fault), FakePlan("tame", seconds=SLOW))
    tuned(call)
    # The stand-in for CuPy checks every byte around the caller's arrays when the test ends.
    assert chosen() == ("tame", "tame")


def test_memory_that_runs_out_while_tuning_does_not_end_it(script, call, world):
    """After a plan that wrote outside there is nothing left to allocate a second guarded result from."""
    script.plans["A"] = (FakePlan("wild", fault="outside"), FakePlan("wilder", fault="before"), FakePlan("tame"))
    made = carried(call, NCHW, F32, limits=TUNED)
    world.allocations_left = 2
    try:
        made.run()
    finally:
        world.allocations_left = None
    assert chosen() == ("tame", "tame")


@pytest.mark.parametrize("fault", ["build", "run"])
def test_a_plan_that_raises_is_passed_over(script, call, fault):
    script.plans["A"] = (FakePlan("bad", fault=fault), FakePlan("good", seconds=SLOW))
    tuned(call)
    assert chosen()[0] == "good"


def test_a_plan_that_wants_too_much_is_passed_over(script, call, world):
    script.plans["A"] = (FakePlan("large", workspace=2 * MIB), FakePlan("small", workspace=1024, seconds=SLOW))
    tuned(call, Limits(MIB, "default", autotune=True))
    assert chosen()[0] == "small"
    cache.forget()
    world.cards[0].limit = world.cards[0].used + MIB
    tuned(call)
    assert chosen()[0] == "small", "memory that is not there counts like a limit"


def test_other_kernels_serve_when_nothing_works(script, call):
    bad, wild = FakePlan("bad", fault="run"), FakePlan("wild", fault="outside")
    script.plans = {"A": (bad, wild), "FALLBACK": (wild, bad)}
    other = Bystander()
    tuned(call, others=[other])
    tuned(call, others=[other])
    assert other.runs == 2 and chosen() == (None, None)


def test_the_result_of_the_caller_is_written_by_the_chosen_plan_alone(script, call):
    script.plans["A"] = (FakePlan("wrong", fault="wrong", seconds=SLOW), FakePlan("right"))
    made = carried(call, NCHW, F32, limits=TUNED)
    address = made.out.data.ptr
    made.run()
    assert [name for name, written in script.written if written == address] == ["right"]


def test_without_room_for_guarded_buffers_the_first_plan_is_taken(script, call, world, caplog, monkeypatch):
    monkeypatch.setenv("CONVKIT_VERBOSE", "1")
    script.plans["A"] = (FakePlan("first", seconds=SLOW), FakePlan("fast"))
    made = carried(call, NCHW, F32, limits=TUNED)
    world.cards[0].limit = world.cards[0].used + redzone.ZONE
    with caplog.at_level(logging.INFO, "convkit"):
        made.run()
    assert [name for name, _ in script.runs] == ["first"]
    assert "not tuned" in caplog.text


def test_nothing_is_tuned_while_a_stream_is_captured(script, call, cupy):
    script.plans["A"] = (FakePlan("first", seconds=SLOW), FakePlan("fast"))
    made = carried(call, NCHW, F32, limits=TUNED)
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        for _ in range(2):
            made.plan.run(*made.views(), 1)
        graph = stream.end_capture()
        assert [name for name, _ in script.runs] == ["first", "first"]
        assert len(script.builds) == 1, "the plan is built once"
        graph.launch()
    np.testing.assert_array_equal(made.out.get(), call.result_to(call.reference(), NCHW))
    made.run()
    assert script.runs[-1][0] == "fast", "after the capture the call is tuned"


def test_a_tuned_choice_is_used_while_a_stream_is_captured(script, call, cupy):
    script.plans["A"] = (FakePlan("first", seconds=SLOW), FakePlan("fast", workspace=256))
    made = tuned(call)
    stream = cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        made.plan.run(*made.views(), 1)
        stream.end_capture()
    assert script.runs[-1][0] == "fast"


def test_a_tuned_plan_that_fails_later_is_replaced(script, call):
    script.plans["A"] = (FakePlan("fast"), FakePlan("steady", seconds=SLOW))
    made = tuned(call)
    script.plans["A"] = (FakePlan("fast", fault="run"), FakePlan("steady", seconds=SLOW))
    cache.built().clear()
    np.testing.assert_array_equal(made.run(), call.result_to(call.reference(), NCHW))
    assert script.runs[-1][0] == "steady"


def test_every_plan_is_told_of_when_verbose(script, call, caplog, monkeypatch):
    monkeypatch.setenv("CONVKIT_VERBOSE", "1")
    script.plans["A"] = (
        FakePlan("good", workspace=100), FakePlan("wild", fault="outside"), FakePlan("bad", fault="run"),
        FakePlan("huge", workspace=99 * MIB),
    )  # fmt: skip
    with caplog.at_level(logging.INFO, "convkit"):
        tuned(call)
    lines = [line for line in caplog.messages if line.startswith("conv2d of float32")]
    for line, text in zip(lines, ("good, 100 bytes", "wrote outside", "EXECUTION_FAILED", "workspace"), strict=True):
        assert text in line
    assert " ms" in lines[0]


def test_verbose_lines_reach_somebody_who_has_set_up_nothing():
    from child import run_python

    printed = run_python(
        """
        import logging, sys
        from convkit._gpu import autotune
        assert autotune.verbose()
        handler = logging.getLogger("convkit").handlers[-1]
        handler.setStream(sys.stdout)
        autotune.logger.info("a line")
        assert autotune.verbose() and logging.getLogger("convkit").handlers[-1] is handler
        """,
        CONVKIT_VERBOSE="1",
    )
    assert printed == "a line"


class TestWhatAChoiceDependsOn:
    """Everything that matters is in the key; what does not is not."""

    def choices(self, *calls):
        """Return how many choices the calls make."""
        cache.forget()
        for made in calls:
            made.run()
        return len(cache.choices.items())

    def test_the_same_call_is_chosen_for_once(self, script, call):
        assert self.choices(carried(call, NCHW, F32), carried(call, NCHW, F32)) == 1

    @pytest.mark.parametrize(
        "other",
        [
            {"limits": Limits(MIB, "default")},
            {"limits": Limits(256 * MIB, "fast")},
            {"limits": Limits(256 * MIB, "default", deterministic=True)},
            {"limits": Limits(256 * MIB, "default", autotune=True)},
            {"machine": replace(cudnn_calls.MACHINE, name="Another")},
            {"machine": replace(cudnn_calls.MACHINE, cudnn=90100)},
        ],
        ids=str,
    )
    def test_options_and_machines_are_told_apart(self, script, call, other):
        assert self.choices(carried(call, NCHW, F32), carried(call, NCHW, F32, **other)) == 2

    @pytest.mark.parametrize(
        "other",
        [
            {"strides": (2, 2)},
            {"dilations": (2, 1)},
            {"padding": ((1, 0), (0, 0))},
            {"padding": ((0, 1), (0, 0))},
            {"padding": ((0, 0), (0, 1))},
        ],
        ids=str,
    )
    def test_geometries_are_told_apart(self, script, rng, other):
        calls = [harness.layer(rng, (1, 5, 6, 2), (2, 2, 2, 4), **more)[0] for more in ({}, other)]
        assert self.choices(*(carried(one, NCHW, F32) for one in calls)) == 2

    def test_groups_layouts_dtypes_and_operations_are_told_apart(self, script, rng):
        plain = harness.layer(rng, (1, 5, 6, 4), (2, 2, 4, 4))
        grouped = harness.layer(rng, (1, 5, 6, 4), (2, 2, 2, 4), groups=2)
        calls = [*(carried(one, NCHW, F32) for one in plain), carried(grouped[0], NCHW, F32)]
        calls += [carried(plain[0], harness.NHWC, F32), carried(plain[0], NCHW, np.dtype(np.float64))]
        assert self.choices(*calls) == 6

    def test_scales_and_biases_are_no_part_of_it(self, script, rng):
        call = harness.layer(rng, (1, 5, 6, 2), (2, 2, 2, 3))[0]
        e = replace(cudnn_calls.PLAIN, bias="float32")
        made = cudnn_calls.Fused(call.in_layout(NCHW, F32), e, F32, NCHW)
        cache.forget()
        for scale, bias in ((2.0, 1.0), (3.0, 4.0), (0.5, -1.0)):
            made.run(scale, np.full(3, bias))
        assert len(cache.choices.items()) == 1


class TestFiles:
    """Choices are saved and loaded."""

    def test_a_choice_is_used_after_it_has_been_loaded(self, script, call, tmp_path):
        script.plans["A"] = (FakePlan("slow", seconds=SLOW), FakePlan("fast", workspace=64))
        tuned(call)
        assert convkit.save_gpu_tuning(tmp_path / "choices.json") == 1
        cache.forget()
        runs = len(script.runs)
        assert convkit.load_gpu_tuning(tmp_path / "choices.json") == 1
        tuned(call)
        assert [name for name, _ in script.runs[runs:]] == ["fast"]
        assert chosen() == ("fast", "slow")

    def test_choices_of_other_machines_are_kept_but_not_used(self, script, call, tmp_path):
        tuned(call, machine=replace(cudnn_calls.MACHINE, name="Another"))
        convkit.save_gpu_tuning(tmp_path / "choices.json")
        cache.forget()
        convkit.load_gpu_tuning(tmp_path / "choices.json")
        runs = len(script.runs)
        tuned(call)
        assert len(script.runs) > runs + 1, "it is tuned here"
        assert convkit.save_gpu_tuning(tmp_path / "both.json") == 2

    def test_a_plan_that_is_not_there_any_more_is_chosen_anew(self, script, call, tmp_path):
        script.plans["A"] = (FakePlan("gone"),)
        tuned(call)
        convkit.save_gpu_tuning(tmp_path / "choices.json")
        cache.forget()
        convkit.load_gpu_tuning(tmp_path / "choices.json")
        script.plans["A"] = (FakePlan("here"),)
        tuned(call)
        assert chosen()[0] == "here"

    def test_untuned_choices_are_not_saved(self, script, call, tmp_path):
        carried(call, NCHW, F32).run()
        assert convkit.save_gpu_tuning(tmp_path / "choices.json") == 0
        assert convkit.load_gpu_tuning(tmp_path / "choices.json") == 0

    def test_a_file_that_is_none_of_ours_is_refused(self, script, call, tmp_path):
        tuned(call)
        file = tmp_path / "choices.json"
        convkit.save_gpu_tuning(file)
        right = json.loads(file.read_text(encoding="utf-8"))

        def changed(change):
            content = json.loads(json.dumps(right))
            change(content["choices"][0])
            return json.dumps(content)

        wrongs = [
            "", "[]", "{}", "null", "[" * 100_000, '{"format": "another"}', json.dumps({**right, "choices": [1]}),
            changed(lambda entry: entry["spec"].update(strides=[1, "x"])),
            changed(lambda entry: entry["spec"].update(unknown=1)),
            changed(lambda entry: entry["spec"].pop("batch")),
            changed(lambda entry: entry.update(limit=True)),
            changed(lambda entry: entry.update(first=None)),
            changed(lambda entry: entry.update(first={"mode": "A"})),
            changed(lambda entry: entry["first"].update(mode="__class__", name=7)),
            changed(lambda entry: entry.update(tuned=False)),
            changed(lambda entry: entry.update(capability=[9])),
            *(changed(lambda entry, w=w, n=n: entry.update({n: w})) for n in ("spec", "first", "spare") for w in LOOSE),
            *(changed(lambda entry, n=n: entry["first"].update(workspace=n)) for n in (-1, 10**30)),
            changed(lambda entry: entry["spare"].update(workspace=entry["limit"] + 1)),
        ]  # fmt: skip
        cache.forget()
        for wrong in wrongs:
            file.write_text(wrong, encoding="utf-8")
            with pytest.raises(ArgumentError, match=r"load_gpu_tuning: path is '.*choices.json', but must be a file"):
                convkit.load_gpu_tuning(file)
        file.write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ArgumentError):
            convkit.load_gpu_tuning(file)
        assert not cache.choices.items()

    def test_a_mode_that_is_none_is_chosen_anew(self, script, call, tmp_path):
        tuned(call)
        file = tmp_path / "choices.json"
        convkit.save_gpu_tuning(file)
        file.write_text(file.read_text(encoding="utf-8").replace('"mode": "A"', '"mode": "__doc__"'), encoding="utf-8")
        cache.forget()
        convkit.load_gpu_tuning(file)
        tuned(call)
        ((_, choice),) = cache.choices.items()
        assert choice.first.mode == "A"

    def test_a_path_of_no_kind_and_a_file_that_is_not_there(self, tmp_path):
        for function in (convkit.save_gpu_tuning, convkit.load_gpu_tuning):
            with pytest.raises(convkit.ArgumentTypeError, match=f"{function.__name__}: path is of type int"):
                function(3)
        with pytest.raises(FileNotFoundError):
            convkit.load_gpu_tuning(tmp_path / "nothing.json")

    @pytest.mark.parametrize("path", ["", ".", "/", "a\0b", "\ud800", Unpathlike("x"), Unpathlike(3), Unpathlike(None)])
    def test_a_path_that_names_no_file(self, path):
        for function in (convkit.save_gpu_tuning, convkit.load_gpu_tuning):
            with pytest.raises(ArgumentError, match=f"^{function.__name__}: path is .*, but must name a file"):
                function(path)


class TestThreads:
    """Built plans and handles belong to threads; choices are shared."""

    def test_each_thread_builds_its_own_plan_of_one_choice(self, script, call, cupy):
        script.plans["A"] = (FakePlan("slow", seconds=SLOW), FakePlan("fast"))
        made = [carried(call, NCHW, F32, limits=TUNED) for _ in range(4)]
        errors, gate = [], threading.Barrier(4)

        def work(one):
            try:
                stream = cupy.cuda.Stream()
                gate.wait()
                with stream:
                    for _ in range(5):
                        one.plan.run(*one.views(), 1)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(one,)) for one in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        wanted = call.result_to(call.reference(), NCHW)
        for one in made:
            np.testing.assert_array_equal(one.out.get(), wanted)
        assert len(cache.choices.items()) == 1
        # One thread has tuned: a first run and, since neither is hopeless, at most three more of each plan.
        assert [name for name, _ in script.runs].count("slow") <= 4
        assert len(script.handles) <= 4

    def test_built_plans_are_bounded(self, script, rng, monkeypatch):
        monkeypatch.setattr(cache.built(), "most", 3)
        for width in range(4, 12):
            call = harness.layer(rng, (1, 4, width, 1), (2, 2, 1, 1))[0]
            carried(call, NCHW, F32).run()
        assert len(cache.built().items()) == 3

    def test_clearing_reaches_the_plans_of_every_thread(self, script, call):
        made = carried(call, NCHW, F32)
        made.run()
        assert cache.built().items()
        worker = threading.Thread(target=cache.forget)
        worker.start()
        worker.join()
        assert not cache.built().items()
