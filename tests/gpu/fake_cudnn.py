"""A stand-in for cuDNN's frontend: graphs that are recorded, planned by a script, and executed in NumPy on addresses.

What it offers is what the module ``cudnn`` offers, by the same names; ``tests/gpu_planning`` compares the two.  Plans
can be made slow, made to raise, to write where they must not, to give wrong numbers, or to want much memory.
"""

from __future__ import annotations

import ctypes
import enum
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from standin_device import WORLD, current_stream

VERSION = 92801


class data_type(enum.Enum):
    """Types of elements."""

    NOT_SET = 0
    FLOAT = 1
    DOUBLE = 2
    HALF = 3
    BFLOAT16 = 4
    INT8 = 5
    INT32 = 6


class heur_mode(enum.Enum):
    """Modes of asking for plans."""

    A = 0
    B = 1
    FALLBACK = 2


class numerical_note(enum.Enum):
    """What a plan may do to numbers."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    FFT = 3
    NONDETERMINISTIC = 4
    WINOGRAD = 5
    WINOGRAD_TILE_4x4 = 6
    WINOGRAD_TILE_6x6 = 7
    WINOGRAD_TILE_13x13 = 8


class behavior_note(enum.Enum):
    """What a plan does besides."""

    RUNTIME_COMPILATION = 0
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 1


class cudnnGraphNotSupportedError(Exception):
    """There is no plan, or not this one."""


NUMPY = {
    data_type.FLOAT: np.dtype(np.float32),
    data_type.DOUBLE: np.dtype(np.float64),
    data_type.HALF: np.dtype(np.float16),
    data_type.INT8: np.dtype(np.int8),
    data_type.INT32: np.dtype(np.int32),
}


def numpy_dtype(kind: data_type) -> np.dtype[Any]:
    """Return a dtype; bfloat16 takes ml_dtypes."""
    if kind is data_type.BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return NUMPY[kind]


@dataclass(frozen=True)
class FakePlan:
    """One plan, and what is the matter with it."""

    name: str
    workspace: int = 0
    notes: tuple[str, ...] = ()
    compiled: bool = False
    # Seconds that a run takes.
    seconds: float = 0.0
    # "build" or "run": raises there.  "outside", "before": writes next to the result.  "workspace": writes past its
    # workspace.  "wrong": a wrong number.
    fault: str | None = None


# What heuristics offer unless a test says otherwise.
USUAL = {
    "A": (FakePlan("eng1", workspace=4096), FakePlan("eng2"), FakePlan("eng3", notes=("TENSOR_CORE",))),
    "FALLBACK": (FakePlan("eng0"),),
}


@dataclass
class Script:
    """What the stand-in does, and what it has done."""

    plans: dict[str, tuple[FakePlan, ...]] = field(default_factory=lambda: dict(USUAL))
    # Graphs with one of these operations have no plan.
    lacks: tuple[str, ...] = ()
    graphs: list[Any] = field(default_factory=list)
    # (name, workspace pointer) of each run, and (mode, name) of each plan built.
    runs: list[tuple[str, int]] = field(default_factory=list)
    builds: list[tuple[str, str]] = field(default_factory=list)
    # (name, address of the result) of each run.
    written: list[tuple[str, int]] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    destroyed: int = 0


SCRIPT = Script()


class Handle:
    """A handle, which belongs to a device."""

    def __init__(self) -> None:
        self.device, self.thread, self.stream = WORLD.device, threading.get_ident(), 0
        self.alive = True


def create_handle() -> Handle:
    """Return a new handle of the current device."""
    SCRIPT.handles.append(Handle())
    return SCRIPT.handles[-1]


def destroy_handle(handle: Handle) -> None:
    """Destroy a handle."""
    assert handle.alive, "a handle is destroyed twice"
    handle.alive = False
    SCRIPT.destroyed += 1


def set_stream(handle: Handle, stream: int) -> None:
    """Set the stream that a handle works on."""
    assert handle.alive, "the handle has been destroyed"
    handle.stream = stream


def backend_version() -> int:
    """Return cuDNN's version."""
    return VERSION


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim: Any, stride: Any, data_type: Any, uid: int | None) -> None:
        self.dim, self.stride, self.data_type, self.uid = dim, stride, data_type, uid
        self.output = False

    def set_output(self, value: bool) -> Tensor:
        """Say that it is written."""
        self.output = value
        return self

    def set_data_type(self, value: Any) -> Tensor:
        """Set the type of its elements."""
        self.data_type = value
        return self

    def set_dim(self, value: Any) -> Tensor:
        """Set its sizes."""
        self.dim = value
        return self

    def set_stride(self, value: Any) -> Tensor:
        """Set its strides."""
        self.stride = value
        return self

    def set_uid(self, value: int) -> Tensor:
        """Set its number."""
        self.uid = value
        return self


