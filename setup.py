"""Builds the C kernels as static libraries, one per ISA level, and the Cython modules that call them."""

import os
import platform
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

CSRC = Path("convkit/_cpu/csrc")
HEADERS = sorted(str(path) for pattern in ("*.h", "*.inc") for path in CSRC.glob(pattern))
# -ffp-contract=off: a multiply and an add are fused only where the source says so, on every machine alike.
CFLAGS = ["-std=c11", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-pthread", "-Wall", "-Wextra"]


def library(name: str, sources: list[str], flags: list[str]) -> tuple[str, dict]:
    """Describe one static library for ``setup(libraries=)``, rebuilt when any header changes."""
    paths = [str(CSRC / source) for source in sources]
    return name, {"sources": paths, "cflags": CFLAGS + flags, "obj_deps": {"": HEADERS}}


def sources_of(level: str) -> list[str]:
    """Return the kernels of one ISA level; a level need not have kernels of every kind."""
    return [f"{kind}_{level}.c" for kind in ("dot", "dw", "pl", "int8", "wg") if (CSRC / f"{kind}_{level}.c").exists()]


CORE = ["isa.c", "pool.c", "scratch.c", "convert.c", "patches.c", "product.c", "filter_gradient.c", "scatter.c"]
DIRECT = ["padded.c", "pairs.c", "panels.c", "direct.c", "strips.c", "direct_gradient.c", "kernels.c"]
INT8 = ["int8.c", "int8_image.c", "int8_pack.c", "int8_kernels.c"]
DEPTHWISE = ["depthwise.c", "depthwise_gradient.c", "depthwise_kernels.c"]
FUSED = ["float_epilogue.c"]
PLANAR = ["planar.c", "planar_gradient.c", "planar_inner.c", "planar_kernels.c", "planar_stage.c"]
WINOGRAD = ["winograd.c", "winograd_gradient.c", "winograd_kernels.c", "winograd_tiles.c"]
X86 = platform.machine().lower() in ("x86_64", "amd64")
# Levels of which nothing builds on: the package does without where the compiler is too old for them.
OPTIONAL_LEVELS = {"avx2vnni", "avx512bf16"}
SOURCES = CORE + DIRECT + DEPTHWISE + PLANAR + INT8 + FUSED + WINOGRAD
# One library per ISA level: only code that runs after the CPU was asked may be compiled with that level's flags.
LEVELS = {"generic": []}
if X86:
    LEVELS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    LEVELS["avx2vnni"] = [*LEVELS["avx2"], "-mavxvnni"]
    LEVELS["avx512"] = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]
    LEVELS["avx512vnni"] = [*LEVELS["avx512"], "-mavx512vnni"]
    LEVELS["avx512bf16"] = [*LEVELS["avx512"], "-mavx512bf16"]
LIBRARIES = [library("convkit_core", SOURCES, ["-DCK_WITH_X86"] if X86 else [])] + [
    library(f"convkit_{level}", sources_of(level), flags) for level, flags in LEVELS.items()
]


def knows_flags(compiler: Any, flags: list[str]) -> bool:
    """Tell whether the compiler takes these flags."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("int nothing;\n")
        try:
            compiler.compile([str(source)], output_dir=folder, extra_postargs=[*flags, "-Werror"])
        except CompileError:
            return False
    return True


class BuildLibrariesInParallel(build_clib):
    """The sources of a level take a minute of one core and depend on no other.

    A level that the compiler does not know is left out: ``-mavxvnni`` came with gcc 11 and clang 12.
    """

    def leave_out(self, libraries: list[tuple[str, dict]]) -> None:
        """Drop the libraries of unknown levels, and tell the core."""
        for level in OPTIONAL_LEVELS & LEVELS.keys():
            if not knows_flags(self.compiler, LEVELS[level]):
                warnings.warn(f"{LEVELS[level][-1]} is unknown to the compiler: no level {level}", stacklevel=2)
                libraries[:] = [(name, build) for name, build in libraries if name != f"convkit_{level}"]
                dict(libraries)["convkit_core"]["cflags"].append(f"-DCK_WITHOUT_{level.upper()}")

    def build_libraries(self, libraries: list[tuple[str, dict]]) -> None:
        self.leave_out(libraries)
        compile_all = self.compiler.compile

        def compile_each(sources: list[str], **keywords: object) -> None:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda source: compile_all([source], **keywords), sources))

        self.compiler.compile = compile_each
        super().build_libraries(libraries)


class BuildLibrariesFirst(build_ext):
    """An editable install asks for the extensions alone, but they link against the libraries."""

    def run(self) -> None:
        self.run_command("build_clib")
        super().run()


def extension(module: str, include_dirs: list[str], depends: list[str]) -> Extension:
    """Describe one Cython module."""
    return Extension(
        module,
        [module.replace(".", "/") + ".pyx"],
        include_dirs=[*include_dirs, numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=["-O2", "-g0", "-pthread"],
        extra_link_args=["-pthread", "-lm"],
        depends=depends,
    )


PARTS = sorted(map(str, Path("convkit/_cpu").glob("*.pxi")))
EXTENSIONS = [
    extension("convkit._cpu._engine", [str(CSRC)], [*map(str, sorted(CSRC.iterdir())), *PARTS]),
    extension("convkit._repeated", [], []),
]

setup(
    ext_modules=cythonize(EXTENSIONS, language_level=3),
    libraries=LIBRARIES,
    cmdclass={"build_clib": BuildLibrariesInParallel, "build_ext": BuildLibrariesFirst},
)
