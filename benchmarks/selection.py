"""Whether the family that convkit selects is as fast as the best one that could serve, problem by problem.

Every family without an objection runs each problem, in turn in the same rounds, in one process; the figure is the
median of the paired ratios of the best family's time to that of the selected one. Below 0.9 the selection is wrong.
"""

import argparse
import random
import statistics
import time

import compare
import measuring
from problems import Case, Layer

LEAST = 0.9
ROUNDS = 7
ROUND_SECONDS = 0.01  # of one family in one round, or one call
# A family that is slower in its first calls by so much cannot be the best, and is not timed further.
HOPELESS = 2.0
# Plain NumPy loops, never meant to be fast.
SLOW = "reference"


def family_of(implementation: str) -> str:
    """Return what ``algorithm`` takes to get an implementation: ``direct`` of ``cpu:direct_f32``."""
    return implementation.partition(":")[2].rpartition("_")[0]


class Race:
    """The families that can serve a case, timed in turn."""

    def __init__(self, case: Case, threads: int):
        self.case, self.threads = case, threads
        layer = Layer(case.problem)
        found = layer.explain(case.op, num_threads=threads)
        self.selected = family_of(found.implementation)
        able = [family_of(name) for name, objection in found.candidates if objection is None]
        call, self.first = layer.calls[case.op], {}
        self.calls = {
            family: (lambda family=family: call(algorithm=family, num_threads=threads))
            for family in dict.fromkeys([self.selected, *able])
            if family != SLOW or family == self.selected
        }

    def run(self, rounds: int) -> tuple[float, str]:
        """Return the best family's time over that of the selected one, and the best family."""
        for family, call in self.calls.items():
            call()
            self.first[family] = min(measuring.seconds(call) for _ in range(2))
        fastest = min(self.first.values())
        racers = [f for f in self.calls if f == self.selected or self.first[f] < HOPELESS * fastest]
        count = {family: max(1, int(ROUND_SECONDS / self.first[family])) for family in racers}
        times: dict[str, list[float]] = {family: [] for family in racers}
        for number in range(rounds):
            for family in racers if number % 2 == 0 else reversed(racers):
                times[family].append(measuring.seconds(self.calls[family], count[family]))
        ratios = {
            family: statistics.median(measuring.ratios(times[family], times[self.selected]))
            for family in racers
            if family != self.selected
        }
        best = min(ratios, key=ratios.__getitem__, default=self.selected)
        if ratios.get(best, 1.0) >= 1.0:
            return 1.0, self.selected
        return ratios[best], best


def arguments() -> argparse.Namespace:
    """Read the command line."""
    # Of fused int8 convolutions there is one family only.
    lists = {name: cases for name, cases in compare.all_lists().items() if name != "int8"}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", nargs="*", type=Case.parse, help="instead of the lists, as for compare.py")
    parser.add_argument("--lists", nargs="+", choices=sorted(lists), default=sorted(set(lists) - {compare.QUICK}))
    parser.add_argument("--threads", nargs="+", type=measuring.positive, default=[1, 2])
    parser.add_argument("--rounds", type=measuring.positive, default=ROUNDS)
    parser.add_argument("--seconds", type=float, help="begin no problem after so long")
    parser.add_argument("--shuffle", action="store_true", help="problems in random order, for a part of a long list")
    parser.add_argument("--all", action="store_true", help=f"print every problem, not only those below {LEAST}")
    found = parser.parse_args()
    cases = [case for given in found.problem for case in given]
    found.cases = list(dict.fromkeys(cases or [case for name in found.lists for case in lists[name]]))
    if found.shuffle:
        random.shuffle(found.cases)
    return found


def main() -> None:
    """Print the problems whose selection is below the target, and how many there are."""
    given = arguments()
    measuring.print_machine()
    begin, figures = time.monotonic(), []
    work = [(case, threads) for case in given.cases for threads in given.threads]
    for number, (case, threads) in enumerate(work):
        if given.seconds is not None and time.monotonic() - begin > given.seconds:
            print(f"not reached: {len(work) - number} of {len(work)}")
            break
        measuring.progress(f"[{number + 1}/{len(work)}] {case}, {threads} thr")
        race = Race(case, threads)
        ratio, best = race.run(given.rounds)
        if ratio < LEAST:  # another run, since machines are noisy: the better of the two counts
            ratio, best = max((ratio, best), race.run(given.rounds))
        figures.append(ratio)
        if given.all or ratio < LEAST:
            measuring.progress("")
            print(f"{ratio:.2f}  {race.selected} selected, {best} is best  {case}, {threads} thr", flush=True)
    measuring.progress("")
    if figures:
        below = sum(figure < LEAST for figure in figures)
        print(f"{len(figures)} problems, {below} below {LEAST}; least {min(figures):.2f}, "
              f"geometric mean {statistics.geometric_mean(figures):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
