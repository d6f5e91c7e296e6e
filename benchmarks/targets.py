"""What is hoped for, as one table, and whether it is reached."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from contest import Record

RUNS = 3  # a problem misses its target when it is below it in so many separate runs
FRAMEWORK_LISTS = frozenset({"resnet50", "vgg16", "inception"})
WORKSPACE_LIMIT = 64 << 20


def _float32_of_networks(record: Record) -> bool:
    return record.case.problem.dtype == "float32" and bool(record.lists & FRAMEWORK_LISTS)


def _compute_bound(record: Record) -> bool:
    p = record.case.problem
    return p.dtype == "float32" and p.r in ((3, 3), (5, 5)) and min(p.c, p.k) >= 64 and p.g == 1


def _imaging(record: Record) -> bool:
    return "imaging" in record.lists


def _depthwise(record: Record) -> bool:
    p = record.case.problem
    return p.depthwise and p.r == (3, 3) and p.dtype == "float32"


def _int8_of_resnet(record: Record) -> bool:
    p = record.case.problem
    return p.int8 and p.c != 3 and p.g == 1 and p.r in ((1, 1), (3, 3)) and p.data_format == "NHWC"


def _int8_first_and_1x1(record: Record) -> bool:
    p = record.case.problem
    return p.int8 and p.data_format == "NHWC" and (p.c == 3 or p.r == (1, 1))


def _int8(record: Record) -> bool:
    return record.case.problem.int8


def _int8_planes(record: Record) -> bool:
    return record.case.problem.int8 and record.case.problem.r == (3, 3)


def _dtype(name: str) -> Callable[[Record], bool]:
    # Imaging has its own target, which holds for both of its dtypes.
    return lambda record: record.case.problem.dtype == name and not _imaging(record)


@dataclass(frozen=True)
class Target:
    """A figure of some problems that must reach a value: each of them, or their geometric mean."""

    name: str
    selects: Callable[[Record], bool]
    figure: str
    least: float
    each: bool
    threads: tuple[int, ...] | None = None
    needs: str = ""  # a CPU flag without which the target does not apply

    def applies(self, record: Record) -> bool:
        """Whether the record counts."""
        return (
            (self.threads is None or record.threads in self.threads)
            and self.selects(record)
            and getattr(record, self.figure) is not None
        )


TARGETS = (
    Target("networks, float32, each", _float32_of_networks, "ratio", 0.95, each=True),
    Target("networks, float32, geometric mean", _float32_of_networks, "ratio", 1.1, each=False),
    Target("3x3 and 5x5, C, K >= 64: share of the FMA peak, each", _compute_bound, "peak_share", 0.9, True, (1,)),
    Target("imaging, geometric mean", _imaging, "ratio", 1.0, each=False),
    Target("depthwise 3x3: share of the copy bandwidth, each", _depthwise, "bandwidth_share", 0.7, each=True),
    Target("depthwise 3x3, geometric mean", _depthwise, "ratio", 1.5, each=False),
    Target("float64, geometric mean", _dtype("float64"), "ratio", 1.5, each=False),
    Target("float16, geometric mean", _dtype("float16"), "ratio", 4.0, each=False),
    Target("int8, 3x3 and 1x1, each", _int8_of_resnet, "ratio", 0.95, each=True),
    Target("int8, C = 3 and 1x1, each", _int8_first_and_1x1, "ratio", 1.1, each=True),
    Target("int8, over TensorFlow's kernel, each", _int8, "over_tensorflow", 4.0, each=True),
    Target("int8, 3x3 in NCHW over NHWC, each", _int8_planes, "over_nhwc", 0.8, each=True),
    Target("bfloat16, geometric mean", _dtype("bfloat16"), "ratio", 0.95, each=False, needs="avx512_bf16"),
)


@dataclass(frozen=True)
class Verdict:
    """A target on one number of threads: the worst figure of its problems, or their mean."""

    target: Target
    threads: int
    problems: int
    value: float | None
    missed: tuple[Record, ...]
    inapplicable: str = ""

    @property
    def text(self) -> str:
        """One word, or a few."""
        if self.value is None:
            return self.inapplicable or "not measured"
        return "met" if self.met else f"MISSED{f' by {len(self.missed)}' if self.target.each else ''}"

    @property
    def met(self) -> bool | None:
        """Whether it is reached; None if nothing was measured."""
        if self.value is None:
            return None
        return not self.missed if self.target.each else self.value >= self.target.least


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return statistics.geometric_mean(values)


def below(record: Record, target: Target) -> bool:
    """Whether a problem is below a target of each problem in every run so far."""
    runs = (Record(record.case, record.lists, record.threads, runs=[run], twin=record.twin) for run in record.runs)
    figures = [figure for figure in (getattr(one, target.figure) for one in runs) if figure is not None]
    return all(figure < target.least for figure in figures)


def to_repeat(records: Iterable[Record]) -> list[Record]:
    """Return the records that another run may save: below a target of each problem in all runs so far."""
    each = [target for target in TARGETS if target.each]
    return [r for r in records if any(target.applies(r) and below(r, target) for target in each)]


def judge(records: Iterable[Record], threads: Iterable[int], cpu_flags: frozenset[str]) -> list[Verdict]:
    """Return the verdict on each target for each number of threads."""
    records, verdicts = list(records), []
    for target in TARGETS:
        for count in threads:
            if target.threads is not None and count not in target.threads:
                continue
            if target.needs and target.needs not in cpu_flags:
                verdicts.append(Verdict(target, count, 0, None, (), f"this CPU has no {target.needs}"))
                continue
            found = [record for record in records if record.threads == count and target.applies(record)]
            figures = [getattr(record, target.figure) for record in found]
            value = (min(figures) if target.each else geometric_mean(figures)) if figures else None
            missed = tuple(record for record in found if target.each and below(record, target))
            verdicts.append(Verdict(target, count, len(found), value, missed))
    return verdicts