class pygraph:
    """A graph."""

    def __init__(
        self, *, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, handle: Any = None,
        device_property: Any = None,
    ) -> None:  # fmt: skip
        self.io, self.compute, self.intermediate = io_data_type, compute_data_type, intermediate_data_type
        self.handle = handle
        self.nodes: list[tuple[str, dict[str, Any], Tensor]] = []
        self.barred: set[str] = set()
        self.plans: tuple[FakePlan, ...] = ()
        self.mode = ""
        self.built: dict[int, FakePlan] = {}
        self.selected: FakePlan | None = None
        self.thread = threading.get_ident()
        SCRIPT.graphs.append(self)

    def tensor(self, *, name: str, dim: Any, stride: Any, data_type: Any, uid: int) -> Tensor:
        """Return a tensor that is read."""
        assert len(dim) == len(stride) == 4 and all(n > 0 for n in dim), f"{name}: {dim}, {stride}"
        return Tensor(list(dim), list(stride), data_type, uid)

    def _node(self, op: str, **given: Any) -> Tensor:
        made = Tensor(None, None, None, None)
        self.nodes.append((op, given, made))
        return made

    def conv_fprop(
        self, *, image: Tensor, weight: Tensor, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any
    ) -> Tensor:
        """Convolve."""
        window = {"pre": pre_padding, "post": post_padding, "stride": stride, "dilation": dilation}
        return self._node("fprop", image=image, weight=weight, **window)

    def conv_dgrad(
        self, *, loss: Tensor, filter: Tensor, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any
    ) -> Tensor:
        """Return the gradient of the image."""
        window = {"pre": pre_padding, "post": post_padding, "stride": stride, "dilation": dilation}
        return self._node("dgrad", loss=loss, weight=filter, **window)

    def conv_wgrad(
        self, *, image: Tensor, loss: Tensor, pre_padding: Any, post_padding: Any, stride: Any, dilation: Any
    ) -> Tensor:
        """Return the gradient of the filter."""
        window = {"pre": pre_padding, "post": post_padding, "stride": stride, "dilation": dilation}
        return self._node("wgrad", image=image, loss=loss, **window)

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply."""
        return self._node("mul", a=a, b=b)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Add."""
        return self._node("add", a=a, b=b)

    def relu(self, input: Tensor, *, lower_clip: float = 0.0, upper_clip: float = float("inf")) -> Tensor:
        """Clip; a NaN becomes 0, as in a comparison with it."""
        return self._node("relu", a=input, low=lower_clip, high=upper_clip)

    def validate(self) -> None:
        """Check the graph."""
        result = self.nodes[-1][2]
        assert result.output and result.uid is not None and result.dim is not None and result.stride is not None

    def build_operation_graph(self) -> None:
        """Make of it what cuDNN works with, and check that the sizes belong together."""
        op, given, _ = self.nodes[0]
        result = self.nodes[-1][2].dim
        image, weight, output = (
            given[name].dim if name in given else result
            for name in ("image", "weight", "loss")
        )  # fmt: skip
        padded = [sum(sizes) for sizes in zip(image[2:], given["pre"], given["post"], strict=True)]
        if min(*given["pre"], *given["post"]) < 0 or tuple(output[2:]) != _output_size(given, padded, weight[2:]):
            raise RuntimeError(f"CUDNN_STATUS_BAD_PARAM: is_valid_spatial_dim: {op} {image} {weight} {output} {given}")

    def create_execution_plans(self, modes: Any) -> None:
        """Ask for plans, once."""
        assert not self.mode, "a graph is asked for plans once"
        (mode,) = modes
        self.mode = mode.name
        self.plans = SCRIPT.plans.get(self.mode, ())
        if not self.plans or any(op in SCRIPT.lacks for op, _, _ in self.nodes):
            raise cudnnGraphNotSupportedError("No valid engine configs")

    def deselect_numeric_notes(self, notes: Any) -> None:
        """Bar the plans with one of these notes."""
        self.barred |= {note.name for note in notes}

    def get_execution_plan_count(self) -> int:
        """Return how many plans there are, barred ones too."""
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        """Return the name of a plan."""
        return self.plans[index].name

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[behavior_note]:
        """Return what a plan does besides."""
        return [behavior_note.RUNTIME_COMPILATION] if self.plans[index].compiled else []

    def build_plan_at_index(self, index: int) -> None:
        """Build and select a plan."""
        plan = self.plans[index]
        if self.barred & set(plan.notes):
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        if plan.fault == "build":
            raise RuntimeError("the plan cannot be finalized")
        SCRIPT.builds.append((self.mode, plan.name))
        self.built[index] = self.selected = plan

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        """Return the bytes of workspace of a plan that has been built."""
        return self.built[index].workspace

    def execute(self, pointers: dict[int, int], workspace: int, handle: Handle) -> None:
        """Run the selected plan."""
        plan = self.selected
        assert plan is not None and self.thread == threading.get_ident(), "a plan runs in the thread that built it"
        assert handle.alive and handle.thread == threading.get_ident(), "a handle is used by one thread at a time"
        assert handle.device == WORLD.device, "a handle is used on its device"
        assert handle.stream == current_stream().ptr, "the stream of a handle is the current one"
        for pointer in (*pointers.values(), workspace):
            assert type(pointer) is int
            if pointer % 16:
                raise RuntimeError("CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER")
        if plan.workspace:
            WORLD.find(workspace, plan.workspace)
        SCRIPT.runs.append((plan.name, workspace))
        SCRIPT.written.append((plan.name, pointers[self.nodes[-1][2].uid]))
        if plan.fault == "run":
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        given = dict(pointers)
        WORLD.do(f"cudnn {plan.name}", lambda: self._compute(plan, given, workspace))

    def _compute(self, plan: FakePlan, pointers: dict[int, int], workspace: int) -> None:
        time.sleep(plan.seconds)
        if plan.workspace:
            WORLD.view(workspace, np.uint8, (plan.workspace,), (1,))[...] = 0x5A
        values: dict[int, Any] = {}

        def read(tensor: Tensor) -> Any:
            return values[id(tensor)] if id(tensor) in values else _memory(tensor, pointers)

        with np.errstate(all="ignore"):
            for op, given, made in self.nodes:
                values[id(made)] = _NODES[op](self, read, given, made)
        result = self.nodes[-1][2]
        target = _memory(result, pointers)
        target[...] = values[id(result)].astype(target.dtype)
        _misbehave(plan, target, pointers[result.uid], workspace)


