"""The Python blocks of docs/gpu.md run on the stand-in, and print what the page says."""

import test_readme

from convkit import compat


def test_python_blocks_run_and_print_what_the_page_says(cupy):
    try:
        test_readme.test_python_blocks_run_and_print_what_the_page_says(test_readme.GPU_PAGE)
    finally:
        compat.uninstall()
