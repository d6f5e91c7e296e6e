"""Which implementation serves a problem, and why the others do not."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ._arrays import Operand
from ._epilogue import Epilogue, Terms
from ._errors import UnsupportedError, WorkspaceError
from ._geometry import ConvGeometry

# Every family that the project knows by name; those without an implementation yet are refused as such.
FAMILIES = ("planar", "depthwise", "direct", "winograd", "gemm", "im2col", "fft", "int8", "reference", "cudnn")


class NeedsWorkspace(str):
    """An objection that a larger workspace limit would remove."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One call without its values: the operation, its sizes, and how its arrays lie in memory.

    ``operands`` and ``out`` are seen in the orders N, H, W, C and H, W, I, O, whatever format they are stored in; the
    packed formats have five axes, N, H, W, C/4, 4 and H, W, I/4, 4, O.
    """

    geometry: ConvGeometry
    dtype: str
    operands: tuple[Operand, ...]
    out: Operand
    accumulate: bool
    workspace_limit: int
    precision: str
    epilogue: Epilogue | None = None
    # Of interest to GPU libraries only.
    deterministic: bool = False
    autotune: bool = False
    packed: bool = False  # the filter is kept in whatever order the plan wants, from call to call

    @property
    def op(self) -> str:
        return self.geometry.op

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: an empty result, or sums of no terms."""
        return 0 in self.geometry.filter_size or any(0 in operand.shape for operand in (*self.operands, self.out))


class Pack(Protocol):
    """What keeps a filter in the orders that plans want."""

    def __call__(self, plan: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` has made for ``plan``, now or before."""


class Start(NamedTuple):
    """How a plan starts from the addresses of arrays alone, whatever order their axes are in."""

    # Takes the pixels that are read, the other operand, the result, and the limits of threads and of workers; one
    # worker means one thread.
    run: Callable[[Any, Any, Any, int, int], None]
    # The same with what was packed for `pack_for` in place of the filter; None where nothing is packed.
    run_packed: Callable[[Any, Any, Any, int, int], None] | None
    pack_for: Any
    most_workers: int
    # Whether the operation names its filter first.
    pixels_second: bool


class FusedStart(NamedTuple):
    """The same of a fused convolution: ``run`` takes the side input or None and the terms, too."""

    # Takes the image, the filter, the side input, the terms, the result, and the limits of threads and of workers.
    run: Callable[[Any, Any, Any, Terms, Any, int, int], None]
    run_packed: Callable[[Any, Any, Any, Terms, Any, int, int], None]
    pack_for: Any
    most_workers: int


class Plan(ABC):
    """How one implementation will carry out one problem; depends on nothing but the problem and the machine."""

    copies: tuple[str, ...]

    @abstractmethod
    def workspace(self, threads: int) -> int:
        """Return the most bytes of scratch memory that a run on this many threads takes."""

    @abstractmethod
    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        """Compute, from and into arrays that lie as the problem says."""

    def run_packed(self, operands: Sequence[Any], out: Any, threads: int, pack: Pack) -> None:
        """Compute with a filter that may be, or be brought, in an order of the plan's own; by default it is not."""
        self.run(operands, out, threads)

    def start(self) -> Start | None:
        """Return how to start from addresses alone, or None if the plan looks at its arrays."""
        return None

    def failure(self, error: Exception, workers: int) -> Exception:
        """Return the error to raise when what `start` returns raised a MemoryError or a RuntimeError."""
        return error


class FusedPlan(Plan):
    """A plan of a fused convolution, which has more to read than arrays."""

    def run(self, operands: Sequence[Any], out: Any, threads: int) -> None:
        """Refuse: the terms of the epilogue are missing."""
        raise TypeError("a fused convolution runs by run_fused")

    def start_fused(self) -> FusedStart | None:
        """Return how to start from addresses and terms alone, or None if the plan looks at its arrays."""
        return None

    @abstractmethod
    def run_fused(self, operands: Sequence[Any], terms: Terms, out: Any, threads: int, pack: Pack | None) -> None:
        """Compute; ``pack`` is None where the filter is used once."""


class Implementation(ABC):
    """One way to compute one operation in one dtype on one device."""

    def __init__(self, device: str, family: str, op: str, dtype: str) -> None:
        self.device = device
        self.family = family
        self.op = op
        self.dtype = dtype

    @property
    def name(self) -> str:
        """The printable name, such as ``cpu:im2col_f32``."""
        if self.family == self.dtype:
            return f"{self.device}:{self.family}"
        return f"{self.device}:{self.family}_{self.dtype.replace('bfloat', 'bf').replace('float', 'f')}"

    @abstractmethod
    def objection(self, problem: Problem, machine: Any) -> str | None:
        """Return None if this implementation can serve the problem on the machine, else a sentence saying why not."""

    def reluctance(self, problem: Problem, machine: Any) -> str | None:
        """Return None, or a sentence saying why another implementation is likely to serve the problem faster.

        Rules from measurements; they count only where nobody asked for a family.
        """
        return None

    @abstractmethod
    def plan(self, problem: Problem, machine: Any) -> Plan:
        """Return the plan; only for a problem without objection."""


Table = dict[tuple[str, str], tuple[Implementation, ...]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation that serves, every candidate with its objection, and why able ones were passed over."""

    chosen: Implementation
    candidates: tuple[tuple[str, str | None], ...]
    by_default: bool
    reluctances: tuple[tuple[str, str], ...] = ()


def choose(table: Table, problem: Problem, machine: Any, algorithm: str) -> Choice:
    """Return the first implementation without an objection, or the family asked for.

    Raises
    ------
    UnsupportedError
        If the family asked for does not exist here, or cannot serve the call.
    WorkspaceError
        If nothing but the workspace limit keeps some implementation from serving.
    """
    candidates = table[problem.op, problem.dtype]
    objections = [candidate.objection(problem, machine) for candidate in candidates]
    listed = tuple((c.name, o) for c, o in zip(candidates, objections, strict=True))
    wanted = [
        (c, o) for c, o in zip(candidates, objections, strict=True) if algorithm == "auto" or c.family == algorithm
    ]
    able = [candidate for candidate, objection in wanted if objection is None]
    if algorithm != "auto" and able:
        return Choice(able[0], listed, False)
    if able:
        doubts = {candidate.name: candidate.reluctance(problem, machine) for candidate in able}
        chosen = next((candidate for candidate in able if doubts[candidate.name] is None), able[0])
        told = tuple((name, doubt) for name, doubt in doubts.items() if doubt is not None)
        return Choice(chosen, listed, True, told)
    if not wanted:
        here = ", ".join(repr(c.family) for c in candidates)
        raise UnsupportedError(
            f"{problem.op}: algorithm is {algorithm!r}, which has no implementation for {problem.dtype} arrays on the "
            f"{candidates[0].device.upper()} in this version; those that have are {here}, and 'auto' chooses among them"
        )
    reasons = "; ".join(f"{c.name}: {o}" for c, o in wanted)
    error = WorkspaceError if any(isinstance(o, NeedsWorkspace) for _, o in wanted) else UnsupportedError
    limited = "; raise workspace_limit, and CONVKIT_MEMORY_LIMIT if that is set" if error is WorkspaceError else ""
    raise error(f"{problem.op}: algorithm {algorithm!r} cannot serve this call ({reasons}{limited})")
