#include "depthwise_gradient.h"

#include "slices.h"

#include <string.h>

static int64_t tiles_of(const ck_depthwise_gradient *g) { return ck_ceil_div(g->channels, g->channel_block); }

static int64_t taps_of(const ck_depthwise_gradient *g) { return g->window.rows * g->window.cols; }

/* Elements from one tap's sums to the next, without planes. */
static int64_t sums_step(const ck_depthwise_gradient *g)
{
    return ck_ceil_div(g->channel_block, g->kernel->lanes) * g->kernel->lanes;
}

/* Numbers that become one in the end. */
static int64_t sum_lanes(const ck_depthwise_gradient *g) { return g->planes && !g->unpadded ? g->kernel->lanes : 1; }

/* Elements of a tile's sums. */
static int64_t tile_numbers(const ck_depthwise_gradient *g)
{
    return taps_of(g) * (g->planes ? g->channel_block * sum_lanes(g) : sums_step(g));
}

static int64_t blocks_of(const ck_depthwise_gradient *g)
{
    return g->images * ck_ceil_div(g->window.out_height, g->row_block) * ck_ceil_div(g->window.out_width, g->col_block);
}

static ck_block block_of(const ck_depthwise_gradient *g, int64_t number, int64_t *image)
{
    int64_t across = ck_ceil_div(g->window.out_width, g->col_block);
    int64_t down = ck_ceil_div(g->window.out_height, g->row_block);
    ck_block b;
    b.images = 1;
    b.col0 = number % across * g->col_block;
    b.cols = ck_min(g->col_block, g->window.out_width - b.col0);
    number /= across;
    b.row0 = number % down * g->row_block;
    b.rows = ck_min(g->row_block, g->window.out_height - b.row0);
    *image = number / down;
    return b;
}

typedef struct {
    const ck_depthwise_gradient *g;
    ck_depthwise_view x, dy;
    const int64_t *at; /* of planes: where the block's first pixel meets each of the taps */
    int64_t taps;
    int64_t channels;
    ck_block block;
} part;

/* Adds the block's rows i .. i + rows - 1 to the sums of one plane: whole vectors, then the rest of each row. */
static void add_plane(const part *p, const char *x, const char *dy, int64_t rows, char *sums)
{
    const ck_depthwise_kernel *kernel = p->g->kernel;
    int64_t size = ck_size(kernel->arithmetic), lanes = kernel->lanes, x_row = p->g->window.row_step * p->x.row_step;
    int64_t vectors = p->block.cols / lanes, rest = p->block.cols % lanes, done = vectors * lanes * size;
    if (vectors)
        kernel->gradient(p->taps, p->at, lanes, x, x_row, lanes, dy, p->dy.row_step, lanes, rows, vectors, sums, lanes);
    if (rest)
        kernel->gradient(p->taps, p->at, rest, x + done, x_row, lanes, dy + done, p->dy.row_step, lanes, rows, 1, sums,
                         lanes);
}

/* Adds a block's products of one plane for some taps; `sums` are those of the first tap. */
static void add_taps(const part *p, const char *x, const char *dy, char *sums)
{
    const ck_depthwise_gradient *g = p->g;
    int64_t size = ck_size(g->kernel->arithmetic), x_row = g->window.row_step * p->x.row_step;
    int64_t most = ck_max(1, CK_SUM_BLOCK / ck_ceil_div(p->block.cols, g->kernel->lanes));
    for (int64_t i = 0; i < p->block.rows; i += most)
        add_plane(p, x + i * x_row * size, dy + i * p->dy.row_step * size, ck_min(most, p->block.rows - i), sums);
}

/* Adds a block's products, vectors along columns. */
static void add_planes(part p, const ck_window *same, ck_worker *worker, char *sums)
{
    const ck_depthwise_gradient *g = p.g;
    const ck_window *w = &g->window;
    int64_t size = ck_size(g->kernel->arithmetic), lanes = g->kernel->lanes, taps = taps_of(g), at[CK_SUM_BLOCK];
    int64_t dy_at = ck_depthwise_at(&p.dy, same, &p.block, 0, 0);
    p.at = at;
    for (int64_t first = 0; first < taps; first += CK_SUM_BLOCK) {
        if (first && ck_worker_stop(worker))
            return;
        p.taps = ck_min(CK_SUM_BLOCK, taps - first);
        for (int64_t tap = 0; tap < p.taps; tap++)
            at[tap] = ck_depthwise_at(&p.x, w, &p.block, (first + tap) / w->cols, (first + tap) % w->cols);
        for (int64_t c = 0; c < p.channels; c++)
            add_taps(&p, p.x.data + c / g->multiplier * p.x.channel_step * size,
                     p.dy.data + (dy_at + c * p.dy.channel_step) * size, sums + (c * taps + first) * lanes * size);
    }
}

