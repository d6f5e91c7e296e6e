#include "winograd.h"

#include "panels.h"

#include <string.h>

/* Channels in of which the taps are loaded at a time to compute a tile again with them; those of a chunk of transforming
 * the filter, and its panels: neighbours, of which one's rows follow the other's in memory. */
enum { CHANNELS_AT_ONCE = CK_SUM_BLOCK / CK_TAPS, PACK_CHANNELS = 16, PACK_PANELS = 8 };

typedef struct {
    ck_block tiles;
    int64_t group, image0, panel0, panels;
} block;

/* One pass over all tiles: panels of the filter that are there, and a job's chunks. */
typedef struct {
    const ck_winograd *w;
    int64_t panel0, panels;
} pass;

static int64_t size_of(const ck_winograd *w) { return ck_size(w->kernel->arithmetic); }

static int64_t panels_of(const ck_winograd *w) { return ck_ceil_div(w->out_channels, w->product->columns); }

static int64_t filter_step(const ck_winograd *w)
{
    return ck_winograd_step(w->in_channels * w->product->columns, size_of(w));
}

/* The transformed filter's element e for a panel of the pass. */
static char *filter_at(const pass *s, int64_t group, int64_t panel, int64_t e)
{
    const ck_winograd *w = s->w;
    return w->packed + ((group * s->panels + panel - s->panel0) * w->kernel->elements + e) * filter_step(w) * size_of(w);
}

static void cut(int64_t *unit, int64_t total, int64_t size, int64_t *start, int64_t *count)
{
    int64_t blocks = ck_ceil_div(total, size);
    *start = *unit % blocks * size;
    *count = ck_min(size, total - *start);
    *unit /= blocks;
}

static int64_t packs_of(const pass *s)
{
    return s->w->groups * ck_ceil_div(s->panels, PACK_PANELS) * ck_ceil_div(s->w->in_channels, PACK_CHANNELS);
}

/* All taps of a panel's filters for some channels in, each tap as rows of a panel. */
static void load_taps(const ck_winograd *w, int64_t group, int64_t panel, int64_t channel0, int64_t channels, char *to)
{
    int64_t size = size_of(w), columns = w->product->columns, out0 = panel * columns;
    int64_t count = ck_min(columns, w->out_channels - out0);
    const int64_t *stride = w->filter.stride;
    const char *from = w->filter.data + group * w->filter_group + channel0 * stride[2] + out0 * stride[3];
    if (count < columns)
        memset(to, 0, (size_t)(CK_TAPS * channels * columns * size));
    for (int64_t tap = 0; tap < CK_TAPS; tap++)
        ck_load_block(w->load_filter, size, to + tap * channels * columns * size, columns, 1,
                      from + tap / 3 * stride[0] + tap % 3 * stride[1], stride[2], stride[3], channels, count);
}

/* Transforms a panel's filters for some channels in; `taps` has room for those of PACK_CHANNELS of them. */
static void transform_filter(const ck_winograd *w, int64_t group, int64_t panel, int64_t channel0, int64_t channels,
                             char *taps, char *to, int64_t step)
{
    int64_t size = size_of(w), columns = w->product->columns;
    for (int64_t c = 0, count; c < channels; c += count) {
        count = ck_min(PACK_CHANNELS, channels - c);
        load_taps(w, group, panel, channel0 + c, count, taps);
        w->kernel->filter(count * columns, taps, count * columns, to + c * columns * size, step);
    }
}

static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const pass *s = ctx;
    const ck_winograd *w = s->w;
    int64_t size = size_of(w), columns = w->product->columns, channel0, channels, first, panels;
    cut(&unit, w->in_channels, PACK_CHANNELS, &channel0, &channels);
    cut(&unit, s->panels, PACK_PANELS, &first, &panels);
    if (CK_TAPS * channels * columns * size > w->again_bytes) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    for (int64_t panel = s->panel0 + first; panel < s->panel0 + first + panels; panel++)
        transform_filter(w, unit, panel, channel0, channels, ck_worker_scratch(worker),
                         filter_at(s, unit, panel, 0) + channel0 * columns * size, filter_step(w));
}

