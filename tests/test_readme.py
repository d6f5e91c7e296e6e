"""The documentation's Python blocks run, in order, and print what the text block after them says."""

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# Sizes of workspace depend on the machine's caches.
MACHINE = re.compile(r"workspace \d+ bytes")


def blocks(page):
    """Return (language, text, line number) of each block."""
    text = page.read_text()
    return [(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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