/* Pixels of one sum, so that those of a vector of channels stay in the first-level cache from a tap to the next. */
enum { NEAR_PIXELS = 192 };

/* Output pixels of a block that meet the same taps. */
typedef struct {
    ck_span rows, cols, tap_rows, tap_cols;
    bool left, right; /* but the first and the last, as in `ck_columns` */
} patch;

static void add_patch(const part *p, const patch *some, char *sums)
{
    const ck_depthwise_gradient *g = p->g;
    const ck_window *w = &g->window;
    int64_t size = ck_size(g->kernel->arithmetic), a = some->tap_rows.first, b = some->tap_cols.first;
    if (a >= some->tap_rows.last || b >= some->tap_cols.last)
        return;
    ck_depthwise_sums s = {.positions = some->cols.last - some->cols.first,
                           .lanes = p->channels,
                           .tap_rows = some->tap_rows.last - a,
                           .tap_cols = some->tap_cols.last - b,
                           .fetches = g->streams ? w->row_step : 0,
                           .x_row = ck_pitch(w->row_at, w->rows) * p->x.row_step,
                           .x_tap = ck_pitch(w->col_at, w->cols) * p->x.remainder_step,
                           .x_down = w->row_step * p->x.row_step,
                           .x_step = w->col_step * p->x.remainder_step,
                           .dy_down = p->dy.row_step,
                           .dy_step = p->dy.remainder_step,
                           .sums = sums + (a * w->cols + b) * sums_step(g) * size,
                           .sums_row = w->cols * sums_step(g),
                           .sums_tap = sums_step(g),
                           .left = some->left,
                           .right = some->right};
    int64_t most = ck_max(1, NEAR_PIXELS / w->row_step / s.positions);
    int64_t col = some->cols.first * w->col_step + w->col_at[b] - p->x.col0;
    int64_t dy_col = some->cols.first - p->dy.col0;
    for (int64_t i = some->rows.first; i < some->rows.last; i += most) {
        int64_t row = i * w->row_step + w->row_at[a] - p->x.row0;
        s.rows = ck_min(most, some->rows.last - i);
        s.x = p->x.data + (row * p->x.row_step + col * p->x.remainder_step) * size;
        s.dy = p->dy.data + ((i - p->dy.row0) * p->dy.row_step + dy_col * p->dy.remainder_step) * size;
        g->kernel->by_sums(&s);
    }
}

/* The output pixels from `at` on along an axis that meet the same taps: those with whole windows, or a single one. */
static ck_span alike(ck_span whole, int64_t at)
{
    return at == whole.first && whole.first < whole.last ? whole : (ck_span){at, at + 1};
}

/* Adds a block's products, channels last. */
static void add_lanes(const part *p, char *sums)
{
    const ck_window *w = &p->g->window;
    const ck_block *block = &p->block;
    ck_span rows = ck_whole_windows(&p->x, w->row_at, w->rows, w->row_step, w->height, block->row0, block->rows);
    ck_columns cols = ck_whole_columns(&p->x, w, block->col0, block->cols);
    patch some = {.rows.last = block->row0};
    while (some.rows.last < block->row0 + block->rows) {
        some.rows = alike(rows, some.rows.last);
        some.tap_rows = ck_taps_inside(&p->x, w->row_at, w->rows, some.rows.first, w->row_step, w->height);
        for (some.cols.last = block->col0; some.cols.last < block->col0 + block->cols;) {
            some.cols = alike(cols.span, some.cols.last);
            bool most = some.cols.first == cols.span.first && cols.span.first < cols.span.last;
            some.left = most && cols.left;
            some.right = most && cols.right;
            some.tap_cols = most ? (ck_span){0, w->cols}
                                 : ck_taps_inside(&p->x, w->col_at, w->cols, some.cols.first, w->col_step, w->width);
            add_patch(p, &some, sums);
        }
    }
}

