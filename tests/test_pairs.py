"""Dot products of bfloat16 pairs: when they are chosen, and the whole engine on them with the instruction emulated."""

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import child
import ml_dtypes
import numpy as np
import pytest
import setup_libraries

import convkit
from convkit import _calls
from convkit._cpu import _engine, isa
from convkit._cpu.machine import this_machine

TESTS = Path(__file__).resolve().parent
EMULATED = TESTS / "c" / "emulated"
SHAPES = {
    "conv2d": ((2, 12, 12, 16), (3, 3, 16, 64)),
    "conv2d_backprop_filter": ((2, 12, 12, 16), (3, 3, 16, 64), (2, 10, 10, 64)),
    "conv2d_backprop_input": ((2, 12, 12, 16), (3, 3, 16, 64), (2, 10, 10, 64)),
}
BUILT_IN = any(tile.arithmetic == "bfloat16" for tile in isa.TILES)

pytestmark = pytest.mark.skipif(not BUILT_IN, reason="only x86 has dot products of bfloat16 pairs")


@pytest.fixture
def on(monkeypatch):
    """Lets calls be planned, not run, as on a CPU of the given level."""

    def choose(level):
        machine = replace(this_machine(), isa=level)
        monkeypatch.setattr(_calls, "this_machine", lambda: machine)
        convkit.clear_caches()

    yield choose
    convkit.clear_caches()


def told_pairs(op, shapes=None, dtype=ml_dtypes.bfloat16, **keywords):
    """Whether a call would multiply pairs, by what `explain` says."""
    arguments = [np.zeros(shape, dtype) for shape in shapes or SHAPES[op]]
    if op != "conv2d":
        position = 1 if op == "conv2d_backprop_filter" else 0
        arguments[position] = arguments[position].shape
    told = convkit.explain(op, *arguments, algorithm="direct", **keywords)
    return any("in pairs" in sentence for sentence in told.copies)


@pytest.mark.parametrize("op", SHAPES)
def test_pairs_serve_bfloat16_where_the_cpu_has_them(op, on):
    for level in _engine.ISA_LEVELS:
        on(level)
        assert told_pairs(op) == ("avx512bf16" in isa.levels(level))
        assert not told_pairs(op, dtype=np.float16)
        assert not told_pairs(op, dtype=np.float32)


@pytest.mark.parametrize("op", SHAPES)
def test_high_precision_excludes_pairs(op, on):
    on("avx512bf16")
    for precision, expected in (("default", True), ("fast", True), ("high", False)):
        with convkit.options(precision=precision):
            assert told_pairs(op) == expected


def test_a_single_term_makes_no_pair(on):
    on("avx512bf16")
    assert not told_pairs("conv2d", ((2, 12, 12, 1), (3, 3, 1, 64)))
    assert told_pairs("conv2d", ((2, 12, 12, 3), (3, 3, 3, 64)))
    assert not told_pairs("conv2d_backprop_input", ((2, 12, 12, 16), (3, 3, 16, 1), (2, 10, 10, 1)))
    assert not told_pairs("conv2d_backprop_filter", ((1, 3, 3, 16), (3, 3, 16, 64), (1, 1, 1, 64)))


def test_integer_images_are_converted(on):
    on("avx512bf16")
    told = convkit.explain(
        "conv2d", np.zeros((2, 12, 12, 16), np.uint8), np.zeros((3, 3, 16, 64), ml_dtypes.bfloat16), algorithm="direct"
    )
    assert any("uint8 to float32" in sentence for sentence in told.copies)


@pytest.mark.parametrize("limit", [2**15, 2**17, 2**20])
@pytest.mark.parametrize("op", SHAPES)
def test_any_workspace_limit_is_kept(op, limit, on):
    on("avx512bf16")
    with convkit.options(workspace_limit=limit):
        arguments = [np.zeros(shape, ml_dtypes.bfloat16) for shape in SHAPES[op]]
        if op != "conv2d":
            position = 1 if op == "conv2d_backprop_filter" else 0
            arguments[position] = arguments[position].shape
        try:
            told = convkit.explain(op, *arguments, algorithm="direct", num_threads=2)
        except convkit.WorkspaceError:
            assert limit < 2**20
        else:
            assert told.workspace <= limit


def build_emulated(folder: Path) -> None:
    """Build the package with csrc/ as it is, but for the sources that tests/c/emulated has instead."""
    csrc, objects = setup_libraries.ROOT / "convkit" / "_cpu" / "csrc", []
    headers = [sysconfig.get_path("include"), np.get_include(), csrc, TESTS / "c"]
    include = [f"-I{path}" for path in headers]
    generated = csrc.parent / "_engine.c"
    assert generated.exists(), "an editable installation leaves it there"
    commands = [["gcc", "-O1", "-w", "-fPIC", "-pthread", *include, "-c", generated, "-o", folder / "_engine.o"]]
    for library in setup_libraries.read().values():
        for source in library["sources"]:
            instead = EMULATED / Path(source).name
            path, flags = setup_libraries.ROOT / source, library["cflags"]
            if instead.exists():
                path, flags = instead, [flag for flag in flags if not flag.startswith("-m")]
            target = folder / f"{Path(source).stem}.o"
            commands.append(["gcc", *flags, "-O1", *include, "-c", path, "-o", target])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: subprocess.run(command, check=True), commands))
    objects = [command[-1] for command in commands]
    package = folder / "convkit"
    shutil.copytree(csrc.parents[1], package, ignore=shutil.ignore_patterns("_engine*.so", "csrc", "__pycache__"))
    module = package / "_cpu" / f"_engine{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["gcc", "-shared", "-pthread", *objects, "-lm", "-o", module], check=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_engine_on_emulated_pairs(tmp_path):
    """Other tests of bfloat16, run on a build whose CPU has level avx512bf16 and next to nothing else."""
    build_emulated(tmp_path)
    chosen = (
        "test_families.py",
        "test_float_warnings.py",
        "test_golden.py",
        "test_pack_filter.py",
        "test_properties.py",
    )
    some = "(bfloat16 or half) and not c116"  # the largest golden case, which takes minutes by emulation
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1200", "-k", some]
    done = subprocess.run(
        [*command, *(str(TESTS / name) for name in chosen)],
        cwd=tmp_path,
        env={**child.environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "on this CPU: generic, avx512bf16" in done.stdout
