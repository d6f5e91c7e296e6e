"""Asks the real planner about one group of convolutions, in a process of its own, and prints what is wrong.

Usage: python asking.py GROUP [WORD...]; the groups are the functions at the end.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import planner

planner.load_stub_driver()

import geometries  # noqa: E402 - cuDNN looks for a driver when it is first used
from geometries import FORMATS, GIB, OPS, fused, problem_of  # noqa: E402

from convkit._gpu import autotune, cudnn_graph  # noqa: E402
from convkit._gpu.cudnn import Cudnn, Way, ways  # noqa: E402
from convkit._gpu.cudnn_int8 import CudnnInt8  # noqa: E402

MIB = 2**20
LAYERS = {"golden": geometries.golden, "resnet50": geometries.resnet50}


class Group:
    """Counts what was asked, and keeps what is wrong."""

    def __init__(self, sm: int = 90) -> None:
        self.planner = planner.Planner(sm)
        self.asked, self.wrong = 0, []
        self.started = time.perf_counter()

    def expect(self, right: bool, sentence: str) -> None:
        """Keep a sentence if something is not as it must be."""
        self.asked += 1
        if not right:
            self.wrong.append(sentence)

    def choose(self, spec: cudnn_graph.Spec, limit: int = GIB):
        """Choose a plan as a call does that is not tuned."""
        p = self.planner
        return autotune.first_that_builds(p.cudnn, spec, p.place, limit)[0]

    def names(self, spec: cudnn_graph.Spec, note: str) -> set[str]:
        """Return the plans of both modes that have a numerical note, asking in another way than the package."""
        p, found = self.planner, set()
        for mode in (cudnn_graph.HEURISTIC, cudnn_graph.FALLBACK):
            try:
                planned = cudnn_graph.Planned(p.cudnn, spec, mode, **p.place)
            except p.cudnn.cudnnGraphNotSupportedError:
                continue
            planned.graph.select_numeric_notes([getattr(p.cudnn.numerical_note, note)])
            for index, name in enumerate(planned.names):
                try:
                    planned.graph.build_plan_at_index(index)
                except p.cudnn.cudnnGraphNotSupportedError:
                    continue
                found.add(name)
        return found

    def has_plans(self, problem, unit: bool = False) -> None:
        """Expect a plan for a problem, and one without workspace."""
        family = CudnnInt8(problem.op, (), None) if problem.dtype == "int8" else Cudnn(problem.op, problem.dtype, ())
        objection = family.objection(problem, self.planner.machine)
        if objection is not None:
            # Taps that meet padding only are left out, which may leave negative padding.
            self.expect("negative" in objection, f"{problem}: {objection}")
            return
        for limit in (GIB, 0):
            reasons = []
            for way in ways(problem, unit):
                choice = self.choose(way.spec, limit)
                if choice.first is not None:
                    self.expect(choice.first.workspace <= limit, f"{way.spec}: {choice} with a limit of {limit}")
                    break
                reasons.append(f"{way.spec}: {choice.why_not}")
            else:
                self.expect(False, f"no plan within {limit} bytes: {'; '.join(reasons)}")

    def report(self) -> None:
        """Print what came of it."""
        seconds = time.perf_counter() - self.started
        print(json.dumps({"asked": self.asked, "wrong": self.wrong, "seconds": round(seconds, 1)}))


def first_way(op: str, layer, dtype: str, data_format: str = "NHWC", **limits) -> Way:
    """Return the way that is tried first."""
    return ways(problem_of(op, layer, dtype, data_format, **limits))[0]


def every_geometry(layers: str, dtype: str) -> Group:
    """Every operation and layout has a plan, and one without workspace."""
    group = Group()
    for layer in LAYERS[layers]():
        for data_format in FORMATS:
            for op in OPS[:1] if dtype == "int8" else OPS:
                problem = problem_of(op, layer, dtype, data_format)
                if not problem.empty:
                    group.has_plans(problem)
    return group


def other_results() -> Group:
    """Results of float32 from halves, sums to be added, and epilogues have a plan in one way or another."""
    group = Group()
    # Many of these plans have a kernel compiled, which takes some tenths of a second.
    for number, layer in enumerate(list(geometries.golden())[::24]):
        half = ("float16", "bfloat16")[number % 2]
        for op in OPS:
            problem = problem_of(op, layer, half, out_dtype="float32")
            if not problem.empty:
                group.has_plans(replace(problem, accumulate=op == "conv2d_backprop_filter"))
        for dtype in (half, "float32", "float64"):
            problem = problem_of("conv2d", layer, dtype)
            for activation, precision in ((None, "default"), ("relu", "default"), ("relu", "fast")):
                if not problem.empty:
                    group.has_plans(fused(replace(problem, precision=precision), activation, per_channel=True))
    return group


def whole_epilogues() -> Group:
    """On layers like ResNet-50's, bias, scale and activation have plans within the graph; halves channels last only."""
    group = Group()
    layer = (16, 28, 28, 128), (3, 3, 128, 128), {"padding": "SAME"}
    for data_format, dtype in (("NHWC", "float16"), ("NHWC", "bfloat16"), ("NHWC", "float32"), ("NCHW", "float32")):
        for activation in (None, "relu", "relu6"):
            for unit in (True, False) if dtype != "float32" else (True,):
                problem = problem_of("conv2d", layer, dtype, data_format, precision="fast" if activation else "default")
                way = ways(fused(problem, activation, per_channel=True), unit=unit)[0]
                group.expect(way.whole and way.spec.bias, f"{way.spec} leaves the epilogue to others")
                choice = group.choose(way.spec)
                group.expect(choice.first is not None, f"{way.spec}: {choice.why_not}")
    return group