/* Adds a block's products of planes where they lie; false if there is no kernel for the filter. */
static bool add_unpadded(const part *p, int64_t channel0, const char *x, const char *dy, ck_worker *worker, char *sums)
{
    const ck_depthwise_gradient *g = p->g;
    const ck_window *w = &g->window;
    const int64_t *x_stride = g->pixels.array.stride, *dy_stride = g->gradients.array.stride;
    int64_t size = ck_size(g->kernel->arithmetic);
    ck_depthwise_plane_sums s = {.plane = {.cols = p->block.cols, .step = w->row_step, .tap_rows = w->rows,
                                           .tap_cols = w->cols, .col = p->block.col0 * w->col_step + w->col_at[0],
                                           .height = w->height, .width = w->width, .x_row = x_stride[1] / size},
                                 .dy_row = dy_stride[1] / size};
    int64_t most = ck_max(1, CK_SUM_BLOCK / ck_ceil_div(p->block.cols, g->kernel->lanes));
    bool good = true;
    for (int64_t c = 0; good && c < p->channels && !ck_worker_stop(worker); c++) {
        bool another = g->streams && channel0 + c + 1 < g->channels;
        s.plane.x = x + c / g->multiplier * x_stride[3];
        s.plane.next = another && (c + 1) % g->multiplier == 0 ? x_stride[3] / size : 0;
        s.dy_next = another ? dy_stride[3] / size : 0;
        s.sums = sums + c * taps_of(g) * size;
        for (int64_t i = 0; i < p->block.rows; i += most) {
            int64_t row = p->block.row0 + i;
            s.plane.rows = ck_min(most, p->block.rows - i);
            s.plane.row = row * w->row_step + w->row_at[0];
            s.dy = dy + row * dy_stride[1] + p->block.col0 * dy_stride[2] + c * dy_stride[3];
            good = good && g->kernel->plane_sums(&s);
        }
    }
    return good;
}

/* Adds block `number` to the sums; false if it does not fit the scratch memory. */
static bool add_block(const ck_depthwise_gradient *g, int64_t channel0, int64_t channels, int64_t number,
                      ck_worker *worker, char *sums)
{
    static const int64_t here = 0;
    const ck_window *w = &g->window;
    const ck_window same = {w->out_height, w->out_width, w->out_height, w->out_width, 1, 1, 1, 1, &here, &here};
    int64_t image;
    char *scratch = ck_worker_scratch(worker);
    part p = {.g = g, .channels = channels, .block = block_of(g, number, &image)};
    ck_pixels x = g->pixels, dy = g->gradients;
    x.array.data += image * x.array.stride[0] + channel0 / g->multiplier * x.array.stride[3];
    dy.array.data += image * dy.array.stride[0] + channel0 * dy.array.stride[3];
    if (g->unpadded)
        return add_unpadded(&p, channel0, x.array.data, dy.array.data, worker, sums);
    if (!ck_depthwise_look(g->kernel, w, &x, &p.block, channels / g->multiplier, g->planes ? 1 : g->multiplier,
                           g->planes, scratch, g->stage_bytes, &p.x) ||
        !ck_depthwise_look(g->kernel, &same, &dy, &p.block, channels, 1, g->planes, scratch + g->stage_bytes,
                           g->gradient_bytes, &p.dy))
        return false;
    if (g->planes)
        add_planes(p, &same, worker, sums);
    else
        add_lanes(&p, sums);
    return true;
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_depthwise_gradient *g = ctx;
    int64_t size = ck_size(g->kernel->arithmetic), slice = unit % g->slices;
    int64_t channel0 = unit / g->slices * g->channel_block;
    int64_t channels = ck_min(g->channel_block, g->channels - channel0);
    char *sums = g->partials + unit * tile_numbers(g) * size;
    memset(sums, 0, (size_t)(tile_numbers(g) * size));
    int64_t first = slice * g->slice_blocks, last = ck_min(blocks_of(g), first + g->slice_blocks);
    for (int64_t number = first; number < last; number++) {
        if (ck_worker_stop(worker))
            return;
        if (!add_block(g, channel0, channels, number, worker, sums)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
}

/* Adds the slices of a tile, and the lanes, and stores it where the filter's strides say. */
static void store_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_depthwise_gradient *g = ctx;
    const ck_type arithmetic = g->kernel->arithmetic;
    int64_t size = ck_size(arithmetic), taps = taps_of(g), distance = tile_numbers(g) * size;
    int64_t channel0 = unit * g->channel_block, channels = ck_min(g->channel_block, g->channels - channel0);
    char *sums = g->partials + unit * g->slices * distance;
    ck_add_slices(arithmetic, sums, tile_numbers(g), g->slices, distance);
    if (sum_lanes(g) > 1)
        ck_add_lanes(arithmetic, sums, channels * taps, g->kernel->lanes);
    const int64_t *stride = g->out.stride;
    for (int64_t tap = 0; tap < taps; tap++)
        g->store(g->out.data + tap / g->window.cols * stride[0] + tap % g->window.cols * stride[1] +
                     channel0 * stride[3],
                 stride[3], sums + tap * (g->planes ? 1 : sums_step(g)) * size, g->planes ? taps : 1, channels,
                 g->accumulate);
}

int ck_depthwise_gradient_run(const ck_depthwise_gradient *g, const ck_job *limits)
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
    job.chunks = tiles_of(g);
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
