"""ISA levels: each that this CPU can run gives the same exact results, and none reaches into a lower one's library."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import setup_libraries
from child import run_python

from convkit._cpu import _engine, isa

LEVELS = _engine.ISA_RUNS
BUILT = tuple(level for level in _engine.ISA_LEVELS if any(tile.isa == level for tile in (*isa.TILES, *isa.INT8_TILES)))
each_level = pytest.mark.parametrize("level", LEVELS)

GOLDEN = """
    import cases, convkit, harness, numpy as np

    checked = 0
    for case in cases.golden_ids()[::3]:
        golden = cases.golden(case)
        calls = harness.three_calls(golden.x, golden.w, golden.dy, **golden.geometry)
        for call, expected in zip(calls, (golden.y, golden.dw, golden.dx), strict=True):
            for dtype in harness.WIDE:
                for layout in harness.LAYOUTS[:2]:
                    arguments = call.in_layout(layout, dtype)
                    result = harness.operation(call.op)(
                        *arguments, algorithm="direct", **call.geometry, **layout.keywords
                    )
                    assert result.dtype == dtype
                    np.testing.assert_array_equal(
                        call.result_from(result, layout), expected, err_msg=f"{case} {call.op} {dtype} {layout}"
                    )
            checked += 1
    print(checked)
"""

# Shapes with tails in rows and columns of every register tile, and sums of several blocks.
FLOATS = """
    import hashlib, harness, numpy as np, reference

    LAYERS = [
        ((2, 9, 11, 5), (3, 3, 5, 37), {"padding": "SAME"}),
        ((1, 8, 7, 96), (3, 2, 96, 33), {"padding": "VALID", "strides": (2, 1)}),
        ((2, 13, 9, 6), (2, 3, 3, 8), {"padding": "SAME", "dilations": (2, 2), "groups": 2}),
    ]

    def results(num_threads=None, dtypes=harness.WIDE):
        rng = np.random.default_rng(1)
        for x, w, geometry in LAYERS:
            y = reference.output_shape(x, w, **{k: v for k, v in geometry.items() if k != "groups"})
            for call in harness.three_calls(*(harness.floats(rng, shape) for shape in (x, w, y)), **geometry):
                for dtype in dtypes:
                    yield call, dtype, harness.operation(call.op)(
                        *call.in_layout(harness.NHWC, dtype), algorithm="direct", num_threads=num_threads, **geometry
                    )
"""

BITS = (
    FLOATS
    + """
    for threads in (1, 2, 3, 16):
        print(hashlib.sha256(b"".join(result.tobytes() for _, _, result in results(threads))).hexdigest())
"""
)

ERRORS = (
    FLOATS
    + """
    checked = 0
    for call, dtype, result in results():
        excess = np.max(np.abs(result - call.reference()) - 2 * call.bound(dtype))
        assert excess <= 0, f"{call.op} {dtype}: {excess} beyond the bound"
        checked += 1
    print(checked)
"""
)

# (1 + 2^-12)^2 less its own value in float32: zero if the product is rounded before the addition, 2^-24 if it is not.
ROUNDINGS = """
    import convkit, numpy as np

    a = np.float32(1 + 2**-12)
    x = np.array([-a * a, a], np.float32).reshape(1, 1, 1, 2)
    w = np.array([1, a], np.float32).reshape(1, 1, 2, 1)
    print(convkit.conv2d(x, w, algorithm="direct").item())
"""

REFUSAL = """
    import convkit, numpy as np

    for call in (convkit.cpu_info, lambda: convkit.conv2d(np.ones((1, 3, 3, 1)), np.ones((3, 3, 1, 1)))):
        try:
            call()
        except convkit.ArgumentError as error:
            print(error)