def _memory(tensor: Tensor, pointers: dict[int, int]) -> Any:
    dtype = numpy_dtype(tensor.data_type)
    strides = tuple(stride * dtype.itemsize for stride in tensor.stride)
    return WORLD.view(pointers[tensor.uid], dtype, tuple(tensor.dim), strides)


def _misbehave(plan: FakePlan, target: Any, pointer: int, workspace: int) -> None:
    if plan.fault == "outside":
        ctypes.memset(pointer + target.nbytes, 0x33, 4)
    elif plan.fault == "before":
        ctypes.memset(pointer - 4, 0x33, 4)
    elif plan.fault == "workspace":
        ctypes.memset(workspace + plan.workspace, 0x33, 4)
    elif plan.fault == "wrong":
        target[(0,) * target.ndim] += 1


def _exact(array: Any) -> Any:
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float64)


def _windows(image: Any, given: dict[str, Any], taps: Any, size: Any) -> Iterator[tuple[int, int, Any]]:
    """Yield each tap of a padded image, and the pixels that it meets."""
    (down, across), (rows, columns) = given["stride"], given["dilation"]
    for i in range(taps[0]):
        for j in range(taps[1]):
            first = i * rows, j * columns
            stop = first[0] + (size[0] - 1) * down + 1, first[1] + (size[1] - 1) * across + 1
            yield i, j, image[:, :, first[0] : stop[0] : down, first[1] : stop[1] : across]


