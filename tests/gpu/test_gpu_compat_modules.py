"""`convkit.compat.install`: what Python's import system sees, before which imports, and beside which CuPy."""

import textwrap
from pathlib import Path

import pytest
from child import run_python

# Packages that do no more than look for modules; sigpy looks when it is imported.
CUPY_14 = {
    "cupy/__init__.py": "__version__ = '14.2.0'",
    "cupy/cuda/__init__.py": "",
    "cupyx/__init__.py": "",
    "sigpy/__init__.py": "from . import config",
    "sigpy/config.py": """
        from importlib.util import find_spec
        cudnn_enabled = find_spec("cupy.cuda.cudnn") is not None
        if cudnn_enabled:
            from cupy import cudnn
    """,
}
CUPY_13 = {
    **CUPY_14,
    "cupy/__init__.py": "__version__ = '13.6.0'",
    "cupy/cudnn.py": "own = True",
    "cupy/cuda/cudnn.py": "raise ImportError('libcudnn.so.8: cannot open shared object file')",
    "cupyx/cudnn.py": "own = True",
}
NAMES = ("cupy.cudnn", "cupyx.cudnn", "cupy.cuda.cudnn")


@pytest.fixture
def run(tmp_path):
    """Run code in a new process, in which the packages given are installed."""

    def run(packages: dict[str, str], code: str) -> list[str]:
        for name, text in packages.items():
            path = Path(tmp_path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        begin = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        return run_python(begin + textwrap.dedent(code)).splitlines()

    return run


def test_nothing_happens_at_import(run):
    assert run(
        CUPY_14,
        """
        import convkit, convkit.compat, sys
        from importlib.util import find_spec
        print(any(name.split(".")[0].startswith("cupy") for name in sys.modules))
        print(find_spec("cupy.cudnn"), find_spec("cupyx.cudnn"), find_spec("cupy.cuda.cudnn"))
        """,
    ) == ["False", "None None None"]


def test_modules_are_found_imported_and_are_attributes_of_their_packages(run):
    assert run(
        CUPY_14,
        """
        import convkit
        print(convkit.compat.install())
        import cupy, cupyx, importlib, sys
        from importlib.util import find_spec
        for name, module in (("cupy.cudnn", cupy.cudnn), ("cupyx.cudnn", cupyx.cudnn),
                             ("cupy.cuda.cudnn", cupy.cuda.cudnn)):
            spec = find_spec(name)
            print(name, spec.name == name, spec.loader is not None, spec.origin, spec is module.__spec__,
                  sys.modules[name] is module, module.__name__, module.__package__,
                  importlib.reload(module) is module, callable(module.convolution_forward))
        from cupy.cudnn import convolution_forward
        from cupy import cudnn
        print(cudnn.convolution_forward is convolution_forward is cupyx.cudnn.convolution_forward, cudnn.available)
        """,
    ) == [
        "convkit serves cupy.cudnn, cupyx.cudnn, cupy.cuda.cudnn of CuPy 14.2.0",
        *(f"{name} True True convkit.compat True True {name} {name.rpartition('.')[0]} True True" for name in NAMES),
        "True True",
    ]


def test_sigpy_imported_after_it_finds_the_bindings(run):
    assert run(
        CUPY_14,
        """
        import convkit
        convkit.compat.install()
        import sigpy
        print(sigpy.config.cudnn_enabled, sigpy.config.cudnn.__name__)
        """,
    ) == ["True cupy.cudnn"]


def test_sigpy_imported_before_it_is_named_with_the_order_to_import_in(run):
    told, *installed = run(
        CUPY_14,
        """
        import sigpy, convkit
        try:
            convkit.compat.install()
        except convkit.BackendError as error:
            print(error)
        from importlib.util import find_spec
        print(find_spec("cupy.cudnn"), find_spec("cupyx.cudnn"), find_spec("cupy.cuda.cudnn"))
        """,
    )
    assert told.startswith("compat.install: sigpy is already imported")
    assert "call convkit.compat.install() first, and import sigpy after it" in told
    assert installed == ["None None None"]


def test_twice_is_as_once_even_when_sigpy_has_come_in_between(run):
    assert run(
        CUPY_14,
        """
        import convkit
        first = convkit.compat.install()
        import cupy, sigpy, sys
        modules, finders = (cupy.cudnn, cupy.cuda.cudnn), list(sys.meta_path)
        print(convkit.compat.install() == first, modules == (cupy.cudnn, cupy.cuda.cudnn), finders == sys.meta_path)
        """,
    ) == ["True True True"]


def test_uninstall_leaves_nothing_behind_but_functions_that_someone_has_kept(run):
    assert run(
        CUPY_14,
        """
        import convkit, cupy, cupyx, sys
        convkit.compat.uninstall()
        before = list(sys.meta_path)
        convkit.compat.install()
        kept = cupy.cudnn.get_max_workspace_size
        convkit.compat.uninstall()
        from importlib.util import find_spec
        print(find_spec("cupy.cudnn"), find_spec("cupyx.cudnn"), find_spec("cupy.cuda.cudnn"))
        print(hasattr(cupy, "cudnn"), hasattr(cupy.cuda, "cudnn"), hasattr(cupyx, "cudnn"), sys.meta_path == before)
        print(kept())
        convkit.compat.install()
        print(cupy.cudnn.get_max_workspace_size is kept)
        """,
    ) == ["None None None", "False False False True", "8388608", "True"]


def test_bindings_of_cupys_own_are_left_as_they_are(run):
    assert run(
        CUPY_13,
        """
        import convkit
        print(convkit.compat.install())
        import sys
        print([name for name in sys.modules if "cudnn" in name and not name.startswith("convkit")])
        from cupy import cudnn
        from cupyx import cudnn as other
        print(cudnn.own, other.own)
        convkit.compat.uninstall()
        print(cudnn is sys.modules["cupy.cudnn"])
        """,
    ) == [
        "CuPy 13.6.0 has cupy.cudnn, cupyx.cudnn, cupy.cuda.cudnn of its own, which are left as they are",
        "[]",
        "True True",
        "True",
    ]


def test_modules_that_somebody_else_has_made_are_left_as_they_are(run):
    assert run(
        CUPY_14,
        """
        import convkit, cupy, sys, types
        own = cupy.cudnn = sys.modules["cupy.cudnn"] = types.ModuleType("cupy.cudnn")
        print(convkit.compat.install())
        convkit.compat.uninstall()
        print(cupy.cudnn is own is sys.modules["cupy.cudnn"])
        """,
    ) == ["CuPy 14.2.0 has cupy.cudnn of its own, which is left as it is", "True"]


def test_without_cupy_one_sentence_says_so(run):
    (told,) = run(
        {},
        """
        import sys
        sys.modules["cupy"] = None
        import convkit
        try:
            convkit.compat.install()
        except convkit.BackendError as error:
            print(error)
        """,
    )
    assert "CuPy" in told


def test_a_name_that_the_drop_in_lacks_is_answered_with_those_it_has(run):
    (told,) = run(
        CUPY_14,
        """
        import convkit
        convkit.compat.install()
        import cupy
        try:
            cupy.cudnn.pooling_forward
        except AttributeError as error:
            print(error)
        """,
    )
    assert told.startswith("module 'cupy.cudnn' has no attribute 'pooling_forward'; it is convkit's drop-in")
    assert "convolution_backward_filter" in told


def test_what_install_has_done_is_logged(run):
    assert run(
        CUPY_14,
        """
        import convkit, logging
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
        convkit.compat.install()
        """,
    ) == ["convkit compat.install: convkit serves cupy.cudnn, cupyx.cudnn, cupy.cuda.cudnn of CuPy 14.2.0"]
