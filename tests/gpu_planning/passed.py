"""Whether the planning tests have passed on the sources as they are, by a digest kept in `passed.txt`.

``python passed.py check`` succeeds if they have; ``python passed.py write`` says that they have.
"""

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "passed.txt"
# What the answers depend on: the package's side of cuDNN, the tests, the stand-ins that are compared, what sigpy calls.
SOURCES = (
    *("convkit/_gpu/cudnn*.py", "convkit/_gpu/autotune.py", "convkit/_gpu/loader.py", "convkit/_gpu/cache.py"),
    *("tests/gpu_planning/*.py", "tests/gpu_planning/*.c", "tests/gpu/standin*.py", "tests/gpu/fake_cudnn.py"),
    *("tests/data/tf_conv2d.npz", "benchmarks/problems/resnet50.txt"),
    *("convkit/compat.py", "convkit/_compat*.py", "tools/gpu_checks/compat.py", "tests/data/sigpy_calls.json"),
)
PACKAGES = ("nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "sigpy")


def digest() -> str:
    """Return a digest of the sources, by name and content."""
    files = sorted(file for pattern in SOURCES for file in ROOT.glob(pattern))
    sums = [f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def main(command: str) -> int:
    """Carry out a command, and return the exit status."""
    if command == "check":
        lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
        return 0 if f"sources {digest()}" in lines else 1
    lines = [f"sources {digest()}", *(f"{name} {version(name)}" for name in PACKAGES)]
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
