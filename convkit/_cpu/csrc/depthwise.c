#include "depthwise.h"

#include <string.h>

static void reach_of(const int64_t *at, int64_t taps, int64_t first, int64_t count, int64_t step, int64_t *start,
                     int64_t *length)
{
    int64_t low = at[0], high = at[0];
    for (int64_t t = 1; t < taps; t++) {
        low = ck_min(low, at[t]);
        high = ck_max(high, at[t]);
    }
    *start = first * step + low;
    *length = (count - 1) * step + high - low + 1;
}

/* Copies one row of a plane: of every remainder, the columns col0 + remainder + i * step for i < pitch. */
static void stage_row(const ck_pixels *pixels, int64_t width, int64_t size, const char *row, int64_t col0, int64_t step,
                      int64_t pitch, char *to)
{
    int64_t stride = pixels->array.stride[2];
    for (int64_t remainder = 0; remainder < step; remainder++, to += pitch * size) {
        int64_t first = col0 + remainder;
        int64_t left = first < 0 ? ck_min(pitch, ck_ceil_div(-first, step)) : 0;
        int64_t right = first < width ? ck_max(left, ck_min(pitch, ck_ceil_div(width - first, step))) : left;
        memset(to, 0, (size_t)(left * size));
        memset(to + right * size, 0, (size_t)((pitch - right) * size));
        const char *from = row + (first + left * step) * stride;
        if (pixels->plain && step == 1)
            memcpy(to + left * size, from, (size_t)((right - left) * size));
        else if (right > left)
            pixels->load(to + left * size, 1, from, step * stride, right - left);
    }
}

/* Rows of planes up to so many bytes are cleared all at once, and then only the image's part of them is copied. */
enum { SHORT_ROW = 512 };

bool ck_depthwise_look(const ck_depthwise_kernel *kernel, const ck_window *w, const ck_pixels *pixels,
                       const ck_block *block, int64_t channels, bool planes, char *scratch, int64_t bytes,
                       ck_depthwise_view *v)
{
    int64_t size = ck_size(kernel->arithmetic);
    const ck_array *a = &pixels->array;
    int64_t row0, rows, col0, cols;
    reach_of(w->row_at, w->rows, block->row0, block->rows, w->row_step, &row0, &rows);
    reach_of(w->col_at, w->cols, block->col0, block->cols, w->col_step, &col0, &cols);
    bool inside = row0 >= 0 && col0 >= 0 && row0 + rows <= w->height && col0 + cols <= w->width;
    if (pixels->plain && inside && !(planes && w->col_step > 1)) {
        *v = (ck_depthwise_view){a->data,
                                 0,
                                 0,
                                 a->stride[1] / size,
                                 w->col_step * a->stride[2] / size,
                                 a->stride[2] / size,
                                 a->stride[3] / size};
        return true;
    }
    if (!planes) {
        ck_view padded;
        if (!ck_stage_padded(w, pixels, block, channels, size, scratch, bytes, &padded))
            return false;
        *v = (ck_depthwise_view){scratch, row0, col0, padded.row_step, w->col_step * channels, channels, 1};
        return true;
    }
    int64_t pitch = ck_ceil_div(cols, w->col_step), row_step = pitch * w->col_step;
    if (channels * rows * row_step * size > bytes)
        return false;
    *v = (ck_depthwise_view){scratch, row0, col0, row_step, 1, pitch, rows * row_step};
    if (pixels->plain && w->col_step == 1 && cols * size <= SHORT_ROW) {
        int64_t top = ck_max(0, row0), left = ck_max(0, col0);
        int64_t high = ck_min(w->height, row0 + rows) - top, wide = ck_min(w->width, col0 + cols) - left;
        memset(scratch, 0, (size_t)(channels * rows * cols * size));
        for (int64_t c = 0; wide > 0 && c < channels; c++)
            kernel->copy(high, wide, a->data + top * a->stride[1] + left * a->stride[2] + c * a->stride[3],
                         a->stride[1] / size, scratch + ((c * rows + top - row0) * cols + left - col0) * size, cols);
        return true;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t row = row0; row < row0 + rows; row++, scratch += row_step * size) {
            if (row < 0 || row >= w->height)
                memset(scratch, 0, (size_t)(row_step * size));
            else
                stage_row(pixels, w->width, size, a->data + row * a->stride[1] + c * a->stride[3], col0, w->col_step,
                          pitch, scratch);
        }
    return true;
}

typedef struct {
    int64_t image, channel0, channels;
    ck_block block;
} tile;

