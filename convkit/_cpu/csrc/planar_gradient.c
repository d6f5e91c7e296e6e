#include "planar_gradient.h"

#include "multiply.h"
#include "slices.h"

#include <string.h>

static int64_t taps_of(const ck_planar_gradient *g) { return g->window.rows * g->window.cols; }

/* Elements of a tile's sums. */
static int64_t tile_numbers(const ck_planar_gradient *g)
{
    return g->channels * g->filter_block * taps_of(g) * g->kernel->lanes;
}

static int64_t blocks_of(const ck_planar_gradient *g)
{
    return g->images * ck_ceil_div(g->window.out_height, g->row_block) * ck_ceil_div(g->window.out_width, g->col_block);
}

static ck_block block_of(const ck_planar_gradient *g, int64_t number, int64_t *image)
{
    int64_t across = ck_ceil_div(g->window.out_width, g->col_block);
    int64_t down = ck_ceil_div(g->window.out_height, g->row_block);
    int64_t row0 = number / across % down * g->row_block, col0 = number % across * g->col_block;
    *image = number / (across * down);
    return (ck_block){1, row0, ck_min(g->row_block, g->window.out_height - row0), col0,
                      ck_min(g->col_block, g->window.out_width - col0)};
}

/* A block of pixels of one channel and one filter. */
typedef struct {
    const ck_planar_gradient *g;
    ck_block block;
    ck_planar_view view;
    const char *x, *dy;
    int64_t dy_row;
    char *sums; /* [tap][lane] */
} part;

/* Adds a tile of taps whose rows are `tap_classes` apart from `row` on, for output rows that are `row_classes` apart. */
static void add_tile(const part *t, const ck_planar_spacing *s, int64_t row, int64_t tap_rows, int64_t col,
                     int64_t tap_cols)
{
    const ck_planar_gradient *g = t->g;
    const ck_window *w = &g->window;
    const ck_planar_kernel *kernel = g->kernel;
    int64_t size = ck_size(kernel->arithmetic), at[CK_SUM_BLOCK];
    int64_t origin = ck_planar_at(&t->view, w, &t->block, row, col);
    for (int64_t b = 0; b < tap_cols; b++)
        at[b] = ck_planar_at(&t->view, w, &t->block, row, col + b) - origin;
    for (int64_t class = 0; class < s->row_classes && class < t->block.rows; class++)
        kernel->gradient(tap_rows, tap_cols, at, t->x + (origin + class * w->row_step * t->view.row_step) * size,
                         s->pixel_rows * t->view.row_step, t->dy + class * t->dy_row * size,
                         s->row_classes * t->dy_row, ck_ceil_div(t->block.rows - class, s->row_classes), t->block.cols,
                         t->sums + (row * w->cols + col) * kernel->lanes * size, s->tap_classes * w->cols);
}

/* Adds all taps, in tiles of neighbours of the same class. */
static void add_taps(const part *t, const ck_planar_spacing *s)
{
    const ck_window *w = &t->g->window;
    const ck_planar_kernel *kernel = t->g->kernel;
    for (int64_t class = 0; class < s->tap_classes && class < w->rows; class++) {
        int64_t left = ck_ceil_div(w->rows - class, s->tap_classes), rows;
        int64_t groups = ck_ceil_div(left, s->even ? kernel->tap_lines : 1);
        for (int64_t row = class; left; row += rows * s->tap_classes, left -= rows, groups--) {
            rows = ck_ceil_div(left, groups);
            int64_t runs = ck_ceil_div(w->cols, kernel->tap_runs), cols;
            for (int64_t col = 0; col < w->cols; col += cols, runs--) {
                cols = ck_ceil_div(w->cols - col, runs);
                add_tile(t, s, row, rows, col, cols);
            }
        }
    }
}

