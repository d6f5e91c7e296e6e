/* Tests of the int8 convolution as a whole: random problems in random layouts, cut anyhow, against plain loops. */
#include "check.h"
#include "int8_image.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

extern const ck_int8_kernel ck_int8_lanes8, ck_int8_lanes16, ck_int8_emulated;

enum { MOST_TAPS = 6, GUARD_BYTES = 64, NOTHING = 0xa5 };

typedef struct {
    ck_int8 d;
    int64_t row_at[MOST_TAPS], col_at[MOST_TAPS], channels[2]; /* all channels in and out */
    ck_int8_run runs[MOST_TAPS * MOST_TAPS];
    unsigned char *memory[3]; /* image, side, out */
    int64_t bytes[3];
    int8_t *filter;
    int64_t filter_bytes;
    float *scale, *bias;
    int32_t *integer_bias;
    int64_t *at[CK_FORMS];
} problem;

/* The kernels that run here, the emulated ones among them, by turns. */
static const ck_int8_kernel *kernel_of(int seed)
{
    const ck_int8_kernel *all[16];
    int count = 0;
    for (int i = 0; ck_int8_kernels[i]; i++)
        if (ck_isa_runs(ck_int8_kernels[i]->isa))
            all[count++] = ck_int8_kernels[i];
    all[count++] = &ck_int8_lanes8;
    all[count++] = &ck_int8_lanes16;
#ifdef CK_WITH_X86
    if (ck_isa_runs(ck_int8_emulated.isa))
        all[count++] = &ck_int8_emulated;
#endif
    return all[seed % count];
}

static int64_t size_of(ck_type type) { return type == CK_I8 || type == CK_U8 ? 1 : 4; }

static void set_taps(generator *r, int64_t *at, int64_t taps)
{
    const int64_t apart = between(r, 1, 2), before = between(r, 0, 2);
    for (int64_t i = 0; i < taps; i++)
        at[i] = i * apart - before;
}

/* Lays an image of n, h, w, c out in one of the orders, and makes its memory. */
static void lay_out(generator *r, ck_int8_image *image, ck_type type, int64_t n, int64_t h, int64_t w, int64_t c,
                    unsigned char **memory, int64_t *bytes)
{
    const int64_t size = size_of(type), gap = one_in(r, 2) ? 0 : between(r, 1, 3);
    image->type = type;
    image->swapped = size == 4 && one_in(r, 4);
    int64_t pixels = n * h * w;
    switch (between(r, 0, 2)) {
    case 0: /* channels last */
        image->lane = size, image->block = 4 * size, image->stride[2] = c * size + gap;
        image->stride[1] = w * image->stride[2], image->stride[0] = h * image->stride[1];
        *bytes = n * image->stride[0] - gap;
        break;
    case 1: /* planes */
        image->stride[2] = size, image->stride[1] = w * size + gap;
        image->lane = h * image->stride[1], image->block = 4 * image->lane, image->stride[0] = c * image->lane;
        *bytes = n * image->stride[0] - gap;
        break;
    default: /* planes of four */
        image->lane = size, image->stride[2] = 4 * size, image->stride[1] = w * image->stride[2];
        image->block = h * image->stride[1], image->stride[0] = (c + 3) / 4 * image->block;
        *bytes = (c + 3) / 4 * 4 * size * pixels;
    }
    *memory = malloc((size_t)(*bytes + 2 * GUARD_BYTES));
    memset(*memory, NOTHING, (size_t)(*bytes + 2 * GUARD_BYTES));
    image->data = (char *)*memory + GUARD_BYTES;
}

static char *element(const ck_int8_image *image, int64_t n, int64_t y, int64_t x, int64_t c)
{
    return image->data + n * image->stride[0] + y * image->stride[1] + x * image->stride[2] + c / 4 * image->block +
           c % 4 * image->lane;
}

