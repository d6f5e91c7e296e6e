// The filter gradient of depthwise convolutions and of narrow groups.  The pixels of all images are cut into slices;
// what each of them gives, dense in the order slices, H, W, I, O, is added up by sum_slices in gradient.cu.  A thread
// holds the sums of several taps, so that it reads the gradient once for all of them.

enum { TAPS = 9, SIDE_BY_SIDE = 128 };

#define FILTER_PARAMETERS                                                                                              \
    const ELEMENT *image, i64 image_n, i64 image_h, i64 image_w, i64 image_c, const ELEMENT *gradient, i64 gradient_n,             \
        i64 gradient_h, i64 gradient_w, i64 gradient_c, ACC *sums, i64 count, i64 slice, i64 batch, i64 in_rows,       \
        i64 in_columns, i64 rows, i64 columns, i64 channels, i64 group_in, i64 group_out, i64 filter_rows,             \
        i64 filter_columns, i64 row_step, i64 column_step, i64 row_dilation, i64 column_dilation, i64 row_padding,     \
        i64 column_padding

// What one thread or one block sums: a channel out, a channel in of its group, some taps, and a slice of the pixels.
#define TAKE_WORK(index)                                                                                               \
    i64 rest = index;                                                                                                  \
    const i64 taps = filter_rows * filter_columns, chunks = (taps + TAPS - 1) / TAPS;                                  \
    const i64 k = take(&rest, channels), c = take(&rest, group_in), first = take(&rest, chunks) * TAPS, part = rest;   \
    const i64 begin = part * slice, all = batch * rows * columns;                                                      \
    const i64 end = all - begin < slice ? all : begin + slice;                                                         \
    i64 group = k;                                                                                                     \
    take(&group, group_out);                                                                                           \
    const ELEMENT *pixels = image + (group * group_in + c) * image_c, *given = gradient + k * gradient_c;                    \
    i64 down[TAPS], right[TAPS];                                                                                       \
    _Pragma("unroll") for (i32 u = 0; u < TAPS; u++)                                                                   \
    {                                                                                                                  \
        i64 a = first + u;                                                                                             \
        const i64 b = take(&a, filter_columns);                                                                        \
        /* Taps beyond the last one meet no pixel. */                                                                  \
        down[u] = first + u < taps ? a * row_dilation - row_padding : -in_rows - rows * row_step;                      \
        right[u] = b * column_dilation - column_padding;                                                               \
    }

#define MEET_TAPS(n, i, j)                                                                                             \
    {                                                                                                                  \
        const ACC value = widen(given[(n) * gradient_n + (i) * gradient_h + (j) * gradient_w]);                        \
        _Pragma("unroll") for (i32 u = 0; u < TAPS; u++)                                                               \
        {                                                                                                              \
            const i64 h = (i) * row_step + down[u], w = (j) * column_step + right[u];                                  \
            if (h >= 0 && h < in_rows && w >= 0 && w < in_columns)                                                     \
                near[u] = multiply_add((ACC)widen(pixels[(n) * image_n + h * image_h + w * image_w]), value, near[u]); \
        }                                                                                                              \
    }

#define SUM_AT(u) (((part * taps + first + (u)) * group_in + c) * channels + k)

// Channels are neighbours in memory: those of neighbouring threads are.
extern "C" __global__ void __launch_bounds__(128) filter_by_channels(FILTER_PARAMETERS)
{
    EACH_ITEM(index, count)
    {
        TAKE_WORK(index)
        ACC near[TAPS] = {}, far[TAPS] = {};
        i64 n = begin;
        i64 j = take(&n, columns), i = take(&n, rows);
        i32 terms = 0;
        for (i64 pixel = begin; pixel < end; pixel++) {
            MEET_TAPS(n, i, j)
            if (++terms == SUM_BLOCK) {
#pragma unroll
                for (i32 u = 0; u < TAPS; u++)
                    far[u] += near[u], near[u] = 0;
                terms = 0;
            }
            if (++j == columns) {
                j = 0;
                if (++i == rows)
                    i = 0, n++;
            }
        }
#pragma unroll
        for (i32 u = 0; u < TAPS; u++)
            if (first + u < taps)
                sums[SUM_AT(u)] = far[u] + near[u];
    }
}

// Pixels are neighbours in memory: the threads of a block share the pixels of one channel, and add up what they have in
// a fixed order.
extern "C" __global__ void __launch_bounds__(SIDE_BY_SIDE) filter_by_pixels(FILTER_PARAMETERS)
{
    __shared__ ACC held[TAPS][SIDE_BY_SIDE];
    for (i64 work = blockIdx.x; work < count; work += gridDim.x) {
        TAKE_WORK(work)
        ACC near[TAPS] = {}, far[TAPS] = {};
        i32 terms = 0;
        for (i64 pixel = begin + threadIdx.x; pixel < end; pixel += SIDE_BY_SIDE) {
            i64 n = pixel;
            const i64 j = take(&n, columns), i = take(&n, rows);
            MEET_TAPS(n, i, j)
            if (++terms == SUM_BLOCK) {
#pragma unroll
                for (i32 u = 0; u < TAPS; u++)
                    far[u] += near[u], near[u] = 0;
                terms = 0;
            }
        }
#pragma unroll
        for (i32 u = 0; u < TAPS; u++)
            held[u][threadIdx.x] = far[u] + near[u];
        for (u32 half = SIDE_BY_SIDE / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half)
#pragma unroll
                for (i32 u = 0; u < TAPS; u++)
                    held[u][threadIdx.x] += held[u][threadIdx.x + half];
        }
        __syncthreads();
        if (threadIdx.x < TAPS && first + threadIdx.x < taps)
            sums[SUM_AT(threadIdx.x)] = held[threadIdx.x][0];
        __syncthreads();
    }
}
