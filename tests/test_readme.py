"""The Python blocks of the documentation run and print what it says; what it says of other libraries is true."""

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import convkit

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Its blocks need a GPU, or what stands in for one in tests/gpu.
GPU_PAGE = ROOT / "docs" / "gpu.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# Sizes of workspace depend on the machine's caches.
MACHINE = re.compile(r"workspace \d+ bytes")


def blocks(page):
    """Return (language, text, line number) of each block."""
    text = page.read_text()
    return [(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != GPU_PAGE], ids=lambda page: str(page.relative_to(ROOT))
)
def test_python_blocks_run_and_print_what_the_page_says(page):
    found = blocks(page)
    namespace = {"__name__": "__main__"}
    for (language, code, line), (after, said, _) in pairwise([*found, ("", "", 0)]):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, page.name, "exec"), namespace)
        expected = said if after == "text" else ""
        assert MACHINE.sub("workspace", printed.getvalue()) == MACHINE.sub("workspace", expected), f"{page}:{line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_readme_opens_with_a_sentence_an_example_and_the_two_commands():
    found = blocks(ROOT / "README.md")
    assert found[0][0] == "python"
    assert len([line for line in found[0][1].splitlines() if line.strip()]) == 10
    assert {"make demo", "make test"} <= set(re.findall(r"^(make \w+)", found[2][1], re.MULTILINE))


@pytest.mark.parametrize("size", [(3, 3), (4, 4), (2, 5), (4, 3)])
def test_the_table_of_other_libraries_is_right_about_scipy(size, rng):
    from scipy import ndimage, signal

    a, k = rng.integers(-9, 9, (9, 11)).astype(float), rng.integers(-9, 9, size).astype(float)

    def conv2d(image, kernel, padding="VALID"):
        return convkit.conv2d(
            image[np.newaxis, :, :, np.newaxis], kernel[:, :, np.newaxis, np.newaxis], padding=padding
        )

    for mode, correlated, convolved in (
        ("valid", "VALID", "VALID"),
        ("same", "SAME", "SAME_LOWER"),
        ("full", "FULL", "FULL"),
    ):
        np.testing.assert_array_equal(conv2d(a, k, correlated)[0, :, :, 0], signal.correlate2d(a, k, mode))
        np.testing.assert_array_equal(conv2d(a, k[::-1, ::-1], convolved)[0, :, :, 0], signal.convolve2d(a, k, mode))
    for pad_mode, mode in (("symmetric", "reflect"), ("reflect", "mirror")):
        padded = np.pad(a, [(n // 2, (n - 1) // 2) for n in k.shape], mode=pad_mode)
        np.testing.assert_array_equal(conv2d(padded, k)[0, :, :, 0], ndimage.correlate(a, k, mode=mode))


@pytest.mark.parametrize("s, p, q, d", [(1, 0, 0, 1), (2, 1, 1, 1), (3, 2, 0, 2), (3, 0, 2, 1)])
def test_the_table_of_other_libraries_is_right_about_transposed_sizes(s, p, q, d):
    (h, w), (kh, kw) = (5, 7), (3, 4)
    size = [(n - 1) * s - 2 * p + d * (k - 1) + q + 1 for n, k in ((h, kh), (w, kw))]
    x, filters = np.ones((2, 8, h, w)), np.ones((8, 3, kh, kw))
    keywords = {"data_format": "NCHW", "strides": s, "padding": p, "dilations": d, "groups": 2}
    assert convkit.conv2d_backprop_input(size, filters, x, **keywords).shape == (2, 6, *size)
