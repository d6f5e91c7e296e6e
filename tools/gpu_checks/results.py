"""Results of every route against the CPU: golden data to the last bit, random layers within the error contract."""

from collections.abc import Callable, Iterator

import cases
import harness
import int8_cases
import numpy as np
import problems
import reference
from harness import HALVES, NHWC, Call

import convkit

from .findings import Finding
from .geometries import Random, draw, filled, put
from .session import Session

# Activations of fused convolutions, in turn.
ACTIVATIONS = (None, "relu", "relu6", "elu", "leaky_relu")


def routes(op: str, *arguments, **keywords) -> list[str]:
    """Return each family that serves the call on the GPU, the one that serves by default first."""
    told = convkit.explain(op, *arguments, **keywords)
    able = [told.implementation, *(name for name, objection in told.candidates if objection is None)]
    return list(dict.fromkeys(name.split(":")[1].split("_")[0] for name in able))


def on_gpu(session: Session, terms: dict) -> dict:
    """Return keywords with every vector of scales on the device."""
    vectors = {name: session.to_gpu(value) for name, value in terms.items() if isinstance(value, np.ndarray)}
    return {**terms, **{name: value if value.ndim else float(value) for name, value in vectors.items()}}


def golden_floats(session: Session) -> Finding:
    """TensorFlow's own results, small integers, which every route must give to the last bit under precision="high"."""
    finding = Finding("golden data, floating point")
    dtypes = session.dtypes(harness.DTYPES)
    for number, case in enumerate(cases.golden_ids()[: session.golden]):
        session.say(f"golden case {case}")
        golden = cases.golden(case)
        calls = harness.three_calls(*(a.astype(np.float64) for a in (golden.x, golden.w, golden.dy)), **golden.geometry)
        for call, expected in zip(calls, (golden.y, golden.dw, golden.dx), strict=True):
            for dtype in dtypes:
                # float32 in every layout; the other dtypes in one each, in turn.
                one = (harness.LAYOUTS[number % len(harness.LAYOUTS)],)
                for layout in harness.LAYOUTS if dtype == np.float32 else one:
                    wanted = expected.astype(np.float32).astype(dtype) if dtype in HALVES else expected.astype(dtype)
                    arguments = [session.to_gpu(a) if isinstance(a, np.ndarray) else a
                                 for a in call.in_layout(layout, dtype)]  # fmt: skip
                    keywords = {**call.geometry, **layout.keywords}
                    with convkit.options(precision="high"):
                        for route in routes(call.op, *arguments, **keywords):
                            line = f"{call.op}, golden case {case}, {layout.data} {layout.filter} {dtype}, {route}"
                            with finding.trying(line, route):
                                result = harness.operation(call.op)(*arguments, algorithm=route, **keywords)
                                found = call.result_from(session.to_cpu(result), layout)
                                finding.note(np.array_equal(found, wanted), line, route)
    return finding


def golden_int8(session: Session) -> Finding:
    """TensorFlow's fused int8 results, to the last bit, in every layout."""
    finding = Finding("golden data, int8")
    for case in int8_cases.golden_ids()[: session.golden]:
        session.say(f"golden case {case}")
        fused, y = int8_cases.golden(case)
        for layout in filter(fused.fits, int8_cases.LAYOUTS):
            given = [None if a is None else session.to_gpu(a) for a in fused.arguments(layout)]
            keywords = {**on_gpu(session, fused.terms), **fused.geometry, **layout.keywords}
            for route in routes("fused_conv2d", *given, **keywords):
                line = f"fused_conv2d, golden case {case}, {layout.data}, {route}"
                with finding.trying(line, route):
                    result = convkit.fused_conv2d(*given, algorithm=route, **keywords)
                    found = int8_cases.from_layout(session.to_cpu(result), layout.data)
                    finding.note(np.array_equal(found, y), line, route)
    return finding


def random_layers(session: Session) -> Finding:
    """Random layers in random layouts and memory orders, against the CPU."""
    numbers = range(session.random) if session.case is None else (session.case,)
    finding = Finding("random layers")
    for number in numbers:
        layer = draw(number)
        session.say(str(layer))
        if session.has(layer.dtype):
            check = _int8_layer if layer.dtype == np.int8 else _float_layer
            with finding.trying(str(layer)):
                check(session, finding, layer)
    return finding


def _each_route(
    session: Session, finding: Finding, layer: Random, op: str, given: list, keywords: dict, like: np.ndarray,
    right: Callable[[np.ndarray], bool],
) -> None:  # fmt: skip
    """Run every route into an output of the layer's own memory order."""
    placed = [put(session.cupy, session.to_gpu(a), layer.place) if isinstance(a, np.ndarray) else a for a in given]
    keywords = on_gpu(session, keywords)
    out = filled(session.cupy, like.shape, like.dtype, layer.place)
    for route in routes(op, *placed, out=out, **keywords):
        line = f"{op} by {route}, {layer}"
        with finding.trying(line, route):
            out = filled(session.cupy, like.shape, like.dtype, layer.place)
            harness.operation(op)(*placed, algorithm=route, out=out, **keywords)
            finding.note(right(session.to_cpu(out)), line, route)


