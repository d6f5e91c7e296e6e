// Convolutions of int8 and uint8 images with int8 filters: exact int32 sums, finished where they are summed.
//
// A uint8 pixel with its highest bit flipped is a signed byte that is smaller by 128, so that one kernel serves both;
// `flip` does it to four pixels at once.  `zero` is what then stands for zero: padding is that byte, and every sum is
// lessened by `zero` times the sum of its filter.  All of it is modulo 2^32, and exact, because the true sum fits.
// Strides are in bytes; channel c lies at (c / 4) blocks and (c % 4) lanes.

enum { WORDS = 8, PIXELS = 128, FILTERS = 64, THREADS = 256, EACH_PIXELS = 8, EACH_FILTERS = 4 };

#define INT8_PARAMETERS                                                                                                \
    const i8 *image, i64 image_n, i64 image_h, i64 image_w, i64 image_block, i64 image_lane, const i8 *filter,         \
        i64 filter_h, i64 filter_w, i64 filter_block, i64 filter_lane, i64 filter_o, u32 flip, i32 zero, i64 count,    \
        i64 in_rows, i64 in_columns, i64 rows, i64 columns, i64 channels, i64 group_in, i64 group_out,                 \
        i64 filter_rows, i64 filter_columns, i64 row_step, i64 column_step, i64 row_dilation, i64 column_dilation,     \
        i64 row_padding, i64 column_padding

// The sum of four products of signed bytes, and c.
__device__ __forceinline__ u32 dot4(u32 a, u32 b, u32 c)
{
#ifdef __CUDA_ARCH__
    return (u32)__dp4a((i32)a, (i32)b, (i32)c);
#else
    for (i32 k = 0; k < 32; k += 8)
        c += (u32)((i32)(i8)(a >> k) * (i32)(i8)(b >> k));
    return c;
#endif
}

// Up to four channels as one word, the rest of it 0; `whole` promises four aligned neighbours.
__device__ __forceinline__ u32 load_word(const i8 *from, i64 lane, i32 lanes, bool whole)
{
    if (whole)
        return *(const u32 *)from;
    u32 word = 0;
#pragma unroll
    for (i32 k = 0; k < 4; k++)
        if (k < lanes)
            word |= (u32)(u8)from[k * lane] << 8 * k;
    return word;
}

