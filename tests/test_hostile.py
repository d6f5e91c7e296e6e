"""Tens of thousands of hostile calls: each returns, or raises a ConvkitError or TypeError with a sentence."""

import pytest
from child import run_python

# In a process of its own, whose address space is limited: a wild allocation fails there instead of hurting the machine.
RUN = "import runpy; runpy.run_module('hostile_calls', run_name='__main__')"
SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
def test_hostile_arguments(shard):
    report = run_python(RUN, timeout=250, HOSTILE_SEED=str(shard), OPENBLAS_NUM_THREADS="2")
    assert report.splitlines()[-1] == "0 faults", report


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_more_hostile_arguments(seed):
    report = run_python(RUN, timeout=280, HOSTILE_SEED=str(seed), HOSTILE_CALLS="15000", OPENBLAS_NUM_THREADS="2")
    assert report.splitlines()[-1] == "0 faults", report
