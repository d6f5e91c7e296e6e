"""The shim itself: what runs on it runs as on a GPU, and what a GPU would not take is refused."""

import numpy as np
import pytest
from shim import ShimError, ShimModule

CODE = r"""
extern "C" __global__ void __launch_bounds__(256) scale(const T *from, double *to, long long n, float by)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        to[i] = from[i] * by;
}

extern "C" __global__ void reverse(const int *from, int *to, int rounds)
{
    __shared__ int held[64];
    for (int round = 0; round < rounds; round++) {
        held[threadIdx.x] = from[blockIdx.x * 64 + threadIdx.x];
        __syncthreads();
        to[blockIdx.x * 64 + threadIdx.x] += held[63 - threadIdx.x];
        __syncthreads();
    }
}

extern "C" __global__ void racing(const int *from, int *to)
{
    __shared__ int held[64];
    held[threadIdx.x] = from[blockIdx.x * 64 + threadIdx.x];
    to[blockIdx.x * 64 + threadIdx.x] = held[63 - threadIdx.x];
}

extern "C" __global__ void divergent(int *to)
{
    if (threadIdx.x < 3)
        __syncthreads();
    to[threadIdx.x] = 1;
}

extern "C" __global__ void where(int *to)
{
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    to[block * (int)(blockDim.x * blockDim.y * blockDim.z) + thread]++;
}
"""


def kernel(name, kind="int"):
    return ShimModule(CODE, ["--fmad=false", f"-DT={kind}"]).get_function(name)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind, dtype", [("int", np.int32), ("float", np.float32)])
def test_a_grid_covers_every_element_in_the_type_of_the_options(kind, dtype, blocks):
    values, result = np.arange(1000, dtype=dtype), np.full(1000, np.nan)
    kernel("scale", kind)((blocks,), (256,), (values, result, 1000, np.float32(0.5)))
    np.testing.assert_array_equal(result, values * 0.5)


def test_every_thread_of_three_dimensions_runs_once():
    counts = np.zeros(2 * 3 * 4 * 5 * 6 * 7, np.int32)
    kernel("where")((2, 3, 4), (5, 6, 7), (counts,))
    assert (counts == 1).all()


def test_threads_wait_for_each_other_at_barriers():
    values = np.arange(640, dtype=np.int32)
    result = np.zeros_like(values)
    kernel("reverse")((10,), (64,), (values, result, np.int32(3)))
    np.testing.assert_array_equal(result.reshape(10, 64), 3 * values.reshape(10, 64)[:, ::-1])


def test_a_missing_barrier_shows():
    values = np.arange(1, 129, dtype=np.int32)
    result = np.zeros_like(values)
    kernel("racing")((2,), (64,), (values, result))
    for block in range(2):
        part = slice(64 * block, 64 * block + 64)
        assert (result[part] != values[part][::-1]).any()


def test_threads_that_do_not_reach_a_barrier_are_told_and_the_kernel_runs_again_after():
    with pytest.raises(ShimError, match="some threads of a block ended"):
        kernel("divergent")((1,), (8,), (np.zeros(8, np.int32),))
    test_threads_wait_for_each_other_at_barriers()


@pytest.mark.parametrize(
    "grid, block, args, why",
    [
        ((0,), (64,), 3, "must be from 1"),
        ((1, 65536), (64,), 3, "must be from 1"),
        ((2**31,), (64,), 3, "must be from 1"),
        ((1,), (1025,), 3, "must be from 1"),
        ((1,), (32, 33), 3, "more than 1024 threads"),
        ((1,), (64,), 2, "2 arguments, but the kernel has 3"),
        ((np.int64(1),), (64,), 3, "must be one to three integers"),
    ],
)
def test_launches_beyond_the_limits_are_refused(grid, block, args, why):
    values = np.zeros(64, np.int32)
    with pytest.raises(ShimError, match=why):
        kernel("reverse")(grid, block, (values, values, np.int32(1))[:args])


@pytest.mark.parametrize("wrong", [1, 1.0, np.int16(1), np.float32(1), np.zeros(1)])
def test_arguments_of_another_kind_or_size_are_refused(wrong):
    values = np.zeros(64, np.int32)
    with pytest.raises(ShimError, match="argument 2 is"):
        kernel("reverse")((1,), (64,), (values, values, wrong))


def test_names_options_and_sources_that_are_wrong_are_refused():
    with pytest.raises(ShimError, match="no kernel 'nothing'"):
        kernel("nothing")
    with pytest.raises(ShimError, match="--use_fast_math"):
        ShimModule(CODE, ["-DT=int", "--use_fast_math"])
    with pytest.raises(ShimError, match="refuses the kernels"):
        ShimModule(CODE, [])
