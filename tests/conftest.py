"""Fixtures for every test."""

import zlib

import numpy as np
import pytest
import winograd_cases

from convkit._cpu import _engine


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A random generator of the test's own, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_terminal_summary(terminalreporter) -> None:
    """Name the ISA levels that no test of this run can have executed, since the CPU or the build lacks them."""
    usable = _engine.ISA_RUNS
    left_out = [level for level in _engine.ISA_LEVELS if level not in _engine.ISA_BUILT]
    missing = [level for level in _engine.ISA_BUILT if level not in usable]
    terminalreporter.write_sep("-", "ISA levels")
    terminalreporter.write_line(f"on this CPU: {', '.join(usable)}; not run: {', '.join(missing) or 'none'}")
    if left_out:
        terminalreporter.write_line(f"unknown to the compiler, not built: {', '.join(left_out)}")


@pytest.fixture(params=winograd_cases.TILES, ids="{0}x{0}".format)
def tile(request):
    """Side of the tiles that Winograd convolutions take, whatever they would choose."""
    with winograd_cases.in_tiles_of(request.param):
        yield request.param
