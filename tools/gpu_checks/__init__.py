"""The parts of `gpu_check.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Golden data, the layouts of calls and the lists of layers are those of the tests and of the benchmarks.
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
# The package comes from here only where it is not installed.
sys.path.append(str(ROOT))
