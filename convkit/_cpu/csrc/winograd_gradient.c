#include "winograd_gradient.h"

#include "multiply.h"
#include "slices.h"

#include <string.h>

typedef struct {
    int64_t number, group, channel0, channels, panel0, panels;
} part;

static int64_t size_of(const ck_winograd_gradient *g) { return ck_size(g->kernel->arithmetic); }

static int64_t panels_of(const ck_winograd_gradient *g) { return ck_ceil_div(g->out_channels, g->product->columns); }

static int64_t parts_of(const ck_winograd_gradient *g)
{
    return g->groups * ck_ceil_div(g->in_channels, g->channel_block) * ck_ceil_div(panels_of(g), g->panel_block);
}

static void cut(int64_t *number, int64_t total, int64_t size, int64_t *start, int64_t *count)
{
    int64_t blocks = ck_ceil_div(total, size);
    *start = *number % blocks * size;
    *count = ck_min(size, total - *start);
    *number /= blocks;
}

static part part_of(const ck_winograd_gradient *g, int64_t number)
{
    part p = {.number = number};
    cut(&number, panels_of(g), g->panel_block, &p.panel0, &p.panels);
    cut(&number, g->in_channels, g->channel_block, &p.channel0, &p.channels);
    p.group = number;
    return p;
}

/* Channels out of a part. */
static int64_t width_of(const ck_winograd_gradient *g, const part *p)
{
    return ck_min(p->panels * g->product->columns, g->out_channels - p->panel0 * g->product->columns);
}

/* Sums: numbers of one element of a panel, from one element to the next, and bytes of a whole part. */
static int64_t element_numbers(const ck_winograd_gradient *g, const part *p) { return p->channels * g->product->columns; }

static int64_t element_step(const ck_winograd_gradient *g)
{
    return ck_winograd_step(ck_min(g->channel_block, g->in_channels) * g->product->columns, size_of(g));
}

static int64_t panel_bytes(const ck_winograd_gradient *g) { return CK_ELEMENTS * element_step(g) * size_of(g); }

static int64_t part_bytes(const ck_winograd_gradient *g)
{
    return ck_min(g->panel_block, panels_of(g)) * panel_bytes(g);
}

static int64_t blocks_of(const ck_winograd_gradient *g)
{
    return ck_ceil_div(g->images, g->image_block) * ck_ceil_div(ck_tiles_along(g->gradient.height), g->row_block) *
           ck_ceil_div(ck_tiles_along(g->gradient.width), g->col_block);
}

static ck_block block_of(const ck_winograd_gradient *g, int64_t number, int64_t *image0)
{
    ck_block b;
    cut(&number, ck_tiles_along(g->gradient.width), g->col_block, &b.col0, &b.cols);
    cut(&number, ck_tiles_along(g->gradient.height), g->row_block, &b.row0, &b.rows);
    cut(&number, g->images, g->image_block, image0, &b.images);
    return b;
}

/* One operand's tiles, transformed: numbers from tile to tile and from element to element. */
typedef struct {
    char *data;
    int64_t pitch, step;
} operand;

static operand operand_of(const ck_winograd_gradient *g, char *data, int64_t channels)
{
    int64_t size = size_of(g), tiles = g->image_block * g->row_block * g->col_block;
    int64_t pitch = ck_winograd_step(channels, size);
    return (operand){data, pitch, ck_winograd_step(tiles * pitch, size)};
}

typedef struct {
    char *zeros, *stage, *end;
    operand image, gradient;
    char *sums;
} places;

static bool place(const ck_winograd_gradient *g, const part *p, int64_t unit, char *scratch, places *s)
{
    int64_t size = size_of(g), width = p->panels * g->product->columns;
    s->zeros = scratch;
    s->stage = scratch + ck_winograd_step(ck_max(p->channels, width), size) * size;
    s->end = scratch + g->stage_bytes;
    s->image = operand_of(g, s->end, p->channels);
    s->gradient = operand_of(g, s->end + g->image_bytes, width);
    s->sums = g->slices > 1 ? g->partials + unit * part_bytes(g) : s->gradient.data + g->gradient_bytes;
    return s->stage <= s->end && CK_ELEMENTS * s->image.step * size <= g->image_bytes &&
           CK_ELEMENTS * s->gradient.step * size <= g->gradient_bytes &&
           g->image_block * g->row_block * g->col_block <= CK_SUM_BLOCK &&
           (g->slices > 1 || p->panels * panel_bytes(g) <= g->sums_bytes);
}

/* Transforms a block of tiles of one operand; false if scratch has no room for its pixels. */
static bool transform(const ck_winograd_gradient *g, const ck_tile_source *source, ck_winograd_pixels_fn fn,
                      const char *data, const ck_block *b, int64_t channels, const places *s, const operand *to)
{
    int64_t size = size_of(g);
    ck_tile_view view;
    char *at = to->data;
    if (!ck_view_tiles(source, data, b, channels, size, s->stage, s->end - s->stage, &view))
        return false;
    for (int64_t n = 0; n < b->images; n++)
        for (int64_t i = b->row0; i < b->row0 + b->rows; i++)
            for (int64_t j = b->col0; j < b->col0 + b->cols; j++, at += to->pitch * size) {
                const void *pixels[CK_REACHED_PIXELS];
                ck_tile_pixels(source, &view, n, i, j, s->zeros, pixels);
                fn(channels, pixels, at, to->step, g->kernel->lanes);
            }
    return true;
}

