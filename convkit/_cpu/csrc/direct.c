#include "direct.h"

#include "padded.h"
#include "panels.h"

#include <string.h>

/* Panels that a chunk of packing fills: neighbours share the cache lines of the filter's rows. */
enum { PACK_PANELS = 8 };

typedef struct {
    int64_t pixel0, pixels;                          /* gathering: numbered over images, rows and columns */
    int64_t image0, images, row0, rows, col0, cols;  /* walking: of the phase's grid */
    int64_t group, panel0, panels;
} tile;

/* Where a tile's sums are kept; steps in elements.  With the last terms, the address at which the tile's results begin, if
 * they are rounded into place. */
typedef struct {
    char *data;
    int64_t image_step, row_step, col_step;
    char *rounded;
} sums;

/* What a tile reads: the image of its group, its view when walking, and scratch memory. */
typedef struct {
    ck_pixels pixels;
    ck_view view;
    char *patches, *filters;
} source;

static int64_t terms_of(const ck_direct *d, const ck_direct_phase *phase)
{
    return phase->window.rows * phase->window.cols * d->in_channels;
}

static int64_t pixels_of(const ck_direct *d, const ck_window *w) { return d->images * w->out_height * w->out_width; }

int64_t ck_direct_units(const ck_direct *d, const ck_direct_phase *phase)
{
    const ck_window *w = &phase->window;
    int64_t blocks = d->groups * ck_ceil_div(ck_panels_of(d), d->panel_block);
    if (d->pixel_block)
        return blocks * ck_ceil_div(pixels_of(d, w), d->pixel_block);
    return blocks * ck_ceil_div(d->images, d->image_block) * ck_ceil_div(w->out_height, d->row_block) *
           ck_ceil_div(w->out_width, d->col_block);
}

