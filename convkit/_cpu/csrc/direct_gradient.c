#include "direct_gradient.h"

#include "slices.h"

typedef struct {
    int64_t group, tap0, taps, channel0, channels, panel0, panels; /* taps: rows of them */
} tile;

static int64_t panels_of(const ck_direct_gradient *g) { return ck_ceil_div(g->out_channels, g->kernel->columns); }

static int64_t strips_of(const ck_direct_gradient *g) { return ck_ceil_div(g->in_channels, g->strip); }

static int64_t tiles_of(const ck_direct_gradient *g)
{
    return g->groups * ck_ceil_div(g->window.rows, g->tap_block) * ck_ceil_div(strips_of(g), g->strip_block) *
           ck_ceil_div(panels_of(g), g->panel_block);
}

static tile tile_of(const ck_direct_gradient *g, int64_t number)
{
    int64_t panel_blocks = ck_ceil_div(panels_of(g), g->panel_block);
    int64_t strip_blocks = ck_ceil_div(strips_of(g), g->strip_block);
    int64_t tap_blocks = ck_ceil_div(g->window.rows, g->tap_block);
    tile t;
    t.panel0 = number % panel_blocks * g->panel_block;
    t.panels = ck_min(g->panel_block, panels_of(g) - t.panel0);
    number /= panel_blocks;
    t.channel0 = number % strip_blocks * g->strip_block * g->strip;
    t.channels = ck_min(g->strip_block * g->strip, g->in_channels - t.channel0);
    number /= strip_blocks;
    t.tap0 = number % tap_blocks * g->tap_block;
    t.taps = ck_min(g->tap_block, g->window.rows - t.tap0);
    t.group = number / tap_blocks;
    return t;
}

/* A block of output pixels, counted from an image of its own. */
typedef struct {
    ck_block block;
    int64_t image0;
} place;

/* Output pixels that are cut into blocks, and how far away the other pixel of a pair is; nowhere: there is none. */
typedef struct {
    place all;
    int64_t images, rows, cols;
} region;

enum { REGIONS = 4 };

static region region_of(const ck_direct_gradient *g, int number)
{
    int64_t images = g->images, rows = g->window.out_height, cols = g->window.out_width;
    bool pairs = ck_products(g->kernel->arithmetic) == 2;
    switch (number) {
    case 0: return (region){{{pairs ? images / 2 : images, 0, rows, 0, cols}, 0}, pairs ? images / 2 : 0, 0, 0};
    case 1: return (region){{{pairs ? images % 2 : 0, 0, rows / 2, 0, cols}, images - 1}, 0, rows / 2, 0};
    case 2: return (region){{{images % 2, rows - 1, pairs ? rows % 2 : 0, 0, cols / 2}, images - 1}, 0, 0, cols / 2};
    default: return (region){{{images % 2, rows - 1, rows % 2, cols - 1, pairs ? cols % 2 : 0}, images - 1}, 0, 0, 0};
    }
}

static int64_t blocks_in(const ck_direct_gradient *g, const region *r)
{
    const ck_block *b = &r->all.block;
    return ck_ceil_div(b->images, g->image_block) * ck_ceil_div(b->rows, g->row_block) *
           ck_ceil_div(b->cols, g->col_block);
}

static int64_t blocks_of(const ck_direct_gradient *g)
{
    int64_t count = 0;
    for (int i = 0; i < REGIONS; i++) {
        const region r = region_of(g, i);
        count += blocks_in(g, &r);
    }
    return count;
}

/* One block of a region. */
static place place_of(const ck_direct_gradient *g, const region *r, int64_t number)
{
    const ck_block *whole = &r->all.block;
    int64_t across = ck_ceil_div(whole->cols, g->col_block), down = ck_ceil_div(whole->rows, g->row_block);
    int64_t col = number % across * g->col_block, row = number / across % down * g->row_block;
    int64_t image = number / across / down * g->image_block;
    return (place){{ck_min(g->image_block, whole->images - image), whole->row0 + row,
                    ck_min(g->row_block, whole->rows - row), whole->col0 + col, ck_min(g->col_block, whole->cols - col)},
                   r->all.image0 + image};
}

/* Lays down `channels` channels, from the address of the first one on in image 0: those of a block, or where the arithmetic
 * takes pairs, those of two of them or of one and zeros. */
