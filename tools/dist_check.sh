#!/bin/sh
# Builds an sdist, a wheel from the sdist in an empty directory, and imports the wheel in a fresh environment.
set -eu
python=$(realpath -s "${PYTHON:-python3}")
tree=$(pwd)
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
"$python" -m build --sdist --outdir "$empty/sdist" "$tree" >"$empty/log" 2>&1 || { cat "$empty/log"; exit 1; }
mkdir "$empty/work"
cd "$empty/work"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$empty/wheel" "$empty"/sdist/*.tar.gz
"$python" -m venv "$empty/venv"
"$empty/venv/bin/python" -m pip install --quiet "$empty"/wheel/*.whl
"$empty/venv/bin/python" - $(ls "$tree/convkit/_gpu/kernels") <<'EOF'
import sys
from importlib.resources import files

import numpy as np

import convkit

assert "site-packages" in convkit.__file__, convkit.__file__
x = np.ones((1, 4, 4, 1), np.float32)
y = convkit.conv2d(x, np.ones((3, 3, 1, 1), np.float32), padding="SAME", algorithm="im2col")
assert y[0, :, :, 0].tolist() == [[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]
# What NVRTC compiles on a machine with a GPU.
kernels = {path.name for path in (files("convkit._gpu") / "kernels").iterdir()}
assert kernels == set(sys.argv[1:]), kernels ^ set(sys.argv[1:])
print("wheel of", convkit.__version__, "on Python", sys.version.split()[0], "computes right")
EOF
