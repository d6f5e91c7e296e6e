#include "winograd_gradient.h"

#include "panels.h"
#include "slices.h"

#include <string.h>

/* Some channels of the result: of one group, from channel0 and panel0 on. */
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

/* Sums: numbers from one element of a panel to the next, bytes of a panel, and of a whole part. */
static int64_t element_step(const ck_winograd_gradient *g)
{
    return ck_winograd_step(ck_min(g->channel_block, g->in_channels) * g->product->columns, size_of(g));
}

static int64_t panel_bytes(const ck_winograd_gradient *g) { return g->kernel->elements * element_step(g) * size_of(g); }

static int64_t part_bytes(const ck_winograd_gradient *g) { return g->panel_block * panel_bytes(g); }

static char *partial_of(const ck_winograd_gradient *g, int64_t slice, int64_t part)
{
    return g->shared + g->piece_bytes + (slice * parts_of(g) + part) * part_bytes(g);
}

static int64_t blocks_of(const ck_winograd_gradient *g)
{
    return ck_ceil_div(g->images, g->image_block) *
           ck_ceil_div(ck_tiles_along(g->gradient.height, g->kernel->tile), g->row_block) *
           ck_ceil_div(ck_tiles_along(g->gradient.width, g->kernel->tile), g->col_block);
}