static void cut_into_tiles(problem *p, generator *r)
{
    ck_int8 *d = &p->d;
    const ck_window *w = &d->window;
    const ck_int8_kernel *k = d->kernel;
    const int64_t panels = ck_ceil_div(d->out_channels, k->columns), units = d->groups * panels;
    d->row_block = between(r, 1, w->out_height);
    d->col_block = between(r, 1, w->out_width);
    const bool whole = d->row_block == w->out_height && d->col_block == w->out_width;
    d->image_block = whole ? between(r, 1, d->images) : 1;
    d->panel_block = between(r, 1, panels);
    d->pitch = d->in_channels + (one_in(r, 3) ? between(r, 1, 9) : 0);
    bool neighbours = d->pitch == d->in_channels;
    for (int64_t b = 1; b < w->cols; b++)
        neighbours = neighbours && w->col_at[b] - w->col_at[b - 1] == 1;
    const int64_t taps = neighbours ? 1 : w->cols;
    d->runs = p->runs;
    d->run_count = d->depthwise ? 0 : w->rows * taps;
    for (int64_t i = 0; i < d->run_count; i++)
        p->runs[i] = (ck_int8_run){i / taps, i % taps, d->in_channels * w->cols / taps};
    const int64_t high = (d->row_block - 1) * w->row_step + w->row_at[w->rows - 1] - w->row_at[0] + 1;
    const int64_t wide = (d->col_block - 1) * w->col_step + w->col_at[w->cols - 1] - w->col_at[0] + 1;
    d->row_pitch = d->depthwise ? wide : wide * d->pitch;
    int64_t packed = 0, unit_bytes = 0;
    for (int form = CK_BYTES; form < (k->pairs_saturate ? CK_FORMS : CK_WORDS); form++) {
        ck_int8_form *f = &d->form[form];
        for (int64_t i = 0; i < d->run_count; i++)
            f->steps += ck_ceil_div(p->runs[i].count, ck_form_unit((ck_form)form));
        if (d->depthwise) {
            const ck_int8_columns c = ck_int8_columns_of(d, (ck_form)form);
            f->steps = c.rows * c.steps;
            unit_bytes = ck_max(unit_bytes, ck_int8_unit_bytes(d, (ck_form)form, wide));
        }
        f->block_steps = one_in(r, 2) ? f->steps : between(r, 1, f->steps);
        f->packed_at = packed;
        packed += units * f->steps * k->columns * CK_UNIT_BYTES;
        p->at[form] = malloc((size_t)f->steps * sizeof(int64_t));
        f->at = p->at[form];
        ck_int8_place_steps(d, (ck_form)form, p->at[form]);
    }
    d->sums_at = packed;
    d->peaks_at = packed + units * w->rows * k->columns * 4;
    d->packed = malloc((size_t)(d->peaks_at + units * 4));
    const int64_t pixels = d->image_block * d->row_block * d->col_block * k->columns;
    const int64_t staged = d->depthwise ? unit_bytes + ck_int8_row_bytes(d, wide)
                                        : d->image_block * high * d->row_pitch * 2 + CK_UNIT_BYTES;
    d->stage_bytes = ck_ceil_div(staged, 64) * 64;
    d->sums_bytes = d->side_bytes = d->out_bytes = pixels * 4;
    d->factor_bytes = d->panel_block * 12 * CK_INT8_MOST_COLUMNS;
    d->units = ck_int8_units(d);
}

