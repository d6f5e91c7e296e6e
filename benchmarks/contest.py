"""One problem on one number of threads: who is right, who is the best peer, and how convkit compares with it."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import peers
import truth
from peers.job import Job
from problems import Case, reference
from processes import FailedError, Process, RefusedError
from yardstick import Yardstick

# A contestant works this long when it is woken, in as many calls as fit, or for one call.
BATCH_SECONDS = 0.02
MOST_CALLS = 2000
# Peers this close to the best of the first pass, three at most, are paired with convkit; the best of them counts.  If
# all are of one library, so is the best of another one within ANOTHER: on a noisy machine a first pass may be wrong.
CLOSE, FINALISTS, ANOTHER = 1.15, 3, 2.0
# A peer takes part while it is off by no more than so many times the contract: it never promised to keep it element by
# element, and no FFT does.
PEER_SLACK = 8.0
# A peer so many times slower than the best so far is not timed at length.  Its first call may have taken so much longer
# for what a library does once, and others may have been stalled by other programs.
HOPELESS, ONCE_SECONDS, SECOND_TRIES = 3.0, 1.0, 3
# A first call may take so many seconds, and so many times as long as the best one so far, before its process is ended.
PATIENCE_SECONDS, PATIENCE = 3.0, 20.0
LEAST_ROUNDS = 3
FIRST_PASS = 2  # timings of each peer, of which the better one counts; one of calls longer than:
LONG_SECONDS = 0.2


class LostError(Exception):
    """A contestant was lost while it was being timed."""

    def __init__(self, name: str, reason: str):
        super().__init__(reason)
        self.name = name


@dataclass
class Run:
    """What one run found: seconds a call and shares, one value for each round."""

    peer: str = ""
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)
    peak_shares: list[float] = field(default_factory=list)
    bandwidth_shares: list[float] = field(default_factory=list)
    first_pass: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)  # over what the contract allows
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """The peer's time over convkit's, round by round."""
        return [b / a for a, b in zip(self.ours, self.theirs, strict=True)] if self.theirs else []


@dataclass
class Record:
    """A case on a number of threads, with all its runs."""

    case: Case
    lists: frozenset[str]
    threads: int
    implementation: str = ""
    workspace: int = 0
    wrong: str = ""
    runs: list[Run] = field(default_factory=list)
    twin: "Record | None" = None  # the same layer in NHWC, of one in NCHW

    def _median(self, values: Callable[[Run], list[float]]) -> float | None:
        medians = [statistics.median(values(run)) for run in self.runs if values(run)]
        return statistics.median(medians) if medians else None

    @property
    def ratio(self) -> float | None:
        """The best peer's time over convkit's: the median over the runs of the medians over their rounds."""
        return self._median(lambda run: run.ratios)

    @property
    def peak_share(self) -> float | None:
        """convkit's FLOP/s over those of bare multiply-adds."""
        return self._median(lambda run: run.peak_shares)

    @property
    def bandwidth_share(self) -> float | None:
        """The bytes of the three arrays a second, over those of copying as many bytes."""
        return self._median(lambda run: run.bandwidth_shares)

    @property
    def over_tensorflow(self) -> float | None:
        """TensorFlow's time, the better one of the first pass, over convkit's."""
        found = []
        for run in self.runs:
            theirs = [seconds for name, seconds in run.first_pass.items() if name.startswith("tensorflow")]
            if theirs and peers.OURS in run.first_pass:
                found.append(min(theirs) / run.first_pass[peers.OURS])
        return statistics.median(found) if found else None

    @property
    def over_nhwc(self) -> float | None:
        """convkit's time in NHWC over that in NCHW."""
        return self.twin.seconds / self.seconds if self.twin and self.twin.seconds and self.seconds else None

    @property
    def seconds(self) -> float | None:
        """convkit's time of a call."""
        return self._median(lambda run: run.ours)

    @property
    def gflops(self) -> float | None:
        """convkit's GFLOP/s."""
        return None if self.seconds is None else 1e-9 * self.case.problem.flops / self.seconds

    def as_json(self) -> dict:
        """Everything, round by round."""
        figures = ("ratio", "peak_share", "bandwidth_share", "seconds", "gflops")
        return {
            "problem": str(self.case), "lists": sorted(self.lists), "threads": self.threads,
            "implementation": self.implementation, "workspace": self.workspace, "wrong": self.wrong,
            **{name: getattr(self, name) for name in figures},
            "runs": [vars(run) | {"ratios": run.ratios} for run in self.runs],
        }  # fmt: skip


def make_job(case: Case, folder: Path, part: list) -> Job:
    """Return the case in plain numbers."""
    problem = case.problem
    x, w, y = problem.shapes
    _, pads = reference.resolve(x[1:3], w[:2], problem.s, problem.d, problem.pads)
    return Job(
        case.op, x, w, y, problem.s, problem.d, pads, problem.g, problem.data_format, problem.dtype, str(folder), part
    )