def filters() -> Group:
    """The limit of workspace, determinism and precision leave out what they say, and nothing but that."""
    group = Group()
    limits_that_matter = deterministic = tensor_cores = 0
    for layer in list(geometries.resnet50())[1::6]:
        for op in OPS:
            for dtype in ("float16", "float32"):
                way = first_way(op, layer, dtype, "NCHW")
                free = group.choose(way.spec).first
                limits_that_matter += free.workspace > MIB
                for limit in (free.workspace, free.workspace - 1, MIB, 0):
                    if limit >= 0:
                        chosen = group.choose(way.spec, limit).first
                        right = chosen is not None and chosen.workspace <= limit
                        group.expect(right, f"{way.spec}: {chosen} with a limit of {limit}")
                        group.expect(limit < free.workspace or chosen == free, f"{way.spec}: {chosen}, not {free}")

                ordered = replace(way.spec, deterministic=True)
                atomic = group.names(way.spec, "NONDETERMINISTIC")
                deterministic += bool(atomic)
                group.expect(not group.names(ordered, "NONDETERMINISTIC"), f"{ordered} may be nondeterministic")
                group.expect(group.choose(ordered).first.name not in atomic, f"{ordered} is nondeterministic")

            spec = first_way(op, layer, "float32").spec
            for precision in ("default", "high"):
                for note in ("TENSOR_CORE", "WINOGRAD", "FFT", "REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS"):
                    exact = replace(spec, precision=precision)
                    group.expect(not group.names(exact, note), f"{exact} may have plans with {note}")
            tensor_cores += bool(group.names(replace(spec, precision="fast"), "TENSOR_CORE"))
    group.expect(limits_that_matter > 3, "no plan takes any workspace to speak of: nothing was tested")
    group.expect(deterministic > 0, "no plan is nondeterministic: nothing was tested")
    group.expect(tensor_cores > 3, "precision='fast' gives no tensor cores")
    return group


def cards(sm: str) -> Group:
    """Other GPUs have plans, too."""
    group = Group(int(sm))
    layers = [*list(geometries.golden())[::20], *list(geometries.resnet50())[::9]]
    for layer in layers:
        for dtype in ("float16", "float32", "float64", "int8"):
            for op in OPS[:1] if dtype == "int8" else OPS:
                problem = problem_of(op, layer, dtype)
                if not problem.empty:
                    group.has_plans(problem)
    return group


def tuning() -> Group:
    """What is timed by tuning is built: candidates come in the planner's order, and their names find them again."""
    group = Group()
    p = group.planner
    for layer in list(geometries.resnet50())[::9]:
        for op in OPS:
            for dtype in ("float16", "float32"):
                spec, reasons = first_way(op, layer, dtype).spec, []
                for mode in (cudnn_graph.HEURISTIC, cudnn_graph.FALLBACK):
                    found = [
                        (candidate.name, candidate.workspace)
                        for candidate in cudnn_graph.candidates(p.cudnn, spec, mode, p.place, reasons, False)
                    ]
                    for name, workspace in found[:3]:
                        again = cudnn_graph.named(p.cudnn, spec, mode, name, p.place)
                        group.expect(again.workspace == workspace, f"{spec}: {name} is another plan when built again")
    group.expect(group.asked > 30, "hardly any plan was built")
    return group


def facts() -> Group:
    """What the stand-in for cuDNN offers is what the frontend offers."""
    sys.path.append(str(geometries.TESTS / "gpu"))
    import fake_cudnn

    group = Group()
    real = group.planner.cudnn
    for name in fake_cudnn.OFFERED:
        group.expect(hasattr(real, name), f"the frontend has no {name}")
        fake = getattr(fake_cudnn, name)
        members: Iterator[str] = iter(vars(fake)) if isinstance(fake, type) else iter(())
        for member in members:
            if not member.startswith("_") and not isinstance(vars(fake)[member], (tuple, dict)):
                group.expect(hasattr(getattr(real, name), member), f"the frontend has no {name}.{member}")
    return group


if __name__ == "__main__":
    name, *words = sys.argv[1:]
    globals()[name](*words).report()
