"""The kernels under AddressSanitizer, in a process of its own: no byte outside of an array is read or written."""

import pytest
from asan_plugin import asan_run

OUTSIDE = '''
from conftest import cupy, world
import numpy as np

CODE = """
extern "C" __global__ void move(const int *from, int *to, int at) {{ to[threadIdx.x] = from[(int)threadIdx.x + at]; }}
"""


def test_one_element_too_far(cupy):
    source, target = cupy.zeros({size}, np.int32), cupy.zeros({size}, np.int32)
    kernel = cupy.RawModule(code=CODE).get_function("move")
    kernel((1,), ({size},), (source, target, np.int32({at})))
'''


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size, at, caught", [(5, 1, True), (64, -1, True), (64, 0, False)])
def test_the_sanitizer_sees_reads_outside(tmp_path, size, at, caught):
    # It is not under this directory, and gets its fixtures from there by name.
    path = tmp_path / "test_outside.py"
    path.write_text(OUTSIDE.format(size=size, at=at))
    done = asan_run(str(path), "-p", "no:cacheprovider")
    assert (done.returncode != 0) == caught, done.stdout + done.stderr
    assert ("AddressSanitizer: use-after-poison" in done.stderr) == caught


@pytest.mark.parametrize(
    "file, tests",
    [("test_gpu_kernels.py", "test"), ("test_gpu_native.py", "geometries or int8_sums or views or few_blocks")],
)
def test_the_kernels_stay_inside(file, tests):
    done = asan_run(f"tests/gpu/{file}", "-m", "not slow", "-k", tests)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert "passed" in done.stdout