/* Adds the products of one element over a block of tiles. */
static void add_products(const ck_winograd_gradient *g, const part *p, int64_t e, int64_t tiles, bool add, const places *s)
{
    int64_t size = size_of(g), columns = g->product->columns, strips = ck_ceil_div(p->channels, g->product->rows);
    const ck_segment all = {0, 0, tiles};
    for (int64_t panel = 0; panel < p->panels; panel++) {
        const char *gradient = s->gradient.data + (e * s->gradient.step + panel * columns) * size;
        char *sums = s->sums + panel * panel_bytes(g) + e * element_step(g) * size;
        for (int64_t strip = 0, at = 0, rows; strip < strips; strip++, at += rows) {
            rows = ck_ceil_div(p->channels - at, strips - strip);
            g->product->along(rows, s->image.data + (e * s->image.step + at) * size, s->image.pitch, gradient,
                              s->gradient.pitch, &all, 1, sums + at * columns * size, columns, add);
        }
    }
}

static bool add_block(const ck_winograd_gradient *g, const part *p, int64_t number, bool add, const places *s,
                      ck_worker *worker)
{
    int64_t image0, columns = g->product->columns;
    const ck_block b = block_of(g, number, &image0);
    const ck_array *x = &g->image.pixels.array, *dy = &g->gradient.pixels.array;
    const char *pixels = x->data + p->group * g->image_group + image0 * x->stride[0] + p->channel0 * x->stride[3];
    const char *gradients =
        dy->data + p->group * g->gradient_group + image0 * dy->stride[0] + p->panel0 * columns * dy->stride[3];
    if (!transform(g, &g->image, g->kernel->image, pixels, &b, p->channels, s, &s->image) ||
        !transform(g, &g->gradient, g->kernel->gradient, gradients, &b, width_of(g, p), s, &s->gradient))
        return false;
    for (int64_t e = 0; e < CK_ELEMENTS && !ck_worker_stop(worker); e++)
        add_products(g, p, e, b.images * b.rows * b.cols, add, s);
    return true;
}

/* Transforms the sums of one panel of a part back and stores them, if they are finite. */
static void finish(const ck_winograd_gradient *g, const part *p, int64_t panel, char *sums)
{
    int64_t size = size_of(g), columns = g->product->columns, step = element_step(g);
    int64_t out0 = (p->panel0 + panel) * columns;
    const int64_t *stride = g->out.stride;
    char *to = g->out.data + p->group * g->out_group + p->channel0 * stride[2] + out0 * stride[3];
    if (!g->kernel->taps(element_numbers(g, p), sums, step)) {
        g->failed[p->number * g->panel_block + panel] = 1;
        return;
    }
    for (int64_t tap = 0; tap < CK_TAPS; tap++)
        ck_store_block(g->store, size, to + tap / 3 * stride[0] + tap % 3 * stride[1], stride[2], stride[3],
                       sums + tap * step * size, columns, 1, p->channels, ck_min(columns, g->out_channels - out0),
                       g->accumulate);
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_winograd_gradient *g = ctx;
    const part p = part_of(g, unit / g->slices);
    int64_t first = unit % g->slices * g->slice_blocks, last = ck_min(blocks_of(g), first + g->slice_blocks);
    places s;
    if (!place(g, &p, unit, ck_worker_scratch(worker), &s)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    memset(s.zeros, 0, (size_t)(s.stage - s.zeros));
    if (width_of(g, &p) % g->product->columns) /* channels out beyond the last are summed too: as zeros */
        memset(s.gradient.data, 0, (size_t)g->gradient_bytes);
    for (int64_t number = first; number < last; number++) {
        if (ck_worker_stop(worker))
            return;
        if (!add_block(g, &p, number, number > first, &s, worker)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
    if (g->slices == 1 && !ck_worker_stop(worker))
        for (int64_t panel = 0; panel < p.panels; panel++)
            finish(g, &p, panel, s.sums + panel * panel_bytes(g));
}

/* One panel of one part: its slices, added in order. */
static void finish_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_winograd_gradient *g = ctx;
    const part p = part_of(g, unit / g->panel_block);
    int64_t panel = unit % g->panel_block;
    if (panel >= p.panels)
        return;
    char *sums = g->partials + p.number * g->slices * part_bytes(g) + panel * panel_bytes(g);
    for (int64_t e = 0; e < CK_ELEMENTS; e++)
        ck_add_slices(g->kernel->arithmetic, sums + e * element_step(g) * size_of(g), element_numbers(g, &p), g->slices,
                      part_bytes(g));
    finish(g, &p, panel, sums);
}

int ck_winograd_gradient_run(const ck_winograd_gradient *g, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)g;
    job.fn = sum_unit;
    job.chunks = parts_of(g) * g->slices;
    job.scratch_bytes = (size_t)(g->stage_bytes + g->image_bytes + g->gradient_bytes + g->sums_bytes);
    int code = ck_pool_run(&job);
    if (code != CK_OK || g->slices == 1)
        return code;
    job.fn = finish_unit;
    job.chunks = parts_of(g) * g->panel_block;
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
