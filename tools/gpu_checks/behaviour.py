"""What a GPU adds to being right: streams, threads, captured graphs, memory, tuning, the time that Python takes."""

import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import convkit

from .findings import MISSED, Finding
from .results import routes
from .session import Session

# Of whole numbers, so that results are equal to the last bit on any route without rounding.
X, W = (2, 20, 18, 16), (3, 3, 16, 24)
GEOMETRY = {"strides": 1, "padding": "SAME"}
ROUNDS = 8
# Limits on workspace that are tried, in bytes.
LIMITS = (2**17, 2**19, 2**23)
# CuPy's pool hands out multiples of this many bytes.
GRAIN = 512
# Scratch arrays of a call, each of which may be rounded up.
MOST_ARRAYS = 16
MOST_MICROSECONDS = 15.0
TIMED_CALLS, TIMINGS = 200, 15


def _whole(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32)


def _layer(session: Session, seed: int) -> tuple:
    """Return images and filters on both sides, and the result."""
    rng = np.random.default_rng(seed)
    x, w = _whole(rng, X), _whole(rng, W)
    with convkit.options(precision="high"):
        return session.to_gpu(x), session.to_gpu(w), convkit.conv2d(x, w, **GEOMETRY)


def capture(session: Session) -> Finding:
    """A captured call, replayed on other values, gives what it would have given."""
    finding, cupy = Finding("stream capture"), session.cupy
    x, w, first = _layer(session, 1)
    _, _, second = other = _layer(session, 2)
    # The stream that captures does not wait for the one that made the arrays.
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with convkit.options(precision="high"), stream:
        for route in routes("conv2d", x, w, **GEOMETRY):
            out = cupy.zeros(first.shape, np.float32)
            try:
                convkit.conv2d(x, w, out=out, algorithm=route, **GEOMETRY)  # planned and compiled before
                stream.synchronize()
                stream.begin_capture()
                try:
                    convkit.conv2d(x, w, out=out, algorithm=route, **GEOMETRY)
                finally:
                    graph = stream.end_capture()
            except convkit.UnsupportedError as error:
                # A family may refuse to be captured, and says so.
                finding.note("captur" in str(error), f"by {route}: {error}", route)
                continue
            x_then, w_then = x.copy(), w.copy()
            x[...], w[...] = other[0], other[1]
            out[...] = np.nan
            graph.launch(stream)
            finding.note(np.array_equal(session.to_cpu(out), second), f"replayed, by {route}", route)
            x[...], w[...] = x_then, w_then
            graph.launch(stream)
            finding.note(np.array_equal(session.to_cpu(out), first), f"replayed again, by {route}", route)
            stream.synchronize()
    return finding


