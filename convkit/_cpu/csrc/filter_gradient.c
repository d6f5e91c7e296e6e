#include "filter_gradient.h"

#include "slices.h"

typedef struct {
    int64_t group, patch0, patch, channel0, channels;
} tile;

typedef struct {
    const ck_filter_gradient *g;
    int64_t first_tile;
} pass;

static int64_t patch_of(const ck_filter_gradient *g) { return g->window.rows * g->window.cols * g->in_channels; }

static int64_t tiles_of(const ck_filter_gradient *g)
{
    return g->groups * ck_ceil_div(patch_of(g), g->patch_block) * ck_ceil_div(g->out_channels, g->channel_block);
}

static tile tile_of(const ck_filter_gradient *g, int64_t number)
{
    int64_t patch_blocks = ck_ceil_div(patch_of(g), g->patch_block);
    int64_t channel_blocks = ck_ceil_div(g->out_channels, g->channel_block);
    tile t;
    t.channel0 = number % channel_blocks * g->channel_block;
    t.channels = ck_min(g->channel_block, g->out_channels - t.channel0);
    number /= channel_blocks;
    t.patch0 = number % patch_blocks * g->patch_block;
    t.patch = ck_min(g->patch_block, patch_of(g) - t.patch0);
    t.group = number / patch_blocks;
    return t;
}

/* Writes a finished tile, tap by tap, to wherever the filter's strides say. */
static void store_tile(const ck_filter_gradient *g, const tile *t, const char *from)
{
    int64_t size = ck_size(g->gemm.arithmetic);
    const int64_t *stride = g->out.stride;
    for (int64_t k = t->patch0; k < t->patch0 + t->patch;) {
        int64_t tap = k / g->in_channels, c = k - tap * g->in_channels;
        int64_t count = ck_min(g->in_channels - c, t->patch0 + t->patch - k);
        char *to = g->out.data + t->group * g->out_group + tap / g->window.cols * stride[0] +
                   tap % g->window.cols * stride[1] + c * stride[2] + t->channel0 * stride[3];
        ck_store_block(g->store, size, to, stride[2], stride[3], from, t->channels, 1, count, t->channels,
                       g->accumulate);
        from += count * t->channels * size;
        k += count;
    }
}

static void load_gradients(const ck_filter_gradient *g, const tile *t, int64_t pixel, int64_t count, char *to)
{
    int64_t size = ck_size(g->gemm.arithmetic), width = g->window.out_width, grid = width * g->window.out_height;
    const int64_t *stride = g->gradients.stride;
    const char *from = g->gradients.data + t->group * g->gradient_group + t->channel0 * stride[3];
    while (count > 0) {
        int64_t n = pixel / grid, i = pixel % grid / width, j = pixel % width, segment = ck_min(count, width - j);
        ck_load_block(g->load_gradient, size, to, t->channels, 1,
                      from + n * stride[0] + i * stride[1] + j * stride[2], stride[2], stride[3], segment, t->channels);
        to += segment * t->channels * size;
        pixel += segment;
        count -= segment;
    }
}

static ck_matrix patches_of(const ck_filter_gradient *g, const tile *t, int64_t pixel, int64_t count, char *patches,
                            char *staged)
{
    int64_t size = ck_size(g->gemm.arithmetic), grid = g->window.out_width * g->window.out_height;
    ck_pixels pixels = g->pixels;
    pixels.array.data += t->group * g->image_group;
    if (g->image_layout.kind != CK_COPY)
        return (ck_matrix){ck_address(&pixels.array, &g->image_layout, size, grid, g->within_image, pixel, t->patch0),
                           g->image_layout.ld, g->image_layout.kind == CK_ROWS};
    ck_window window = g->window;
    int64_t row_taps = window.cols * g->in_channels, patch0 = t->patch0;
    /* Only the tap rows that the tile covers. */
    int64_t skipped = patch0 / row_taps;
    window.rows = (patch0 + t->patch - 1) / row_taps - skipped + 1;
    window.row_at += skipped;
    patch0 -= skipped * row_taps;
    if (!pixels.plain) {
        ck_region region = ck_reach(&window, pixel, count);
        if (region.rows > 0 && region.cols > 0 &&
            region.images * region.rows * region.cols * g->in_channels * size <= g->stage_bytes)
            pixels = ck_stage(&pixels, &region, size, g->in_channels, g->gemm.arithmetic, staged);
    }
    ck_im2col(&window, &pixels, size, g->in_channels, pixel, count, patch0, patch0 + t->patch, patches);
    return (ck_matrix){patches, t->patch, true};
}

