#include "product.h"

typedef struct {
    int64_t pixel0, pixels;     /* numbered over images */
    int64_t group, channel0, channels;
} tile;

static int64_t grid_of(const ck_phase *phase) { return phase->window.out_height * phase->window.out_width; }

static int64_t run_of(const ck_product *p, const ck_phase *phase)
{
    switch (p->run) {
    case CK_RUN_ROW:
        return phase->window.out_width;
    case CK_RUN_IMAGE:
        return grid_of(phase);
    default:
        return grid_of(phase) * p->images;
    }
}

int64_t ck_product_units(const ck_product *p, const ck_phase *phase)
{
    int64_t run = run_of(p, phase), runs = grid_of(phase) * p->images / run;
    return p->groups * runs * ck_ceil_div(run, p->pixel_block) * ck_ceil_div(p->out_channels, p->channel_block);
}

static tile tile_of(const ck_product *p, const ck_phase *phase, int64_t unit)
{
    int64_t channel_blocks = ck_ceil_div(p->out_channels, p->channel_block);
    int64_t run = run_of(p, phase), blocks = ck_ceil_div(run, p->pixel_block);
    tile t;
    t.channel0 = unit % channel_blocks * p->channel_block;
    t.channels = ck_min(p->channel_block, p->out_channels - t.channel0);
    unit /= channel_blocks;
    t.group = unit % p->groups;
    unit /= p->groups;
    int64_t start = unit % blocks * p->pixel_block;
    t.pixels = ck_min(p->pixel_block, run - start);
    t.pixel0 = unit / blocks * run + start;
    return t;
}

static void pack(const ck_product *p, const ck_phase *phase, int64_t group, int64_t k0, int64_t k1, int64_t channel0,
                 int64_t channels, char *to)
{
    int64_t size = ck_size(p->gemm.arithmetic), in = p->in_channels;
    const int64_t *stride = p->filter.stride;
    while (k0 < k1) {
        int64_t tap = k0 / in, c = k0 - tap * in, n = ck_min(in - c, k1 - k0);
        const char *from = p->filter.data + group * p->filter_group +
                           phase->row_tap[tap / phase->window.cols] * stride[0] +
                           phase->col_tap[tap % phase->window.cols] * stride[1] + c * stride[2] + channel0 * stride[3];
        ck_load_block(p->load_filter, size, to, channels, 1, from, stride[2], stride[3], n, channels);
        to += n * channels * size;
        k0 += n;
    }
}

static const ck_phase *phase_of(const ck_product *p, int64_t unit, bool packing)
{
    int64_t low = 0, high = p->phase_count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if ((packing ? p->phases[middle].first_pack : p->phases[middle].first_unit) <= unit)
            low = middle;
        else
            high = middle;
    }
    return &p->phases[low];
}

/* One tap of one group of the filter. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_product *p = ctx;
    const ck_phase *phase = phase_of(p, unit, true);
    int64_t taps = phase->window.rows * phase->window.cols, in = p->in_channels;
    int64_t tap = (unit - phase->first_pack) % taps, group = (unit - phase->first_pack) / taps;
    char *to = p->packed + phase->packed_at + (group * taps + tap) * in * p->out_channels * ck_size(p->gemm.arithmetic);
    pack(p, phase, group, tap * in, (tap + 1) * in, 0, p->out_channels, to);
}

static ck_matrix filter_block(const ck_product *p, const ck_phase *phase, const tile *t, int64_t k0, int64_t k1,
                              char *scratch)
{
    int64_t size = ck_size(p->gemm.arithmetic), taps = phase->window.rows * phase->window.cols;
    const ck_layout *layout = &phase->filter_layout;
    if (layout->kind == CK_ROWS)
        return (ck_matrix){p->filter.data + t->group * p->filter_group + (k0 * layout->ld + t->channel0) * size,
                           layout->ld, false};
    if (layout->kind == CK_COLUMNS)
        return (ck_matrix){p->filter.data + t->group * p->filter_group + (t->channel0 * layout->ld + k0) * size,
                           layout->ld, true};
    if (p->packed)
        return (ck_matrix){p->packed + phase->packed_at +
                               ((t->group * taps * p->in_channels + k0) * p->out_channels + t->channel0) * size,
                           p->out_channels, false};
    pack(p, phase, t->group, k0, k1, t->channel0, t->channels, scratch);
    return (ck_matrix){scratch, t->channels, false};
}

/* Writes a tile to pixels of the result that do not form a matrix of the arithmetic's dtype. */
static void store_tile(const ck_product *p, const ck_phase *phase, const tile *t, const char *from)
{
    int64_t size = ck_size(p->gemm.arithmetic), grid = grid_of(phase), width = phase->window.out_width;
    const int64_t *stride = phase->out.stride;
    char *to = p->out_data + phase->out_at + t->group * p->out_group + t->channel0 * stride[3];
    for (int64_t pixel = t->pixel0, left = t->pixels; left > 0;) {
        int64_t n = pixel / grid, i = pixel % grid / width, j = pixel % width, count = ck_min(left, width - j);
        ck_store_block(p->store, size, to + n * stride[0] + i * stride[1] + j * stride[2], stride[2], stride[3], from,
                       t->channels, 1, count, t->channels, false);
        from += count * t->channels * size;
        pixel += count;
        left -= count;
    }
}