static bool lay(const ck_direct_gradient *g, const ck_window *w, const ck_pixels *pixels, const place *first,
                const place *second, int64_t channels, int64_t strip, char *to, int64_t bytes, ck_strips *v)
{
    const int64_t *stride = pixels->array.stride;
    const char *data = pixels->array.data;
    if (g->kernel->arithmetic == CK_BF16) {
        const ck_part a = {data + first->image0 * stride[0], first->block};
        if (second == NULL)
            return ck_lay_pairs(w, g->kernel->pairing, stride, &a, NULL, channels, strip, to, bytes, v);
        const ck_part b = {data + second->image0 * stride[0], second->block};
        return ck_lay_pairs(w, g->kernel->pairing, stride, &a, &b, channels, strip, to, bytes, v);
    }
    ck_pixels own = *pixels;
    own.array.data += first->image0 * stride[0];
    return ck_lay_strips(w, &own, &first->block, channels, strip, ck_size(g->kernel->arithmetic), to, bytes, v);
}

/* Where a tile's sums lie: the steps are bytes from one to the next, and `ld` is elements. */
typedef struct {
    char *data;
    int64_t panel, tap_row, tap_col, ld;
} sums_view;

/* Bytes of a whole tile's sums. */
static int64_t tile_bytes(const ck_direct_gradient *g)
{
    return g->panel_block * g->tap_block * g->window.cols * ck_min(g->strip_block * g->strip, g->in_channels) *
           g->kernel->columns * ck_size(g->kernel->arithmetic);
}

static sums_view sums_of(const ck_direct_gradient *g, const tile *t, int64_t unit)
{
    int64_t size = ck_size(g->kernel->arithmetic), columns = g->kernel->columns;
    if (!g->out_in_place) {
        int64_t per_tap = t->channels * columns * size, per_row = g->window.cols * per_tap;
        return (sums_view){g->partials + unit * tile_bytes(g), t->taps * per_row, per_row, per_tap, columns};
    }
    const int64_t *stride = g->out.stride;
    char *to = g->out.data + t->group * g->out_group + t->tap0 * stride[0] + t->channel0 * stride[2] +
               t->panel0 * columns * size;
    return (sums_view){to, columns * size, stride[0], stride[1], stride[2] / size};
}

/* Where the window finds `channels` channels of the pixels of a block, or of a pair of them, from channel0 on. */
static bool view_pixels(const ck_direct_gradient *g, const tile *t, const ck_window *w, const place *first,
                        const place *second, int64_t channel0, int64_t channels, char *scratch, ck_strips *v)
{
    int64_t size = ck_size(g->kernel->arithmetic);
    const int64_t *stride = g->pixels.array.stride;
    const ck_block *b = &first->block;
    ck_pixels pixels = g->pixels;
    pixels.array.data += t->group * g->image_group + channel0 * stride[3];
    if (!g->image_in_place)
        return lay(g, w, &pixels, first, second, channels, g->strip, scratch, g->stage_bytes, v);
    int64_t row = stride[1] / size, col = stride[2] / size;
    *v = (ck_strips){pixels.array.data + first->image0 * stride[0] +
                         (b->row0 * w->row_step * row + b->col0 * w->col_step * col) * size,
                     g->strip, stride[0] / size, w->row_step * row, w->col_step * col, 0, 1, row, 0, 1, col};
    return true;
}

/* Their output gradients in the tile's panels, channels beyond the last filled with zeros. */
static bool view_gradients(const ck_direct_gradient *g, const tile *t, const place *first, const place *second,
                           char *scratch, ck_strips *v)
{
    static const int64_t here[] = {0};
    int64_t size = ck_size(g->kernel->arithmetic), columns = g->kernel->columns;
    const int64_t *stride = g->gradients.array.stride;
    ck_pixels gradients = g->gradients;
    const ck_block *b = &first->block;
    gradients.array.data += t->group * g->gradient_group + t->panel0 * columns * stride[3];
    if (g->gradient_in_place) {
        *v = (ck_strips){gradients.array.data + first->image0 * stride[0] + b->row0 * stride[1] + b->col0 * stride[2],
                         columns, stride[0] / size, stride[1] / size, stride[2] / size, 0, 1, 0, 0, 1, 0};
        return true;
    }
    const ck_window grid = {.height = g->window.out_height, .width = g->window.out_width,
                            .out_height = g->window.out_height, .out_width = g->window.out_width,
                            .row_step = 1, .col_step = 1, .rows = 1, .cols = 1, .row_at = here, .col_at = here};
    int64_t channels = ck_min(t->panels * columns, g->out_channels - t->panel0 * columns);
    return lay(g, &grid, &gradients, first, second, channels, columns, scratch, g->gradient_bytes, v);
}

