"""Known failures of other libraries, by id: unrolled matrices beyond 2^31 elements, workspace, and leaks.

Each large case runs in a process of its own, which measures itself.  Small integers make every sampled value exact.
"""

import json

import harness
import numpy as np
import pytest
from child import run_python
from harness import LAYOUTS

import convkit

MIB = 2**20

# What every child needs: a layer of small integers, the peak of the memory it does not share with files, and exact
# values of single elements, each from the window of pixels behind it.
PRELUDE = """
import json, resource, threading, time
import numpy as np
import convkit

rng = np.random.default_rng(5)

def small(*shape):
    return rng.integers(-2, 3, shape, np.int8).astype(np.float32)

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))

class Peak:
    '''The most anonymous memory that the process had while the block ran, above what it had before.'''

    def __enter__(self):
        self.before = self.most = status("RssAnon")
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.stop.wait(0.002):
            self.most = max(self.most, status("RssAnon"))

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()
        self.growth = max(self.most, status("RssAnon")) - self.before

def window(x, n, i, j, taps, strides, pads):
    '''The window of NCHW x behind output pixel (i, j), with zeros for the padding.'''
    rows = np.arange(taps[0]) + i * strides[0] - pads[0]
    columns = np.arange(taps[1]) + j * strides[1] - pads[1]
    inside = np.outer((0 <= rows) & (rows < x.shape[2]), (0 <= columns) & (columns < x.shape[3]))
    pixels = x[n][:, rows.clip(0, x.shape[2] - 1)[:, None], columns.clip(0, x.shape[3] - 1)]
    return np.where(inside, pixels, 0).astype(np.float64)

def check_forward(x, w, y, strides=(1, 1), pads=(0, 0), samples=64):
    '''Check corners and random pixels of NCHW y, for OIHW w.'''
    n, _, height, width = y.shape
    corners = [(m, i, j) for m in (0, n - 1) for i in (0, height - 1) for j in (0, width - 1)]
    random = [tuple(int(rng.integers(size)) for size in (n, height, width)) for _ in range(samples)]
    for m, i, j in corners + random:
        pixels = window(x, m, i, j, w.shape[2:], strides, pads)
        expected = np.tensordot(w.astype(np.float64), pixels, 3)
        assert np.array_equal(y[m, :, i, j], expected), (m, i, j, y[m, :, i, j], expected)
"""


def measure(program: str, timeout: float = 280, **arguments) -> dict:
    """Run a program after the prelude, with ``arguments`` as globals; return what it prints as JSON."""
    assignments = "\n".join(f"{name} = {value!r}" for name, value in arguments.items())
    return json.loads(run_python(f"{PRELUDE}\n{assignments}\n{program}", timeout=timeout).splitlines()[-1])


UNROLLED_BEYOND_2_31 = """
x, w = small(1, 3, 425, 620), small(3, 3, 65, 65)
y = convkit.conv2d(x, w, data_format="NCHW")
assert y.shape == (1, 3, 361, 556)
check_forward(x, w, y)
print(json.dumps({"rss": status("VmHWM")}))
"""


def test_D01_unrolled_matrix_beyond_2_31_elements():
    assert measure(UNROLLED_BEYOND_2_31)["rss"] < 1024 * MIB


UNROLLED_FILTER_GRADIENT = """
x, dy = small(1, 3, 425, 620), small(1, 3, 361, 556)
dw = convkit.conv2d_backprop_filter(x, (3, 3, 65, 65), dy, data_format="NCHW")
for tap in [(0, 0), (0, 64), (64, 0), (64, 64), (31, 32), (13, 57)]:
    pixels = x[0, :, tap[0] : tap[0] + 361, tap[1] : tap[1] + 556].astype(np.float64)
    expected = np.tensordot(dy[0].astype(np.float64), pixels, ((1, 2), (1, 2)))
    assert np.array_equal(dw[:, :, tap[0], tap[1]], expected), tap
print(json.dumps({"rss": status("VmHWM")}))
"""


def test_D01_filter_gradient():
    assert measure(UNROLLED_FILTER_GRADIENT)["rss"] < 1024 * MIB


LARGE_FRAME = """
x, w = small(1, rows, 2800, 32), small(3, 3, 32, 3)
with Peak() as peak:
    y = convkit.conv2d(x, w, padding="SAME")
check_forward(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), y.transpose(0, 3, 1, 2), pads=(1, 1))
print(json.dumps({"extra": peak.growth - y.nbytes}))
"""


@pytest.mark.parametrize("rows", [200, pytest.param(2800, marks=pytest.mark.slow)])
def test_D02_large_frame(rows):
    assert measure(LARGE_FRAME, rows=rows)["extra"] < 192 * MIB


TALL_FILTER = """
x, w = small(images, 32, rows, 980), small(32, 32, 21, 11)
with Peak() as peak:
    y = convkit.conv2d(x, w, data_format="NCHW", strides=(2, 1), padding=(10, 5))
check_forward(x, w, y, (2, 1), (10, 5))
print(json.dumps({"shape": y.shape, "extra": peak.growth - y.nbytes}))
"""


def test_D03_tall_filter_on_fewer_rows():
    measured = measure(TALL_FILTER, images=2, rows=9)
    assert measured["shape"] == [2, 32, 5, 980]
    assert measured["extra"] < 192 * MIB


@pytest.mark.slow
def test_D03_tall_filter():
    measured = measure(TALL_FILTER, images=10, rows=81)
    assert measured["shape"] == [10, 32, 41, 980]
    assert measured["extra"] < 192 * MIB