/* Adds block `number` to the sums of a tile; false if it does not fit the scratch memory. */
static bool add_block(const ck_planar_gradient *g, int64_t filter0, int64_t filters, int64_t number, ck_worker *worker,
                      char *sums)
{
    static const int64_t here = 0;
    const ck_window *w = &g->window;
    const ck_window same = {w->out_height, w->out_width, w->out_height, w->out_width, 1, 1, 1, 1, &here, &here};
    const ck_planar_kernel *kernel = g->kernel;
    int64_t size = ck_size(kernel->arithmetic), image;
    char *scratch = ck_worker_scratch(worker), *staged = scratch + g->stage_bytes;
    part t = {.g = g, .block = block_of(g, number, &image)};
    ck_pixels x = g->pixels, dy = g->gradients;
    x.array.data += image * x.array.stride[0];
    dy.array.data += image * dy.array.stride[0] + filter0 * dy.array.stride[3];
    t.view = ck_planar_reach(w, &t.block, 1); /* kernels read no more than what counts */
    ck_planar_view of_dy = ck_planar_reach(&same, &t.block, 1);
    if (g->channels * t.view.channel_step * size > g->stage_bytes ||
        filters * of_dy.channel_step * size > g->gradient_bytes)
        return false;
    ck_planar_stage(kernel, w, &x, g->channels, &t.view, scratch);
    ck_planar_stage(kernel, &same, &dy, filters, &of_dy, staged);
    t.dy_row = of_dy.row_step;
    ck_planar_spacing spacing = ck_planar_spaced(w);
    if (!spacing.even) /* tap row by tap row */
        spacing = (ck_planar_spacing){false, 1, 1, w->row_step};
    for (int64_t c = 0; c < g->channels; c++)
        for (int64_t k = 0; k < filters; k++) {
            if (k && ck_worker_stop(worker))
                return true;
            t.x = scratch + c * t.view.channel_step * size;
            t.dy = staged + k * of_dy.channel_step * size;
            t.sums = sums + (c * g->filter_block + k) * taps_of(g) * kernel->lanes * size;
            add_taps(&t, &spacing);
        }
    return true;
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_planar_gradient *g = ctx;
    int64_t size = ck_size(g->kernel->arithmetic), slice = unit % g->slices;
    int64_t filter0 = unit / g->slices * g->filter_block, filters = ck_min(g->filter_block, g->filters - filter0);
    char *sums = g->partials + unit * tile_numbers(g) * size;
    memset(sums, 0, (size_t)(tile_numbers(g) * size));
    int64_t first = slice * g->slice_blocks, last = ck_min(blocks_of(g), first + g->slice_blocks);
    for (int64_t number = first; number < last; number++) {
        if (ck_worker_stop(worker))
            return;
        if (!add_block(g, filter0, filters, number, worker, sums)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
}

/* Adds the slices of a tile, and the lanes, and stores it where the filter's strides say. */
static void store_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_planar_gradient *g = ctx;
    const ck_type arithmetic = g->kernel->arithmetic;
    int64_t size = ck_size(arithmetic), taps = taps_of(g), distance = tile_numbers(g) * size;
    int64_t filter0 = unit * g->filter_block, filters = ck_min(g->filter_block, g->filters - filter0);
    const int64_t *stride = g->out.stride;
    char *sums = g->partials + unit * g->slices * distance;
    ck_add_slices(arithmetic, sums, tile_numbers(g), g->slices, distance);
    ck_add_lanes(arithmetic, sums, tile_numbers(g) / g->kernel->lanes, g->kernel->lanes);
    for (int64_t c = 0; c < g->channels; c++)
        for (int64_t tap = 0; tap < taps; tap++)
            g->store(g->out.data + tap / g->window.cols * stride[0] + tap % g->window.cols * stride[1] +
                         c * stride[2] + filter0 * stride[3],
                     stride[3], sums + (c * g->filter_block * taps + tap) * size, taps, filters, g->accumulate);
}

int ck_planar_gradient_run(const ck_planar_gradient *g, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)g;
    job.fn = sum_unit;
    job.chunks = ck_ceil_div(g->filters, g->filter_block) * g->slices;
    job.scratch_bytes = (size_t)(g->stage_bytes + g->gradient_bytes);
    int code = ck_pool_run(&job);
    if (code != CK_OK)
        return code;
    job.fn = store_unit;
    job.chunks = ck_ceil_div(g->filters, g->filter_block);
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
