"""Everything that the stand-in offers is there in CuPy, under the same name and with the same arguments.

CuPy imports without a driver, and makes arrays over memory that exists already; so shapes, strides, addresses and
refusals are compared, too.  What needs a GPU is not: values, streams, errors of the runtime.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")
ml_dtypes = pytest.importorskip("ml_dtypes")
sys.path.insert(0, str(Path(__file__).parent.parent / "gpu"))

import standin  # noqa: E402
import standin_array  # noqa: E402
import standin_device  # noqa: E402

MAJOR = int(cupy.__version__.split(".")[0])
# Dtypes of NumPy, names of the stand-in's own, and Python's.
PLAIN = re.compile(r"__\w+__$|_")
# In CuPy 14 only.
NEWER = {"CUDA_R_16BF", "priority"}


def offered(module):
    """Return what a module of the stand-in offers, by name."""
    own = {}
    for name, value in vars(module).items():
        if PLAIN.match(name) or inspect.ismodule(value):
            continue
        if module is standin.blas:
            here = inspect.isroutine(value) and value.__module__ == "standin_blas"
            if not here and not name.startswith(("CUBLAS_", "CUBLASError")):
                continue
        own[name] = value
    return own


def real_of(path):
    """Return a member of CuPy by its name; some modules are attributes only."""
    found = cupy
    for name in path.split(".")[1:]:
        found = getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{found.__name__}.{name}")
    return found


def parameters(function):
    """Return the parameters of a function as (name, has a default, by keyword only), or None where nothing tells."""
    try:
        found = inspect.signature(function).parameters.values()
        if not any(p.kind is p.VAR_POSITIONAL for p in found):
            return [(p.name, p.default is not p.empty, p.kind is p.KEYWORD_ONLY) for p in found]
    except (ValueError, TypeError):
        pass
    # Cython puts the signature into the docstring; that of a constructor stands in the class's.
    lines = (re.match(r"\s*[\w.]+\((.*)\)", line.replace("\\", "")) for line in (function.__doc__ or "").splitlines())
    inside = next((line for line in lines if line and "**" not in line[1] and "args" not in line[1][:5]), None)
    if not inside:
        return None
    parts = [part.strip() for part in re.split(r",(?![^(\[]*[)\]])", inside[1]) if part.strip()]
    found, only = [], False
    for part in parts:
        if part == "*":
            only = True
        elif not part.startswith("*"):
            name = part.split("=")[0].split(":")[0].split()[-1]
            found.append((name, "=" in part, only))
    return found


def assert_same_parameters(name, ours, theirs):
    mine, real = parameters(ours), parameters(theirs)
    if mine is None or real is None:
        return False
    mine = [p for p in mine if p[0] != "self" and (MAJOR >= 14 or p[0] not in NEWER)]
    real = [p for p in real if p[0] != "self"]
    positional = [p for p in mine if not p[2]]
    assert positional == [p for p in real if not p[2]][: len(positional)], name
    assert all(p in real for p in mine if p[2]), name
    left_out = {p[0] for p in real} - {p[0] for p in mine}
    assert all(default for other, default, _ in real if other in left_out), name
    return True


@pytest.mark.parametrize("name", sorted(standin.MODULES))
def test_every_name_is_there(name):
    real = real_of(name)
    compared = 0
    for member, ours in offered(standin.MODULES[name]).items():
        if member in NEWER and MAJOR < 14:
            continue
        assert hasattr(real, member), f"CuPy has no {name}.{member}"
        theirs = getattr(real, member)
        if isinstance(ours, (int, float, str)) and not isinstance(ours, bool):
            assert ours == theirs, f"{name}.{member}"
        elif inspect.isclass(ours):
            assert inspect.isclass(theirs)
        elif callable(ours):
            compared += assert_same_parameters(f"{name}.{member}", ours, theirs)
    if name == "cupy.cuda.cublas":
        assert compared >= 6


CLASSES = {
    "cupy.ndarray": standin_array.ndarray,
    "cupy.RawModule": standin.RawModule,
    "cupy.RawKernel": standin.RawKernel,
    "cupy.cuda.Device": standin_device.Device,
    "cupy.cuda.Stream": standin_device.Stream,
    "cupy.cuda.ExternalStream": standin_device.ExternalStream,
    "cupy.cuda.Event": standin_device.Event,
    "cupy.cuda.Graph": standin_device.Graph,
    "cupy.cuda.MemoryPointer": standin_device.MemoryPointer,
    "cupy.cuda.MemoryPool": standin_device.MemoryPool,
    "cupy.cuda.UnownedMemory": standin_device.UnownedMemory,
    "cupy.cuda.memory.OutOfMemoryError": standin_device.OutOfMemoryError,
    "cupy.cuda.runtime.CUDARuntimeError": standin_device.CUDARuntimeError,
    "cupy.cuda.cublas.CUBLASError": standin.blas.CUBLASError,
    "cupy.cuda.compiler.CompileException": standin.CompileException,
}


@pytest.mark.parametrize("path", CLASSES)
def test_every_member_is_there(path):
    ours, theirs = CLASSES[path], real_of(path)
    for name, value in vars(ours).items():
        if name.startswith("_") and name not in ("__init__", "__call__", "__getitem__", "__add__", "__len__"):
            continue
        assert hasattr(theirs, name), f"{path} has no {name}"
        if name == "__init__" and ours is standin_array.ndarray:
            assert assert_same_parameters(f"{path}.{name}", value, theirs)
        elif callable(value) and not name.startswith("__"):
            assert_same_parameters(f"{path}.{name}", value, getattr(theirs, name))
    builtin = [base for base in ours.__mro__ if base.__module__ == "builtins"]
    assert all(issubclass(theirs, base) for base in builtin), path


def test_what_instances_have_is_there():
    with standin.installed():
        array = standin_array.ndarray((2, 3), np.float32)
        for instance, real in (
            (array, cupy.ndarray),
            (array.data, cupy.cuda.MemoryPointer),
            (array.data.mem, cupy.cuda.BaseMemory),
            (array.flags, type(over_memory(np.float32, (2,)).flags)),
            (standin_device.Stream(), cupy.cuda.Stream),
            (standin_device.Device(), cupy.cuda.Device),
        ):
            for name in vars(instance):
                # Set by CuPy when an instance is made, which needs a driver.
                if not name.startswith("_") and name not in ("ptr", "device_id"):
                    assert hasattr(real, name), f"{real.__name__} has no {name}"
            del instance
        del array


BUFFER = np.zeros(65536, np.uint8)


def over_memory(dtype, shape):
    """Return an array of CuPy over host memory, which nothing reads."""
    memory = cupy.cuda.UnownedMemory(BUFFER.ctypes.data, BUFFER.nbytes, BUFFER, 0)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


VIEWS = {
    "slices": lambda a: a[1:, ::-2],
    "one index": lambda a: a[2],
    "negative": lambda a: a[-1, ..., 1:],
    "new axis": lambda a: a[:, None, 1],
    "all": lambda a: a[...],
    "a number": lambda a: a[1, 2, 0],
    "empty": lambda a: a[:, 3:3],
    "transposed": lambda a: a.transpose(2, 0, 1),
    "transposed by a tuple": lambda a: a.transpose((1, 0, 2)),
    "T": lambda a: a.T,
    "swapped": lambda a: a.swapaxes(0, 2),
    "squeezed": lambda a: a[:1].squeeze(),
    "reshaped": lambda a: a.reshape(4, -1),
    "reshaped slices": lambda a: a[:, :4].reshape(4, 2, 2, 3),
    "flat": lambda a: a.ravel(),
    "other bytes": lambda a: a.view(np.uint8),
    "same bytes": lambda a: a[:, ::2].view(np.dtype(f"u{a.itemsize}")),
    "bfloat16": lambda a: a.view(np.uint16).view(ml_dtypes.bfloat16),
    "real": lambda a: a.real,
    "base": lambda a: a[1:][1:].base,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.dtype(">f4"), np.int8])
@pytest.mark.parametrize("name", VIEWS)
def test_views_lie_where_those_of_cupy_lie(name, dtype):
    if np.dtype(dtype).itemsize == 1 and name == "bfloat16":
        return
    real = over_memory(dtype, (4, 6, 3))
    with standin.installed(version=cupy.__version__):
        ours = standin_array.ndarray((4, 6, 3), dtype)
        seen, wanted = VIEWS[name](ours), VIEWS[name](real)
        for member in ("shape", "dtype", "ndim", "size", "itemsize", "nbytes"):
            assert getattr(seen, member) == getattr(wanted, member), member
        if wanted.size:
            assert seen.strides == wanted.strides
            assert seen.data.ptr - ours.data.ptr == wanted.data.ptr - real.data.ptr
            assert seen.flags.c_contiguous == wanted.flags.c_contiguous
            assert seen.flags.f_contiguous == wanted.flags.f_contiguous
        assert (seen.base is None) == (wanted.base is None)
        assert seen.flags.owndata == wanted.flags.owndata
        del ours, seen


def test_broadcast_and_strided_views():
    real = over_memory(np.float32, (4, 3))
    with standin.installed():
        ours = standin_array.ndarray((4, 3), np.float32)
        for module, array in ((cupy, real), (standin.CUPY, ours)):
            assert module.broadcast_to(array, (5, 4, 3)).strides == (0, 12, 4)
            strided = module.lib.stride_tricks.as_strided(array, (2, 2), (4, 8))
            assert strided.strides == (4, 8) and strided.data.ptr == array.data.ptr
            assert module.may_share_memory(array, array[1:])
            assert module.ndarray((2, 2), np.float32, memptr=array.data, strides=(4, -8)).strides == (4, -8)
        del ours, array, strided


REFUSED = {
    "NumPy's array": lambda a: np.asarray(a),
    "memoryview": lambda a: memoryview(a),
    "truth": lambda a: bool(a),
    "hash": lambda a: hash(a),
    "a flag that there is not": lambda a: a.flags.writeable,
    "ctypes": lambda a: a.ctypes,
    "a shape that does not fit": lambda a: a.reshape(5, 7),
    "an index beyond": lambda a: a[9],
    "axes twice": lambda a: a.transpose(0, 0),
    "a view of other bytes across a gap": lambda a: a[:, ::2].view(np.uint8),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cupy_refuses_is_refused(name):
    real = over_memory(np.float32, (4, 3))
    with pytest.raises(Exception) as theirs:
        REFUSED[name](real)
    with standin.installed():
        ours = standin_array.ndarray((4, 3), np.float32)
        with pytest.raises(Exception) as mine:
            REFUSED[name](ours)
        del ours
    assert issubclass(theirs.type, mine.type) or issubclass(mine.type, theirs.type), (theirs.type, mine.type)


def test_arguments_of_cublas_are_converted_no_more_freely():
    """Without a driver nothing gets past the look for the current stream, once all arguments are converted."""
    names = [name for name, _, _ in parameters(cupy.cuda.cublas.gemmEx)]
    right, refused = dict.fromkeys(names, 0), 0
    for name in names:
        for value in ("1", None, 2**64, -(2**64)):
            with pytest.raises(Exception) as theirs:
                cupy.cuda.cublas.gemmEx(**{**right, name: value})
            if issubclass(theirs.type, (TypeError, OverflowError)):
                refused += 1
                with standin.installed(), pytest.raises(theirs.type):
                    standin.blas.gemmEx(**{**right, name: value})
    assert refused >= 3 * len(names)


def test_options_of_a_module_are_a_tuple():
    for module in (cupy, standin.CUPY):
        with pytest.raises(TypeError):
            module.RawModule(code="", options=["-DX"])
