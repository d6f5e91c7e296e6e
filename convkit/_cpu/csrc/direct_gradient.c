#include "direct_gradient.h"

#include "padded.h"
#include "slices.h"

typedef struct {
    int64_t group, tap0, taps, panel0, panels; /* taps: rows of them */
} tile;

static int64_t panels_of(const ck_direct_gradient *g) { return ck_ceil_div(g->out_channels, g->kernel->columns); }

static int64_t tiles_of(const ck_direct_gradient *g)
{
    return g->groups * ck_ceil_div(g->window.rows, g->tap_block) * ck_ceil_div(panels_of(g), g->panel_block);
}

static tile tile_of(const ck_direct_gradient *g, int64_t number)
{
    int64_t panel_blocks = ck_ceil_div(panels_of(g), g->panel_block);
    int64_t tap_blocks = ck_ceil_div(g->window.rows, g->tap_block);
    tile t;
    t.panel0 = number % panel_blocks * g->panel_block;
    t.panels = ck_min(g->panel_block, panels_of(g) - t.panel0);
    number /= panel_blocks;
    t.tap0 = number % tap_blocks * g->tap_block;
    t.taps = ck_min(g->tap_block, g->window.rows - t.tap0);
    t.group = number / tap_blocks;
    return t;
}

static int64_t blocks_of(const ck_direct_gradient *g)
{
    return ck_ceil_div(g->images, g->image_block) * ck_ceil_div(g->window.out_height, g->row_block) *
           ck_ceil_div(g->window.out_width, g->col_block);
}

static ck_block block_of(const ck_direct_gradient *g, int64_t number, int64_t *image0)
{
    int64_t across = ck_ceil_div(g->window.out_width, g->col_block);
    int64_t down = ck_ceil_div(g->window.out_height, g->row_block);
    ck_block b;
    b.col0 = number % across * g->col_block;
    b.cols = ck_min(g->col_block, g->window.out_width - b.col0);
    number /= across;
    b.row0 = number % down * g->row_block;
    b.rows = ck_min(g->row_block, g->window.out_height - b.row0);
    *image0 = number / down * g->image_block;
    b.images = ck_min(g->image_block, g->images - *image0);
    return b;
}

/* Elements of a tile's sums. */
static int64_t tile_numbers(const ck_direct_gradient *g)
{
    return g->tap_block * g->window.cols * g->in_channels * g->panel_block * g->kernel->columns;
}

/* The tile's part of the window, and where it finds its pixels. */
static bool view_pixels(const ck_direct_gradient *g, const tile *t, const ck_block *b, int64_t image0, char *scratch,
                        ck_window *w, ck_view *v)
{
    int64_t size = ck_size(g->kernel->arithmetic);
    ck_pixels pixels = g->pixels;
    pixels.array.data += t->group * g->image_group + image0 * pixels.array.stride[0];
    *w = g->window;
    w->rows = t->taps;
    w->row_at += t->tap0;
    *v = (ck_view){pixels.array.data, 0, 0, pixels.array.stride[0] / size, pixels.array.stride[1] / size,
                   pixels.array.stride[2] / size};
    return g->image_in_place ||
           ck_stage_padded(w, &pixels, b, g->in_channels, size, scratch, g->stage_bytes, v);
}

/* The block's output gradients in the tile's panels, channels beyond the last filled with zeros. */
static bool view_gradients(const ck_direct_gradient *g, const tile *t, const ck_block *b, int64_t image0, char *scratch,
                           ck_view *v)
{
    const ck_array *a = &g->gradients.array;
    int64_t size = ck_size(g->kernel->arithmetic), columns = g->kernel->columns, width = t->panels * columns;
    const char *from = a->data + t->group * g->gradient_group + image0 * a->stride[0] + b->row0 * a->stride[1] +
                       b->col0 * a->stride[2] + t->panel0 * columns * a->stride[3];
    if (g->gradient_in_place) {
        *v = (ck_view){from, 0, 0, a->stride[0] / size, a->stride[1] / size, a->stride[2] / size};
        return true;
    }
    *v = (ck_view){scratch, 0, 0, b->rows * b->cols * width, b->cols * width, width};
    if (b->images * b->rows * b->cols * width * size > g->gradient_bytes)
        return false;
    int64_t channels = ck_min(width, g->out_channels - t->panel0 * columns);
    for (int64_t n = 0; n < b->images; n++)
        for (int64_t i = 0; i < b->rows; i++) {
            char *to = scratch + (n * v->image_step + i * v->row_step) * size;
            ck_load_block(g->gradients.load, size, to, width, 1, from + n * a->stride[0] + i * a->stride[1],
                          a->stride[2], a->stride[3], b->cols, channels);
            for (int64_t j = 0; channels < width && j < b->cols; j++)
                __builtin_memset(to + (j * width + channels) * size, 0, (size_t)((width - channels) * size));
        }
    return true;
}

