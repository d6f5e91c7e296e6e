"""One convolution as a graph of cuDNN's: what a plan depends on, the plans that cuDNN offers, and running one.

cuDNN sees sizes in the order N, C, H, W whatever the layout, which is in the strides, and counts dilation from 1; the
translation from `ConvGeometry` is here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._geometry import ConvGeometry

# Names of the tensors of a graph by their numbers, which pointers go by when it is run.
IMAGE, FILTER, OUTPUT, SCALE, BIAS = 1, 2, 3, 4, 5

# What the sums are kept in; the same for what is between the operations of a graph.
COMPUTED = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64", "int8": "int32"}
_DATA_TYPES = {
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "int8": "INT8",
    "int32": "INT32",
}
# The modes of asking for plans: those that heuristics rank, and those that exist in any case.
HEURISTIC, FALLBACK = "A", "FALLBACK"
# Plans that are never taken: a sum of halves in halves, and Fourier transforms, through which one pixel that is not
# finite reaches a whole image.
_NEVER = ("FFT", "REDUCED_PRECISION_REDUCTION")
# Taken with precision="fast" only: Winograd's transforms spread such a pixel over a tile, the others round to TF32.
_WINOGRAD = ("WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13")
_ROUNDING = ("DOWN_CONVERT_INPUTS",)
# float32 on tensor cores is TF32; halves lose nothing there.
_TENSOR_CORES = ("TENSOR_CORE",)
# The fields of a geometry that a graph depends on.
_SIZES = (
    *("batch", "in_channels", "out_channels", "groups", "in_size", "filter_size", "out_size"),
    *("strides", "dilations", "pad_before"),
)

# Operations on what a convolution gives, by activation: the name of the node and its numbers.
ACTIVATION_NODES: Mapping[str, tuple[str, dict[str, float]]] = {
    "relu": ("relu", {}),
    "relu6": ("relu", {"lower_clip": 0.0, "upper_clip": 6.0}),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that the choice of a plan depends on, but for the device and the workspace.

    All arrays are dense in the layout given, pixels and filters alike, and start at multiples of 16 bytes.
    """

    op: str
    dtype: str
    out_dtype: str
    channels_last: bool
    batch: int
    in_channels: int
    out_channels: int
    groups: int
    in_size: tuple[int, ...]
    filter_size: tuple[int, ...]
    out_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pad_before: tuple[int, ...]
    pad_after: tuple[int, ...]
    precision: str
    deterministic: bool
    # Whether the numbers were halves before: TF32 holds all of these.
    halves: bool = False
    # Numbers of the scale: None, 1, or one per channel; always float32 (float64 for float64).
    scale: int | None = None
    bias: bool = False
    activation: str | None = None

    @classmethod
    def of(cls, g: ConvGeometry, op: str, dtype: str, out_dtype: str, channels_last: bool, **more: Any) -> Spec:
        """Describe a geometry."""
        sizes = {name: getattr(g, name) for name in _SIZES}
        return cls(op, dtype, out_dtype, channels_last, pad_after=pad_after(g), **sizes, **more)

    @property
    def image(self) -> tuple[int, ...]:
        return self.batch, self.in_channels, *self.in_size

    @property
    def filter(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels // self.groups, *self.filter_size

    @property
    def output(self) -> tuple[int, ...]:
        return self.batch, self.out_channels, *self.out_size

    @property
    def computed(self) -> str:
        """Dtype of the sums, and of scale and bias."""
        return COMPUTED[self.dtype]

    @property
    def barred(self) -> tuple[str, ...]:
        """Numerical notes of the plans that must not be taken."""
        exact = self.precision != "fast"
        return (
            *_NEVER,
            *(_WINOGRAD if exact else ()),
            *(_ROUNDING if exact else ()),
            *(_TENSOR_CORES if exact and self.dtype == "float32" and not self.halves else ()),
            *(("NONDETERMINISTIC",) if self.deterministic else ()),
        )

    def __str__(self) -> str:
        layout = "channels last" if self.channels_last else "channels first"
        pads = tuple(zip(self.pad_before, self.pad_after, strict=True))
        after = [
            *(["scale"] if self.scale else []),
            *(["bias"] if self.bias else []),
            *([self.activation] if self.activation else []),
        ]
        return (
            f"{self.op} of {self.dtype} to {self.out_dtype}, {layout}: image {self.image} (N, C, H, W), filter "
            f"{self.filter} (K, C, R, S), output {self.output}, strides {self.strides}, padding {pads}, dilations "
            f"{self.dilations}, groups {self.groups}{', then ' + ', '.join(after) if after else ''}"
        )


def pad_after(g: ConvGeometry) -> tuple[int, ...]:
    """Return the padding after an image by which its size and the filter's give the output's, as cuDNN checks.

    Where taps that meet no pixel have been left out, the geometry's own padding is that of the whole filter.
    """
    found = []
    for n, o, e, s, before, after in zip(
        g.in_size, g.out_size, g.effective_filter, g.strides, g.pad_before, g.pad_after, strict=True
    ):
        least = (o - 1) * s + e - n - before
        found.append(min(max(after, least), least + s - 1))
    return tuple(found)


def dense(sizes: tuple[int, ...], channels_last: bool) -> list[int]:
    """Return the strides, in elements, of sizes in the order N, C, H, W."""
    _, c, h, w = sizes
    return [c * h * w, 1, c * w, c] if channels_last else [c * h * w, h * w, w, 1]


class Planned:
    """A graph and the plans that cuDNN offers for it in one mode, the most promising one first.

    The list is never shortened: taking one that is barred fails as building it does.
    """

    def __init__(self, cudnn: Any, spec: Spec, mode: str, **place: Any) -> None:
        """Ask for plans; ``place`` is the handle, or the properties of a device that need not be there.

        Raises
        ------
        Exception
            Of the frontend's own types, if cuDNN has no plan.
        """
        self.cudnn = cudnn
        self.mode = mode
        self.graph = _graph(cudnn, spec, place)
        self.graph.validate()
        self.graph.build_operation_graph()
        self.graph.create_execution_plans([getattr(cudnn.heur_mode, mode)])
        known = [name for name in spec.barred if hasattr(cudnn.numerical_note, name)]
        self.graph.deselect_numeric_notes([getattr(cudnn.numerical_note, name) for name in known])
        self.names = [self.graph.get_plan_name_at_index(i) for i in range(self.graph.get_execution_plan_count())]

    def compiles(self, index: int) -> bool:
        """Tell whether a plan has a kernel compiled while it is built, which takes some tenths of a second."""
        notes = self.graph.get_behavior_notes_for_plan_at_index(index)
        return self.cudnn.behavior_note.RUNTIME_COMPILATION in notes

    def build(self, index: int) -> int:
        """Build a plan, select it, and return the bytes of workspace that it takes."""
        self.graph.build_plan_at_index(index)
        return int(self.graph.get_workspace_size_plan_at_index(index))

    def execute(self, pointers: dict[int, int], workspace: int, handle: Any) -> None:
        """Run the plan that was built last."""
        self.graph.execute(pointers, workspace, handle)


def _graph(cudnn: Any, spec: Spec, place: dict[str, Any]) -> Any:
    """Build the graph, up to the question of plans."""
    types = {name: getattr(cudnn.data_type, value) for name, value in _DATA_TYPES.items()}
    computed = types[spec.computed]
    graph = cudnn.pygraph(
        io_data_type=types[spec.dtype], intermediate_data_type=computed, compute_data_type=computed, **place
    )

    def tensor(uid: int, name: str, sizes: tuple[int, ...]) -> Any:
        strides = dense(sizes, spec.channels_last)
        return graph.tensor(name=name, dim=list(sizes), stride=strides, data_type=types[spec.dtype], uid=uid)

    def numbers(uid: int, name: str, count: int) -> Any:
        strides = [count, 1, count, count]
        return graph.tensor(name=name, dim=[1, count, 1, 1], stride=strides, data_type=computed, uid=uid)

    window = {
        "pre_padding": list(spec.pad_before),
        "post_padding": list(spec.pad_after),
        "stride": list(spec.strides),
        "dilation": list(spec.dilations),
    }
    if spec.op == "conv2d_backprop_filter":
        image, loss = tensor(IMAGE, "image", spec.image), tensor(OUTPUT, "loss", spec.output)
        result, uid, sizes = graph.conv_wgrad(image=image, loss=loss, **window), FILTER, spec.filter
    elif spec.op == "conv2d_backprop_input":
        loss, weights = tensor(OUTPUT, "loss", spec.output), tensor(FILTER, "filter", spec.filter)
        result, uid, sizes = graph.conv_dgrad(loss=loss, filter=weights, **window), IMAGE, spec.image
    else:
        image, weights = tensor(IMAGE, "image", spec.image), tensor(FILTER, "weight", spec.filter)
        result, uid, sizes = graph.conv_fprop(image=image, weight=weights, **window), OUTPUT, spec.output
        if spec.scale:
            result = graph.mul(result, numbers(SCALE, "scale", spec.scale))
        if spec.bias:
            result = graph.add(result, numbers(BIAS, "bias", spec.out_channels))
        if spec.activation is not None:
            node, values = ACTIVATION_NODES[spec.activation]
            result = getattr(graph, node)(result, **values)
    # cuDNN infers a wrong size of a strided gradient, without a word.
    result.set_output(True).set_data_type(types[spec.out_dtype]).set_dim(list(sizes))
    result.set_stride(dense(sizes, spec.channels_last)).set_uid(uid)
    return graph


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that was built: its graph, its name, and the bytes of workspace that it takes."""

    planned: Planned
    name: str
    workspace: int


class NoPlanError(Exception):
    """cuDNN has no plan, or none that works; the reasons in words."""


def candidates(
    cudnn: Any, spec: Spec, mode: str, place: Mapping[str, Any], reasons: list[str], compiled: bool
) -> Iterator[Candidate]:
    """Build the plans of one mode one after the other, and yield those that can be built.

    A graph runs the plan that was built in it last, so that a candidate is good until the next one is asked for.

    Parameters
    ----------
    compiled : bool
        Whether to yield the plans that have a kernel compiled, or those that have not.
    reasons : list of str
        Takes a line for each plan that cannot be built, but for those that are barred.
    """
    try:
        planned = Planned(cudnn, spec, mode, **place)
    except Exception as error:
        reasons.append(f"no plans in mode {mode}: {in_short(error)}")
        return
    for index, name in enumerate(planned.names):
        try:
            if planned.compiles(index) != compiled:
                continue
            yield Candidate(planned, name, planned.build(index))
        except Exception as error:
            reasons.append(f"plan {name}: {in_short(error)}")


def named(cudnn: Any, spec: Spec, mode: str, name: str, place: Mapping[str, Any]) -> Candidate:
    """Build the plan of that name.

    Raises
    ------
    NoPlanError
        If cuDNN does not offer it, or it cannot be built.
    """
    try:
        planned = Planned(cudnn, spec, mode, **place)
        return Candidate(planned, name, planned.build(planned.names.index(name)))
    except Exception as error:
        raise NoPlanError(f"plan {name} of mode {mode}: {in_short(error)}") from error


def in_short(error: BaseException) -> str:
    """Return an error of cuDNN's in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