int64_t ck_depthwise_units(const ck_depthwise *d, const ck_depthwise_phase *phase)
{
    return d->images * ck_ceil_div(phase->window.out_height, d->row_block) *
           ck_ceil_div(phase->window.out_width, d->col_block) * ck_ceil_div(d->channels, d->channel_block);
}

static void cut(int64_t *unit, int64_t total, int64_t block, int64_t *start, int64_t *count)
{
    int64_t blocks = ck_ceil_div(total, block);
    *start = *unit % blocks * block;
    *count = ck_min(block, total - *start);
    *unit /= blocks;
}

static tile tile_of(const ck_depthwise *d, const ck_depthwise_phase *phase, int64_t unit)
{
    tile t;
    cut(&unit, d->channels, d->channel_block, &t.channel0, &t.channels);
    cut(&unit, phase->window.out_width, d->col_block, &t.block.col0, &t.block.cols);
    cut(&unit, phase->window.out_height, d->row_block, &t.block.row0, &t.block.rows);
    t.block.images = 1;
    t.image = unit;
    return t;
}

static const ck_depthwise_phase *phase_of(const ck_depthwise *d, int64_t unit)
{
    int64_t low = 0, high = d->phase_count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (d->phases[middle].first_unit <= unit)
            low = middle;
        else
            high = middle;
    }
    return &d->phases[low];
}

/* One phase's taps of the filter. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_depthwise *d = ctx;
    const ck_depthwise_phase *phase = &d->phases[unit];
    const int64_t *stride = d->filter.stride;
    int64_t size = ck_size(d->kernel->arithmetic), cols = phase->window.cols, taps = phase->window.rows * cols;
    for (int64_t tap = 0; tap < taps; tap++)
        d->load_filter(d->packed + phase->packed_at + tap * (d->planes ? 1 : d->channels) * size, d->planes ? taps : 1,
                       d->filter.data + phase->row_tap[tap / cols] * stride[0] + phase->col_tap[tap % cols] * stride[1],
                       stride[3], d->channels);
}

/* Where the sums of a tile go: steps from one row, column and channel to the next, in elements. */
typedef struct {
    char *data;
    int64_t row, col, channel;
} target;

/* Whether these taps are whole rows of them, one below the other in neighbouring rows of the image. */
static bool is_grid(const ck_window *w, const ck_depthwise_view *v, const int64_t *at, int64_t taps)
{
    bool grid = w->row_step == 1 && taps % w->cols == 0;
    for (int64_t tap = w->cols; grid && tap < taps; tap += w->cols)
        grid = at[tap] == at[tap - w->cols] + v->row_step;
    return grid;
}

/* As ck_sum_block, but whole rows of taps where they fit. */
static int64_t tap_block(const ck_window *w)
{
    if (w->cols > CK_SUM_BLOCK)
        return ck_sum_block(w->rows * w->cols);
    int64_t blocks = ck_ceil_div(w->rows, CK_SUM_BLOCK / w->cols);
    return ck_ceil_div(w->rows, blocks) * w->cols;
}

/* Adds `taps` taps, the first of them number `first`, to every sum of the tile. */
static void add_taps(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t, const ck_depthwise_view *v,
                     const int64_t *at, int64_t first, int64_t taps, const target *to)
{
    const ck_window *w = &phase->window;
    const ck_depthwise_kernel *kernel = d->kernel;
    int64_t size = ck_size(kernel->arithmetic), all = w->rows * w->cols, row_step = w->row_step * v->row_step;
    const char *weights = d->packed + phase->packed_at + (d->planes ? t->channel0 * all + first
                                                                    : first * d->channels + t->channel0) * size;
    if (d->planes && is_grid(w, v, at, taps))
        for (int64_t c = 0; c < t->channels; c++)
            kernel->by_grid(t->block.rows, t->block.cols, v->data + c * v->channel_step * size, row_step, at,
                            taps / w->cols, w->cols, weights + c * all * size, to->data + c * to->channel * size,
                            to->row, first > 0);
    else if (d->planes)
        for (int64_t c = 0; c < t->channels; c++)
            kernel->by_tap(t->block.rows, t->block.cols, v->data + c * v->channel_step * size, row_step, at, taps,
                           weights + c * all * size, 0, to->data + c * to->channel * size, to->row, first > 0);
    else
        for (int64_t i = 0; i < t->block.rows; i++)
            kernel->by_lane(t->block.cols, t->channels, v->data + i * row_step * size, v->col_step, at, taps, weights,
                            d->channels, to->data + i * to->row * size, to->col, first > 0);
}

