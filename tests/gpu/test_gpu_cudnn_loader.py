"""Finding cuDNN: one copy of the library, a frontend of a known version, and one clear sentence where there is none."""

import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import cudnn_calls
import fake_cudnn
import pytest
from child import run_python

from convkit import BackendError
from convkit._gpu import handles, loader

HERE = Path(__file__).resolve().parent


def metadata(folder, version, name="nvidia-cudnn-frontend"):
    """Write what an installer leaves of a package, and a module `cudnn` that must not be imported."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    return folder


def status(tmp_path, before="", **extra):
    """Return what a fresh process finds, with a folder of packages."""
    program = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        {before}
        from convkit._gpu import loader
        print(loader.status())
        print(loader.path())
        print("cudnn" in sys.modules)
    """
    return run_python(program, **extra).splitlines()


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What is found in a folder of packages, in this process; nothing of it is left."""
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules)

    def look(module=None):
        if module is not None:
            (tmp_path / "cudnn.py").write_text(module, encoding="utf-8")
        loader.forget()
        return loader.status(), "cudnn" in sys.modules

    yield look
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    loader.forget()


MODULE = """
class pygraph: pass
def backend_version(): return {version}
"""


@pytest.fixture
def no_package(monkeypatch):
    """The frontend is not installed, whatever this machine has."""

    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(loader, "version", version)


def test_the_package_that_is_not_installed(no_package, found):
    sentence = "the Python package nvidia-cudnn-frontend, which reaches cuDNN, is not installed"
    assert found() == ((None, sentence), False)
    with pytest.raises(BackendError, match=sentence):
        loader.module()


def test_a_module_of_the_same_name_is_not_imported(no_package, found):
    (version, sentence), imported = found("raise SystemExit('imported')")
    assert version is None and "not its own" in sentence and not imported


@pytest.mark.parametrize("version", ["1.15.0", "1.29.0", "1.30.1", "2.0.0"])
def test_a_frontend_of_another_version_is_not_imported(found, tmp_path, version):
    metadata(tmp_path, version)
    (_, sentence), imported = found("raise SystemExit('imported')")
    assert f"is of version {version}, but must be at least 1.18 and below 1.29" in sentence and not imported


@pytest.mark.parametrize("version", ["1.18.0", "1.24.1", "1.28.0"])
def test_a_frontend_that_is_known_is_taken(found, tmp_path, version):
    metadata(tmp_path, version)
    assert found(MODULE.format(version=91002)) == ((91002, ""), True)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("raise OSError('libcudart is missing')", "cannot be imported: OSError: libcudart is missing"),
        ("x = 1", "is not that of nvidia-cudnn-frontend"),
        (MODULE.format(version="1/0"), "libcudnn.so.9 cannot be loaded: ZeroDivisionError"),
        (MODULE.format(version=8902), "cuDNN is of version 8902, but must be 90000 or newer"),
    ],
)
def test_what_is_broken_is_told_in_a_sentence(found, tmp_path, module, sentence):
    metadata(tmp_path, "1.28.0")
    (version, told), _ = found(module)
    assert version is None and sentence in told


def library(folder, name="libcudnn.so.9", source="int cudnnGetVersion(void) { return 92801; }"):
    """Compile a library that is none of NVIDIA's."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / name
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    subprocess.run(command, input=source, text=True, check=True)
    return made


CUDART = "#include <stddef.h>\nsize_t cudnnGetCudartVersion(void) { return %d; }"
# As the frontend: it loads the first copy in LD_LIBRARY_PATH.
LOADING = """
import ctypes, os
for folder in os.environ["LD_LIBRARY_PATH"].split(os.pathsep):
    if os.path.exists(folder + "/libcudnn.so.9"):
        library = ctypes.CDLL(folder + "/libcudnn.so.9")
        break
class pygraph: pass
def backend_version(): return library.cudnnGetVersion()
"""


