#include "scatter.h"

#include <string.h>

typedef struct {
    int64_t image0, images, group, channel0, channels;
} tile;

static int64_t tiles_of(const ck_scatter *s)
{
    return s->groups * ck_ceil_div(s->images, s->image_block) * ck_ceil_div(s->in_channels, s->channel_block);
}

static tile tile_of(const ck_scatter *s, int64_t number)
{
    int64_t channel_blocks = ck_ceil_div(s->in_channels, s->channel_block);
    tile t;
    t.channel0 = number % channel_blocks * s->channel_block;
    t.channels = ck_min(s->channel_block, s->in_channels - t.channel0);
    number /= channel_blocks;
    t.group = number % s->groups;
    t.image0 = number / s->groups * s->image_block;
    t.images = ck_min(s->image_block, s->images - t.image0);
    return t;
}

#define ADD_RUN(NAME, TYPE)                                                                                            \
    static inline void NAME(char *to, const char *from, int64_t n)                                                     \
    {                                                                                                                  \
        TYPE *restrict sum = (TYPE *)to;                                                                               \
        const TYPE *restrict term = (const TYPE *)from;                                                                \
        for (int64_t i = 0; i < n; i++)                                                                                \
            sum[i] += term[i];                                                                                         \
    }

ADD_RUN(add_run_f32, float)
ADD_RUN(add_run_f64, double)

/* col2im of one block of pixels and neighbouring taps b0 .. b1 - 1 of tap row a: whole runs of channels, and of width x
 * channel where neighbouring taps meet neighbouring pixels. */
static void add_columns(const ck_scatter *s, const tile *t, int64_t a, int64_t b0, int64_t b1, int64_t pixel0,
                        int64_t count, const char *columns, char *sums)
{
    const ck_window *w = &s->window;
    int64_t size = ck_size(s->gemm.arithmetic), grid = w->out_height * w->out_width, run = t->channels * size;
    bool merged = true;
    for (int64_t b = b0 + 1; b < b1; b++)
        merged = merged && w->col_at[b] == w->col_at[b0] + (b - b0);
    void (*add)(char *, const char *, int64_t) = size == 8 ? add_run_f64 : add_run_f32;
    for (int64_t pixel = pixel0; pixel < pixel0 + count; pixel++, columns += (b1 - b0) * run) {
        int64_t row = pixel % grid / w->out_width * w->row_step + w->row_at[a];
        if (row < 0 || row >= w->height)
            continue;
        char *to = sums + (pixel / grid * w->height + row) * w->width * run;
        int64_t col = pixel % w->out_width * w->col_step;
        if (merged) {
            int64_t first = col + w->col_at[b0], start = ck_max(0, -first);
            int64_t end = ck_min(b1 - b0, w->width - first);
            if (end > start)
                add(to + (first + start) * run, columns + start * run, (end - start) * t->channels);
            continue;
        }
        for (int64_t b = b0; b < b1; b++) {
            int64_t at = col + w->col_at[b];
            if (at >= 0 && at < w->width)
                add(to + at * run, columns + (b - b0) * run, t->channels);
        }
    }
}

/* Adds the sums of the taps so far to the second-level sums, and begins new ones. */
static void add_level(const ck_scatter *s, char *totals, char *sums, int64_t bytes)
{
    int64_t size = ck_size(s->gemm.arithmetic);
    (size == 8 ? add_run_f64 : add_run_f32)(totals, sums, bytes / size);
    memset(sums, 0, (size_t)bytes);
}

/* The output gradient of a block of the tile's pixels as a matrix [pixel][channel out]. */
static void load_gradients(const ck_scatter *s, const tile *t, int64_t pixel, int64_t count, char *to)
{
    int64_t size = ck_size(s->gemm.arithmetic), width = s->window.out_width, grid = width * s->window.out_height;
    const int64_t *stride = s->gradients.stride;
    const char *from = s->gradients.data + t->group * s->gradient_group;
    while (count > 0) {
        int64_t n = t->image0 + pixel / grid, i = pixel % grid / width, j = pixel % width;
        int64_t segment = ck_min(count, width - j);
        ck_load_block(s->load_gradient, size, to, s->out_channels, 1,
                      from + n * stride[0] + i * stride[1] + j * stride[2], stride[2], stride[3], segment,
                      s->out_channels);
        to += segment * s->out_channels * size;
        pixel += segment;
        count -= segment;
    }
}