/* The block's pixels in runs that lie evenly in both operands. */
static int64_t segments_of(const ck_block *b, const ck_strips *x, const ck_strips *dy, ck_segment *segments)
{
    int64_t count = 0;
    for (int64_t n = 0; n < b->images; n++)
        for (int64_t i = 0; i < b->rows; i++) {
            ck_segment next = {n * x->image_step + i * x->row_step, n * dy->image_step + i * dy->row_step, b->cols};
            ck_segment *last = segments + count - 1;
            if (count && next.a_at == last->a_at + last->count * x->col_step &&
                next.b_at == last->b_at + last->count * dy->col_step)
                last->count += b->cols;
            else
                segments[count++] = next;
        }
    return count;
}

/* One product of a strip at one tap, or at the taps of a row in one run, with one panel of output gradients. */
typedef struct {
    const ck_dot_kernel *kernel;
    ck_segment segments[CK_SUM_BLOCK];
    int64_t count, a_step, b_step;
    bool add;
} walk;

/* Rows of one register tile when `length` of them are cut into tiles of about equal size. */
static int64_t even_rows(const ck_dot_kernel *kernel, int64_t length)
{
    return length <= kernel->rows ? length : ck_ceil_div(length, ck_ceil_div(length, kernel->rows));
}

static void add_run(const walk *s, int64_t size, const char *a, const char *b, int64_t length, int64_t rows, char *sums,
                    int64_t ld)
{
    for (int64_t m = 0; m < length; m += rows, sums += rows * ld * size) {
        int64_t count = ck_min(rows, length - m);
        for (int64_t i = 0; i < count; i++) /* they are needed when all terms are summed */
            __builtin_prefetch(sums + i * ld * size, 1);
        s->kernel->along(count, a + m * size, s->a_step, b, s->b_step, s->segments, s->count, sums, ld, s->add);
    }
}

/* Whether all the taps of a row are one run of neighbouring numbers, in the image and in the sums. */
static bool taps_are_a_run(const ck_direct_gradient *g, const ck_window *w, const ck_strips *x, const sums_view *sums)
{
    bool merged = g->strip == g->in_channels && x->col_pitch == g->in_channels && x->col_every == 1 &&
                  (w->cols == 1 || sums->tap_col == g->in_channels * sums->ld * ck_size(g->kernel->arithmetic));
    for (int64_t tap = 1; tap < w->cols; tap++)
        merged = merged && w->col_at[tap] == w->col_at[0] + tap;
    return merged;
}

/* Adds the products of the strips that `x` shows, `channels` channels whose sums begin at `sums`. */
static void add_strips(const ck_direct_gradient *g, const tile *t, const ck_window *w, const ck_strips *x,
                       const ck_strips *dy, const walk *s, int64_t channels, const sums_view *sums)
{
    int64_t size = ck_size(g->kernel->arithmetic);
    bool merged = taps_are_a_run(g, w, x, sums);
    int64_t tap_cols = merged ? 1 : w->cols, times = merged ? w->cols : 1;
    int64_t length = times * ck_min(g->strip, channels), rows = even_rows(g->kernel, length);
    int64_t rest = times * (channels % g->strip), rest_rows = rest ? even_rows(g->kernel, rest) : 0;
    for (int64_t p = 0; p < t->panels; p++)
        for (int64_t c = 0, strip = 0; c < channels; c += g->strip, strip++) {
            bool whole = channels - c >= g->strip;
            for (int64_t a = 0; a < w->rows; a++)
                for (int64_t tap = 0; tap < tap_cols; tap++)
                    add_run(s, size, x->data + (strip * x->strip_step + ck_tap_at(x, w, a, tap)) * size,
                            dy->data + p * dy->strip_step * size, whole ? length : rest, whole ? rows : rest_rows,
                            sums->data + p * sums->panel + a * sums->tap_row + tap * sums->tap_col +
                                c * sums->ld * size,
                            sums->ld);
        }
}