int64_t ck_direct_packs(const ck_direct *d, const ck_direct_phase *phase)
{
    return d->groups * phase->window.rows * phase->window.cols * ck_ceil_div(ck_panels_of(d), PACK_PANELS);
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
    tile t = {0};
    cut(&unit, ck_panels_of(d), d->panel_block, &t.panel0, &t.panels);
    if (d->pixel_block) {
        cut(&unit, pixels_of(d, &phase->window), d->pixel_block, &t.pixel0, &t.pixels);
    } else {
        cut(&unit, phase->window.out_width, d->col_block, &t.col0, &t.cols);
        cut(&unit, phase->window.out_height, d->row_block, &t.row0, &t.rows);
        cut(&unit, d->images, d->image_block, &t.image0, &t.images);
    }
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

/* One tap of some panels of one group of the filter. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_direct *d = ctx;
    const ck_direct_phase *phase = phase_of(d, unit, true);
    int64_t columns = d->kernel->columns, in = d->in_channels, all = ck_panels_of(d), terms = terms_of(d, phase);
    int64_t taps = phase->window.rows * phase->window.cols, panel0, panels, tap, one;
    unit -= phase->first_pack;
    cut(&unit, taps, 1, &tap, &one);
    cut(&unit, all, PACK_PANELS, &panel0, &panels);
    char *to = d->packed + phase->packed_at +
               ((unit * all + panel0) * terms + tap * in) * columns * ck_size(d->kernel->arithmetic);
    ck_pack_panels(d, phase, unit, panel0, panels, tap * in, (tap + 1) * in, to, terms * columns);
}

/* The terms k0 .. k1 - 1 of the tile's panels; the elements from one panel to the next go to `panel_step`. */
static const char *filter_block(const ck_direct *d, const ck_direct_phase *phase, const tile *t, int64_t k0, int64_t k1,
                                char *scratch, int64_t *panel_step)
{
    int64_t columns = d->kernel->columns, terms = terms_of(d, phase);
    if (d->packed) {
        *panel_step = terms * columns;
        return d->packed + phase->packed_at +
               ((t->group * ck_panels_of(d) + t->panel0) * terms + k0) * columns * ck_size(d->kernel->arithmetic);
    }
    *panel_step = (k1 - k0) * columns;
    ck_pack_panels(d, phase, t->group, t->panel0, t->panels, k0, k1, scratch, *panel_step);
    return scratch;
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

/* Adds to the sums of `count` pixels that lie evenly, in strips of nearly equal height: a register tile of few rows does
 * not keep the multipliers busy.  Where `rounded` is an address, the results go there. */
static void add_run(const ck_direct *d, int64_t count, const char *pixels, int64_t step, const char *panel,
                    const ck_segment *segments, int64_t segment_count, char *to, int64_t to_step, bool add, char *rounded,
                    int64_t rounded_step)
{
    const ck_dot_kernel *kernel = d->kernel;
    int64_t size = ck_size(kernel->arithmetic), strips = ck_ceil_div(count, kernel->rows);
    for (int64_t left = count; strips > 0; strips--) {
        int64_t rows = ck_ceil_div(left, strips);
        if (rounded) {
            kernel->across_rounded(rows, pixels, step, panel, segments, segment_count, to, to_step, add, rounded,
                                   rounded_step);
            rounded += rows * rounded_step;
        } else {
            kernel->across(rows, pixels, step, panel, kernel->columns, segments, segment_count, to, to_step, add);
        }
        pixels += rows * step * size;
        to += rows * to_step * size;
        left -= rows;
    }
}

/* Where the last sums of a tile's pixel go in panel p, or NULL. */
static char *rounded_at(const ck_direct *d, const ck_direct_phase *phase, const sums *s, int64_t image, int64_t row,
                        int64_t col, int64_t p)
{
    const int64_t *stride = phase->out.stride;
    return s->rounded ? s->rounded + image * stride[0] + row * stride[1] + col * stride[2] +
                            p * d->kernel->columns * stride[3]
                      : NULL;
}

/* Adds the terms k0 .. k1 - 1 to every sum of the tile, walking over the view. */
static void walk(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const source *from, int64_t k0,
                 int64_t k1, const sums *s)
{
    const ck_window *w = &phase->window;
    const ck_view *v = &from->view;
    ck_segment segments[CK_SUM_BLOCK];
    int64_t size = ck_size(d->kernel->arithmetic), columns = d->kernel->columns, panel_step;
    int64_t count = segments_of(d, w, v, k0, k1, segments);
    const char *panel = filter_block(d, phase, t, k0, k1, from->filters, &panel_step);
    for (int64_t p = 0; p < t->panels; p++, panel += panel_step * size)
        for (int64_t n = 0; n < t->images; n++)
            for (int64_t i = 0; i < t->rows; i++) {
                int64_t at = n * v->image_step + ((t->row0 + i) * w->row_step - v->row0) * v->row_step +
                             (t->col0 * w->col_step - v->col0) * v->col_step;
                add_run(d, t->cols, v->data + at * size, w->col_step * v->col_step, panel, segments, count,
                        s->data + (n * s->image_step + i * s->row_step + p * columns) * size, s->col_step, k0 > 0,
                        rounded_at(d, phase, s, n, i, 0, p), phase->out.stride[2]);
            }
}

/* Of `count` pixels, the first of which looks at `first` and the others `step` further each, those that look inside. */
static void clip(int64_t first, int64_t count, int64_t step, int64_t size, int64_t *start, int64_t *inside)
{
    *start = first >= 0 ? 0 : ck_ceil_div(-first, step);
    *inside = ck_max(0, ck_min(count, first < size ? ck_ceil_div(size - first, step) : 0) - *start);
}

/* One tap's terms from channel c on, of which the panel holds the first at `panel`, added where they lie in the image. */
static void walk_tap(const ck_direct *d, const ck_window *w, const tile *t, const ck_view *v, int64_t tap,
                     const ck_segment *segment, const char *panel, char *to, const sums *s)
{
    int64_t size = ck_size(d->kernel->arithmetic), row0 = t->row0 * w->row_step + w->row_at[tap / w->cols];
    int64_t col0 = t->col0 * w->col_step + w->col_at[tap % w->cols], row, rows, col, cols;
    clip(row0, t->rows, w->row_step, w->height, &row, &rows);
    clip(col0, t->cols, w->col_step, w->width, &col, &cols);
    for (int64_t n = 0; n < t->images && cols; n++)
        for (int64_t i = row; i < row + rows; i++) {
            int64_t at = n * v->image_step + (row0 + i * w->row_step) * v->row_step +
                         (col0 + col * w->col_step) * v->col_step;
            add_run(d, cols, v->data + at * size, w->col_step * v->col_step, panel, segment, 1,
                    to + (n * s->image_step + i * s->row_step + col * s->col_step) * size, s->col_step, true, NULL, 0);
        }
}

/* The same over the image itself, tap by tap, where the tap lies inside; sums begin as zeros. */
static void walk_clipped(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const source *from, int64_t k0,
                         int64_t k1, const sums *s)
{
    int64_t size = ck_size(d->kernel->arithmetic), columns = d->kernel->columns, channels = d->in_channels, panel_step;
    const char *panel = filter_block(d, phase, t, k0, k1, from->filters, &panel_step);
    for (int64_t n = 0; k0 == 0 && n < t->images; n++)
        for (int64_t i = 0; i < t->rows; i++)
            for (int64_t j = 0; j < t->cols; j++)
                memset(s->data + (n * s->image_step + i * s->row_step + j * s->col_step) * size, 0,
                       (size_t)(t->panels * columns * size));
    for (int64_t p = 0; p < t->panels; p++, panel += panel_step * size)
        for (int64_t k = k0, next; k < k1; k = next) {
            int64_t tap = k / channels, c = k % channels;
            next = ck_min(k1, (tap + 1) * channels);
            const ck_segment segment = {c, (k - k0) * columns, next - k};
            walk_tap(d, &phase->window, t, &from->view, tap, &segment, panel, s->data + p * columns * size, s);
        }
}

/* Where the terms from k0 on of pixels from `pixel` on lie `step` elements apart; gathers them if they do not so in the
 * image. */
static const char *patches_of(const ck_direct *d, const ck_direct_phase *phase, const source *from, int64_t pixel,
                              int64_t pixels, int64_t k0, int64_t k1, int64_t *step)
{
    int64_t size = ck_size(d->kernel->arithmetic);
    if (phase->in_place) {
        *step = from->view.col_step;
        return from->view.data + (pixel * *step + k0) * size;
    }
    *step = k1 - k0;
    ck_im2col(&phase->window, &from->pixels, size, d->in_channels, pixel, pixels, k0, k1, from->patches);
    return from->patches;
}

/* The same over patches: all of the tile's pixels for one panel after the other. */
static void gather(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const source *from, int64_t k0,
                   int64_t k1, const sums *s)
{
    int64_t size = ck_size(d->kernel->arithmetic), panel_step, step;
    const ck_segment all = {0, 0, k1 - k0};
    const char *patches = patches_of(d, phase, from, t->pixel0, t->pixels, k0, k1, &step);
    const char *panel = filter_block(d, phase, t, k0, k1, from->filters, &panel_step);
    for (int64_t p = 0; p < t->panels; p++, panel += panel_step * size)
        add_run(d, t->pixels, patches, step, panel, &all, 1, s->data + p * d->kernel->columns * size, s->col_step,
                k0 > 0, rounded_at(d, phase, s, 0, 0, 0, p), phase->out.stride[2]);
}

static void prefetch(const char *from, const char *end)
{
    for (; from < end; from += CACHE_LINE)
        __builtin_prefetch(from);
}

/* The same with all panels for one strip of pixels after the other, and the next strip's pixels on their way meanwhile. */
static void gather_strips(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const source *from,
                          int64_t k0, int64_t k1, const sums *s)
{
    const ck_dot_kernel *kernel = d->kernel;
    int64_t size = ck_size(kernel->arithmetic), columns = kernel->columns, panel_step, step;
    const ck_segment all = {0, 0, k1 - k0};
    const char *panel = filter_block(d, phase, t, k0, k1, from->filters, &panel_step);
    char *to = s->data;
    for (int64_t strips = ck_ceil_div(t->pixels, kernel->rows), pixel = 0; strips > 0; strips--) {
        int64_t rows = ck_ceil_div(t->pixels - pixel, strips), next = 0;
        const char *patches = patches_of(d, phase, from, t->pixel0 + pixel, rows, k0, k1, &step);
        if (phase->in_place && step == k1 - k0)
            next = ck_min(rows, t->pixels - pixel - rows) * step * size;
        for (int64_t p = 0; p < t->panels; p++) {
            const char *after = patches + rows * step * size;
            prefetch(after + next * p / t->panels, after + next * (p + 1) / t->panels);
            add_run(d, rows, patches, step, panel + p * panel_step * size, &all, 1, to + p * columns * size, s->col_step,
                    k0 > 0, rounded_at(d, phase, s, 0, 0, pixel, p), phase->out.stride[2]);
        }
        to += rows * s->col_step * size;
        pixel += rows;
    }
}

static void store_tile(const ck_direct *d, const ck_direct_phase *phase, const tile *t, const char *from)
{
    int64_t size = ck_size(d->kernel->arithmetic), width = t->panels * d->kernel->columns;
    int64_t channel0 = t->panel0 * d->kernel->columns, channels = ck_min(width, d->out_channels - channel0);
    int64_t grid_width = phase->window.out_width, grid = phase->window.out_height * grid_width;
    const int64_t *stride = phase->out.stride;
    char *to = d->out_data + phase->out_at + t->group * d->out_group + channel0 * stride[3];
    for (int64_t pixel = t->pixel0, left = t->pixels; left > 0;) {
        int64_t n = pixel / grid, i = pixel % grid / grid_width, j = pixel % grid_width;
        int64_t count = ck_min(left, grid_width - j);
        ck_store_block(d->store, size, to + n * stride[0] + i * stride[1] + j * stride[2], stride[2], stride[3], from,
                       width, 1, count, channels, false);
        from += count * width * size;
        pixel += count;
        left -= count;
    }
    bool rows_are_a_run = stride[1] == t->cols * stride[2]; /* which a transposed store cuts more evenly */
    int64_t rows = rows_are_a_run ? 1 : t->rows, cols = rows_are_a_run ? t->rows * t->cols : t->cols;
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < rows; i++, from += cols * width * size)
            ck_store_block(d->store, size,
                           to + (t->image0 + n) * stride[0] + (t->row0 + i) * stride[1] + t->col0 * stride[2],
                           stride[2], stride[3], from, width, 1, cols, channels, false);
}

/* Where the tile's results begin, if pixels that are gathered lie evenly. */
static char *results_of(const ck_direct *d, const ck_direct_phase *phase, const tile *t)
{
    const int64_t *stride = phase->out.stride;
    return d->out_data + phase->out_at + t->group * d->out_group + t->panel0 * d->kernel->columns * stride[3] +
           t->image0 * stride[0] + t->row0 * stride[1] + (t->col0 + t->pixel0) * stride[2];
}

/* Where the tile's sums go; false if scratch has no room for them. */
static bool place_sums(const ck_direct *d, const ck_direct_phase *phase, const tile *t, char *scratch, sums *s)
{
    int64_t size = ck_size(d->kernel->arithmetic), width = t->panels * d->kernel->columns;
    const int64_t *stride = phase->out.stride;
    if (!phase->out_in_place) {
        *s = (sums){scratch, t->rows * t->cols * width, t->cols * width, width, NULL};
        return (t->pixels + t->images * t->rows * t->cols) * width * size <= d->tile_bytes;
    }
    *s = (sums){results_of(d, phase, t), stride[0] / size, stride[1] / size, stride[2] / size, NULL};
    return true;
}

/* Where the tile's pixels are read; false if scratch has no room for what is copied. */
static bool place_pixels(const ck_direct *d, const ck_direct_phase *phase, const tile *t, int64_t term_block,
                         source *from)
{
    int64_t size = ck_size(d->kernel->arithmetic);
    ck_array *a = &from->pixels.array;
    a->data += t->group * d->image_group + t->image0 * a->stride[0];
    from->view = (ck_view){a->data, 0, 0, a->stride[0] / size, a->stride[1] / size, a->stride[2] / size};
    if (phase->in_place)
        return true;
    if (d->pixel_block)
        return (d->strips_first ? ck_min(d->kernel->rows, t->pixels) : t->pixels) * term_block * size <= d->stage_bytes;
    const ck_block block = {t->images, t->row0, t->rows, t->col0, t->cols};
    return ck_stage_padded(&phase->window, &from->pixels, &block, d->in_channels, size, from->patches, d->stage_bytes,
                           &from->view);
}

static void direct_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_direct *d = ctx;
    const ck_direct_phase *phase = phase_of(d, unit, false);
    const tile t = tile_of(d, phase, unit - phase->first_unit);
    int64_t size = ck_size(d->kernel->arithmetic), terms = terms_of(d, phase), step = ck_min(terms, d->term_block);
    char *scratch = ck_worker_scratch(worker);
    source from = {.pixels = d->pixels, .patches = scratch, .filters = scratch + d->stage_bytes};
    sums s;
    bool good = step * ck_products(d->kernel->arithmetic) <= CK_SUM_BLOCK &&
                place_sums(d, phase, &t, from.filters + d->filter_bytes, &s) &&
                (d->packed || t.panels * step * d->kernel->columns * size <= d->filter_bytes);
    if (!good || !place_pixels(d, phase, &t, step, &from)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    void (*add_terms)(const ck_direct *, const ck_direct_phase *, const tile *, const source *, int64_t, int64_t,
                      const sums *) = phase->clipped ? walk_clipped : d->pixel_block == 0 ? walk
                                      : d->strips_first ? gather_strips : gather;
    for (int64_t k0 = 0; k0 < terms; k0 += step) {
        if (k0 && ck_worker_stop(worker))
            return;
        if (phase->rounded && k0 + step >= terms)
            s.rounded = results_of(d, phase, &t);
        add_terms(d, phase, &t, &from, k0, ck_min(terms, k0 + step), &s);
    }
    if (!phase->out_in_place && !phase->rounded)
        store_tile(d, phase, &t, s.data);
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

int ck_direct_compute(const ck_direct *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    job.fn = direct_unit;
    job.chunks = d->units;
    /* At least a byte, so that the parts have addresses where nothing is copied. */
    job.scratch_bytes = (size_t)ck_max(1, d->stage_bytes + d->filter_bytes + d->tile_bytes);
    return ck_pool_run(&job);
}

int ck_direct_run(const ck_direct *d, const ck_job *limits)
{
    int code = d->packed ? ck_direct_pack(d, limits) : CK_OK;
    return code == CK_OK ? ck_direct_compute(d, limits) : code;
}