/* Adds the products of pixels pixel0 .. pixel1 - 1 to nothing; false if the job was stopped. */
static bool sum_pixels(const ck_filter_gradient *g, const tile *t, int64_t pixel0, int64_t pixel1, ck_matrix c,
                       ck_worker *worker)
{
    int64_t size = ck_size(g->gemm.arithmetic), grid = g->window.out_width * g->window.out_height;
    char *patches = ck_worker_scratch(worker), *gradients = patches + g->patch_bytes;
    char *staged = gradients + g->gradient_bytes + g->tile_bytes;
    for (int64_t pixel = pixel0; pixel < pixel1;) {
        if (ck_worker_stop(worker))
            return false;
        int64_t count = ck_min(g->pixel_block, pixel1 - pixel);
        if (g->within_image)
            count = ck_min(count, grid - pixel % grid);
        ck_matrix b = {gradients, t->channels, false};
        if (g->gradient_layout.kind == CK_COPY) {
            load_gradients(g, t, pixel, count, gradients);
        } else {
            ck_array array = g->gradients;
            array.data += t->group * g->gradient_group;
            b = (ck_matrix){ck_address(&array, &g->gradient_layout, size, grid, g->within_image, pixel, t->channel0),
                            g->gradient_layout.ld, g->gradient_layout.kind == CK_COLUMNS};
        }
        ck_matrix a = patches_of(g, t, pixel, count, patches, staged);
        ck_multiply(&g->gemm, t->patch, t->channels, count, a, b, pixel > pixel0, c);
        pixel += count;
    }
    return true;
}

static bool fits(const ck_filter_gradient *g, const tile *t, ck_worker *worker)
{
    int64_t size = ck_size(g->gemm.arithmetic);
    bool tile_in_scratch = g->slices == 1 && g->out_layout.kind == CK_COPY;
    if (g->pixel_block <= CK_SUM_BLOCK &&
        (g->image_layout.kind != CK_COPY || g->pixel_block * t->patch * size <= g->patch_bytes) &&
        (g->gradient_layout.kind != CK_COPY || g->pixel_block * t->channels * size <= g->gradient_bytes) &&
        (!tile_in_scratch || t->patch * t->channels * size <= g->tile_bytes))
        return true;
    ck_worker_fail(worker, CK_BAD_PLAN);
    return false;
}

static void sum_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const pass *s = ctx;
    const ck_filter_gradient *g = s->g;
    int64_t size = ck_size(g->gemm.arithmetic), slice = unit % g->slices, number = unit / g->slices;
    int64_t all = g->images * g->window.out_height * g->window.out_width;
    const tile t = tile_of(g, s->first_tile + number);
    if (!fits(g, &t, worker))
        return;
    char *sums = (char *)ck_worker_scratch(worker) + g->patch_bytes + g->gradient_bytes;
    ck_matrix c = {sums, t.channels, false};
    if (g->slices > 1)
        c.data = g->partials + unit * g->patch_block * g->channel_block * size;
    else if (g->out_layout.kind == CK_ROWS)
        c = (ck_matrix){g->out.data + t.group * g->out_group + (t.patch0 * g->out_layout.ld + t.channel0) * size,
                        g->out_layout.ld, false};
    int64_t pixel0 = slice * g->slice_pixels;
    if (!sum_pixels(g, &t, pixel0, ck_min(all, pixel0 + g->slice_pixels), c, worker))
        return;
    if (g->slices == 1 && g->out_layout.kind == CK_COPY)
        store_tile(g, &t, sums);
}

/* A tile's partial sums are added in units of so many numbers, a few dozen microseconds of work. */
enum { ADD_NUMBERS = 1 << 14 };

static int64_t add_rows(const ck_filter_gradient *g) { return ck_max(1, ADD_NUMBERS / g->channel_block); }

static int64_t adds_per_tile(const ck_filter_gradient *g) { return ck_ceil_div(g->patch_block, add_rows(g)); }

static void add_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const pass *s = ctx;
    const ck_filter_gradient *g = s->g;
    int64_t number = unit / adds_per_tile(g), row = unit % adds_per_tile(g) * add_rows(g);
    int64_t size = ck_size(g->gemm.arithmetic), distance = g->patch_block * g->channel_block * size;
    tile t = tile_of(g, s->first_tile + number);
    if (row >= t.patch)
        return;
    char *sums = g->partials + number * g->slices * distance + row * t.channels * size;
    t.patch0 += row;
    t.patch = ck_min(add_rows(g), t.patch - row);
    ck_add_slices(g->gemm.arithmetic, sums, t.patch * t.channels, g->slices, distance);
    store_tile(g, &t, sums);
}

int ck_filter_gradient_run(const ck_filter_gradient *g, const ck_job *limits)
{
    int64_t tiles = tiles_of(g), at_once = g->slices > 1 ? g->tiles_at_once : tiles;
    for (int64_t first = 0; first < tiles; first += at_once) {
        pass s = {g, first};
        ck_job job = *limits;
        job.ctx = &s;
        job.fn = sum_unit;
        job.chunks = ck_min(at_once, tiles - first) * g->slices;
        /* At least a byte, so that the parts have addresses where nothing is copied. */
        job.scratch_bytes =
            (size_t)ck_max(1, g->patch_bytes + g->gradient_bytes + g->tile_bytes + g->stage_bytes);
        int code = ck_pool_run(&job);
        if (code != CK_OK)
            return code;
        if (g->slices > 1) {
            job.fn = add_unit;
            job.chunks = ck_min(at_once, tiles - first) * adds_per_tile(g);
            job.scratch_bytes = 0;
            code = ck_pool_run(&job);
            if (code != CK_OK)
                return code;
        }
    }
    return CK_OK;
}
