"""What setup.py hands to the build, read without running a build."""

import runpy
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def read() -> dict[str, dict]:
    """Return each static library of setup.py by name: its sources and its compiler flags."""
    found = {}
    commands = ("build_clib", "build_ext")
    modules = ["Cython.Build", "setuptools", "setuptools.errors"]
    modules += [f"setuptools.command.{command}" for command in commands]
    stubs = {name: types.ModuleType(name) for name in modules}
    stubs["Cython.Build"].cythonize = lambda extensions, **_: extensions
    stubs["setuptools"].Extension = lambda *_, **__: None
    stubs["setuptools"].setup = lambda **keywords: found.update(keywords["libraries"])
    stubs["setuptools.errors"].CompileError = Exception
    for command in commands:
        setattr(stubs[f"setuptools.command.{command}"], command, object)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name, stub in stubs.items():
            patch.setitem(sys.modules, name, stub)
        runpy.run_path("setup.py")
    return found