HD_FRAME = """
x, w = small(1, 64, rows, 1920), small(16, 64, 5, 5)
with Peak() as peak:
    y = convkit.conv2d(x, w, data_format="NCHW", padding=(2, 2))
check_forward(x, w, y, pads=(2, 2))
print(json.dumps({"extra": peak.growth - y.nbytes}))
"""


@pytest.mark.parametrize("rows", [30, pytest.param(1080, marks=pytest.mark.slow)])
def test_D04_hd_frame_of_64_channels(rows):
    assert measure(HD_FRAME, rows=rows)["extra"] < 192 * MIB


def checkerboard(rows):
    """Return 0 and 1 in turn, ``rows`` x 1000: each row of the view begins one element later than the last."""
    line = (np.arange(rows + 1000) % 2).astype(np.float32)
    return np.lib.stride_tricks.as_strided(line, (1, rows, 1000, 1), (0, 4, 4, 0))


def test_D05_checkerboard():
    x, w = checkerboard(5400), np.ones((1, 2, 1, 1), np.float32)
    for image in (x, x.copy()):
        for family in harness.families("conv2d", image, w):
            if family != "reference":
                assert np.all(convkit.conv2d(image, w, algorithm=family) == 1), family


@pytest.mark.slow
def test_D05_addresses_beyond_2_31_bytes_of_the_output():
    y = convkit.conv2d(checkerboard(540_000), np.ones((1, 2, 1, 1), np.float32))
    assert y.nbytes > 2**31
    assert y.min() == y.max() == 1


@pytest.mark.slow
def test_D05_addresses_beyond_2_31_bytes_of_the_input():
    x = checkerboard(540_000).copy()
    assert x.nbytes > 2**31
    y = convkit.conv2d(x, np.ones((1, 2, 1, 1), np.float32), strides=(1, 7))
    assert y.min() == y.max() == 1


def test_D08_a_filter_gradient_split_for_its_size(rng):
    """A lower workspace limit splits the call; sums of small integers stay what they are, whatever the split."""
    _, call, _ = harness.layer(rng, (4, 6, 6, 3), (3, 3, 3, 2))
    dtype = np.dtype(np.float16)
    for layout in LAYOUTS:
        arguments, keywords = call.in_layout(layout, dtype), layout.keywords
        expected = call.result_to(call.reference(), layout).astype(dtype)
        served = 0
        for limit in (2**power for power in range(8, 27)):
            out = np.full(expected.shape, np.nan, dtype)
            try:
                with convkit.options(workspace_limit=limit):
                    convkit.conv2d_backprop_filter(*arguments, out=out, algorithm="im2col", **keywords)
            except convkit.WorkspaceError as error:
                assert limit < 64 * 2**10, error
                continue
            served += 1
            np.testing.assert_array_equal(out, expected, err_msg=f"{limit} bytes in {layout}")
        assert served >= 10


CHANGING_SHAPES = """
w = small(64, 3, 3, 3)
sizes = []
for i in range(calls):
    x = np.ones((1, 3, height + i % (7 * height), width + i % (5 * width)), np.float32)
    convkit.conv2d(x, w, data_format="NCHW", num_threads=threads)
    if i in (calls // 5, calls - 1):
        del x
        sizes.append(status("RssAnon"))
print(json.dumps({"growth": sizes[1] - sizes[0]}))
"""


@pytest.mark.parametrize("threads", [1, 8])
def test_D10_memory_stays_flat_over_changing_shapes(threads):
    assert measure(CHANGING_SHAPES, calls=1500, height=10, width=9, threads=threads)["growth"] < 24 * MIB


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("threads", [1, 8])
def test_D10_memory_stays_flat_over_changing_shapes_in_full(threads):
    growth = measure(CHANGING_SHAPES, 800, calls=2000, height=100, width=90, threads=threads)["growth"]
    assert growth < 64 * MIB


# A sparse file: its pages read as zeros.  At stride 16 the windows of 3x3 need no padding and begin at multiples of 16:
# three of the four pixels written lie in one, at taps (0, 0), (0, 2) and (1, 1).
BIG_ENDIAN_MAP = """
with open(path, "wb") as file:
    file.truncate(size)
height, width = 16384, size // (4 * 16384)
x = np.memmap(path, ">f4", "r+", shape=(1, height, width, 1))
for row, column in [(0, 0), (height - 16, width - 14), (height // 2 + 1, 161), (5000, 7)]:
    x[0, row, column, 0] = 3
x.flush()
del x
x = np.memmap(path, ">f4", "r", shape=(1, height, width, 1))
w = np.ones((3, 3, 1, 1), np.float32)
with Peak() as peak:
    y = convkit.conv2d(x, w, strides=16, padding="SAME")
    z = convkit.conv2d(x[:, : height // 64], w, padding="SAME")
    dw = convkit.conv2d_backprop_filter(x, w.shape, np.ones_like(y), strides=16, padding="SAME")
assert y[0, 0, 0, 0] == y[0, -1, -1, 0] == y[0, height // 32, 10, 0] == 3 and y.sum() == 9
assert (z[0, :2, :2, 0] == 3).all() and z.sum() == 12
assert dw[..., 0, 0].tolist() == [[3, 0, 3], [0, 3, 0], [0, 0, 0]]
print(json.dumps({"growth": peak.growth}))
"""


@pytest.mark.parametrize("size", [512 * MIB, pytest.param(4096 * MIB, marks=pytest.mark.slow)], ids="{} bytes".format)
def test_big_endian_memory_map_is_converted_piece_by_piece(tmp_path, size):
    measured = measure(BIG_ENDIAN_MAP, path=str(tmp_path / "image"), size=size)
    assert measured["growth"] < 256 * MIB
