#include "planar.h"

int64_t ck_planar_units(const ck_planar *p, const ck_planar_phase *phase)
{
    return p->images * ck_ceil_div(phase->window.out_height, p->row_block) *
           ck_ceil_div(phase->window.out_width, p->col_block);
}

/* One phase's taps of a block of filters. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_planar *p = ctx;
    int64_t blocks = ck_ceil_div(p->filters, p->filter_block), first = unit % blocks * p->filter_block;
    const ck_planar_phase *phase = &p->phases[unit / blocks];
    const int64_t *stride = p->filter.stride;
    int64_t size = ck_size(p->kernel->arithmetic), cols = phase->window.cols, taps = phase->window.rows * cols;
    int64_t count = ck_min(p->filter_block, p->filters - first);
    char *to = p->packed + phase->packed_at + ck_planar_packed(p, phase, first);
    if (p->interleaved) {
        ck_planar_pack_inner(p, phase, first, count, to);
        return;
    }
    for (int64_t c = 0; c < p->channels; c++)
        for (int64_t tap = 0; tap < taps; tap++, to += count * size)
            p->load_filter(to, 1,
                           p->filter.data + phase->row_tap[tap / cols] * stride[0] +
                               phase->col_tap[tap % cols] * stride[1] + c * stride[2] + first * stride[3],
                           stride[3], count);
}

static ck_planar_tile tile_of(const ck_planar_part *t, int64_t first, int64_t count, const int64_t *at)
{
    const ck_window *w = &t->phase->window;
    int64_t size = ck_size(t->p->kernel->arithmetic), taps = w->rows * w->cols;
    return (ck_planar_tile){
        .x = t->pixels,
        .x_channel = t->view.channel_step,
        .channels = t->channels,
        .at = at,
        .w = t->p->packed + t->phase->packed_at +
             (first * t->p->channels * taps + (t->channel0 * taps + t->row0 * w->cols + t->col0) * count) * size,
        .w_channel = taps * count,
        .sums = t->sums + first * t->sums_filter * size,
        .cols = t->block.cols,
        .add = t->add,
    };
}

/* One filter: rows of the result that share rows of pixels, at most CK_PLANAR_LINES at a time. */
static void add_grid(const ck_planar_part *t, const ck_planar_spacing *s)
{
    const ck_window *w = &t->phase->window;
    const ck_planar_kernel *kernel = t->p->kernel;
    int64_t size = ck_size(kernel->arithmetic), at[CK_SUM_BLOCK];
    ck_planar_tile tile = tile_of(t, 0, 1, at);
    tile.sums_line = s->row_classes * t->sums_row;
    int64_t origin = ck_planar_at(&t->view, w, &t->block, t->row0, t->col0);
    for (int64_t b = 0; b < t->cols; b++)
        at[b] = ck_planar_at(&t->view, w, &t->block, t->row0, t->col0 + b) - origin;
    const char *w_first = tile.w;
    for (int64_t q = 0; q < s->tap_classes && q < t->rows; q++, tile.add = true) {
        int64_t tap_rows = ck_ceil_div(t->rows - q, s->tap_classes);
        tile.w = w_first + q * w->cols * size;
        for (int64_t class = 0; class < s->row_classes && class < t->block.rows; class++) {
            int64_t left = ck_ceil_div(t->block.rows - class, s->row_classes), rows;
            int64_t groups = ck_ceil_div(left, ck_min(CK_PLANAR_LINES, tap_rows));
            for (int64_t row = class; left; row += rows * s->row_classes, left -= rows, groups--) {
                rows = ck_ceil_div(left, groups);
                tile.x = t->pixels + (origin + (row * w->row_step + q) * t->view.row_step) * size;
                tile.sums = t->sums + row * t->sums_row * size;
                kernel->grid(&tile, rows, s->pixel_rows * t->view.row_step, tap_rows, t->cols,
                             s->tap_classes * w->cols);
            }
        }
    }
}

/* Rows of the result one by one, for all filters, while their pixels are in the cache. */
static void add_list(const ck_planar_part *t)
{
    const ck_planar *p = t->p;
    int64_t size = ck_size(p->kernel->arithmetic), taps = t->rows * t->cols, at[CK_SUM_BLOCK];
    for (int64_t tap = 0; tap < taps; tap++)
        at[tap] = ck_planar_at(&t->view, &t->phase->window, &t->block, t->row0 + tap / t->cols,
                               t->col0 + tap % t->cols);
    for (int64_t i = 0; i < t->block.rows; i++)
        for (int64_t first = 0; first < p->filters; first += p->filter_block) {
            int64_t count = ck_min(p->filter_block, p->filters - first);
            ck_planar_tile tile = tile_of(t, first, count, at);
            tile.x = t->pixels + i * t->phase->window.row_step * t->view.row_step * size;
            tile.sums = (char *)tile.sums + i * t->sums_row * size;
            tile.sums_line = t->sums_filter;
            p->kernel->list(&tile, count, taps);
        }
}