static int64_t units_of(const pass *s)
{
    const ck_winograd *w = s->w;
    return w->groups * ck_ceil_div(s->panels, w->panel_block) * ck_ceil_div(w->images, w->image_block) *
           ck_ceil_div(ck_tiles_along(w->out_height, w->kernel->tile), w->row_block) *
           ck_ceil_div(ck_tiles_along(w->out_width, w->kernel->tile), w->col_block);
}

static block block_of(const pass *s, int64_t unit)
{
    const ck_winograd *w = s->w;
    block b;
    cut(&unit, s->panels, w->panel_block, &b.panel0, &b.panels);
    b.panel0 += s->panel0;
    cut(&unit, ck_tiles_along(w->out_width, w->kernel->tile), w->col_block, &b.tiles.col0, &b.tiles.cols);
    cut(&unit, ck_tiles_along(w->out_height, w->kernel->tile), w->row_block, &b.tiles.row0, &b.tiles.rows);
    cut(&unit, w->images, w->image_block, &b.image0, &b.tiles.images);
    b.group = unit;
    return b;
}

/* Where a block's numbers are kept, and the distances between them in numbers. */
typedef struct {
    char *zeros, *stage, *image, *sums, *filter, *out, *again;
    int64_t tiles, image_pitch, image_step, sums_pitch, sums_step, filter_step;
} places;

static bool place(const ck_winograd *w, const block *b, char *scratch, places *p)
{
    int64_t size = size_of(w), channels = ck_min(w->channel_block, w->in_channels);
    p->tiles = b->tiles.images * b->tiles.rows * b->tiles.cols;
    p->image_pitch = ck_winograd_step(channels, size);
    p->image_step = ck_winograd_step(p->tiles * p->image_pitch, size);
    p->sums_pitch = ck_winograd_step(b->panels * w->product->columns, size);
    p->sums_step = ck_winograd_step(p->tiles * p->sums_pitch, size);
    p->zeros = scratch;
    p->stage = p->zeros + ck_winograd_step(channels, size) * size;
    p->image = scratch + w->stage_bytes;
    p->sums = p->image + w->image_bytes;
    p->filter = p->sums + w->sums_bytes;
    p->filter_step = ck_winograd_step(channels * w->product->columns, size);
    p->out = p->filter + w->filter_bytes;
    p->again = p->out + w->out_bytes;
    int64_t elements = w->kernel->elements, outputs = w->kernel->tile * w->kernel->tile;
    int64_t out = p->tiles * outputs * b->panels * w->product->columns * size;
    int64_t again = ck_min(CHANNELS_AT_ONCE, w->in_channels) * (elements + CK_TAPS * w->product->columns) +
                    outputs * w->product->columns;
    return w->channel_block <= CK_SUM_BLOCK && p->stage <= p->image &&
           elements * p->image_step * size <= w->image_bytes && elements * p->sums_step * size <= w->sums_bytes &&
           (w->packed || elements * p->filter_step * size <= w->filter_bytes) &&
           (w->out_in_place || out <= w->out_bytes) && again * size <= w->again_bytes;
}

/* One tile: its place in the block, and its first output pixel. */
typedef struct {
    int64_t image, row, col, y, x;
} tile;

static tile tile_of(const ck_winograd *w, const block *b, int64_t number)
{
    tile t = {number / (b->tiles.rows * b->tiles.cols), number / b->tiles.cols % b->tiles.rows, number % b->tiles.cols, 0, 0};
    t.y = (b->tiles.row0 + t.row) * w->kernel->tile;
    t.x = (b->tiles.col0 + t.col) * w->kernel->tile;
    return t;
}