/* The filter of neighbouring taps as a matrix [tap, channel in][channel out]. */
static void load_filter(const ck_scatter *s, const tile *t, int64_t a, int64_t b0, int64_t b1, char *to)
{
    int64_t size = ck_size(s->gemm.arithmetic);
    const int64_t *stride = s->filter.stride;
    for (int64_t b = b0; b < b1; b++, to += t->channels * s->out_channels * size)
        ck_load_block(s->load_filter, size, to, s->out_channels, 1,
                      s->filter.data + t->group * s->filter_group + a * stride[0] + b * stride[1] +
                          t->channel0 * stride[2],
                      stride[2], stride[3], t->channels, s->out_channels);
}

static void store_tile(const ck_scatter *s, const tile *t, const char *sums)
{
    const ck_window *w = &s->window;
    int64_t size = ck_size(s->gemm.arithmetic), run = w->width * t->channels * size;
    const int64_t *stride = s->out.stride;
    char *to = s->out.data + t->group * s->out_group + t->image0 * stride[0] + t->channel0 * stride[3];
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < w->height; i++, sums += run)
            ck_store_block(s->store, size, to + n * stride[0] + i * stride[1], stride[2], stride[3], sums, t->channels,
                           1, w->width, t->channels, false);
}

static void scatter_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_scatter *s = ctx;
    const ck_window *w = &s->window;
    const tile t = tile_of(s, unit);
    int64_t size = ck_size(s->gemm.arithmetic), pixels = t.images * w->out_height * w->out_width;
    int64_t step = ck_sum_block(s->out_channels);
    char *gradients = ck_worker_scratch(worker), *filter = gradients + s->gradient_bytes;
    char *columns = filter + s->filter_bytes, *sums = columns + s->column_bytes, *totals = sums + s->tile_bytes;
    int64_t tile_bytes = t.images * w->height * w->width * t.channels * size;
    int64_t block = ck_min(s->pixel_block, pixels), added = 0;
    bool levels = w->rows * w->cols > CK_SUM_BLOCK; /* each tap adds to a pixel once at most */
    if (block * s->out_channels * size > s->gradient_bytes || tile_bytes > s->tile_bytes ||
        s->tap_block * t.channels * s->out_channels * size > s->filter_bytes ||
        s->tap_block * t.channels * block * size > s->column_bytes || (levels && tile_bytes > s->total_bytes)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    memset(sums, 0, (size_t)tile_bytes);
    if (levels)
        memset(totals, 0, (size_t)tile_bytes);
    for (int64_t pixel = 0; pixel < pixels; pixel += block) {
        int64_t count = ck_min(block, pixels - pixel);
        load_gradients(s, &t, pixel, count, gradients);
        for (int64_t a = 0; a < w->rows; a++)
            for (int64_t b0 = 0; b0 < w->cols; b0 += s->tap_block) {
                if (ck_worker_stop(worker))
                    return;
                int64_t b1 = ck_min(w->cols, b0 + s->tap_block), n = (b1 - b0) * t.channels;
                load_filter(s, &t, a, b0, b1, filter);
                for (int64_t k = 0; k < s->out_channels; k += step)
                    ck_multiply(&s->gemm, count, n, ck_min(step, s->out_channels - k),
                                (ck_matrix){gradients + k * size, s->out_channels, false},
                                (ck_matrix){filter + k * size, s->out_channels, true}, k > 0,
                                (ck_matrix){columns, n, false});
                if (levels && added + b1 - b0 > CK_SUM_BLOCK) {
                    add_level(s, totals, sums, tile_bytes);
                    added = 0;
                }
                add_columns(s, &t, a, b0, b1, pixel, count, columns, sums);
                added += b1 - b0;
            }
    }
    if (levels)
        add_level(s, totals, sums, tile_bytes);
    store_tile(s, &t, levels ? totals : sums);
}

int ck_scatter_run(const ck_scatter *s, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)s;
    job.fn = scatter_unit;
    job.chunks = tiles_of(s);
    job.scratch_bytes = (size_t)(s->gradient_bytes + s->filter_bytes + s->column_bytes + s->tile_bytes +
                                s->total_bytes);
    return ck_pool_run(&job);
}
