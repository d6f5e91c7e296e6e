"""What a type checker tells a user: NumPy in, NumPy out; CuPy in, CuPy out; and mistakes are found."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import convkit

# CuPy need not be installed for this: a checker reads this stub in its place.
CUPY = """
from typing import Any

class ndarray:
    shape: tuple[int, ...]
    ndim: int
    dtype: Any
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

def ones(shape: tuple[int, ...], dtype: str) -> ndarray: ...
"""

PRELUDE = """
import cupy
import numpy as np
import numpy.typing as npt
import convkit

x: npt.NDArray[np.float32] = np.ones((1, 8, 8, 3), np.float32)
w: npt.NDArray[np.float32] = np.ones((3, 3, 3, 4), np.float32)
dy: npt.NDArray[np.float32] = np.ones((1, 6, 6, 4), np.float32)
gx, gw, gdy = cupy.ones((1, 8, 8, 3), "f"), cupy.ones((3, 3, 3, 4), "f"), cupy.ones((1, 6, 6, 4), "f")
"""

GOOD = """
reveal_type(convkit.conv2d(x, w))
reveal_type(convkit.conv2d_backprop_filter(x, (3, 3, 3, 4), dy, accumulate=True, out=w))
reveal_type(convkit.conv2d_backprop_input((1, 8, 8, 3), w, dy))
reveal_type(convkit.conv2d(gx, gw))
reveal_type(convkit.conv2d_backprop_filter(gx, (3, 3, 3, 4), gdy))
reveal_type(convkit.conv2d_backprop_input((1, 8, 8, 3), gw, gdy))
reveal_type(convkit.fused_conv2d(x, w, np.ones(4, np.float32), dy, conv_scale=[0.5] * 4, activation="relu"))
reveal_type(convkit.quantize.quantize_filter(w)[1])
reveal_type(convkit.fused_conv2d(gx, gw, side_input=gdy, side_scale=2))
shape: tuple[int, ...] = convkit.conv2d_output_shape((1, 8, 8, 3), [3, 3, 3, 4])

convkit.conv2d(x, w, strides=2, padding="SAME", dilations=(1, 2), groups=1, data_format="NHWC", filter_format="HWIO")
convkit.conv2d(x, w, strides=(1, 2, 2, 1), padding=((1, 1), (0, 0)), out=dy, out_dtype=np.float32, num_threads=2)
convkit.conv2d(x, w, padding=[[0, 0], [1, 1], [2, 2], [0, 0]], algorithm="im2col", out_dtype="float32")
convkit.conv2d(x, w, padding=1)
convkit.conv2d(x, w, padding=(1, 2), strides=np.int64(2))
convkit.conv2d([[[[1.0]]]], [[[[2.0]]]])
with convkit.options(num_threads=1, workspace_limit=1 << 20):
    convkit.set_options(num_threads=None)

told = convkit.explain("conv2d", x, w, device="cpu")
implementation: str = told.implementation
candidates: tuple[tuple[str, str | None], ...] = told.candidates
numbers: tuple[int, int, int] = (told.workspace, told.flops, told.num_threads)
copies: tuple[str, ...] = told.copies
output_shape: tuple[int, ...] = told.output_shape
convkit.explain("conv2d_backprop_filter", (1, 8, 8, 3), (3, 3, 3, 4), (1, 6, 6, 4), dtype="float64")
try:
    convkit.clear_caches()
except convkit.ShapeError as error:
    message: ValueError = error
convkit.show_versions()
"""

BAD = [
    "convkit.conv2d(x, w, stride=2)",
    "convkit.conv2d(x, w, padding=3.5)",
    "convkit.conv2d(x)",
    "convkit.conv2d(x, w, 2)",
    "convkit.conv2d(x, gw)",
    "convkit.conv2d(gx, w)",
    "convkit.conv2d(x, w, num_threads='2')",
    "convkit.conv2d(x, w, accumulate=True)",
    "convkit.conv2d_backprop_filter(x, w.dtype, dy)",
    "convkit.fused_conv2d(x, w, None, None, 0.5)",
    "convkit.fused_conv2d(x, w, scale=0.5)",
    "convkit.fused_conv2d(x, w, activation=np.tanh)",
    "convkit.fused_conv2d(x, w, side_input=gx)",
    "convkit.fused_conv2d(x, w, input_zero_point=0.5)",
    "convkit.conv2d_output_shape((1, 8, 8, 3), (3, 3, 3, 4), out=x)",
    "convkit.options(threads=2)",
    "y: str = convkit.conv2d(x, w)",
]


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """A function from a program to mypy's lines about it."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "cupy").mkdir()
    (folder / "cupy" / "__init__.pyi").write_text(CUPY)
    # An installed convkit is found by itself; a source tree must be named.
    search = [str(folder)]
    if "site-packages" not in convkit.__file__:
        search.append(str(Path(convkit.__file__).resolve().parents[1]))

    def run(program):
        (folder / "user.py").write_text(program)
        arguments = ["--strict", "--follow-imports=silent", "--no-error-summary", "--show-error-codes"]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *arguments, "--cache-dir", str(folder / "cache"), str(folder / "user.py")],
            cwd=folder, env={**os.environ, "MYPYPATH": os.pathsep.join(search)}, capture_output=True, text=True,
        )  # fmt: skip
        assert not done.stderr, done.stderr
        return [line for line in done.stdout.splitlines() if "user.py" in line]

    return run


def test_a_correct_program_passes_and_devices_are_told_apart(check):
    lines = check(PRELUDE + GOOD)
    assert not [line for line in lines if ": error:" in line]
    types = [re.search(r'Revealed type is "(.*)"', line)[1] for line in lines if "Revealed type" in line]
    assert len(types) == 9
    on_gpu = [3, 4, 5, 8]
    assert all("numpy.ndarray" in types[i] and "cupy" not in types[i] for i in range(9) if i not in on_gpu), types
    assert all("numpy" not in types[i] and types[i] != "Any" for i in on_gpu), types


def test_mistakes_are_found(check):
    lines = check(PRELUDE + "\n".join(BAD))
    first = PRELUDE.count("\n") + 1
    found = {int(line.split(":")[1]) for line in lines if ": error:" in line}
    assert [bad for number, bad in enumerate(BAD, first) if number not in found] == []