/* The same for planes as rows of `run` numbers. */
static void add_flat_taps(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t,
                          const ck_depthwise_view *v, const int64_t *at, int64_t first, int64_t taps, const target *to)
{
    const ck_depthwise_kernel *kernel = d->kernel;
    int64_t size = ck_size(kernel->arithmetic), all = phase->window.rows * phase->window.cols, pair = 2 * kernel->lanes;
    int64_t run = (t->block.rows - 1) * v->row_step + t->block.cols, pairs = run / pair, done = pairs * pair;
    const char *weights = d->packed + phase->packed_at + (t->channel0 * all + first) * size;
    for (int64_t c = 0; c < t->channels; c++, weights += all * size) {
        const char *x = v->data + c * v->channel_step * size;
        char *sums = to->data + c * to->channel * size;
        if (pairs)
            kernel->by_tap(pairs, pair, x, pair, at, taps, weights, 0, sums, pair, first > 0);
        if (done < run)
            kernel->by_tap(1, run - done, x + done * size, 0, at, taps, weights, 0, sums + done * size, 0, first > 0);
    }
}

static void store_tile(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t, const target *sums,
                       char *to)
{
    const int64_t *stride = phase->out.stride;
    int64_t size = ck_size(d->kernel->arithmetic);
    if (phase->out_in_place) { /* flat sums */
        for (int64_t c = 0; c < t->channels; c++)
            d->kernel->copy(t->block.rows, t->block.cols, sums->data + c * sums->channel * size, sums->row,
                            to + c * stride[3], stride[1] / size);
        return;
    }
    for (int64_t i = 0; i < t->block.rows; i++)
        ck_store_block(d->store, size, to + i * stride[1], stride[2], stride[3], sums->data + i * sums->row * size,
                       sums->col, sums->channel, t->block.cols, t->channels, false);
}

static void depthwise_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_depthwise *d = ctx;
    const ck_depthwise_phase *phase = phase_of(d, unit);
    const ck_window *w = &phase->window;
    const tile t = tile_of(d, phase, unit - phase->first_unit);
    const int64_t *stride = phase->out.stride;
    int64_t size = ck_size(d->kernel->arithmetic), taps = w->rows * w->cols;
    int64_t rows = t.block.rows, cols = t.block.cols;
    char *scratch = ck_worker_scratch(worker);

    ck_depthwise_view v;
    ck_pixels pixels = d->pixels;
    pixels.array.data += t.image * pixels.array.stride[0] + t.channel0 * pixels.array.stride[3];
    char *out = d->out_data + phase->out_at + t.image * stride[0] + t.block.row0 * stride[1] +
                t.block.col0 * stride[2] + t.channel0 * stride[3];
    if (!ck_depthwise_look(d->kernel, w, &pixels, &t.block, t.channels, d->planes, scratch, d->stage_bytes, &v)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    bool flat = phase->flat && v.data == scratch, in_place = phase->out_in_place && !flat;
    int64_t pitch = flat ? v.row_step : cols;
    target to = {out, stride[1] / size, stride[2] / size, stride[3] / size};
    if (!in_place) {
        to = d->planes ? (target){scratch + d->stage_bytes, pitch, 1, rows * pitch}
                       : (target){scratch + d->stage_bytes, cols * t.channels, t.channels, 1};
        if (rows * pitch * t.channels * size > d->tile_bytes) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
    int64_t at[CK_SUM_BLOCK], step = tap_block(w);
    for (int64_t first = 0; first < taps; first += step) {
        if (first && ck_worker_stop(worker))
            return;
        int64_t count = ck_min(step, taps - first);
        for (int64_t tap = 0; tap < count; tap++)
            at[tap] = ck_depthwise_at(&v, w, &t.block, (first + tap) / w->cols, (first + tap) % w->cols);
        (flat ? add_flat_taps : add_taps)(d, phase, &t, &v, at, first, count, &to);
    }
    if (!in_place)
        store_tile(d, phase, &t, &to, out);
}

int ck_depthwise_run(const ck_depthwise *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    job.fn = pack_unit;
    job.chunks = d->phase_count;
    job.scratch_bytes = 0;
    int code = ck_pool_run(&job);
    if (code != CK_OK)
        return code;
    job.fn = depthwise_unit;
    job.chunks = d->units;
    /* At least a byte, so that the parts have addresses where nothing is copied. */
    job.scratch_bytes = (size_t)ck_max(1, d->stage_bytes + d->tile_bytes);
    return ck_pool_run(&job);
}
