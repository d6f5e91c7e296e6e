#include "direct.h"

#include "padded.h"

#include <string.h>

typedef struct {
    int64_t image0, images, row0, rows, col0, cols; /* of the phase's grid */
    int64_t group, panel0, panels;
} tile;

static int64_t panels_of(const ck_direct *d) { return ck_ceil_div(d->out_channels, d->kernel->columns); }

static int64_t terms_of(const ck_direct *d, const ck_direct_phase *phase)
{
    return phase->window.rows * phase->window.cols * d->in_channels;
}

int64_t ck_direct_units(const ck_direct *d, const ck_direct_phase *phase)
{
    return d->groups * ck_ceil_div(d->images, d->image_block) * ck_ceil_div(phase->window.out_height, d->row_block) *
           ck_ceil_div(phase->window.out_width, d->col_block) * ck_ceil_div(panels_of(d), d->panel_block);
}

static void cut(int64_t *unit, int64_t total, int64_t block, int64_t *start, int64_t *count)
{
    int64_t blocks = ck_ceil_div(total, block);
    *start = *unit % blocks * block;
    *count = ck_min(block, total - *start);
    *unit /= blocks;
}

static tile tile_of(const ck_direct *d, const ck_direct_phase *phase, int64_t unit)
{
    tile t;
    cut(&unit, panels_of(d), d->panel_block, &t.panel0, &t.panels);
    cut(&unit, phase->window.out_width, d->col_block, &t.col0, &t.cols);
    cut(&unit, phase->window.out_height, d->row_block, &t.row0, &t.rows);
    cut(&unit, d->images, d->image_block, &t.image0, &t.images);
    t.group = unit;
    return t;
}

static const ck_direct_phase *phase_of(const ck_direct *d, int64_t unit, bool packing)
{
    int64_t low = 0, high = d->phase_count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if ((packing ? d->phases[middle].first_pack : d->phases[middle].first_unit) <= unit)
            low = middle;
        else
            high = middle;
    }
    return &d->phases[low];
}

/* One tap of one panel of one group of the filter, columns beyond its channels filled with zeros. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_direct *d = ctx;
    const ck_direct_phase *phase = phase_of(d, unit, true);
    int64_t size = ck_size(d->kernel->arithmetic), columns = d->kernel->columns, in = d->in_channels;
    int64_t taps = phase->window.rows * phase->window.cols, panels = panels_of(d);
    unit -= phase->first_pack;
    int64_t tap = unit % taps, panel = unit / taps % panels, group = unit / taps / panels;
    int64_t count = ck_min(columns, d->out_channels - panel * columns);
    const int64_t *stride = d->filter.stride;
    char *to = d->packed + phase->packed_at + ((group * panels + panel) * taps + tap) * in * columns * size;
    if (count < columns)
        memset(to, 0, (size_t)(in * columns * size));
    ck_load_block(d->load_filter, size, to, columns, 1,
                  d->filter.data + group * d->filter_group + phase->row_tap[tap / phase->window.cols] * stride[0] +
                      phase->col_tap[tap % phase->window.cols] * stride[1] + panel * columns * stride[3],
                  stride[2], stride[3], in, count);
}

/* The taps and channels k0 .. k1 - 1 of the patch as runs that lie evenly in the pixels of the view; returns how many. */
static int64_t segments_of(const ck_direct *d, const ck_window *w, const ck_view *v, int64_t k0, int64_t k1,
                           ck_segment *segments)
{
    int64_t channels = d->in_channels, count = 0;
    for (int64_t k = k0; k < k1;) {
        int64_t tap = k / channels, c = k - tap * channels, a = tap / w->cols, b = tap % w->cols;
        int64_t n = ck_min(channels - c, k1 - k);
        int64_t at = w->row_at[a] * v->row_step + w->col_at[b] * v->col_step + c;
        if (count && segments[count - 1].a_at + segments[count - 1].count == at)
            segments[count - 1].count += n;
        else
            segments[count++] = (ck_segment){at, (k - k0) * d->kernel->columns, n};
        k += n;
    }
    return count;
}