/* Transforms some channels of the block's pixels; false if scratch has no room for them. */
static bool transform_image(const ck_winograd *w, const block *b, int64_t channel0, int64_t channels, const places *p)
{
    int64_t size = size_of(w);
    const int64_t *stride = w->image.pixels.array.stride;
    const char *data = w->image.pixels.array.data + b->group * w->image_group + b->image0 * stride[0] + channel0 * stride[3];
    ck_tile_view view;
    if (!ck_view_tiles(&w->image, data, &b->tiles, channels, size, p->stage, p->image - p->stage, &view))
        return false;
    for (int64_t i = 0; i < p->tiles; i++) {
        const tile t = tile_of(w, b, i);
        const void *pixels[CK_MOST_REACHED];
        ck_tile_pixels(&w->image, &view, t.image, b->tiles.row0 + t.row, b->tiles.col0 + t.col, p->zeros, pixels);
        w->kernel->image(channels, pixels, p->image + i * p->image_pitch * size, p->image_step, w->kernel->lanes);
    }
    return true;
}

/* The products of one element with one panel of the transformed filter. */
static void multiply(const ck_winograd *w, int64_t e, int64_t panel, const char *filter, int64_t channels, bool add,
                     const places *p)
{
    int64_t size = size_of(w), columns = w->product->columns, strips = ck_ceil_div(p->tiles, w->product->rows);
    const ck_segment all = {0, 0, channels};
    for (int64_t strip = 0, at = 0, rows; strip < strips; strip++, at += rows) {
        rows = ck_ceil_div(p->tiles - at, strips - strip);
        w->product->across(rows, p->image + (e * p->image_step + at * p->image_pitch) * size, p->image_pitch, filter,
                           columns, &all, 1,
                           p->sums + (e * p->sums_step + at * p->sums_pitch + panel * columns) * size, p->sums_pitch, add);
    }
}

/* All products with what is transformed already, element by element, so that the tiles' part of it stays in a cache. */
static void multiply_packed(const pass *s, const block *b, int64_t channel0, int64_t channels, const places *p,
                            ck_worker *worker)
{
    int64_t offset = channel0 * s->w->product->columns * size_of(s->w);
    for (int64_t e = 0; e < s->w->kernel->elements && !ck_worker_stop(worker); e++)
        for (int64_t panel = 0; panel < b->panels; panel++)
            multiply(s->w, e, panel, filter_at(s, b->group, b->panel0 + panel, e) + offset, channels, channel0 > 0, p);
}

/* Asks for the taps of a panel's filters, a part at a time, of as many parts as a tile has elements.  Only where channels in
 * are neighbours: runs of channels out, a power of two apart, would push each other out of a cache before they are used. */
static void expect_taps(const ck_winograd *w, int64_t group, int64_t panel, int64_t channel0, int64_t part)
{
    int64_t size = size_of(w), out0 = panel * w->product->columns, parts = w->kernel->elements;
    const int64_t *stride = w->filter.stride;
    if (stride[2] != size || channel0 >= w->in_channels)
        return;
    int64_t filters = ck_min(w->product->columns, w->out_channels - out0);
    int64_t bytes = ck_min(w->channel_block, w->in_channels - channel0) * size;
    const char *from = w->filter.data + group * w->filter_group + channel0 * size + out0 * stride[3];
    for (int64_t tap = 0; tap < CK_TAPS; tap++)
        for (int64_t k = filters * part / parts; k < filters * (part + 1) / parts; k++)
            for (int64_t at = 0; at < bytes; at += CACHE_LINE)
                __builtin_prefetch(from + tap / 3 * stride[0] + tap % 3 * stride[1] + k * stride[3] + at, 0, 2);
}

/* All products, panel by panel, each of which is transformed for this block alone.  Its taps may come from afar, and are
 * asked for while the panel before is multiplied. */
