"""ResNet-50 against PyTorch and against the roofline, in turns, with CUDA events."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from problems import FLOAT_OPS, Case, Problem, numpy_dtype

import convkit

from .findings import MISSED, Finding
from .rivals import Torch
from .session import Session

LAYERS = Path(__file__).resolve().parents[2] / "benchmarks" / "problems" / "resnet50.txt"
DTYPES = ("float16", "bfloat16", "float32")
BATCH = 32
# A timing lasts about so long, in seconds; each side is timed so many times, in turns.
LONG_ENOUGH, ROUNDS, MOST_CALLS = 2e-3, 7, 50
# Seconds that one more case may need.
RESERVE = 8.0
# A result may be off by so much, relative to the largest one; the sums have up to 400 thousand random terms.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-4}
LEAST_RATIO, LEAST_MEAN, LEAST_NATIVE = 0.95, 1.02, 0.5
# Native kernels are held against cuDNN on this many layers.
NATIVE_LAYERS = 6
ROOF_SIZE, ROOF_BYTES = 8192, 2**30


def layers() -> list[Problem]:
    """Return the distinct convolutions of ResNet-50, of a batch that keeps a card busy."""
    lines = [line for line in LAYERS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = [dataclasses.replace(case.problem, n=BATCH) for line in lines for case in Case.parse(line)]
    return list(dict.fromkeys(found))


class Clock:
    """Times what runs on the current stream."""

    def __init__(self, cupy) -> None:
        self.cupy = cupy
        self.events = cupy.cuda.Event(), cupy.cuda.Event()

    def once(self, function: Callable[[], object], calls: int) -> float:
        """Return the seconds of one call, of some in a row."""
        begin, end = self.events
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return 1e-3 * self.cupy.cuda.get_elapsed_time(begin, end) / calls

    def calls(self, function: Callable[[], object]) -> int:
        """Return how many calls in a row make a timing."""
        function()
        return max(1, min(MOST_CALLS, math.ceil(LONG_ENOUGH / self.once(function, 3))))

    def in_turns(self, functions: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
        """Return the timings of each, round by round, every other round in the other order."""
        calls = {name: self.calls(function) for name, function in functions.items()}
        found: dict[str, list[float]] = {name: [] for name in functions}
        names = list(functions)
        for number in range(ROUNDS):
            for name in names if number % 2 == 0 else names[::-1]:
                found[name].append(self.once(functions[name], calls[name]))
        return found


class Roof:
    """What the card does at best: measured, a large product of matrices and a copy."""

    def __init__(self, session: Session) -> None:
        cupy, clock = session.cupy, Clock(session.cupy)
        self.flops: dict[str, float] = {}
        for dtype in ("float16", "float32"):
            a = cupy.ones((ROOF_SIZE, ROOF_SIZE), dtype)
            cupy.matmul(a, a)
            self.flops[dtype] = 2 * ROOF_SIZE**3 / min(clock.once(lambda a=a: cupy.matmul(a, a), 3) for _ in range(3))
        self.flops["bfloat16"] = self.flops["float16"]
        source, target = (cupy.zeros(ROOF_BYTES // 4, np.float32) for _ in range(2))
        self.bytes = 2 * ROOF_BYTES / min(clock.once(lambda: cupy.copyto(target, source), 3) for _ in range(3))

    def seconds(self, case: Case) -> float:
        """Return the least time of a case: that of its products, or that of its arrays."""
        return max(case.problem.flops / self.flops[case.problem.dtype], case.bytes_moved / self.bytes)


@functools.lru_cache(maxsize=1)
def _values(shapes: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, ...]:
    """Return random images, filters and output gradients, once for all dtypes and operations of a layer."""
    rng = np.random.default_rng(7)
    return tuple(rng.standard_normal(shape, np.float32) for shape in shapes)


def _ours(session: Session, op: str, problem: Problem, **more) -> Callable[[], object]:
    """Return the operation as a function that writes to one and the same array."""
    cast = [array.astype(numpy_dtype(problem.dtype)) for array in _values(problem.shapes)]
    x, w, dy = (session.to_gpu(array) for array in cast)
    out = session.to_gpu(np.zeros_like(dict(zip(FLOAT_OPS, (cast[2], cast[1], cast[0]), strict=True))[op]))
    given = {"conv2d": (x, w), "conv2d_backprop_filter": (x, w.shape, dy), "conv2d_backprop_input": (x.shape, w, dy)}
    function = getattr(convkit, op)
    return lambda: function(*given[op], out=out, **problem.geometry, **more)


def _part(op: str, array):
    """Return as much of a result as is compared: a filter, or the first image."""
    return array if op == "conv2d_backprop_filter" else array[:1]


def _result(session: Session, op: str, function: Callable[[], object]) -> np.ndarray:
    return session.to_cpu(_part(op, function())).astype(np.float64)


def _close(found: np.ndarray, wanted: np.ndarray, dtype: str) -> bool:
    return bool(np.max(np.abs(found - wanted)) <= TOLERANCES[dtype] * np.max(np.abs(wanted)))  # false for NaN


def _record(case: Case, roof: Roof, found: dict[str, list[float]], route: str) -> dict:
    """Return the figures of a case for the table and for JSON."""
    ours = statistics.median(found["convkit"])
    record = {
        "case": str(case), "op": case.op, "dtype": case.problem.dtype, "route": route, "seconds": ours,
        "tflops": 1e-12 * case.problem.flops / ours, "roof": roof.seconds(case) / ours, "rounds": found,
    }  # fmt: skip
    if "torch" in found:
        pairs = zip(found["torch"], found["convkit"], strict=True)
        record["ratio"] = statistics.median(theirs / mine for theirs, mine in pairs)
    return record


def resnet50(session: Session, rival: Torch | str) -> tuple[list[Finding], list[dict]]:
    """Time every layer, operation and dtype, tuned on both sides, until the time is over; check each result first."""
    finding = Finding("ResNet-50, timed")
    records: list[dict] = []
    roof, clock = Roof(session), Clock(session.cupy)
    dtypes = [dtype for dtype in DTYPES if session.has(numpy_dtype(dtype))]
    cases = [
        Case(op, dataclasses.replace(layer, dtype=dtype))
        for layer in layers()
        for dtype in dtypes
        for op in ("conv2d_backprop_filter", "conv2d", "conv2d_backprop_input")
    ]
    for number, case in enumerate(cases):
        if session.left < RESERVE:
            finding.detail = f"no time for {len(cases) - number} of {len(cases)} cases"
            break
        session.say(f"{number + 1} of {len(cases)}: {case}")
        records.append(_time(session, finding, case, roof, clock, rival))
    return [finding, *_verdicts(records, rival)], records


def _time(session: Session, finding: Finding, case: Case, roof: Roof, clock: Clock, rival: Torch | str) -> dict:
    op, problem = case.op, case.problem
    with convkit.options(autotune=True):
        functions = {"convkit": _ours(session, op, problem)}
        result = _result(session, op, functions["convkit"])
        if isinstance(rival, Torch):
            functions["torch"] = rival.prepare(op, problem, _values(problem.shapes))
            wanted = rival.result(op, _part(op, functions["torch"]()))
        else:
            # Another way to the same sums.
            wanted = _result(session, op, _ours(session, op, problem, algorithm="im2col"))
        finding.note(_close(result, wanted, problem.dtype), str(case))
        found = clock.in_turns(functions)
        told = _explain(op, problem)
    return _record(case, roof, found, told.implementation)


def _explain(op: str, problem: Problem) -> convkit.Explanation:
    """Return who serves an operation on dense arrays, and who could."""
    shapes = problem.shapes[:2] if op == "conv2d" else problem.shapes
    return convkit.explain(op, *shapes, device="gpu", dtype=numpy_dtype(problem.dtype), **problem.geometry)


def _verdicts(records: list[dict], rival: Torch | str) -> list[Finding]:
    """Hold the ratios against the targets."""
    finding = Finding("speed against PyTorch")
    ratios = {record["case"]: record["ratio"] for record in records if "ratio" in record}
    if not ratios:
        return [finding.left_out(rival if isinstance(rival, str) else "nothing was timed")]
    finding.compared = len(ratios)
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    slow = [f"{ratio:.2f} {case}" for case, ratio in sorted(ratios.items(), key=lambda item: item[1])]
    below = [line for line in slow if float(line.split()[0]) < LEAST_RATIO]
    figures = f"mean {mean:.2f} (target {LEAST_MEAN}), least {slow[0].split()[0]} (target {LEAST_RATIO})"
    finding.detail = f"{figures}, PyTorch {rival.version}" if isinstance(rival, Torch) else figures
    if below or mean < LEAST_MEAN:
        finding.state, finding.failures = MISSED, below
    return [finding]


def native(session: Session) -> Finding:
    """Time the kernels that need no cuDNN against cuDNN, in float32."""
    finding = Finding("speed without cuDNN")
    clock, ratios = Clock(session.cupy), {}
    some = layers()
    for problem in some[:: max(1, len(some) // NATIVE_LAYERS)]:
        for op in FLOAT_OPS:
            able = {name for name, objection in _explain(op, problem).candidates if objection is None}
            if "gpu:cudnn_f32" not in able or session.left < RESERVE:
                continue
            both = {name: _ours(session, op, problem, algorithm=name) for name in ("cudnn", "im2col")}
            found = clock.in_turns(both)
            pairs = zip(found["cudnn"], found["im2col"], strict=True)
            ratios[f"{op} {problem}"] = statistics.median(theirs / ours for theirs, ours in pairs)
    if not ratios:
        return finding.left_out("cuDNN serves none of the layers here, or no time was left")
    finding.compared = len(ratios)
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    finding.detail = f"mean {mean:.2f} of cuDNN's (target {LEAST_NATIVE})"
    if mean < LEAST_NATIVE:
        finding.state = MISSED
        finding.failures = [f"{ratio:.2f} {case}" for case, ratio in sorted(ratios.items(), key=lambda item: item[1])]
    return finding