def calls_of(seconds: float) -> tuple[int, int]:
    """Return how many calls are timed when a contestant wakes, and how many go before to warm the caches."""
    calls = min(MOST_CALLS, max(1, round(BATCH_SECONDS / seconds)))
    return calls, max(1, calls // 10) if seconds < BATCH_SECONDS else 0


class Contest:
    """A case set up for all contestants."""

    def __init__(self, record: Record, team: dict[str, Process], yardstick: Yardstick, folder: Path, say: Callable):
        self.record, self.team, self.yardstick, self.say = record, team, yardstick, say
        self.folder, self.run, self.estimates = folder, Run(), {}

    def measure(self, rounds: int, budget: float) -> None:
        """Do all of it, in about that many seconds for the rounds, and add a run to the record."""
        say = self.say
        say("exact result")
        arrays = truth.arrays(self.record.case)
        truth.save(self.folder, *arrays)
        self.truth = truth.Truth(self.record.case, *arrays)
        del arrays
        self.job = make_job(self.record.case, self.folder, self.truth.part)
        self.record.runs.append(self.run)
        for name in self.team:
            say(f"first pass, {name}")
            try:
                self._try(name)
            except RefusedError as error:
                self.run.refused[name] = str(error)
            except FailedError as error:
                self.run.refused[name] = f"failed: {error}"
        while peers.OURS in self.estimates:
            try:
                self._rounds(rounds, budget)
                return
            except LostError as lost:  # once more without it
                del self.estimates[lost.name]
                self.run.refused[lost.name] = f"failed: {lost}"
        self.record.wrong = self.run.refused[peers.OURS]

    def _try(self, name: str) -> None:
        """Check a contestant's result and estimate its time."""
        process, times = self.team[name], self.estimates.values()
        best = min(times, default=math.inf)
        details = process.ask("prepare", self.job)
        limit = PATIENCE_SECONDS + PATIENCE * best if times else 1000.0
        path = self.folder / "result.npy"
        path.unlink(missing_ok=True)
        seconds = process.ask("first", str(path), limit=limit)
        excess = self.truth.excess(np.load(path))
        if name == peers.OURS:
            self.record.implementation, self.record.workspace = details["implementation"], details["workspace"]
        self.run.errors[name] = excess
        if excess > (1 if name == peers.OURS else PEER_SLACK):
            raise FailedError(f"wrong: off by {excess:.3g} times what the error bound allows ({seconds:.2g} s a call)")
        hopeless = max(BATCH_SECONDS, HOPELESS * best)
        tries = SECOND_TRIES if seconds < hopeless + ONCE_SECONDS else 0
        while seconds >= hopeless and tries:
            again, _ = process.ask("time", 1, 0)
            seconds, tries = min(seconds, again), tries - 1
        timings = FIRST_PASS if seconds < LONG_SECONDS else 1
        for _ in range(timings if seconds < hopeless else 0):
            again, _ = process.ask("time", *calls_of(seconds))
            seconds = min(seconds, again)
        self.estimates[name] = self.run.first_pass[name] = seconds

    def finalists(self) -> list[str]:
        """Return the peers to pair with convkit."""
        times = {name: seconds for name, seconds in self.estimates.items() if name != peers.OURS}
        ranked = sorted(times, key=lambda name: times[name])
        chosen = [name for name in ranked[:FINALISTS] if times[name] <= CLOSE * times[ranked[0]]]
        libraries = {peers.TABLE[name].module for name in chosen}
        near = [name for name in ranked if times[name] <= ANOTHER * times[ranked[0]]]
        another = [name for name in near if peers.TABLE[name].module not in libraries]
        return chosen + another[: len(libraries) == 1]

    def _rounds(self, rounds: int, budget: float) -> None:
        case, threads = self.record.case, self.record.threads
        finalists = self.finalists()
        found: dict[str, list] = {name: [] for name in (peers.OURS, *finalists)}
        fma: list[float | None] = []
        copy: list[float | None] = []

        def wake(name: str) -> None:
            try:
                found[name].append(self.team[name].ask("time", *calls_of(self.estimates[name])))
            except FailedError as error:
                raise LostError(name, str(error)) from error

        turns = [lambda name=name: wake(name) for name in found]
        if not case.problem.int8:
            turns.append(lambda: fma.append(self.yardstick.fma(case.problem.dtype, threads)))
        if case.problem.depthwise:
            turns.append(lambda: copy.append(self.yardstick.copy(case.bytes_moved, threads)))
        one_round = sum(max(self.estimates[name], BATCH_SECONDS) + 0.02 for name in found)
        rounds = min(rounds, max(LEAST_ROUNDS, int(budget / one_round)))
        for number in range(rounds):
            self.say(f"round {number + 1} of {rounds}, {' and '.join(found)}")
            for turn in turns if number % 2 == 0 else turns[::-1]:
                turn()
        run = self.run
        run.ours = [wall for wall, _ in found[peers.OURS]]
        if finalists:
            run.peer = min(finalists, key=lambda name: statistics.median(self._ratios(found, name, 0)))
            run.theirs = [wall for wall, _ in found[run.peer]]
            run.cpu_ratios = self._ratios(found, run.peer, 1)
        pairs = zip(fma, run.ours, strict=False)
        run.peak_shares = [1e-9 * case.problem.flops / ours / rate for rate, ours in pairs if rate]
        pairs = zip(copy, run.ours, strict=False)
        run.bandwidth_shares = [1e-9 * case.bytes_moved / ours / rate for rate, ours in pairs if rate]

    def _ratios(self, found: dict[str, list], name: str, clock: int) -> list[float]:
        pairs = zip(found[peers.OURS], found[name], strict=True)
        return [theirs[clock] / ours[clock] for ours, theirs in pairs if ours[clock]]