static void set_up(problem *p, generator *r, const ck_int8_kernel *kernel)
{
    memset(p, 0, sizeof *p);
    ck_int8 *d = &p->d;
    ck_window *w = &d->window;
    d->kernel = kernel;
    *w = (ck_window){between(r, 1, 20), between(r, 1, 20), 0, 0, between(r, 1, 3), between(r, 1, 3),
                     between(r, 1, MOST_TAPS), between(r, 1, MOST_TAPS), p->row_at, p->col_at};
    w->out_height = between(r, 1, 12);
    w->out_width = between(r, 1, 20);
    set_taps(r, p->row_at, w->rows);
    set_taps(r, p->col_at, w->cols);
    d->images = between(r, 1, 3);
    d->groups = one_in(r, 3) ? between(r, 2, 5) : 1;
    d->in_channels = between(r, 1, 17);
    d->out_channels = one_in(r, 2) ? between(r, 1, 17) : between(r, 1, 70);
    d->depthwise = one_in(r, 4);
    if (d->depthwise) {
        d->groups = d->in_channels = 1;
        d->multiplier = one_in(r, 2) ? 1 : between(r, 2, 5);
        d->out_channels = ck_ceil_div(d->out_channels, d->multiplier) * d->multiplier;
    } else if (one_in(r, 3)) { /* pixels that may be read where they lie */
        w->height = w->out_height, w->width = w->out_width;
        w->rows = w->cols = w->row_step = w->col_step = 1;
        p->row_at[0] = p->col_at[0] = 0;
        d->in_channels = 4 * between(r, 1, 9);
    }
    p->channels[1] = d->groups * d->out_channels;
    p->channels[0] = d->depthwise ? d->out_channels / d->multiplier : d->groups * d->in_channels;
    lay_out(r, &d->image, one_in(r, 2) ? CK_I8 : CK_U8, d->images, w->height, w->width, p->channels[0], &p->memory[0],
            &p->bytes[0]);
    const bool large = one_in(r, 2), equal = one_in(r, 8);
    for (int64_t i = 0; i < p->bytes[0]; i++)
        d->image.data[i] = (char)(equal ? (large ? 128 : 127) : between(r, 0, large ? 255 : 127));
    static const ck_type outs[] = {CK_I32, CK_I8, CK_U8, CK_F32}, sides[] = {CK_TYPES, CK_I8, CK_U8, CK_F32};
    const ck_type out = outs[between(r, 0, 3)];
    d->side.type = out == CK_I32 ? CK_TYPES : sides[between(r, 0, out == CK_F32 ? 3 : 2)];
    if (d->side.type != CK_TYPES)
        lay_out(r, &d->side, d->side.type, d->images, w->out_height, w->out_width, p->channels[1], &p->memory[1],
                &p->bytes[1]);
    for (int64_t i = 0; i < p->bytes[1]; i++)
        d->side.data[i] = (char)between(r, 1, 60); /* a small float32, too */
    lay_out(r, &d->out, out, d->images, w->out_height, w->out_width, p->channels[1], &p->memory[2], &p->bytes[2]);

    /* Tap row, tap column, channel in, channel out; or channel out first. */
    p->filter_bytes = w->rows * w->cols * d->in_channels * p->channels[1];
    p->filter = malloc((size_t)p->filter_bytes);
    const int limit = one_in(r, 2) ? 64 : 128, same = one_in(r, 8);
    for (int64_t i = 0; i < p->filter_bytes; i++)
        p->filter[i] = (int8_t)(same ? -128 : between(r, -limit, limit - 1));
    d->filter = (const char *)p->filter;
    d->filter_out = one_in(r, 2) ? 1 : w->rows * w->cols * d->in_channels;
    d->filter_lane = d->filter_out == 1 ? p->channels[1] : 1;
    d->filter_block = 4 * d->filter_lane;
    d->filter_stride[1] = d->in_channels * d->filter_lane;
    d->filter_stride[0] = w->cols * d->filter_stride[1];

    d->input_zero_point = d->image.type == CK_I8 ? between(r, -128, 127) : between(r, 0, 255);
    d->scale_per_channel = one_in(r, 2);
    p->scale = malloc((size_t)p->channels[1] * sizeof *p->scale);
    p->bias = malloc((size_t)p->channels[1] * sizeof *p->bias);
    p->integer_bias = malloc((size_t)p->channels[1] * sizeof *p->integer_bias);
    for (int64_t i = 0; i < p->channels[1]; i++) {
        p->scale[i] = (float)between(r, 1, 1000) * 1e-6f;
        p->bias[i] = (float)between(r, -300, 300) * 0.25f;
        p->integer_bias[i] = (int32_t)next_bits(r) >> 12;
    }
    d->scale = p->scale;
    d->bias = one_in(r, 2) ? p->bias : NULL;
    d->integer_bias = d->bias || one_in(r, 2) ? NULL : p->integer_bias;
    d->side_scale = 0.5f;
    if (size_of(out) == 1) {
        const int low = out == CK_I8 ? -128 : 0;
        d->output_zero_point = low + (int32_t)between(r, 0, 255);
        d->low = one_in(r, 2) ? 0 : (float)(low - d->output_zero_point);
        d->high = (float)(low + 255 - d->output_zero_point);
    }
    d->relu = out == CK_F32 && one_in(r, 2);
    cut_into_tiles(p, r);
}

static void tear_down(problem *p)
{
    for (int i = 0; i < 3; i++)
        free(p->memory[i]);
    free(p->filter);
    free(p->scale);
    free(p->bias);
    free(p->integer_bias);
    free(p->at[0]);
    free(p->at[1]);
    free(p->d.packed);
}

static int32_t sum_at(const ck_int8 *d, int64_t n, int64_t y, int64_t x, int64_t group, int64_t k)
{
    const ck_window *w = &d->window;
    int64_t sum = 0;
    for (int64_t a = 0; a < w->rows; a++)
        for (int64_t b = 0; b < w->cols; b++) {
            const int64_t row = y * w->row_step + w->row_at[a], col = x * w->col_step + w->col_at[b];
            if (row < 0 || row >= w->height || col < 0 || col >= w->width)
                continue;
            for (int64_t c = 0; c < d->in_channels; c++) {
                const char *pixel = element(&d->image, n, row, col, d->depthwise ? k / d->multiplier : group * d->in_channels + c);
                const int64_t value = d->image.type == CK_I8 ? (int8_t)*pixel : (uint8_t)*pixel;
                const int8_t weight = (int8_t)d->filter[a * d->filter_stride[0] + b * d->filter_stride[1] +
                                                        c * d->filter_lane + (group * d->out_channels + k) * d->filter_out];
                sum += (value - d->input_zero_point) * weight;
            }
        }
    return (int32_t)sum;
}