static void product_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_product *p = ctx;
    const ck_phase *phase = phase_of(p, unit, false);
    const tile t = tile_of(p, phase, unit - phase->first_unit);
    int64_t size = ck_size(p->gemm.arithmetic), grid = grid_of(phase);
    int64_t terms = phase->window.rows * phase->window.cols * p->in_channels, step = ck_sum_block(terms);
    bool copy_image = phase->image_layout.kind == CK_COPY, copy_out = phase->out_layout.kind == CK_COPY;
    bool copy_filter = phase->filter_layout.kind == CK_COPY && !p->packed;
    char *patches = ck_worker_scratch(worker), *filters = patches + p->patch_bytes;
    char *sums = filters + p->filter_bytes, *staged = sums + p->tile_bytes;

    if ((copy_image && t.pixels * step * size > p->patch_bytes) ||
        (copy_filter && step * t.channels * size > p->filter_bytes) ||
        (copy_out && t.pixels * t.channels * size > p->tile_bytes)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    ck_pixels pixels = p->pixels;
    pixels.array.data += t.group * p->image_group;
    if (copy_image && !pixels.plain) {
        ck_region region = ck_reach(&phase->window, t.pixel0, t.pixels);
        if (region.rows > 0 && region.cols > 0 &&
            region.images * region.rows * region.cols * p->in_channels * size <= p->stage_bytes)
            pixels = ck_stage(&pixels, &region, size, p->in_channels, p->gemm.arithmetic, staged);
    }
    ck_array out = phase->out;
    out.data = p->out_data + phase->out_at + t.group * p->out_group;
    ck_matrix c = {sums, t.channels, false};
    if (!copy_out)
        c = (ck_matrix){ck_address(&out, &phase->out_layout, size, grid, p->within_image, t.pixel0, t.channel0),
                        phase->out_layout.ld, phase->out_layout.kind == CK_COLUMNS};
    for (int64_t k0 = 0; k0 < terms; k0 += step) {
        if (k0 && ck_worker_stop(worker))
            return;
        int64_t k1 = ck_min(terms, k0 + step);
        ck_matrix a = {patches, k1 - k0, false};
        if (copy_image)
            ck_im2col(&phase->window, &pixels, size, p->in_channels, t.pixel0, t.pixels, k0, k1, patches);
        else
            a = (ck_matrix){ck_address(&pixels.array, &phase->image_layout, size, grid, p->within_image, t.pixel0, k0),
                            phase->image_layout.ld, phase->image_layout.kind == CK_COLUMNS};
        ck_multiply(&p->gemm, t.pixels, t.channels, k1 - k0, a, filter_block(p, phase, &t, k0, k1, filters), k0 > 0, c);
    }
    if (copy_out)
        store_tile(p, phase, &t, sums);
}

int ck_product_run(const ck_product *p, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)p;
    if (p->packed) {
        job.fn = pack_unit;
        job.chunks = p->packs;
        job.scratch_bytes = 0;
        int code = ck_pool_run(&job);
        if (code != CK_OK)
            return code;
    }
    job.fn = product_unit;
    job.chunks = p->units;
    /* At least a byte, so that the parts have addresses where nothing is copied. */
    job.scratch_bytes = (size_t)ck_max(1, p->patch_bytes + p->filter_bytes + p->tile_bytes + p->stage_bytes);
    return ck_pool_run(&job);
}
