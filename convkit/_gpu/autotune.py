"""Which of cuDNN's plans to run: the first that works, or the fastest of those that work, timed in guarded buffers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from .._errors import WorkspaceError
from . import access
from .cache import Choice, Plan
from .cudnn_graph import FALLBACK, HEURISTIC, Candidate, Spec, candidates, in_short

logger = logging.getLogger("convkit")

# Plans that are timed, of the ones that are likely to be fast; further ones are seldom any faster.  Those with a kernel
# to compile take much longer to build than to time.
MOST_TIMED = 10
MOST_COMPILED = 4
# Runs of each plan after a first one, which may set things up; fewer where a plan is far off.
RUNS = 3
HOPELESS = 4.0

WROTE_OUTSIDE = "wrote outside the result"

# Modes of asking, and whether plans with a kernel to compile are looked at: each takes some tenths of a second to
# build, so that they come after all others of their mode.  A later round is looked at if no plan of the earlier works.
_ROUNDS = ((HEURISTIC, False), (HEURISTIC, True), (FALLBACK, False), (FALLBACK, True))


class Guarded(Protocol):
    """Scratch memory between zones whose bytes are known."""

    array: Any

    def intact(self) -> bool:
        """Wait for the stream, and tell whether nothing has been written outside."""

    def mend(self) -> None:
        """Make the zones as they were."""


class Trial(Protocol):
    """How a plan is tried on real inputs."""

    def guard(self, nbytes: int) -> Guarded:
        """Return guarded scratch memory, or raise WorkspaceError."""

    def run(self, candidate: Candidate, out: Any, workspace: Any) -> None:
        """Run the plan into guarded arrays of bytes; ``workspace`` is None where it takes none."""


class Timed(NamedTuple):
    """A plan that works, and its time in milliseconds."""

    plan: Plan
    milliseconds: float


def verbose() -> bool:
    """Tell whether CONVKIT_VERBOSE asks for a line on every plan; let them be seen if nobody has arranged for that."""
    if os.environ.get("CONVKIT_VERBOSE", "").strip() in ("", "0"):
        return False
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    if not _is_heard():
        logger.addHandler(logging.StreamHandler())
    return True


def _is_heard() -> bool:
    """Tell whether lines of the logger go anywhere."""
    place: logging.Logger | None = logger
    while place is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in place.handlers):
            return True
        place = place.parent if place.propagate else None
    return False


def first_that_builds(
    cudnn: Any, spec: Spec, place: Mapping[str, Any], limit: int, unwanted: frozenset[str] = frozenset()
) -> tuple[Choice, Candidate | None]:
    """Choose the most promising plan whose workspace is within the limit, without running any.

    Parameters
    ----------
    unwanted : frozenset of str
        Names of plans that have failed.

    Returns
    -------
    Choice
    Candidate or None
        The plan chosen, built.
    """
    reasons: list[str] = []
    for mode, compiled in _ROUNDS:
        for candidate in candidates(cudnn, spec, mode, place, reasons, compiled):
            if candidate.name in unwanted:
                reasons.append(f"plan {candidate.name} has failed before")
            elif candidate.workspace > limit:
                reasons.append(f"plan {candidate.name} takes {candidate.workspace} bytes of workspace of {limit}")
            else:
                plan = _plan(candidate)
                return Choice(plan, None if plan.workspace else plan), candidate
    return Choice(None, None, _summary(reasons)), None


def fastest(cudnn: Any, spec: Spec, place: Mapping[str, Any], limit: int, trial: Trial, out_bytes: int) -> Choice:
    """Time the plans that are likely to be fast, and choose the fastest, and the fastest that takes no workspace.

    Where there is no room for a guarded result, the first plan that builds is chosen untimed.
    """
    told = verbose()
    reasons: list[str] = []
    try:
        out = trial.guard(out_bytes)
    except WorkspaceError as error:
        if told:
            logger.info("%s: not tuned, since there is no room for a guarded result: %s", spec, error)
        return first_that_builds(cudnn, spec, place, limit)[0]
    for mode, compiled in _ROUNDS:
        timed: list[Timed] = []
        tried = 0
        for candidate in candidates(cudnn, spec, mode, place, reasons, compiled):
            best = min((one.milliseconds for one in timed), default=None)
            took, failure = _try(candidate, trial, out, limit, best)
            if failure == WROTE_OUTSIDE:
                # Its zones do not tell any more whether the next plan does the same.
                out.mend()
            if told:
                logger.info(
                    "%s: plan %s, %d bytes of workspace: %s",
                    spec, candidate.name, candidate.workspace, failure or f"{took:.4f} ms",
                )  # fmt: skip
            if failure:
                reasons.append(f"plan {candidate.name}: {failure}")
            else:
                timed.append(Timed(_plan(candidate), took))
            tried += candidate.workspace <= limit
            if tried == (MOST_COMPILED if compiled else MOST_TIMED):
                break
        if timed:
            first = min(timed, key=_time).plan
            bare = min((one for one in timed if not one.plan.workspace), key=_time, default=None)
            return Choice(first, None if bare is None else bare.plan)
    return Choice(None, None, _summary(reasons))


def _time(one: Timed) -> float:
    return one.milliseconds


def _plan(candidate: Candidate) -> Plan:
    return Plan(candidate.planned.mode, candidate.name, candidate.workspace)


def _try(candidate: Candidate, trial: Trial, out: Guarded, limit: int, best: float | None) -> tuple[float, str]:
    """Return a plan's time, and why it cannot be taken or the empty string."""
    if candidate.workspace > limit:
        return 0.0, f"takes more than the {limit} bytes of workspace that it may"
    try:
        scratch = trial.guard(candidate.workspace) if candidate.workspace else None
    except WorkspaceError as error:
        return 0.0, f"its workspace cannot be had: {error}"
    workspace = None if scratch is None else scratch.array

    def run() -> None:
        trial.run(candidate, out.array, workspace)

    try:
        took = _milliseconds(run)
        if best is None or took < HOPELESS * best:
            took = min(_milliseconds(run) for _ in range(RUNS))
    except Exception as error:
        return 0.0, in_short(error)
    if not out.intact():
        return took, WROTE_OUTSIDE
    if scratch is not None and not scratch.intact():
        return took, "wrote outside its workspace"
    return took, ""


def _milliseconds(run: Callable[[], None]) -> float:
    cuda = access.cupy().cuda
    start, end = cuda.Event(), cuda.Event()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(cuda.get_elapsed_time(start, end))


def _summary(reasons: list[str]) -> str:
    """Return what is worth telling of many reasons."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - 3} more" if len(different) > 3 else ""
    return "; ".join(different[:3]) + more if different else "cuDNN offers no plan"
