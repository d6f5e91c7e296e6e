// Elements as they are, by their size alone.
extern "C" __global__ void __launch_bounds__(256) copy_bits(const ELEMENT *from, ELEMENT *to, i64 count, AXES)
{
    EACH_ITEM(index, count)
    {
        i64 rest = index, source = 0, target = 0;
        TAKE_AXIS(5)
        TAKE_AXIS(4)
        TAKE_AXIS(3)
        TAKE_AXIS(2)
        TAKE_AXIS(1)
        TAKE_AXIS(0)
        to[target] = from[source];
    }
}

// The same where the neighbours in the source lie along another axis, the fifth: squares of 32 by 32 elements pass
// through shared memory, so that both sides are read and written in runs.  Blocks have 32 by 8 threads.
extern "C" __global__ void __launch_bounds__(256) copy_tiles(const ELEMENT *from, ELEMENT *to, i64 tiles, AXES)
{
    __shared__ ELEMENT held[32][33];
    const i64 across = (size4 + 31) / 32, along = (size5 + 31) / 32;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        i64 rest = tile, source = 0, target = 0;
        const i64 last = take(&rest, along) * 32, before = take(&rest, across) * 32;
        TAKE_AXIS(3)
        TAKE_AXIS(2)
        TAKE_AXIS(1)
        TAKE_AXIS(0)
        for (i32 row = (i32)threadIdx.y; row < 32; row += 8)
            if (last + row < size5 && before + threadIdx.x < size4)
                held[row][threadIdx.x] = from[source + (last + row) * from5 + (before + threadIdx.x) * from4];
        __syncthreads();
        for (i32 row = (i32)threadIdx.y; row < 32; row += 8)
            if (before + row < size4 && last + threadIdx.x < size5)
                to[target + (before + row) * to4 + (last + threadIdx.x) * to5] = held[threadIdx.x][row];
        __syncthreads();
    }
}