/* Adds all taps of the staged channels, block by block. */
static void add_taps(ck_planar_part *t, const ck_planar_spacing *spacing)
{
    const ck_planar_phase *phase = t->phase;
    const ck_window *w = &phase->window;
    for (t->row0 = 0; t->row0 < w->rows; t->row0 += phase->tap_rows)
        for (t->col0 = 0; t->col0 < w->cols; t->col0 += phase->tap_cols, t->add = true) {
            t->rows = ck_min(phase->tap_rows, w->rows - t->row0);
            t->cols = ck_min(phase->tap_cols, w->cols - t->col0);
            if (t->p->filters == 1 && spacing->even)
                add_grid(t, spacing);
            else
                add_list(t);
        }
}

static void store_tile(const ck_planar_part *t, char *to)
{
    const ck_planar *p = t->p;
    const int64_t *stride = t->phase->out.stride;
    int64_t size = ck_size(p->kernel->arithmetic);
    for (int64_t i = 0; i < t->block.rows; i++, to += stride[1]) {
        const char *from = t->sums + i * t->sums_row * size;
        if (p->out_plain && !p->interleaved)
            p->kernel->merge(t->block.cols, p->filters, from, t->sums_filter, to, stride[2] / size);
        else
            ck_store_block(p->store, size, to, stride[2], stride[3], from, t->sums_pixel, t->sums_filter,
                           t->block.cols, p->filters, false);
    }
}

/* Sums of staged planes; false if they do not fit the scratch memory. */
static bool sum_planes(ck_planar_part *t, char *scratch, ck_worker *worker)
{
    const ck_planar *p = t->p;
    const ck_planar_phase *phase = t->phase;
    t->view = ck_planar_reach(&phase->window, &t->block, p->kernel->lanes);
    if (phase->channel_block * t->view.channel_step * ck_size(p->kernel->arithmetic) > p->stage_bytes)
        return false;
    const ck_planar_spacing spacing = ck_planar_spaced(&phase->window);
    for (t->channel0 = 0; t->channel0 < p->channels; t->channel0 += phase->channel_block) {
        if (t->channel0 && ck_worker_stop(worker))
            return true;
        ck_pixels pixels = p->pixels;
        pixels.array.data += t->image * pixels.array.stride[0] + t->channel0 * pixels.array.stride[3];
        t->channels = ck_min(phase->channel_block, p->channels - t->channel0);
        ck_planar_stage(p->kernel, &phase->window, &pixels, t->channels, &t->view, scratch);
        add_taps(t, &spacing);
    }
    return true;
}

static const ck_planar_phase *phase_of(const ck_planar *p, int64_t unit)
{
    int64_t low = 0, high = p->phase_count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (p->phases[middle].first_unit <= unit)
            low = middle;
        else
            high = middle;
    }
    return &p->phases[low];
}

static void planar_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_planar *p = ctx;
    const ck_planar_phase *phase = phase_of(p, unit);
    const ck_window *w = &phase->window;
    const int64_t *stride = phase->out.stride;
    int64_t size = ck_size(p->kernel->arithmetic), number = unit - phase->first_unit;
    int64_t across = ck_ceil_div(w->out_width, p->col_block), down = ck_ceil_div(w->out_height, p->row_block);
    int64_t image = number / (across * down), row0 = number / across % down * p->row_block;
    int64_t col0 = number % across * p->col_block;
    ck_block block = {1, row0, ck_min(p->row_block, w->out_height - row0), col0,
                      ck_min(p->col_block, w->out_width - col0)};
    char *scratch = ck_worker_scratch(worker);
    char *out = p->out_data + phase->out_at + image * stride[0] + row0 * stride[1] + col0 * stride[2];
    ck_planar_part t = {.p = p, .phase = phase, .block = block, .image = image, .pixels = scratch};
    t.sums = out;
    t.sums_row = stride[1] / size;
    t.sums_pixel = stride[2] / size;
    t.sums_filter = stride[3] / size;
    if (!phase->out_in_place) {
        t.sums = scratch + p->stage_bytes;
        t.sums_row = block.cols * (p->interleaved ? p->filters : 1);
        t.sums_pixel = p->interleaved ? p->filters : 1;
        t.sums_filter = p->interleaved ? 1 : block.rows * block.cols;
    }
    bool fits = phase->out_in_place || p->filters * block.rows * block.cols * size <= p->tile_bytes;
    if (!fits || !(p->interleaved ? ck_planar_sum_inner : sum_planes)(&t, scratch, worker)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    if (!phase->out_in_place)
        store_tile(&t, out);
}

int ck_planar_run(const ck_planar *p, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)p;
    job.fn = pack_unit;
    job.chunks = p->phase_count * ck_ceil_div(p->filters, p->filter_block);
    job.scratch_bytes = 0;
    int code = ck_pool_run(&job);
    if (code != CK_OK)
        return code;
    job.fn = planar_unit;
    job.chunks = p->units;
    job.scratch_bytes = (size_t)(p->stage_bytes + p->tile_bytes);
    return ck_pool_run(&job);
}