static void native(const ck_int8_image *image, const char *from, unsigned char *to)
{
    for (int b = 0; b < 4; b++)
        to[b] = (unsigned char)from[image->swapped ? 3 - b : b];
}

/* Finishes one sum with the kernel's own epilogue, which is tested elsewhere, as the only channel of one row. */
static bool right(const ck_int8 *d, int32_t sum, int64_t channel, const char *side, const char *out)
{
    const int32_t sums[CK_INT8_MOST_COLUMNS] = {
        (int32_t)((uint32_t)sum + (d->integer_bias ? (uint32_t)d->integer_bias[channel] : 0u))};
    float scale[CK_INT8_MOST_COLUMNS] = {d->scale[d->scale_per_channel ? channel : 0]};
    float bias[CK_INT8_MOST_COLUMNS] = {d->bias ? d->bias[channel] : -0.0f};
    const ck_int8_epilogue e = {d->out.type, d->side.type, scale, bias, d->side_scale, d->low, d->high,
                                d->output_zero_point, d->relu};
    unsigned char beside[4] = {0}, wanted[4], seen[4];
    if (d->side.type == CK_F32)
        native(&d->side, side, beside);
    else if (d->side.type != CK_TYPES)
        beside[0] = (unsigned char)*side;
    d->kernel->finish(1, 1, sums, &e, beside, 0, wanted, 0);
    if (size_of(d->out.type) == 1)
        return wanted[0] == (unsigned char)*out;
    native(&d->out, out, seen);
    return memcmp(seen, wanted, 4) == 0;
}

static void check_problem(const problem *p)
{
    const ck_int8 *d = &p->d;
    int64_t wrong = 0, touched = 0;
    for (int64_t n = 0; n < d->images; n++)
        for (int64_t y = 0; y < d->window.out_height; y++)
            for (int64_t x = 0; x < d->window.out_width; x++)
                for (int64_t c = 0; c < p->channels[1]; c++) {
                    char *out = element(&d->out, n, y, x, c);
                    const char *side = d->side.type == CK_TYPES ? NULL : element(&d->side, n, y, x, c);
                    const int32_t sum = sum_at(d, n, y, x, c / d->out_channels, c % d->out_channels);
                    wrong += !right(d, sum, c, side, out);
                    memset(out, NOTHING, (size_t)size_of(d->out.type));
                }
    for (int64_t i = 0; i < p->bytes[2] + 2 * GUARD_BYTES; i++)
        touched += p->memory[2][i] != NOTHING;
    CHECK(wrong == 0 && touched == 0);
    if (wrong || touched)
        fprintf(stderr, "%s: %d wrong, %d bytes touched that are not results\n", d->kernel->name, (int)wrong,
                (int)touched);
}

static void random_problems_come_out_exactly(void)
{
    for (int seed = 0; seed < (UNDER_TSAN ? 60 : 400); seed++) {
        generator r = seeded((uint64_t)seed);
        static problem p;
        set_up(&p, &r, kernel_of(seed));
        const int threads = (int)between(&r, 1, 3);
        const ck_job limits = {.threads = threads, .max_workers = threads};
        CHECK(ck_int8_run_all(&p.d, &limits) == CK_OK);
        check_problem(&p);
        tear_down(&p);
        if (atomic_load(&check_faults)) {
            fprintf(stderr, "seed %d\n", seed);
            return;
        }
    }
}

static void a_filter_packed_once_serves_many_runs(void)
{
    for (int seed = 1000; seed < 1040; seed++) {
        generator r = seeded((uint64_t)seed);
        static problem p;
        set_up(&p, &r, kernel_of(seed));
        const ck_job limits = {.threads = 2, .max_workers = 2};
        CHECK(ck_int8_pack(&p.d, &limits) == CK_OK);
        for (int run = 0; run < 2; run++) {
            CHECK(ck_int8_run_packed(&p.d, &limits) == CK_OK);
            check_problem(&p);
        }
        tear_down(&p);
    }
}

int main(void)
{
    RUN(random_problems_come_out_exactly);
    RUN(a_filter_packed_once_serves_many_runs);
    return summary();
}