// Blocks of 256 threads sum tiles of 128 pixels by 64 filters of one group, eight by four in each thread.  The sum goes
// over words of four channels, tap by tap, eight words at a time through shared memory.  `image_whole` and
// `filter_whole` promise that words can be loaded as such; `pixels_fastest` and `filters_fastest` say along what
// neighbouring threads load.
extern "C" __global__ void __launch_bounds__(THREADS)
    int8_tiles(INT8_PARAMETERS, i64 batch, i32 image_whole, i32 filter_whole, i32 pixels_fastest, i32 filters_fastest,
               INT8_FINISH_PARAMETERS)
{
    __shared__ uint4 image_words[WORDS][PIXELS / 4 + 1], filter_words[WORDS][FILTERS / 4 + 1];
    __shared__ i64 pixel_at[PIXELS], pixel_row[PIXELS], pixel_column[PIXELS];
    __shared__ i64 tap_row[WORDS], tap_column[WORDS], tap_at[WORDS], weight_at[WORDS];
    __shared__ i32 lanes[WORDS];
    const i32 thread = (i32)threadIdx.x;
    const i64 pixels = batch * rows * columns, words = (group_in + 3) / 4, steps = filter_rows * filter_columns * words;
    const i64 across = (group_out + FILTERS - 1) / FILTERS, groups = channels / group_out;
    for (i64 tile = blockIdx.x; tile < count; tile += gridDim.x) {
        i64 rest = tile;
        const i64 first_filter = take(&rest, across) * FILTERS, group = take(&rest, groups), first_pixel = rest * PIXELS;
        const i64 most_filters = group_out - first_filter;
        if (thread < PIXELS) {
            i64 n = first_pixel + thread < pixels ? first_pixel + thread : pixels - 1;
            const i64 j = take(&n, columns), i = take(&n, rows);
            pixel_row[thread] = i * row_step - row_padding, pixel_column[thread] = j * column_step - column_padding;
            pixel_at[thread] = n * image_n + pixel_row[thread] * image_h + pixel_column[thread] * image_w;
        }
        u32 sum[EACH_PIXELS][EACH_FILTERS] = {}, weight[EACH_FILTERS] = {};
        const i32 my_pixels = thread / 16 * EACH_PIXELS, my_filters = thread % 16 * EACH_FILTERS;
        for (i64 step = 0; step < steps; step += WORDS) {
            if (thread < WORDS) {
                i64 tap = step + thread;
                const i64 word = take(&tap, words), channel = group * group_in + word * 4;
                i64 a = tap;
                const i64 b = take(&a, filter_columns), left = group_in - word * 4;
                lanes[thread] = step + thread >= steps ? 0 : left < 4 ? (i32)left : 4;
                tap_row[thread] = a * row_dilation, tap_column[thread] = b * column_dilation;
                tap_at[thread] = tap_row[thread] * image_h + tap_column[thread] * image_w + (channel >> 2) * image_block +
                                 (channel & 3) * image_lane;
                weight_at[thread] = a * filter_h + b * filter_w + word * filter_block;
            }
            __syncthreads();
#pragma unroll
            for (i32 k = 0; k < WORDS * PIXELS / THREADS; k++) {
                const i32 at = thread + k * THREADS;
                const i32 word = pixels_fastest ? at / PIXELS : at % WORDS;
                const i32 pixel = pixels_fastest ? at % PIXELS : at / WORDS;
                const i64 h = pixel_row[pixel] + tap_row[word], w = pixel_column[pixel] + tap_column[word];
                u32 value = (u32)(u8)zero * 0x01010101u;
                if (lanes[word] && h >= 0 && h < in_rows && w >= 0 && w < in_columns) {
                    const i8 *from = image + pixel_at[pixel] + tap_at[word];
                    value = load_word(from, image_lane, lanes[word], image_whole) ^ flip;
                }
                ((u32 *)image_words[word])[pixel] = value;
            }
#pragma unroll
            for (i32 k = 0; k < WORDS * FILTERS / THREADS; k++) {
                const i32 at = thread + k * THREADS;
                const i32 word = filters_fastest ? at / FILTERS : at % WORDS;
                const i32 lane = filters_fastest ? at % FILTERS : at / WORDS;
                u32 value = 0;
                if (lanes[word] && lane < most_filters) {
                    const i8 *from = filter + weight_at[word] + (group * group_out + first_filter + lane) * filter_o;
                    value = load_word(from, filter_lane, lanes[word], filter_whole);
                }
                ((u32 *)filter_words[word])[lane] = value;
            }
            __syncthreads();
#pragma unroll
            for (i32 word = 0; word < WORDS; word++) {
                const uint4 b4 = filter_words[word][my_filters / 4];
                const u32 b[EACH_FILTERS] = {b4.x, b4.y, b4.z, b4.w};
                const uint4 low = image_words[word][my_pixels / 4], high = image_words[word][my_pixels / 4 + 1];
                const u32 a[EACH_PIXELS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (i32 i = 0; i < EACH_PIXELS; i++)
#pragma unroll
                    for (i32 k = 0; k < EACH_FILTERS; k++)
                        sum[i][k] = dot4(a[i], b[k], sum[i][k]);
                if (zero != 0)
#pragma unroll
                    for (i32 k = 0; k < EACH_FILTERS; k++)
                        weight[k] = dot4(0x01010101u, b[k], weight[k]);
            }
            // The next step's barrier comes before anyone writes words again.
        }
        // As many copies of the epilogue as there are results would take NVRTC long: they move up one after the other.
        const i64 least = first_filter + my_filters, left = group_out - least;
#pragma unroll 1
        for (i64 pixel = first_pixel + my_pixels; pixel < first_pixel + my_pixels + EACH_PIXELS; pixel++) {
            place p;
            p.n = pixel;
            p.j = take(&p.n, columns), p.i = take(&p.n, rows), p.c = group * group_out + least;
#pragma unroll 1
            for (i32 k = 0; k < EACH_FILTERS; k++, p.c++) {
                if (pixel < pixels && k < left)
                    finish_int8(sum[0][0] - (u32)zero * weight[0], p, INT8_FINISH_ARGUMENTS);
                const u32 first = weight[0];
#pragma unroll
                for (i32 l = 0; l < EACH_FILTERS; l++)
                    weight[l] = l + 1 < EACH_FILTERS ? weight[l + 1] : first;
#pragma unroll
                for (i32 l = 0; l + 1 < EACH_PIXELS * EACH_FILTERS; l++)
                    sum[l / EACH_FILTERS][l % EACH_FILTERS] = sum[(l + 1) / EACH_FILTERS][(l + 1) % EACH_FILTERS];
            }
        }
    }
}

// Groups too narrow for tiles, as depthwise ones: a thread sums one result.
extern "C" __global__ void __launch_bounds__(THREADS)
    int8_narrow(INT8_PARAMETERS, i32 pixels_fastest, INT8_FINISH_PARAMETERS)
{
    EACH_ITEM(index, count)
    {
        const place p = take_place(index, pixels_fastest, rows, columns, channels);
        i64 group = p.c;
        take(&group, group_out);
        u32 sum = 0;
        for (i64 a = 0; a < filter_rows; a++) {
            const i64 h = p.i * row_step + a * row_dilation - row_padding;
            if (h < 0 || h >= in_rows)
                continue;
            for (i64 b = 0; b < filter_columns; b++) {
                const i64 w = p.j * column_step + b * column_dilation - column_padding;
                if (w < 0 || w >= in_columns)
                    continue;
                const i8 *pixel = image + p.n * image_n + h * image_h + w * image_w;
                const i8 *weights = filter + a * filter_h + b * filter_w + p.c * filter_o;
                for (i64 c = 0; c < group_in; c++) {
                    const i64 at = channel_at(group * group_in + c, image_block, image_lane);
                    const i32 value = (i32)(i8)((u8)pixel[at] ^ (u8)flip) - zero;
                    sum += (u32)(value * (i32)weights[channel_at(c, filter_block, filter_lane)]);
                }
            }
        }
        finish_int8(sum, p, INT8_FINISH_ARGUMENTS);
    }
}