static bool add_blocks(const ck_direct_gradient *g, const tile *t, const place *first, const place *second,
                       char *scratch, sums_view sums, bool add)
{
    int64_t size = ck_size(g->kernel->arithmetic), at_once = g->strips_at_once * g->strip;
    const ck_block b = first->block;
    ck_window w = g->window;
    w.rows = t->taps;
    w.row_at += t->tap0;
    ck_strips x, dy;
    walk s = {.kernel = g->kernel, .add = add};
    if (b.images * b.rows * b.cols * ck_products(g->kernel->arithmetic) > CK_SUM_BLOCK ||
        !view_gradients(g, t, first, second, scratch + g->stage_bytes, &dy))
        return false;
    for (int64_t c = 0; c < t->channels; c += at_once) {
        int64_t channels = ck_min(at_once, t->channels - c);
        if (!view_pixels(g, t, &w, first, second, t->channel0 + c, channels, scratch, &x))
            return false;
        if (c == 0 || !g->image_in_place) {
            s.count = segments_of(&b, &x, &dy, s.segments);
            s.a_step = x.col_step;
            s.b_step = dy.col_step;
        }
        add_strips(g, t, &w, &x, &dy, &s, channels, &sums);
        sums.data += channels * sums.ld * size;
    }
    return true;
}

/* Adds a step of the sum: a block, or where the arithmetic takes pairs, two of them. */
static bool add_step(const ck_direct_gradient *g, const tile *t, int64_t step, char *scratch, sums_view sums, bool add)
{
    int number = 0;
    region r = region_of(g, number);
    for (int64_t blocks; step >= (blocks = blocks_in(g, &r)); r = region_of(g, ++number))
        step -= blocks;
    const place first = place_of(g, &r, step);
    place second = first;
    second.image0 += r.images;
    second.block.row0 += r.rows;
    second.block.col0 += r.cols;
    bool pairs = r.images + r.rows + r.cols > 0;
    return add_blocks(g, t, &first, pairs ? &second : NULL, scratch, sums, add);
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_direct_gradient *g = ctx;
    int64_t slice = unit % g->slices;
    const tile t = tile_of(g, unit / g->slices);
    const sums_view sums = sums_of(g, &t, unit);
    int64_t first = slice * g->slice_blocks, last = ck_min(blocks_of(g), first + g->slice_blocks);
    for (int64_t step = first; step < last; step++) {
        if (ck_worker_stop(worker))
            return;
        if (!add_step(g, &t, step, ck_worker_scratch(worker), sums, step > first)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
}

/* Adds the slices of one tap of a tile and stores it where the filter's strides say. */
static void store_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_direct_gradient *g = ctx;
    int64_t size = ck_size(g->kernel->arithmetic), columns = g->kernel->columns;
    int64_t per_tile = g->tap_block * g->window.cols, tap = unit % per_tile;
    const tile t = tile_of(g, unit / per_tile);
    if (tap >= t.taps * g->window.cols)
        return;
    sums_view sums = sums_of(g, &t, unit / per_tile * g->slices);
    const int64_t *stride = g->out.stride;
    char *to = g->out.data + t.group * g->out_group + (t.tap0 + tap / g->window.cols) * stride[0] +
               tap % g->window.cols * stride[1] + t.channel0 * stride[2] + t.panel0 * columns * stride[3];
    sums.data += tap * sums.tap_col;
    for (int64_t p = 0; p < t.panels; p++, sums.data += sums.panel, to += columns * stride[3]) {
        int64_t channels = ck_min(columns, g->out_channels - (t.panel0 + p) * columns);
        ck_add_slices(g->kernel->arithmetic, sums.data, t.channels * columns, g->slices, tile_bytes(g));
        ck_store_block(g->store, size, to, stride[2], stride[3], sums.data, columns, 1, t.channels, channels,
                       g->accumulate);
    }
}

int ck_direct_gradient_run(const ck_direct_gradient *g, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)g;
    job.fn = sum_unit;
    job.chunks = tiles_of(g) * g->slices;
    job.scratch_bytes = (size_t)ck_max(1, g->stage_bytes + g->gradient_bytes);
    int code = ck_pool_run(&job);
    if (code != CK_OK || g->out_in_place)
        return code;
    job.fn = store_unit;
    job.chunks = tiles_of(g) * g->tap_block * g->window.cols;
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
