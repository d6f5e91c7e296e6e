"""Imports run one way, `_geometry <- _registry <- _cpu | _gpu <- _ops`, and importing convkit costs nothing."""

import ast
import re
from pathlib import Path

import pytest
from child import run_python, start_python

import convkit

PACKAGE = Path(convkit.__file__).parent
# Lower may never reach higher. Modules that are not listed take the rank of what they import.
RANKS = {"_errors": 0, "_geometry": 1, "_registry": 2, "_cpu": 3, "_gpu": 3, "_ops": 4, "__init__": 5}


def module_name(path):
    """`convkit/_cpu/im2col.pyx` -> ("_cpu", "im2col"); the package's own file is ("__init__",)."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py*") if path.suffix in (".py", ".pyx", ".pxd")}


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def import_nodes(tree):
    """Every import that runs, wherever it stands."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        pending += node.orelse if is_type_checking(node) else ast.iter_child_nodes(node)


def python_imports(path):
    """(number of dots, dotted name, imported names) of every import in a Python file."""
    for node in import_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, ()) for alias in node.names)
        else:
            yield node.level, node.module or "", tuple(alias.name for alias in node.names)


def cython_imports(path):
    """The same for Cython, which `ast` cannot read."""
    text = re.sub(r"\\\n|\([^)]*\)", lambda m: m[0].replace("\n", " "), path.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if found := re.match(r"\s*from\s+(\.*)([\w.]*)\s+c?import\s+(.*)", line):
            yield len(found[1]), found[2], tuple(re.findall(r"\w+", found[3]))
        elif found := re.match(r"\s*c?import\s+([\w.]+)", line):
            yield 0, found[1], ()


def imported_modules(name):
    """The convkit modules that module `name` imports, as tuples like `name`."""
    path = MODULES[name]
    is_package = path.stem == "__init__"
    here = () if name == ("__init__",) else name
    reader = python_imports if path.suffix == ".py" else cython_imports
    for dots, dotted, names in reader(path):
        parts = tuple(part for part in dotted.split(".") if part)
        if dots == 0:
            if parts[:1] != ("convkit",):
                continue
            base = parts[1:]
        else:
            up = dots - 1 if is_package else dots
            base = (*here[: len(here) - up], *parts)
        children = {(*base, child) for child in names} & set(MODULES)
        yield from children
        # Importing a submodule runs the packages above it; only names taken from the top count as using the top.
        if base or len(children) < len(names):
            yield base or ("__init__",)


def reachable(name):
    """Every module that importing `name` runs, itself left out."""
    seen, pending = set(), [name]
    while pending:
        for found in imported_modules(pending.pop()):
            assert found in MODULES, f"{name} imports {found}, which is not there"
            if found not in seen:
                seen.add(found)
                pending.append(found)
    return seen - {name}


def test_the_ranked_modules_are_there():
    assert {"_errors", "_geometry", "_registry", "_cpu", "_ops", "__init__"} <= {name[0] for name in MODULES}


@pytest.mark.parametrize("name", sorted(MODULES), ids=".".join)
def test_imports_run_one_way(name):
    if name[0] in RANKS:
        too_high = {other for other in reachable(name) if RANKS.get(other[0], 0) > RANKS[name[0]]}
        assert not too_high


@pytest.mark.parametrize("name", sorted(MODULES), ids=".".join)
def test_devices_do_not_know_each_other(name):
    tops = {other[0] for other in reachable(name)}
    if name[0] in ("_cpu", "_gpu"):
        assert not tops & ({"_cpu", "_gpu"} - {name[0]})


def test_nothing_but_the_gpu_side_names_cupy():
    for name, path in MODULES.items():
        if name[0] != "_gpu" and path.suffix == ".py":
            assert not {dotted.split(".")[0] for dots, dotted, _ in python_imports(path) if dots == 0} & {
                "cupy",
                "torch",
            }


def test_the_reader_of_imports_finds_those_of_this_package():
    """A check of this file itself: the top imports the operations, and they import the validator."""
    assert ("_ops",) in reachable(("__init__",))
    assert ("_geometry",) in reachable(("_ops",))


HEAVY = (
    "cupy",
    "torch",
    "scipy",
    "tensorflow",
    "jax",
    "sklearn",
    "matplotlib",
    "multiprocessing",
    "concurrent.futures",
)


def test_importing_loads_no_other_library_and_starts_no_thread():
    program = """
        import os, sys
        import numpy
        tasks, modules = len(os.listdir("/proc/self/task")), set(sys.modules)
        import convkit
        assert len(os.listdir("/proc/self/task")) == tasks
        print(*sorted(set(sys.modules) - modules))
    """
    assert not set(run_python(program).split()) & set(HEAVY)


def test_importing_and_computing_print_nothing_and_warn_of_nothing():
    process = start_python(
        "import warnings; warnings.simplefilter('error'); import convkit; convkit.conv2d([[[[1.0]]]], [[[[2.0]]]])"
    )
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_bfloat16_support_is_optional():
    program = """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np, convkit
        print(convkit.conv2d(np.ones((1, 3, 3, 1), np.float16), np.ones((3, 3, 1, 1), np.float16)).item())
        convkit.show_versions()
    """
    assert run_python(program).startswith("9.0")


def test_everything_public_has_a_docstring():
    assert "conv2d" in convkit.__all__ and "__version__" in convkit.__all__
    for name in convkit.__all__:
        assert hasattr(convkit, name)
        if name != "__version__":
            assert len(getattr(convkit, name).__doc__) > 20, name