def streams(session: Session) -> Finding:
    """Two threads, each with a stream and data of its own, at once."""
    finding, cupy = Finding("two threads on two streams"), session.cupy
    failures: list[str] = []
    device = cupy.cuda.Device().id
    barrier = threading.Barrier(2)

    def work(seed: int) -> None:
        try:
            with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
                x, w, wanted = _layer(session, seed)
                stream.synchronize()
                barrier.wait(timeout=60)
                for number in range(ROUNDS):
                    with convkit.options(precision="high"):
                        names = routes("conv2d", x, w, **GEOMETRY)
                        results = [convkit.conv2d(x, w, algorithm=name, **GEOMETRY) for name in names]
                    for result in results:
                        if not np.array_equal(session.to_cpu(result), wanted):
                            failures.append(f"thread {seed}, round {number}")
        except Exception as error:  # told by the thread that waits
            failures.append(f"thread {seed}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finding.note(not failures, "; ".join(failures[:3]))
    return finding


def workspace(session: Session) -> Finding:
    """A call takes no more scratch memory than its limit; the patches of this one are 0.6 MiB as a whole."""
    finding, cupy = Finding("workspace limit"), session.cupy
    rng = np.random.default_rng(3)
    x, w = (session.to_gpu(_whole(rng, shape)) for shape in ((2, 24, 24, 16), (3, 3, 16, 16)))
    y = convkit.conv2d(x, w, **GEOMETRY)
    calls = {
        "conv2d": ((x, w), y),
        "conv2d_backprop_filter": ((x, w.shape, y), w),
        "conv2d_backprop_input": ((x.shape, w, y), x),
    }
    pool = cupy.get_default_memory_pool()
    for op, (arguments, like) in calls.items():
        for limit in LIMITS:
            with convkit.options(workspace_limit=limit):
                for route in routes(op, *arguments, **GEOMETRY):
                    out = cupy.zeros(like.shape, like.dtype)
                    convkit.clear_caches()
                    pool.free_all_blocks()
                    before = pool.total_bytes()
                    line = f"{op} by {route}, limit {limit}"
                    with finding.trying(line, route):
                        getattr(convkit, op)(*arguments, algorithm=route, out=out, **GEOMETRY)
                        cupy.cuda.get_current_stream().synchronize()
                        taken = pool.total_bytes() - before
                        finding.note(taken <= limit + MOST_ARRAYS * GRAIN, f"{line}: it took {taken} bytes", route)
    return finding


def deterministic(session: Session) -> Finding:
    """Under deterministic=True a gradient is the same bits each time."""
    finding = Finding("deterministic=True")
    rng = np.random.default_rng(4)
    shapes = (4, 12, 12, 16), (4, 12, 12, 8)
    x, dy = (session.to_gpu(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)
    with convkit.options(deterministic=True):
        for route in routes("conv2d_backprop_filter", x, (3, 3, 16, 8), dy, **GEOMETRY):
            found = {
                session.to_cpu(
                    convkit.conv2d_backprop_filter(x, (3, 3, 16, 8), dy, algorithm=route, **GEOMETRY)
                ).tobytes()
                for _ in range(ROUNDS)
            }
            finding.note(len(found) == 1, f"{len(found)} different results by {route}", route)
    return finding


def tuning(session: Session) -> Finding:
    """Tuned calls give the same results, also by choices that were saved, and leave their inputs as they were."""
    finding = Finding("autotune=True")
    x, w, wanted = _layer(session, 5)
    kept = session.to_cpu(x), session.to_cpu(w)
    with convkit.options(autotune=True, precision="high"), tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            result = session.to_cpu(convkit.conv2d(x, w, **GEOMETRY))
            finding.note(np.array_equal(result, wanted), f"call {number}")
        choices = Path(folder, "choices.json")
        saved = convkit.save_gpu_tuning(choices)
        convkit.clear_caches()
        loaded = convkit.load_gpu_tuning(choices)
        finding.note(loaded == saved, f"{saved} choices saved, {loaded} loaded")
        result = session.to_cpu(convkit.conv2d(x, w, **GEOMETRY))
        finding.note(np.array_equal(result, wanted), "by a choice that was loaded")
        finding.detail = f"{saved} choices"
    untouched = np.array_equal(session.to_cpu(x), kept[0]) and np.array_equal(session.to_cpu(w), kept[1])
    finding.note(untouched, "an operand has changed")
    return finding


def python_side(session: Session) -> Finding:
    """How long a repeated call keeps Python busy; the GPU works meanwhile."""
    finding = Finding("Python side of a repeated call")
    rng = np.random.default_rng(6)
    x, w = session.to_gpu(_whole(rng, (1, 8, 8, 4))), session.to_gpu(_whole(rng, (3, 3, 4, 8)))
    out = convkit.conv2d(x, w)
    stream = session.cupy.cuda.get_current_stream()
    found = []
    for _ in range(TIMINGS):
        stream.synchronize()
        begin = time.perf_counter()
        for _ in range(TIMED_CALLS):
            convkit.conv2d(x, w, out=out)
        found.append(1e6 * (time.perf_counter() - begin) / TIMED_CALLS)
        finding.compared += TIMED_CALLS
    median = statistics.median(found)
    finding.detail = f"{median:.1f} microseconds, target {MOST_MICROSECONDS:.0f}"
    if median > MOST_MICROSECONDS:
        finding.state = MISSED
    return finding