static void multiply_alone(const ck_winograd *w, const block *b, int64_t channel0, int64_t channels, const places *p,
                           ck_worker *worker)
{
    for (int64_t panel = 0; panel < b->panels && !ck_worker_stop(worker); panel++) {
        bool last = panel + 1 == b->panels;
        int64_t next_panel = b->panel0 + (last ? 0 : panel + 1), next_channel = last ? channel0 + channels : channel0;
        transform_filter(w, b->group, b->panel0 + panel, channel0, channels, p->again, p->filter, p->filter_step);
        for (int64_t e = 0; e < w->kernel->elements; e++) {
            expect_taps(w, b->group, next_panel, next_channel, e);
            multiply(w, e, panel, p->filter + e * p->filter_step * size_of(w), channels, channel0 > 0, p);
        }
    }
}

/* Where a tile's result goes, in bytes. */
typedef struct {
    char *data;
    int64_t row, col;
} target;

static target target_of(const ck_winograd *w, const block *b, const tile *t, const places *p)
{
    int64_t size = size_of(w), width = b->panels * w->product->columns * size;
    const int64_t *stride = w->out.stride;
    if (w->out_in_place)
        return (target){w->out.data + b->group * w->out_group + (b->image0 + t->image) * stride[0] + t->y * stride[1] +
                            t->x * stride[2] + b->panel0 * w->product->columns * size,
                        stride[1], stride[2]};
    int64_t side = w->kernel->tile, row = b->tiles.cols * side * width;
    return (target){p->out + (t->image * b->tiles.rows + t->row) * side * row + t->col * side * width, row, width};
}

/* Computes a tile tap by tap, for all panels of the block. */
static void compute_again(const ck_winograd *w, const block *b, const tile *t, int64_t rows, int64_t cols,
                          const target *to, const places *p)
{
    int64_t size = size_of(w), columns = w->product->columns, most = ck_min(CHANNELS_AT_ONCE, w->in_channels);
    int64_t side = w->kernel->tile, reach = w->kernel->reach, reached = w->kernel->elements;
    const int64_t *stride = w->image.pixels.array.stride;
    char *patch = p->again, *taps = patch + reached * most * size, *sums = taps + CK_TAPS * most * columns * size;
    const char *image = w->image.pixels.array.data + b->group * w->image_group + (b->image0 + t->image) * stride[0];
    const ck_tile_view view = {image, 0, stride[1], stride[2]};
    const void *pixels[CK_MOST_REACHED];
    ck_tile_pixels(&w->image, &view, 0, b->tiles.row0 + t->row, b->tiles.col0 + t->col, NULL, pixels);
    for (int64_t panel = 0; panel < b->panels; panel++) {
        for (int64_t channel0 = 0; channel0 < w->in_channels; channel0 += most) {
            int64_t channels = ck_min(most, w->in_channels - channel0), row_terms = 3 * channels;
            for (int64_t i = 0; i < reached; i++)
                if (pixels[i])
                    w->image.pixels.load(patch + i * channels * size, 1, (const char *)pixels[i] + channel0 * stride[3],
                                         stride[3], channels);
                else
                    memset(patch + i * channels * size, 0, (size_t)(channels * size));
            load_taps(w, b->group, b->panel0 + panel, channel0, channels, taps);
            for (int64_t i = 0; i < side; i++) {
                ck_segment terms[3];
                for (int64_t a = 0; a < 3; a++)
                    terms[a] = (ck_segment){(i + a) * reach * channels, a * row_terms * columns, row_terms};
                w->product->across(side, patch, channels, taps, columns, terms, 3, sums + i * side * columns * size,
                                   columns, channel0 > 0);
            }
        }
        int64_t out0 = panel * columns, count = ck_min(columns, w->out_channels - b->panel0 * columns - out0);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                memcpy(to->data + i * to->row + j * to->col + out0 * size, sums + (i * side + j) * columns * size,
                       (size_t)(count * size));
    }
}

static int64_t channels_of(const ck_winograd *w, const block *b)
{
    int64_t columns = w->product->columns;
    return ck_min(b->panels * columns, w->out_channels - b->panel0 * columns);
}

