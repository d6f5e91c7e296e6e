"""What a check found, and how it is told: a line each, a table, JSON, an exit status."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

RIGHT, WRONG, MISSED, NOT_RUN = "right", "WRONG", "MISSED", "not run"
# Exit statuses; 2 is argparse's own, for a bad command line.
ALL_RIGHT, SOMETHING_WRONG, NO_GPU, TARGET_MISSED = 0, 1, 3, 4
# Wrong results that are told in full.
MOST_TOLD = 5


@dataclass
class Finding:
    """The outcome of one check: how much was compared, and what was not as it should be."""

    name: str
    state: str = RIGHT
    compared: int = 0
    detail: str = ""
    failures: list[str] = field(default_factory=list)
    by_route: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, right: bool, line: str, route: str = "") -> None:
        """Count one comparison; ``line`` says how to repeat it."""
        self.compared += 1
        if route:
            self.by_route[route] = self.by_route.get(route, 0) + 1
        if not right:
            self.state = WRONG
            self.failures.append(line)

    @contextmanager
    def trying(self, line: str, route: str = "") -> Iterator[None]:
        """Take an error for a wrong result, so that one call that fails does not hide what the others give."""
        try:
            yield
        except Exception as error:
            self.note(False, f"{line}: {type(error).__name__}: {error}", route)

    def left_out(self, reason: str) -> "Finding":
        """Say that the check could not be made here, and why."""
        self.state, self.detail = NOT_RUN, reason
        return self

    def row(self) -> tuple[str, str, str, str, str]:
        """Return the cells of the table."""
        routes = ", ".join(f"{route} {count}" for route, count in sorted(self.by_route.items()))
        told = "; ".join(text for text in (self.detail, routes) if text)
        return self.name, self.state, str(self.compared), f"{self.seconds:.1f} s", told


def status(findings: list[Finding]) -> int:
    """Return the exit status that says it all."""
    states = {finding.state for finding in findings}
    if WRONG in states:
        return SOMETHING_WRONG
    return TARGET_MISSED if MISSED in states else ALL_RIGHT


def print_table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    print(flush=True)


def print_findings(findings: list[Finding]) -> None:
    """Print one line for each check, and the first failures of each."""
    print_table(("check", "outcome", "compared", "time", ""), [finding.row() for finding in findings])
    for finding in findings:
        for line in finding.failures[:MOST_TOLD]:
            print(f"{finding.state}, {finding.name}: {line}")
        more = len(finding.failures) - MOST_TOLD
        if more > 0:
            print(f"{finding.state}, {finding.name}: and {more} more")


def write_json(path: Path | None, machine: dict, findings: list[Finding], timings: list[dict]) -> None:
    """Write everything to a file, if there is a path."""
    if path is not None:
        content = {"machine": machine, "findings": [asdict(finding) for finding in findings], "timings": timings}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