/* Adds a block's products to the sums of one run of `length` neighbouring rows of the tile, from tap row a on. */
static void add_run(const ck_direct_gradient *g, const tile *t, const ck_window *w, const ck_view *x, const ck_view *dy,
                    const ck_segment *segments, int64_t count, int64_t at, int64_t length, char *sums, bool add)
{
    const ck_dot_kernel *kernel = g->kernel;
    int64_t size = ck_size(kernel->arithmetic), width = t->panels * kernel->columns;
    int64_t strips = ck_ceil_div(length, kernel->rows), strip = ck_ceil_div(length, strips);
    for (int64_t p = 0; p < t->panels; p++)
        for (int64_t m = 0; m < length; m += strip)
            kernel->along(ck_min(strip, length - m), x->data + (at + m) * size, w->col_step * x->col_step,
                          dy->data + p * kernel->columns * size, dy->col_step, segments, count,
                          sums + (m * width + p * kernel->columns) * size, width, add);
}

static bool add_block(const ck_direct_gradient *g, const tile *t, int64_t number, char *scratch, char *sums, bool add)
{
    int64_t image0, size = ck_size(g->kernel->arithmetic), width = t->panels * g->kernel->columns;
    const ck_block b = block_of(g, number, &image0);
    ck_window w;
    ck_view x, dy;
    ck_segment segments[CK_SUM_BLOCK];
    if (b.images * b.rows > CK_SUM_BLOCK || !view_pixels(g, t, &b, image0, scratch, &w, &x) ||
        !view_gradients(g, t, &b, image0, scratch + g->stage_bytes, &dy))
        return false;
    int64_t count = 0;
    for (int64_t n = 0; n < b.images; n++)
        for (int64_t i = 0; i < b.rows; i++)
            segments[count++] = (ck_segment){n * x.image_step + ((b.row0 + i) * w.row_step - x.row0) * x.row_step +
                                                 (b.col0 * w.col_step - x.col0) * x.col_step,
                                             n * dy.image_step + i * dy.row_step, b.cols};
    bool merged = x.col_step == g->in_channels;
    for (int64_t tap = 1; tap < w.cols; tap++)
        merged = merged && w.col_at[tap] == w.col_at[0] + tap;
    for (int64_t a = 0; a < w.rows; a++) {
        int64_t row = w.row_at[a] * x.row_step, per_tap = g->in_channels * width * size;
        if (merged) {
            add_run(g, t, &w, &x, &dy, segments, count, row + w.col_at[0] * x.col_step, w.cols * g->in_channels, sums,
                    add);
            sums += w.cols * per_tap;
            continue;
        }
        for (int64_t tap = 0; tap < w.cols; tap++, sums += per_tap)
            add_run(g, t, &w, &x, &dy, segments, count, row + w.col_at[tap] * x.col_step, g->in_channels, sums, add);
    }
    return true;
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_direct_gradient *g = ctx;
    int64_t size = ck_size(g->kernel->arithmetic), slice = unit % g->slices;
    const tile t = tile_of(g, unit / g->slices);
    char *sums = g->partials + unit * tile_numbers(g) * size, *scratch = ck_worker_scratch(worker);
    int64_t first = slice * g->slice_blocks, last = ck_min(blocks_of(g), first + g->slice_blocks);
    for (int64_t number = first; number < last; number++) {
        if (ck_worker_stop(worker))
            return;
        if (!add_block(g, &t, number, scratch, sums, number > first)) {
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
    int64_t per_tile = g->tap_block * g->window.cols, tap = unit % per_tile, distance = tile_numbers(g) * size;
    const tile t = tile_of(g, unit / per_tile);
    if (tap >= t.taps * g->window.cols)
        return;
    int64_t width = t.panels * columns, channels = ck_min(width, g->out_channels - t.panel0 * columns);
    char *sums = g->partials + unit / per_tile * g->slices * distance + tap * g->in_channels * width * size;
    ck_add_slices(g->kernel->arithmetic, sums, g->in_channels * width, g->slices, distance);
    const int64_t *stride = g->out.stride;
    char *to = g->out.data + t.group * g->out_group + (t.tap0 + tap / g->window.cols) * stride[0] +
               tap % g->window.cols * stride[1] + t.panel0 * columns * stride[3];
    ck_store_block(g->store, size, to, stride[2], stride[3], sums, width, 1, g->in_channels, channels, g->accumulate);
}

int ck_direct_gradient_run(const ck_direct_gradient *g, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)g;
    job.fn = sum_unit;
    job.chunks = tiles_of(g) * g->slices;
    job.scratch_bytes = (size_t)ck_max(1, g->stage_bytes + g->gradient_bytes);
    int code = ck_pool_run(&job);
    if (code != CK_OK)
        return code;
    job.fn = store_unit;
    job.chunks = tiles_of(g) * g->tap_block * g->window.cols;
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
