"""What the benchmarks share: paired measurements, figures with their targets, and the report."""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import threadpoolctl

import convkit

# With these, OpenBLAS takes other kernels or block sizes than a user gets.
DISTORTING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class Figure:
    """A ratio of paired measurements, one per round, and what is hoped for."""

    name: str
    ratios: list[float]
    target: float | None = None
    at_most: bool = False  # whether the target is an upper bound
    detail: str = ""

    @property
    def median(self) -> float:
        """The figure itself."""
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> list[float]:
        """How far the rounds spread."""
        return np.quantile(self.ratios, (0.25, 0.75)).tolist()

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        return self.median <= self.target if self.at_most else self.median >= self.target

    def row(self) -> tuple[str, ...]:
        """The cells of the printed table."""
        low, high = self.quartiles
        sign = "<=" if self.at_most else ">="
        verdict = "" if self.target is None else f"{'met' if self.met else 'MISSED'} ({sign} {self.target:.2f})"
        return self.name, f"{self.median:.2f}", f"{low:.2f} to {high:.2f}", verdict, self.detail

    def record(self) -> dict:
        """The same for JSON, with every round."""
        return {
            "name": self.name, "median": self.median, "quartiles": self.quartiles, "target": self.target,
            "at_most": self.at_most, "met": self.met, "detail": self.detail, "ratios": self.ratios,
        }  # fmt: skip


def alternate(first, second, rounds, progress):
    """Take two measurements in turn, each round in the other order, so that drift meets both; return their values."""
    values = [], []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            values[side].append((first, second)[side]())
    return values


def ratios(numerators, denominators):
    """Return the quotient of each pair."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def seconds(function, calls=1, clock=time.perf_counter):
    """Return the mean time of some calls."""
    begin = clock()
    for _ in range(calls):
        function()
    return (clock() - begin) / calls


def progress(text):
    """Show what runs at the moment, on one line of the error stream; an empty text removes it."""
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def machine() -> dict:
    """Return what the figures depend on."""
    cpu = convkit.cpu_info()
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu["model"],
        "cores": cpu["affinity"],
        "llc_bytes": cpu["llc_bytes"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "convkit": convkit.__version__,
        "blas": [
            f"{b['internal_api']} {b['version']}, kernels for {b.get('architecture', 'an unknown CPU')}" for b in blas
        ],
        "distorted_by": [name for name in DISTORTING if name in os.environ],
    }


def print_machine():
    """Print the machine; warn of settings with which a product of matrices is not what a user gets."""
    found = machine()
    print(f"{found['cpu']}, {found['cores']} cores, last-level cache {found['llc_bytes'] >> 20} MiB; {found['date']}")
    print(f"Python {found['python']}, NumPy {found['numpy']}, convkit {found['convkit']}; {'; '.join(found['blas'])}")
    for name in found["distorted_by"]:
        print(f"WARNING: {name} is set: OpenBLAS is not what it is by default", file=sys.stderr)
    print(flush=True)


def print_table(headings, rows):
    """Print left-aligned columns."""
    rows = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def print_figures(figures):
    """Print figures as a table."""
    print_table(("", "median", "quartiles", "target", ""), [figure.row() for figure in figures])


def add_common_arguments(parser):
    """Give a parser the options that every benchmark has."""
    parser.add_argument(
        "--quick", action="store_true", help="small and short: shows that it runs; figures mean nothing"
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="also write the figures, round by round, to this file"
    )
    parser.add_argument("--rounds", type=positive, help="rounds of each pair of measurements")


def positive(text):
    """Return a number above zero, for argparse."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return int(text)


def write_json(path, figures, **more):
    """Write figures and machine to a file, if there is a path."""
    if path is not None:
        record = {"machine": machine(), **more, "figures": [figure.record() for figure in figures]}
        path.write_text(json.dumps(record, indent=1) + "\n")