def _padded(image: Any, given: dict[str, Any]) -> Any:
    (top, left), (bottom, right) = given["pre"], given["post"]
    return np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _split(array: Any, axis: int, groups: int) -> list[Any]:
    return np.split(array, groups, axis)


def _fprop(graph: pygraph, read: Any, given: dict[str, Any], made: Tensor) -> Any:
    image, weight = _padded(_exact(read(given["image"])), given), _exact(read(given["weight"]))
    groups, size = image.shape[1] // weight.shape[1], _output_size(given, image.shape[2:], weight.shape[2:])
    parts = []
    for x, w in zip(_split(image, 1, groups), _split(weight, 0, groups), strict=True):
        sums = np.zeros((x.shape[0], w.shape[0], *size), x.dtype)
        for i, j, pixels in _windows(x, given, w.shape[2:], size):
            sums += np.einsum("nchw,kc->nkhw", pixels, w[:, :, i, j])
        parts.append(sums)
    made.dim = made.dim or [image.shape[0], weight.shape[0], *size]
    return np.concatenate(parts, 1)


def _output_size(given: dict[str, Any], padded: Any, taps: Any) -> tuple[int, ...]:
    return tuple(
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(padded, taps, given["dilation"], given["stride"], strict=True)
    )


def _dgrad(graph: pygraph, read: Any, given: dict[str, Any], made: Tensor) -> Any:
    loss, weight = _exact(read(given["loss"])), _exact(read(given["weight"]))
    groups, (top, left), (bottom, right) = made.dim[1] // weight.shape[1], given["pre"], given["post"]
    parts = []
    for dy, w in zip(_split(loss, 1, groups), _split(weight, 0, groups), strict=True):
        height, width = made.dim[2] + top + bottom, made.dim[3] + left + right
        image = np.zeros((made.dim[0], w.shape[1], height, width), loss.dtype)
        for i, j, pixels in _windows(image, given, w.shape[2:], dy.shape[2:]):
            pixels += np.einsum("nkhw,kc->nchw", dy, w[:, :, i, j])
        parts.append(image[:, :, top : top + made.dim[2], left : left + made.dim[3]])
    return np.concatenate(parts, 1)


def _wgrad(graph: pygraph, read: Any, given: dict[str, Any], made: Tensor) -> Any:
    image, loss = _padded(_exact(read(given["image"])), given), _exact(read(given["loss"]))
    groups, parts = image.shape[1] // made.dim[1], []
    for x, dy in zip(_split(image, 1, groups), _split(loss, 1, groups), strict=True):
        part = np.zeros((dy.shape[1], x.shape[1], *made.dim[2:]), image.dtype)
        for i, j, pixels in _windows(x, given, made.dim[2:], dy.shape[2:]):
            part[:, :, i, j] = np.einsum("nkhw,nchw->kc", dy, pixels)
        parts.append(part)
    return np.concatenate(parts, 0)


def _relu(graph: pygraph, read: Any, given: dict[str, Any], made: Tensor) -> Any:
    return np.fmin(np.fmax(read(given["a"]), given["low"]), given["high"])


_NODES = {
    "fprop": _fprop,
    "dgrad": _dgrad,
    "wgrad": _wgrad,
    "mul": lambda graph, read, given, made: read(given["a"]) * _exact(read(given["b"])),
    "add": lambda graph, read, given, made: read(given["a"]) + _exact(read(given["b"])),
    "relu": _relu,
}
OFFERED = (
    *("data_type", "heur_mode", "numerical_note", "behavior_note", "cudnnGraphNotSupportedError", "create_handle"),
    *("destroy_handle", "set_stream", "backend_version", "pygraph"),
)


def _module() -> ModuleType:
    module = ModuleType("cudnn")
    module.__dict__.update({name: globals()[name] for name in OFFERED}, __version__="1.28.0")
    return module


MODULE = _module()


@contextmanager
def installed(**settings: Any) -> Iterator[Script]:
    """Let ``import cudnn`` find the stand-in; the value is its script."""
    before = sys.modules.pop("cudnn", None)
    fresh = Script(**settings)
    for name in Script.__dataclass_fields__:
        setattr(SCRIPT, name, getattr(fresh, name))
    sys.modules["cudnn"] = MODULE
    try:
        yield SCRIPT
    finally:
        del sys.modules["cudnn"]
        if before is not None:
            sys.modules["cudnn"] = before