static ck_block block_of(const ck_winograd_gradient *g, int64_t number, int64_t *image0)
{
    ck_block b;
    cut(&number, ck_tiles_along(g->gradient.width, g->kernel->tile), g->col_block, &b.col0, &b.cols);
    cut(&number, ck_tiles_along(g->gradient.height, g->kernel->tile), g->row_block, &b.row0, &b.rows);
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

static bool place(const ck_winograd_gradient *g, const part *p, int64_t slice, char *scratch, places *s)
{
    int64_t size = size_of(g), width = p->panels * g->product->columns;
    s->zeros = scratch;
    s->stage = scratch + ck_winograd_step(ck_max(p->channels, width), size) * size;
    s->end = scratch + g->stage_bytes;
    s->image = operand_of(g, s->end, p->channels);
    s->gradient = operand_of(g, s->end + g->image_bytes, width);
    s->sums = g->slices > 1 ? partial_of(g, slice, p->number) : s->gradient.data + g->gradient_bytes;
    return s->stage <= s->end && g->kernel->elements * s->image.step * size <= g->image_bytes &&
           g->kernel->elements * s->gradient.step * size <= g->gradient_bytes &&
           g->image_block * g->row_block * g->col_block <= CK_SUM_BLOCK &&
           (g->slices > 1 || p->panels * panel_bytes(g) <= g->sums_bytes);
}

/* Asks for the pixels of a tile that the one to its left does not have. */
static void expect(const ck_tile_source *source, const void *const *pixels, int64_t bytes)
{
    for (int64_t i = 0; i < source->reach; i++)
        for (int64_t j = source->reach - source->tile; j < source->reach; j++)
            for (int64_t at = 0; at < bytes; at += CACHE_LINE)
                __builtin_prefetch((const char *)pixels[i * source->reach + j] + at, 0, 2);
}

/* Transforms a block of tiles of one operand; false if scratch has no room for its pixels. */
static bool transform(const ck_winograd_gradient *g, const ck_tile_source *source, ck_winograd_pixels_fn fn,
                      const char *data, const ck_block *b, int64_t channels, const places *s, const operand *to)
{
    int64_t size = size_of(g), tiles = b->images * b->rows * b->cols;
    ck_tile_view view;
    if (!ck_view_tiles(source, data, b, channels, size, s->stage, s->end - s->stage, &view))
        return false;
    const void *pixels[2][CK_MOST_REACHED]; /* of a tile and the next */
    ck_tile_pixels(source, &view, 0, b->row0, b->col0, s->zeros, pixels[0]);
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t next = tile + 1;
        if (next < tiles) {
            ck_tile_pixels(source, &view, next / (b->rows * b->cols), b->row0 + next / b->cols % b->rows,
                           b->col0 + next % b->cols, s->zeros, pixels[next % 2]);
            if (source->in_place)
                expect(source, pixels[next % 2], channels * size);
        }
        fn(channels, pixels[tile % 2], to->data + tile * to->pitch * size, to->step, g->kernel->lanes);
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
        for (int64_t strip = 0, at = 0, rows; strip < strips; strip++, at += rows, sums += rows * columns * size) {
            rows = ck_ceil_div(p->channels - at, strips - strip);
            for (int64_t i = 0; add && i < rows; i++) /* they are needed when all terms are summed */
                __builtin_prefetch(sums + i * columns * size, 1);
            g->product->along(rows, s->image.data + (e * s->image.step + at) * size, s->image.pitch, gradient,
                              s->gradient.pitch, &all, 1, sums, columns, add);
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
    for (int64_t e = 0; e < g->kernel->elements && !ck_worker_stop(worker); e++)
        add_products(g, p, e, b.images * b.rows * b.cols, add, s);
    return true;
}

/* Pieces of a part: all that lie in one panel come first. */
static int64_t runs_of(const ck_winograd_gradient *g) { return ck_ceil_div(g->channel_block, g->piece_block); }

static int64_t pieces_of(const ck_winograd_gradient *g) { return parts_of(g) * g->panel_block * runs_of(g); }

/* The part that a piece is, or false where parts at the end have fewer of them. */
static bool piece_of(const ck_winograd_gradient *g, int64_t number, part *piece)
{
    const part p = part_of(g, number / (g->panel_block * runs_of(g)));
    int64_t panel = number / runs_of(g) % g->panel_block, channel = number % runs_of(g) * g->piece_block;
    *piece = p;
    piece->channel0 += channel;
    piece->channels = ck_min(g->piece_block, p.channels - channel);
    piece->panel0 += panel;
    piece->panels = 1;
    return panel < p.panels && channel < p.channels;
}

static char *target_of(const ck_winograd_gradient *g, const part *piece)
{
    const int64_t *stride = g->out.stride;
    return g->out.data + piece->group * g->out_group + piece->channel0 * stride[2] +
           piece->panel0 * g->product->columns * stride[3];
}

/* Adds up the slices of a piece, transforms the sums back and stores them, if they are finite; `sums` are its part's. */
static void finish(const ck_winograd_gradient *g, int64_t number, const part *piece, char *sums)
{
    int64_t size = size_of(g), columns = g->product->columns, step = element_step(g), count = piece->channels * columns;
    int64_t runs = runs_of(g), panel = number / runs % g->panel_block, channel = number % runs * g->piece_block;
    const int64_t *stride = g->out.stride;
    sums += panel * panel_bytes(g) + channel * columns * size;
    for (int64_t e = 0; e < g->kernel->elements; e++)
        ck_add_slices(g->kernel->arithmetic, sums + e * step * size, count, g->slices, parts_of(g) * part_bytes(g));
    g->shared[number] = !g->kernel->taps(count, sums, step);
    if (g->shared[number])
        return;
    for (int64_t tap = 0; tap < CK_TAPS; tap++)
        ck_store_block(g->store, size, target_of(g, piece) + tap / 3 * stride[0] + tap % 3 * stride[1], stride[2],
                       stride[3], sums + tap * step * size, columns, 1, piece->channels, width_of(g, piece),
                       g->accumulate);
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_winograd_gradient *g = ctx;
    int64_t slice = unit / parts_of(g), pieces = g->panel_block * runs_of(g);
    int64_t first = slice * g->slice_blocks, last = ck_min(blocks_of(g), first + g->slice_blocks);
    const part p = part_of(g, unit % parts_of(g));
    places s;
    if (!place(g, &p, slice, ck_worker_scratch(worker), &s)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    memset(s.zeros, 0, (size_t)(s.stage - s.zeros));
    if (width_of(g, &p) % g->product->columns) /* columns beyond the last channel are summed too: zeros */
        memset(s.gradient.data, 0, (size_t)g->gradient_bytes);
    for (int64_t number = first; number < last; number++) {
        if (ck_worker_stop(worker))
            return;
        if (!add_block(g, &p, number, number > first, &s, worker)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
    if (g->slices > 1 || ck_worker_stop(worker))
        return;
    for (int64_t number = p.number * pieces; number < (p.number + 1) * pieces; number++) {
        part piece;
        if (piece_of(g, number, &piece))
            finish(g, number, &piece, s.sums);
    }
}

static void finish_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_winograd_gradient *g = ctx;
    part piece;
    if (piece_of(g, unit, &piece))
        finish(g, unit, &piece, partial_of(g, 0, piece.number));
}

static int compute_again(const ck_winograd_gradient *g, const part *piece, const ck_job *limits)
{
    int64_t columns = g->product->columns;
    const ck_direct_gradient *whole = g->again[piece->channels < g->piece_block][width_of(g, piece) < columns];
    if (whole == NULL)
        return CK_BAD_PLAN;
    ck_direct_gradient d = *whole;
    const ck_array *x = &g->image.pixels.array, *dy = &g->gradient.pixels.array;
    d.pixels.array.data = x->data + piece->group * g->image_group + piece->channel0 * x->stride[3];
    d.gradients.array.data = dy->data + piece->group * g->gradient_group + piece->panel0 * columns * dy->stride[3];
    d.out.data = target_of(g, piece);
    d.partials = g->shared + g->piece_bytes;
    return ck_direct_gradient_run(&d, limits);
}

int ck_winograd_gradient_run(const ck_winograd_gradient *g, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)g;
    job.fn = sum_unit;
    job.chunks = parts_of(g) * g->slices;
    job.scratch_bytes = (size_t)(g->stage_bytes + g->image_bytes + g->gradient_bytes + g->sums_bytes);
    if (pieces_of(g) > g->piece_bytes)
        return CK_BAD_PLAN;
    int code = ck_pool_run(&job);
    if (code == CK_OK && g->slices > 1) {
        job.fn = finish_unit;
        job.chunks = pieces_of(g);
        job.scratch_bytes = 0;
        code = ck_pool_run(&job);
    }
    for (int64_t number = 0; code == CK_OK && number < pieces_of(g); number++) {
        part piece;
        if (piece_of(g, number, &piece) && g->shared[number])
            code = compute_again(g, &piece, limits);
    }
    return code;
}