static void transform_sums(const ck_winograd *w, const block *b, const places *p)
{
    int64_t size = size_of(w), channels = channels_of(w, b);
    for (int64_t i = 0; i < p->tiles; i++) {
        const tile t = tile_of(w, b, i);
        const target to = target_of(w, b, &t, p);
        int64_t rows = ck_min(w->kernel->tile, w->out_height - t.y), cols = ck_min(w->kernel->tile, w->out_width - t.x);
        if (!w->kernel->result(channels, p->sums + i * p->sums_pitch * size, p->sums_step, to.data, to.row / size,
                               to.col / size, rows, cols))
            compute_again(w, b, &t, rows, cols, &to, p);
    }
}

/* Rows of the block's result, from scratch to where they belong. */
static void store_rows(const ck_winograd *w, const block *b, const places *p)
{
    const ck_block *t = &b->tiles;
    int64_t size = size_of(w), width = b->panels * w->product->columns, side = w->kernel->tile;
    int64_t y0 = t->row0 * side, rows = ck_min(t->rows * side, w->out_height - y0);
    int64_t x0 = t->col0 * side, cols = ck_min(t->cols * side, w->out_width - x0);
    const int64_t *stride = w->out.stride;
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < rows; i++)
            ck_store_block(w->store, size,
                           w->out.data + b->group * w->out_group + (b->image0 + n) * stride[0] + (y0 + i) * stride[1] +
                               x0 * stride[2] + b->panel0 * w->product->columns * stride[3],
                           stride[2], stride[3], p->out + (n * t->rows * side + i) * t->cols * side * width * size,
                           width, 1, cols, channels_of(w, b), false);
}

static void compute_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const pass *s = ctx;
    const ck_winograd *w = s->w;
    const block b = block_of(s, unit);
    places p;
    if (!place(w, &b, ck_worker_scratch(worker), &p)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    memset(p.zeros, 0, (size_t)(p.stage - p.zeros));
    for (int64_t channel0 = 0; channel0 < w->in_channels; channel0 += w->channel_block) {
        int64_t channels = ck_min(w->channel_block, w->in_channels - channel0);
        if (!transform_image(w, &b, channel0, channels, &p)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
        if (w->packed)
            multiply_packed(s, &b, channel0, channels, &p, worker);
        else
            multiply_alone(w, &b, channel0, channels, &p, worker);
        if (ck_worker_stop(worker))
            return;
    }
    transform_sums(w, &b, &p);
    if (!w->out_in_place)
        store_rows(w, &b, &p);
}

static int run_job(const pass *s, const ck_job *limits, ck_chunk_fn fn, int64_t chunks, int64_t scratch)
{
    ck_job job = *limits;
    job.ctx = (void *)s;
    job.fn = fn;
    job.chunks = chunks;
    job.scratch_bytes = (size_t)scratch;
    return ck_pool_run(&job);
}

static int pack(const pass *s, const ck_job *limits)
{
    return run_job(s, limits, pack_unit, packs_of(s), s->w->again_bytes);
}

static int compute(const pass *s, const ck_job *limits)
{
    const ck_winograd *w = s->w;
    return run_job(s, limits, compute_unit, units_of(s),
                   w->stage_bytes + w->image_bytes + w->sums_bytes + w->filter_bytes + w->out_bytes + w->again_bytes);
}

int ck_winograd_pack(const ck_winograd *w, const ck_job *limits)
{
    const pass all = {w, 0, panels_of(w)};
    return pack(&all, limits);
}

int ck_winograd_compute(const ck_winograd *w, const ck_job *limits)
{
    const pass all = {w, 0, panels_of(w)};
    return compute(&all, limits);
}

int ck_winograd_run(const ck_winograd *w, const ck_job *limits)
{
    int code = w->packed ? CK_OK : ck_winograd_compute(w, limits);
    for (int64_t panel = 0; w->packed && code == CK_OK && panel < panels_of(w); panel += w->panels_at_once) {
        const pass some = {w, panel, ck_min(w->panels_at_once, panels_of(w) - panel)};
        code = pack(&some, limits);
        if (code == CK_OK)
            code = compute(&some, limits);
    }
    return code;
}