"""

LEVELS_IN_USE = "import convkit; print(*convkit.cpu_info()['isa'])"


# The dtypes that a level has register tiles of floats for, where they are not those of every level.
NARROW = {"avx2vnni": set(), "avx512vnni": set(), "avx512bf16": {"bfloat16"}}


def test_every_level_has_tiles_of_its_dtypes():
    for level in BUILT:
        expected = NARROW.get(level, {"float32", "float64"})
        assert {tile.arithmetic for tile in isa.TILES if tile.isa == level} == expected
    assert {tile.isa for tile in isa.INT8_TILES} == set(BUILT) - {"avx512bf16"}


def test_the_lowest_level_runs_everywhere():
    assert LEVELS[0] == "generic"
    assert set(LEVELS) <= set(_engine.ISA_LEVELS)


def test_levels_build_on_levels_before_them():
    assert isa.levels("generic") == ("generic",)
    assert isa.levels("avx2vnni") == ("generic", "avx2", "avx2vnni")
    assert isa.levels("avx512bf16") == ("generic", "avx2", "avx512", "avx512vnni", "avx512bf16")
    for level in LEVELS:
        assert set(isa.levels(level)) <= set(LEVELS)


def test_tiles_are_those_of_the_highest_level_included():
    for highest in _engine.ISA_LEVELS:
        for arithmetic in ("float32", "float64"):
            chosen = isa.tile_for(arithmetic, highest)
            able = [tile for tile in isa.TILES if tile.arithmetic == arithmetic and tile.isa in isa.levels(highest)]
            assert chosen == able[-1]
    assert isa.tile_for("float32", "avx512bf16").isa in ("avx512", "generic")


@each_level
def test_cpu_info_follows_the_cap(level):
    expected = " ".join(isa.levels(level))
    for spelling in (level, f" {level.upper()} "):
        assert run_python(LEVELS_IN_USE, CONVKIT_MAX_ISA=spelling) == expected


def test_a_cap_beyond_the_cpu_changes_nothing():
    for cap in ("", _engine.ISA_LEVELS[-1]):
        assert run_python(LEVELS_IN_USE, CONVKIT_MAX_ISA=cap) == " ".join(isa.levels(_engine.BEST_ISA))


def test_an_unknown_cap_is_refused_by_name():
    lines = run_python(REFUSAL, CONVKIT_MAX_ISA="avx9").splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "CONVKIT_MAX_ISA is 'avx9'" in line
        assert all(repr(level) in line for level in _engine.ISA_LEVELS)


def test_a_cap_between_the_levels_of_a_cpu_leaves_the_best_one_below(monkeypatch):
    monkeypatch.setattr(_engine, "ISA_RUNS", ("generic", "avx2", "avx512", "avx512vnni"))
    monkeypatch.setenv("CONVKIT_MAX_ISA", "avx2vnni")
    assert isa.usable() == "avx2"


def test_int8_tiles_are_those_of_the_highest_level_included():
    assert isa.levels("avx512vnni") == ("generic", "avx2", "avx512", "avx512vnni")
    for tile in isa.INT8_TILES:
        assert isa.int8_tile_for(tile.isa) == tile
    assert isa.int8_tile_for("avx512bf16").isa in ("avx512vnni", "generic")


@each_level
def test_golden_values_equal_to_the_last_bit(level):
    assert run_python(GOLDEN, CONVKIT_MAX_ISA=level) == str(40 * 3)


@each_level
def test_bits_do_not_depend_on_the_number_of_threads(level):
    digests = run_python(BITS, CONVKIT_MAX_ISA=level).split()
    assert len(digests) == 4
    assert len(set(digests)) == 1


@each_level
def test_errors_stay_within_the_contract(level):
    assert run_python(ERRORS, CONVKIT_MAX_ISA=level) == str(3 * 3 * 2)


@each_level
def test_the_level_named_is_the_level_that_ran(level):
    fused = level != "generic"
    assert float(run_python(ROUNDINGS, CONVKIT_MAX_ISA=level)) == (2.0**-24 if fused else 0.0)


def symbols(library: Path) -> dict[str, str]:
    """Return the kind of each global symbol of an archive: "U" if it is defined elsewhere, "D" or "R" for data."""
    output = subprocess.run(["nm", "-g", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1]: line.split()[-2] for line in output.splitlines() if line and not line.endswith(":")}


@pytest.mark.parametrize("level", BUILT)
def test_a_library_of_a_level_gives_its_tables_alone(level, tmp_path):
    """Whatever else it defined, an inline function say, might be linked into code that lower CPUs run."""
    for tool in ("gcc", "ar", "nm"):
        assert shutil.which(tool), f"{tool} is needed to test csrc/"
    library = setup_libraries.read()[f"convkit_{level}"]
    objects = []
    for source in library["sources"]:
        objects.append(tmp_path / f"{Path(source).stem}.o")
        command = ["gcc", *library["cflags"], "-O0", "-c", source, "-o", objects[-1]]
        subprocess.run(command, cwd=setup_libraries.ROOT, check=True)
    archive = tmp_path / f"libconvkit_{level}.a"
    subprocess.run(["ar", "rcs", archive, *objects], check=True)
    found = symbols(archive)
    tables = {name for name, kind in found.items() if kind != "U"}
    assert all(found[name] in "DR" for name in tables)
    floats = {name for name in tables if re.fullmatch(rf"ck_\w+_(f32|f64|bf16)_{level}", name)}
    bytewise = {f"ck_int8_{level}"} if any(tile.isa == level for tile in isa.INT8_TILES) else set()
    assert tables - floats == bytewise
    dtypes = {tile.arithmetic.replace("loat", "") for tile in isa.TILES if tile.isa == level}
    assert len(floats) == len(dtypes) * (len(objects) - len(bytewise))
    assert floats >= {f"ck_dot_{dtype}_{level}" for dtype in dtypes}
    assert not [name for name in found.keys() - tables if name.startswith("ck_")]


def test_only_level_libraries_have_flags_of_their_own():
    libraries = setup_libraries.read()
    assert set(libraries) == {"convkit_core", *(f"convkit_{level}" for level in BUILT)}
    for name in ("convkit_core", "convkit_generic"):
        assert not [flag for flag in libraries[name]["cflags"] if flag.startswith("-m")]
    assert not [flag for library in libraries.values() for flag in library["cflags"] if flag.startswith("-march")]
    assert all("-ffp-contract=off" in library["cflags"] for library in libraries.values())


def test_the_drivers_in_c_are_built_with_the_same_flags():
    libraries = setup_libraries.read()
    makefile = (Path(__file__).parent / "c" / "Makefile").read_text(encoding="utf-8")
    flags = {level: set(line.split()) for level, line in re.findall(r"^LEVEL_FLAGS_(\w+) :=(.*)$", makefile, re.M)}
    common = set(libraries["convkit_generic"]["cflags"])
    for level in BUILT:
        assert flags[level] == set(libraries[f"convkit_{level}"]["cflags"]) - common
