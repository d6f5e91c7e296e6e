"""Fixtures for every test."""

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A random generator of the test's own, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
