"""Plans for machines other than this one: every plan ends, in good time, and keeps to the workspace limit."""

import random
import time

import pytest

import convkit
from convkit import _calls, _fused
from convkit._cpu import _engine
from convkit._cpu.machine import Machine

OPERATIONS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input", "fused_conv2d")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8")
L2_BYTES = (2**14, 2**18, 2**20, 2**23)
CALLS = 1200
SECONDS_PER_PLAN = 1.0
DEFAULT_LIMIT, SMALL_LIMIT = 2**26, 2**18


def draw(random: random.Random) -> tuple[str, tuple, dict]:
    """Return an operation, its shapes and its keywords, of any family's kind and from a pixel to gigabytes."""
    pick = random.choice
    op, dtype = pick(OPERATIONS), pick(DTYPES)
    if dtype == "int8" and op != "fused_conv2d":
        op = "conv2d"
    groups = pick((1, 1, 2, 16, 33, 128))
    per_group = (
        (1, pick((1, 1, 2, 8))) if groups > 1 and random.random() < 0.7 else (pick((1, 3, 32, 300)), pick((1, 64)))
    )
    taps = pick((1, 2, 3, 5, 31)), pick((1, 3, 7))
    size = tuple(taps[axis] * 2 + pick((0, 1, 6, 50, 500)) for axis in range(2))
    image, weights = (pick((1, 2, 16, 300)), *size, groups * per_group[0]), (*taps, per_group[0], groups * per_group[1])
    keywords = {"strides": (pick((1, 1, 2, 5)), pick((1, 2))), "dilations": pick((1, 1, 2)), "groups": groups}
    keywords["padding"] = pick(("VALID", "SAME", "FULL", 1))
    result = convkit.conv2d_output_shape(image, weights, **keywords)
    shapes = {
        "conv2d_backprop_filter": (image, weights, result),
        "conv2d_backprop_input": (image, weights, result),
    }.get(op, (image, weights))
    return op, shapes, {**keywords, "dtype": dtype, "num_threads": pick((1, 7))}


@pytest.mark.parametrize("level", _engine.ISA_LEVELS)
def test_every_plan_ends_and_keeps_to_the_limit(level, monkeypatch):
    source = random.Random(f"planning {level}")
    for l2_bytes in L2_BYTES:
        machine = Machine(llc_bytes=16 * l2_bytes, llc_cores=source.choice((1, 64)), l2_bytes=l2_bytes, isa=level)
        for module in (_calls, _fused):
            monkeypatch.setattr(module, "this_machine", lambda machine=machine: machine)
        convkit.clear_caches()
        for _ in range(CALLS // len(L2_BYTES)):
            op, shapes, keywords = draw(source)
            limit = source.choice((DEFAULT_LIMIT, SMALL_LIMIT))
            start = time.process_time()
            try:
                with convkit.options(workspace_limit=limit):
                    told = convkit.explain(op, *shapes, **keywords)
            except convkit.WorkspaceError:
                assert limit == SMALL_LIMIT, (op, shapes, keywords)
            else:
                assert told.workspace <= limit, (op, shapes, keywords, told.implementation)
            assert time.process_time() - start < SECONDS_PER_PLAN, (op, shapes, keywords)
    convkit.clear_caches()