/* Adds the terms k0 .. k1 - 1 to every sum of the tile. */
static void add_terms(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const ck_view *v, int64_t k0,
                      int64_t k1, char *sums, int64_t image_step, int64_t row_step, int64_t col_step)
{
    const ck_window *w = &phase->window;
    const ck_dot_kernel *kernel = d->kernel;
    ck_segment segments[CK_SUM_BLOCK];
    int64_t size = ck_size(kernel->arithmetic), count = segments_of(d, w, v, k0, k1, segments);
    int64_t terms = terms_of(d, phase), strips = ck_ceil_div(t->cols, kernel->rows);
    int64_t strip = ck_ceil_div(t->cols, strips);
    const char *panel = d->packed + phase->packed_at +
                        (((t->group * panels_of(d)) + t->panel0) * terms + k0) * kernel->columns * size;
    for (int64_t p = 0; p < t->panels; p++, panel += terms * kernel->columns * size)
        for (int64_t n = 0; n < t->images; n++)
            for (int64_t i = 0; i < t->rows; i++) {
                const char *pixels = v->data + (n * v->image_step + ((t->row0 + i) * w->row_step - v->row0) * v->row_step +
                                                (t->col0 * w->col_step - v->col0) * v->col_step) *
                                                   size;
                char *to = sums + (n * image_step + i * row_step + p * kernel->columns) * size;
                for (int64_t j = 0; j < t->cols; j += strip)
                    kernel->across(ck_min(strip, t->cols - j), pixels + j * w->col_step * v->col_step * size,
                                   w->col_step * v->col_step, panel, kernel->columns, segments, count,
                                   to + j * col_step * size, col_step, k0 > 0);
            }
}

static void store_tile(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const char *sums)
{
    int64_t size = ck_size(d->kernel->arithmetic), width = t->panels * d->kernel->columns;
    int64_t channel0 = t->panel0 * d->kernel->columns, channels = ck_min(width, d->out_channels - channel0);
    const int64_t *stride = phase->out.stride;
    char *to = d->out_data + phase->out_at + t->group * d->out_group + channel0 * stride[3];
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < t->rows; i++, sums += t->cols * width * size)
            ck_store_block(d->store, size,
                           to + (t->image0 + n) * stride[0] + (t->row0 + i) * stride[1] + t->col0 * stride[2],
                           stride[2], stride[3], sums, width, 1, t->cols, channels, false);
}

static void direct_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_direct *d = ctx;
    const ck_direct_phase *phase = phase_of(d, unit, false);
    const tile t = tile_of(d, phase, unit - phase->first_unit);
    int64_t size = ck_size(d->kernel->arithmetic), terms = terms_of(d, phase), step = ck_sum_block(terms);
    char *staged = ck_worker_scratch(worker), *sums = staged + d->stage_bytes;
    int64_t width = t.panels * d->kernel->columns, image_step = t.rows * t.cols * width, row_step = t.cols * width;
    int64_t col_step = width;
    const ck_array *a = &d->pixels.array, *out = &phase->out;

    ck_view v = {a->data + t.group * d->image_group + t.image0 * a->stride[0], 0, 0, a->stride[0] / size,
              a->stride[1] / size, a->stride[2] / size};
    if (!phase->in_place) {
        ck_pixels pixels = d->pixels;
        pixels.array.data = (char *)v.data;
        const ck_block block = {t.images, t.row0, t.rows, t.col0, t.cols};
        if (!ck_stage_padded(&phase->window, &pixels, &block, d->in_channels, size, staged, d->stage_bytes, &v)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
    if (phase->out_in_place) {
        sums = d->out_data + phase->out_at + t.group * d->out_group + t.image0 * out->stride[0] +
               t.row0 * out->stride[1] + t.col0 * out->stride[2] + t.panel0 * d->kernel->columns * size;
        image_step = out->stride[0] / size;
        row_step = out->stride[1] / size;
        col_step = out->stride[2] / size;
    } else if (t.images * t.rows * t.cols * width * size > d->tile_bytes) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    for (int64_t k0 = 0; k0 < terms; k0 += step) {
        if (k0 && ck_worker_stop(worker))
            return;
        add_terms(d, phase, &t, &v, k0, ck_min(terms, k0 + step), sums, image_step, row_step, col_step);
    }
    if (!phase->out_in_place)
        store_tile(d, phase, &t, sums);
}

int ck_direct_pack(const ck_direct *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    job.fn = pack_unit;
    job.chunks = d->packs;
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}

int ck_direct_run_packed(const ck_direct *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    job.fn = direct_unit;
    job.chunks = d->units;
    /* At least a byte, so that the parts have addresses where nothing is copied. */
    job.scratch_bytes = (size_t)ck_max(1, d->stage_bytes + d->tile_bytes);
    return ck_pool_run(&job);
}

int ck_direct_run(const ck_direct *d, const ck_job *limits)
{
    int code = ck_direct_pack(d, limits);
    return code == CK_OK ? ck_direct_run_packed(d, limits) : code;
}
