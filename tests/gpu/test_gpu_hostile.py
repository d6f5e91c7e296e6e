"""Hostile calls with CuPy arrays: each returns, or raises a ConvkitError or a TypeError, and nothing leaks."""

import gc
import warnings
from contextlib import nullcontext

import fake_cudnn
import hostile_calls
import numpy as np
import pytest
from conftest import forget_gpu

import convkit

# Dtypes that are brought to the device as they are; other ones lie there as bytes that nobody has written.
PLAIN = "?bBhHiIlLqQefdFD"
VAST = 10_000


def there(cupy, array):
    """Return an array of the hostile ones on the device, or what it is where there is no such array."""
    if not isinstance(array, np.ndarray) or array.dtype.hasobject or array.dtype.kind in "USM":
        return array
    if array.size > VAST:
        return cupy.broadcast_to(cupy.ones((1,) * array.ndim, array.dtype), array.shape)
    if array.dtype.char in PLAIN and array.dtype.isnative and not isinstance(array, np.ma.MaskedArray):
        return cupy.asarray(np.ascontiguousarray(array))
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.alloc(max(1, array.nbytes)))


class Generator(hostile_calls.Generator):
    """As on the CPU, with the arrays on the device, and now and then not."""

    def __init__(self, cupy, seed):
        super().__init__(seed)
        self.cupy = cupy
        self.arrays = [there(cupy, array) for array in self.arrays]
        plain = cupy.ones((1, 5, 4, 2), np.float32)
        with cupy.cuda.Device(1):
            self.arrays.append(cupy.ones((1, 5, 4, 2), np.float32))
        self.arrays += [
            cupy.lib.stride_tricks.as_strided(plain, (1, 5, 4, 2), (4, 4, 4, 4)),
            cupy.lib.stride_tricks.as_strided(plain, (3, 2, 2, 3), (1, 3, 1, 5)),
            convkit.pack_filter(cupy.ones((3, 2, 2, 3), np.float32), op="conv2d"),
            convkit.pack_filter(np.ones((3, 2, 2, 3), np.float32), op="conv2d"),
        ]

    def operands(self, op, shapes=False):
        return [a if self.random.random() < 0.03 else there(self.cupy, a) for a in super().operands(op, shapes)]

    def keywords(self, common, fused=False):
        given = super().keywords(common, fused)
        for name in {"out", "conv_scale"} & given.keys():
            given[name] = there(self.cupy, given[name])
        if "algorithm" in given:
            given["algorithm"] = self.random.choice(("auto", "direct", "im2col", "gemm", "cudnn", self.anything()))
        return given


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("with_cudnn", [False, True])
def test_hostile_arguments(cupy, world, seed, with_cudnn):
    faults = []
    with fake_cudnn.installed() if with_cudnn else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forget_gpu()
        generator = Generator(cupy, seed)
        for number in range(2000):
            name, arguments, keywords = generator.call()
            fault = hostile_calls.attempt(name, arguments, keywords)
            if fault is not None:
                faults.append(f"{number}: {hostile_calls.describe_call(name, arguments, keywords)}: {fault}")
        del generator, arguments, keywords
        forget_gpu()
        gc.collect()
    assert not faults
    assert [card.used for card in world.cards] == [0, 0]
