"""The public operations on arrays that are brought to the GPU and back, so that tests of the CPU run there, too."""

from types import SimpleNamespace
from typing import Any

import numpy as np

import convkit

MOVED = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input", "fused_conv2d", "explain", "pack_filter")


def moved(name: str) -> Any:
    """Return an operation that computes on the GPU, from and into arrays of NumPy."""
    operation = getattr(convkit, name)

    def on_gpu(*arguments: Any, **keywords: Any) -> Any:
        import cupy

        def there(value: Any) -> Any:
            return cupy.asarray(value) if isinstance(value, np.ndarray) and value.ndim else value

        given = [there(value) for value in arguments]
        named = {key: there(value) for key, value in keywords.items()}
        side = arguments[3] if len(arguments) > 3 else keywords.get("side_input")
        if keywords.get("out") is not None and side is keywords["out"]:
            named["out"] = given[3] if len(given) > 3 else named["side_input"]
        result = operation(*given, **named)
        if not isinstance(result, cupy.ndarray):
            return result
        if keywords.get("out") is None:
            return cupy.asnumpy(result)
        assert result is named["out"]
        keywords["out"][...] = cupy.asnumpy(result)
        return keywords["out"]

    return on_gpu


def module() -> Any:
    """Return what stands for the module ``convkit`` in helpers of tests."""
    names = {name: getattr(convkit, name) for name in convkit.__all__}
    return SimpleNamespace(**{**names, **{name: moved(name) for name in MOVED}})