def allowed(call: Call, wanted: np.ndarray, scale: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return how far off each element may be, given the exact results and those on absolute values."""
    # Sums that the CPU keeps in float64 may be off as well.
    bound = 2 * call.bound(np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32), scale)
    if dtype.name in problems.HALF_ROUNDING:
        relative, least = problems.HALF_ROUNDING[dtype.name]
        bound = bound + relative * (np.abs(wanted) + bound) + least
    return bound


def _on_cpu(call: Call, absolute: bool = False) -> np.ndarray:
    """Return what the CPU gives in float64."""
    given = [np.abs(a) if absolute and isinstance(a, np.ndarray) else a for a in call.arguments]
    with convkit.options(precision="high"):
        return harness.operation(call.op)(*given, **call.geometry)


def _float_layer(session: Session, finding: Finding, layer: Random) -> None:
    """The three operations, and a fused convolution."""
    rng = layer.rng()
    # What the dtype holds exactly, in float64.
    x, w, dy = (
        rng.standard_normal(shape).astype(layer.dtype).astype(np.float64)
        for shape in (layer.x_shape, layer.w_shape, layer.y_shape)
    )
    for call in harness.three_calls(x, w, dy, **layer.geometry):
        wanted, scale = _on_cpu(call), _on_cpu(call, absolute=True)
        bound = allowed(call, wanted, scale, layer.dtype)
        like = call.result_to(wanted, layer.layout).astype(layer.dtype)

        def right(found: np.ndarray, call=call, wanted=wanted, bound=bound) -> bool:
            off = np.abs(call.result_from(found, layer.layout).astype(np.float64) - wanted)
            return bool(np.all(off <= bound))  # also false for NaN

        keywords = {**layer.geometry, **layer.layout.keywords}
        _each_route(session, finding, layer, call.op, list(call.in_layout(layer.layout, layer.dtype)), keywords, like,
                    right)  # fmt: skip
    _fused_float(session, finding, layer, Call("conv2d", (x, w), layer.geometry), rng)


def _fused_float(session: Session, finding: Finding, layer: Random, call: Call, rng: np.random.Generator) -> None:
    """Scale, side input, bias and activation of the layer."""
    sums, scale = _on_cpu(call), _on_cpu(call, absolute=True)
    # Terms that every dtype holds exactly.
    bias = rng.integers(-8, 9, layer.w_shape[3]) / 4
    side = rng.integers(-8, 9, sums.shape) / 4
    terms = {"conv_scale": 0.5, "side_scale": 0.25, "activation": ACTIVATIONS[layer.number % len(ACTIVATIONS)]}
    x, w = call.arguments
    with convkit.options(precision="high"):
        wanted = convkit.fused_conv2d(x, w, bias, side, **terms, **layer.geometry)
    magnitude = 0.5 * scale + 0.25 * np.abs(side) + np.abs(bias)
    bound = allowed(call, wanted, magnitude, layer.dtype)

    def right(found: np.ndarray) -> bool:
        off = np.abs(reference.from_data_format(found, layer.layout.data).astype(np.float64) - wanted)
        return bool(np.all(off <= bound))

    data = layer.layout.data
    given = [*call.in_layout(layer.layout, layer.dtype), bias.astype(layer.dtype),
             reference.to_data_format(side, data).astype(layer.dtype)]  # fmt: skip
    like = reference.to_data_format(wanted, data).astype(layer.dtype)
    keywords = {**terms, **layer.geometry, **layer.layout.keywords}
    _each_route(session, finding, layer, "fused_conv2d", given, keywords, like, right)


def _int8_cases(layer: Random, rng: np.random.Generator) -> Iterator[tuple[str, list, dict]]:
    """Yield operation, NHWC and HWIO operands, and terms: exact sums, and requantised ones of each kind."""
    unsigned = layer.number % 2 == 1
    low, high, kind = (0, 256, np.uint8) if unsigned else (-128, 128, np.int8)
    x = rng.integers(low, high, layer.x_shape).astype(kind)
    w = rng.integers(-128, 128, layer.w_shape).astype(np.int8)
    yield "conv2d", [x, w], {}
    filters = layer.w_shape[3]
    bias = rng.uniform(-20, 20, filters).astype(np.float32)
    side = rng.integers(-128, 128, layer.y_shape).astype(np.int8)
    scales = rng.uniform(1e-4, 2e-3, filters).astype(np.float32)
    yield "fused_conv2d", [x, w, bias, side], {"conv_scale": scales, "side_scale": 0.3, "activation": "relu"}
    zero_points = {"input_zero_point": int(rng.integers(low, high)), "output_zero_point": 7}
    sums = rng.integers(-(2**20), 2**20, filters).astype(np.int32)
    yield "fused_conv2d", [x, w, sums], {"conv_scale": 7e-4, **zero_points}


def _int8_layer(session: Session, finding: Finding, layer: Random) -> None:
    """Sums and fused convolutions, equal to the CPU's to the last bit."""
    layout = layer.layout if layer.number % 4 else NHWC
    for op, (x, w, *more), terms in _int8_cases(layer, layer.rng()):
        keywords = {**terms, **layer.geometry, **layout.keywords}
        given = [int8_cases.to_layout(x, layout.data), int8_cases.to_layout(w, layout.filter), *more[:1],
                 *(int8_cases.to_layout(side, layout.data) for side in more[1:])]  # fmt: skip
        wanted = getattr(convkit, op)(*given, **keywords)

        def right(found: np.ndarray, wanted=wanted) -> bool:
            return np.array_equal(found, wanted)

        _each_route(session, finding, layer, op, given, keywords, wanted, right)
