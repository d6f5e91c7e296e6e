"""Every kernel compiles for every generation of GPUs that the project names, in every type, without a warning."""

import time
from importlib import resources

import nvrtc
import pytest

from convkit._gpu import launch

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
BUILDS = sorted({(source.files, types) for source in launch.KERNELS.values() for types in source.variants})
# Longer than that, in seconds of a CPU, a first call should not wait for a compiler.
MOST_SECONDS = 20


def named(build) -> str:
    """Return a test's name."""
    files, types = build
    return "-".join([files[-1].removesuffix(".cu"), *(value for _, value in types)])


def compile_all(build, architectures) -> None:
    """Compile one source in one variant, in which nothing may be said."""
    files, types = build
    for architecture in architectures:
        began = time.process_time()
        done, said, size = nvrtc.compile_for(architecture, launch.text_of(files), launch.options_of(types))
        assert time.process_time() - began < MOST_SECONDS
        assert done and not said, f"{files} with {types} for {architecture}: {said}"
        assert size > 0


def in_turn(build) -> str:
    """Return the generation that a source is compiled for in the fast set."""
    return ARCHITECTURES[BUILDS.index(build) % len(ARCHITECTURES)]


@pytest.mark.parametrize("build", BUILDS, ids=named)
def test_it_compiles_without_a_word(build):
    compile_all(build, [in_turn(build)])


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS, ids=named)
def test_it_compiles_for_every_generation(build):
    compile_all(build, [name for name in ARCHITECTURES if name != in_turn(build)])


def test_every_source_belongs_to_a_kernel():
    there = {path.name for path in resources.files("convkit._gpu").joinpath("kernels").iterdir()}
    used = {name for source in launch.KERNELS.values() for name in source.files}
    assert there == used | {"prelude.cu"}


def test_every_kernel_is_in_its_source():
    for name, source in launch.KERNELS.items():
        assert f" {name}(" in launch.text_of(source.files)


def test_warnings_and_errors_are_seen():
    done, said, _ = nvrtc.compile_for("sm_90", 'extern "C" __global__ void f(int *a) { int b; a[0] = 1; }', ())
    assert done and "never referenced" in said
    done, said, _ = nvrtc.compile_for("sm_90", 'extern "C" __global__ void f(int *a) { a[0] = nothing; }', ())
    assert not done and "undefined" in said