class TestOneCopy:
    """Two copies of cuDNN in one process mix silently."""

    def both(self, tmp_path, sources=("1", "2")):
        metadata(tmp_path / "site", "1.28.0")
        (tmp_path / "site" / "cudnn.py").write_text(LOADING, encoding="utf-8")
        text = "int cudnnGetVersion(void) { return 9280%s; }\n" + CUDART % 13050
        return [library(tmp_path / f"copy{n}", source=text.replace("%s", n)) for n in sources]

    def test_the_copy_that_is_mapped_already_is_taken(self, tmp_path):
        first, second = self.both(tmp_path)
        library(tmp_path / "copy2", "libcublasLt.so.13", "int x;")
        before = f"import ctypes; ctypes.CDLL({str(second)!r})"
        found = status(tmp_path / "site", before, LD_LIBRARY_PATH=f"{first.parent}:{second.parent}")
        assert found == ["(92802, '')", str(second), "True"]

    def test_the_environment_is_as_it_was_afterwards(self, tmp_path):
        _, second = self.both(tmp_path)
        library(tmp_path / "copy2", "libcublasLt.so.13", "int x;")
        before = f"import ctypes; ctypes.CDLL({str(second)!r}); import os; old = dict(os.environ)"
        after = f"assert loader.path() == {str(second)!r} and os.environ == old"
        program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {before}"
        assert run_python(f"{program}\nfrom convkit._gpu import loader\n{after}") == ""

    def test_two_copies_are_refused_by_name(self, tmp_path):
        copies = self.both(tmp_path)
        before = "; ".join(["import ctypes", *(f"ctypes.CDLL({str(copy)!r})" for copy in copies)])
        found, _, imported = status(tmp_path / "site", before, LD_LIBRARY_PATH=str(copies[0].parent))
        assert all(str(copy) in found for copy in copies) and "several copies" in found and imported == "False"

    def test_a_second_copy_that_the_import_brings_is_refused(self, tmp_path):
        first, second = self.both(tmp_path)
        (tmp_path / "site" / "cudnn.py").write_text(
            f"import ctypes\nlibrary = ctypes.CDLL({str(first)!r})\n{MODULE.format(version=92801)}",
            encoding="utf-8",
        )
        found = status(tmp_path / "site", f"import ctypes; ctypes.CDLL({str(second)!r})")[0]
        assert "several copies" in found

    def test_a_cudnn_that_would_find_no_cublas_is_refused(self, tmp_path):
        """It ends the process where it needs that."""
        (first,) = self.both(tmp_path, ("1",))
        extra = {"LD_LIBRARY_PATH": str(first.parent)}
        found = status(tmp_path / "site", **extra)[0]
        assert "libcublasLt.so.13, which cannot be loaded" in found
        library(first.parent, "libcublasLt.so.13", "int x;")
        assert status(tmp_path / "site", **extra)[0] == "(92801, '')"

    def test_cublas_is_found_where_python_packages_put_it(self, tmp_path):
        metadata(tmp_path / "site", "1.28.0")
        (tmp_path / "site" / "cudnn.py").write_text(LOADING, encoding="utf-8")
        text = "int cudnnGetVersion(void) { return 92801; }\n" + CUDART % 12090
        copy = library(tmp_path / "nvidia" / "cudnn" / "lib", source=text)
        library(tmp_path / "nvidia" / "cublas" / "lib", "libcublasLt.so.12", "int x;")
        assert status(tmp_path / "site", LD_LIBRARY_PATH=str(copy.parent))[0] == "(92801, '')"


def test_nothing_of_cudnn_is_imported_with_convkit():
    assert run_python("import sys, convkit; print({'cudnn', 'cupy'} & set(sys.modules))") == "set()"


class TestHandles:
    """One handle for each thread and device, on the stream of the call."""

    @pytest.fixture
    def script(self, cupy):
        with cudnn_calls.installed() as script:
            yield script

    def test_a_thread_keeps_its_handle_and_sets_its_stream(self, script):
        first = handles.handle(0, 0x10)
        assert handles.handle(0, 0x20) is first and first.stream == 0x20
        assert len(script.handles) == 1

    def test_devices_have_handles_of_their_own(self, script, cupy):
        first = handles.handle(0, 0)
        with cupy.cuda.Device(1):
            second = handles.handle(1, 0)
        assert (first.device, second.device) == (0, 1)

    def test_threads_have_handles_of_their_own_and_leave_them_to_later_ones(self, script):
        own, others = handles.handle(0, 0), []

        def work():
            others.append(handles.handle(0, 0))

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert own not in others and len(set(map(id, others))) == 1 and len(script.handles) == 2

    def test_forgetting_destroys_them(self, script):
        handles.handle(0, 0)
        handles.forget()
        handles.forget()
        assert script.destroyed == 1
        assert handles.handle(0, 0).alive

    def test_the_stand_in_notices_a_handle_on_the_wrong_stream(self, script, cupy, rng):
        graph = fake_cudnn.pygraph(io_data_type=None, intermediate_data_type=None, compute_data_type=None)
        graph.selected = fake_cudnn.FakePlan("plan")
        handle = handles.handle(0, 0x999)
        with pytest.raises(AssertionError, match="stream of a handle"):
            graph.execute({}, 0, handle)
