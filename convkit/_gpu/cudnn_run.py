"""Running a graph by the plan that has been chosen for it, and choosing one at first use or when one fails."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import Any

from .._errors import WorkspaceError
from . import access, autotune, cache, handles, loader, memory, redzone
from .cache import Choice, Key
from .cudnn_graph import Candidate, NoPlanError, Spec, in_short, named
from .machine import GpuMachine

logger = logging.getLogger("convkit")

# Plans of one graph that may fail while they run before it is given up: what fails then is not the plan.
MOST_FAILURES = 3

# Choosing is done by one thread at a time: others would disturb its timings, and mostly want the same.
_choosing = threading.RLock()


@dataclass(slots=True)
class _Ready:
    """The plans of one graph, built for one thread and device."""

    first: Candidate
    spare: Candidate | None


class _Trial:
    """Runs plans on a call's own inputs, but into other memory than its result."""

    def __init__(self, op: str, pointers: dict[int, int], result: int, handle: Any) -> None:
        self.op, self.pointers, self.result, self.handle = op, pointers, result, handle

    def guard(self, nbytes: int) -> autotune.Guarded:
        return redzone.Guarded(self.op, nbytes)

    def run(self, candidate: Candidate, out: Any, workspace: Any) -> None:
        pointers = {**self.pointers, self.result: out.data.ptr}
        candidate.planned.execute(pointers, 0 if workspace is None else workspace.data.ptr, self.handle)


class Runner:
    """One graph on one device under one limit of workspace; may be used by several threads."""

    def __init__(
        self, op: str, spec: Spec, machine: GpuMachine, limit: int, tune: bool, result: int, result_bytes: int
    ) -> None:
        """Take what is run where; ``result`` is the tensor that is written, and ``result_bytes`` its size."""
        self.op, self.spec, self.machine = op, spec, machine
        self.result, self.result_bytes = result, result_bytes
        assert machine.cudnn is not None
        self.key = Key(spec, machine.name, machine.capability, machine.cudnn, limit, tune)
        self.untuned = replace(self.key, tuned=False)

    @property
    def workspace(self) -> int:
        """The most bytes of workspace that a run takes, as far as it is known."""
        choice = cache.choices.get(self.key)
        return self.key.limit if choice is None else max((plan.workspace for plan in choice.plans), default=0)

    def run(self, pointers: dict[int, int]) -> str:
        """Compute on the current stream, and return the name of the plan that did it.

        Parameters
        ----------
        pointers : dict
            Addresses on the device by the numbers of the graph's tensors.

        Raises
        ------
        NoPlanError
            If no plan can be had, or those that were tried failed.
        WorkspaceError
            If the plan's workspace cannot be had, and there is no plan without any.
        """
        try:
            handle = handles.handle(self.machine.device, access.current_stream())
        except Exception as error:
            raise NoPlanError(f"cuDNN cannot be set up: {in_short(error)}") from error
        failed: frozenset[str] = frozenset()
        reasons: list[str] = []
        while len(failed) < MOST_FAILURES:
            try:
                ready = self._ready(handle, pointers, failed)
            except NoPlanError as error:
                reasons.append(str(error))
                break
            candidate, scratch = ready.first, None
            if candidate.workspace:
                try:
                    scratch = memory.scratch(self.op, candidate.workspace)
                except WorkspaceError:
                    candidate = self._spare(ready, handle, failed)
            try:
                candidate.planned.execute(pointers, 0 if scratch is None else scratch.data.ptr, handle)
                return candidate.name
            except Exception as error:
                failed |= {candidate.name}
                reasons.append(f"plan {candidate.name}: {in_short(error)}")
                logger.warning("%s: cuDNN's plan %s failed on %s: %s", self.op, candidate.name, self.spec, error)
                self._forget()
        why = "; ".join(reasons)
        if failed:
            for key in {self.key, self.untuned}:
                cache.choices.put(key, Choice(None, None, why))
        raise NoPlanError(why)

    def _forget(self) -> None:
        """Forget the choice, whose plan has failed."""
        both = (self.key, self.untuned)
        cache.choices.drop(both.__contains__)
        cache.built().drop(lambda kept: kept[0] in both)

    def _ready(self, handle: Any, pointers: dict[int, int], failed: frozenset[str]) -> _Ready:
        """Return this thread's built plan, choosing it where that has not been done."""
        built, device = cache.built(), self.machine.device
        kept: _Ready | None = built.get((self.key, device))
        if kept is not None:
            return kept
        with _choosing:
            # A capture must not be waited in, so that it goes by the choice that needs no runs.
            key = self.key
            if key.tuned and cache.choices.get(key) is None and (failed or access.is_capturing()):
                key = self.untuned
                other: _Ready | None = built.get((key, device))
                if other is not None:
                    return other
            choice = cache.choices.get(key)
            fresh = None
            if choice is None:
                choice, fresh = self._choose(key, handle, pointers, failed)
            elif choice.first is not None:
                fresh = self._named(choice.first, handle)
                if fresh is None:
                    # A file may name plans that are not there, or that must not be taken.
                    choice, fresh = self._choose(key, handle, pointers, failed)
        if fresh is None:
            raise NoPlanError(choice.why_not)
        ready = _Ready(fresh, None)
        built.put((key, device), ready)
        return ready

    def _choose(
        self, key: Key, handle: Any, pointers: dict[int, int], failed: frozenset[str]
    ) -> tuple[Choice, Candidate | None]:
        place, cudnn = {"handle": handle}, loader.module()
        fresh = None
        if key.tuned:
            trial = _Trial(self.op, pointers, self.result, handle)
            choice = autotune.fastest(cudnn, self.spec, place, key.limit, trial, self.result_bytes)
            if choice.first is not None:
                fresh = self._named(choice.first, handle)
        else:
            choice, fresh = autotune.first_that_builds(cudnn, self.spec, place, key.limit, failed)
        logger.debug("%s: cuDNN's plan for %s: %s", self.op, self.spec, choice)
        cache.choices.put(key, choice)
        return choice, fresh

    def _named(self, plan: cache.Plan, handle: Any) -> Candidate | None:
        try:
            found = named(loader.module(), self.spec, plan.mode, plan.name, {"handle": handle})
        except NoPlanError as error:
            logger.info("%s: a plan that was chosen before cannot be had: %s", self.op, error)
            return None
        return found if found.workspace <= self.key.limit else None

    def _spare(self, ready: _Ready, handle: Any, failed: frozenset[str]) -> Candidate:
        """Return a plan that takes no workspace."""
        if ready.spare is None:
            with _choosing:
                choice = cache.choices.get(self.key)
                if choice is not None and choice.spare is not None:
                    ready.spare = self._named(choice.spare, handle)
                if ready.spare is None:
                    place = {"handle": handle}
                    bare, ready.spare = autotune.first_that_builds(loader.module(), self.spec, place, 0, failed)
                    if ready.spare is None:
                        raise WorkspaceError(
                            f"{self.op}: {ready.first.workspace} bytes of workspace for cuDNN cannot be had on the "
                            f"GPU, and cuDNN has no plan without for {self.spec} ({bare.why_not})"
                        )
                    if choice is not None:
                        cache.choices.put(self.key, replace(choice, spare=bare.first))
        return ready.spare
