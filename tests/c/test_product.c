/* Tests of products of patches and filters: forward convolutions, and input gradients phase by phase of the strides. */
#include "check.h"
#include "phases.h"
#include "product.h"

enum { CASES = 2000 };

typedef struct {
    problem q;
    bool backward;
    strided image, filter, result; /* of a backward trial, `image` is the output gradient */
    ck_product p;
    ck_phase phases[MOST_PHASES];
    phase_set set;
    char *packed;
    int64_t packed_bytes;
    multiplier blas;
} trial;

static void set_phase(trial *t, ck_phase *phase, const phase_axis *row, const phase_axis *col)
{
    const int64_t *stride = t->result.array.stride;
    phase->window = phase_window(&t->q, t->backward, row, col);
    phase->out = t->result.array;
    phase->row_tap = row->o.tap;
    phase->col_tap = col->o.tap;
    if (!t->backward)
        return;
    phase->out.stride[1] *= t->q.stride[0];
    phase->out.stride[2] *= t->q.stride[1];
    phase->out_at = row->first * stride[1] + col->first * stride[2];
}

static bool sees_itself(const ck_window *w)
{
    return w->rows * w->cols == 1 && w->row_at[0] == 0 && w->col_at[0] == 0 && w->row_step == 1 && w->col_step == 1 &&
           w->height == w->out_height && w->width == w->out_width;
}

static bool taps_in_order(const ck_phase *phase)
{
    bool ordered = true;
    for (int64_t a = 0; a < phase->window.rows; a++)
        ordered = ordered && phase->row_tap[a] == a;
    for (int64_t b = 0; b < phase->window.cols; b++)
        ordered = ordered && phase->col_tap[b] == b;
    return ordered;
}

static ck_layout filter_layout(const trial *t, const ck_phase *phase)
{
    const int64_t *s = t->p.filter.stride;
    if (t->p.phase_count > 1 || !taps_in_order(phase) || !strided_usable(&t->filter, t->p.gemm.arithmetic))
        return (ck_layout){CK_COPY, 0};
    return matrix_layout(3, (int64_t[]){phase->window.rows, phase->window.cols, t->p.in_channels}, s,
                         t->p.out_channels, s[3], ck_size(t->p.gemm.arithmetic));
}

/* Uses arrays in place wherever they can be, or now and then not; returns whether images may be crossed. */
static bool choose_layouts(trial *t, generator *r)
{
    bool across = true, in_place[3] = {!one_in(r, 4), !one_in(r, 4), !one_in(r, 4)};
    ck_type arithmetic = t->p.gemm.arithmetic;
    for (int64_t i = 0; i < t->p.phase_count; i++) {
        ck_phase *phase = &t->phases[i];
        const ck_window *w = &phase->window;
        int64_t seen[4] = {t->q.images, w->out_height, w->out_width, 0};
        if (in_place[0] && t->p.phase_count == 1 && sees_itself(w))
            phase->image_layout =
                pixel_layout(&t->image, seen, t->image.array.stride, t->p.in_channels, arithmetic, &across);
        if (in_place[1])
            phase->filter_layout = filter_layout(t, phase);
        if (in_place[2])
            phase->out_layout =
                pixel_layout(&t->result, seen, phase->out.stride, t->p.out_channels, arithmetic, &across);
    }
    return across;
}

static int64_t run_length(const ck_product *p, const ck_phase *phase)
{
    int64_t width = phase->window.out_width, grid = width * phase->window.out_height;
    return p->run == CK_RUN_ROW ? width : p->run == CK_RUN_IMAGE ? grid : grid * p->images;
}

static void number_units(trial *t)
{
    ck_product *p = &t->p;
    int64_t size = ck_size(p->gemm.arithmetic);
    p->units = p->packs = t->packed_bytes = 0;
    for (int64_t i = 0; i < p->phase_count; i++) {
        ck_phase *phase = &t->phases[i];
        int64_t packs = p->groups * phase->window.rows * phase->window.cols;
        phase->first_unit = p->units;
        phase->first_pack = p->packs;
        phase->packed_at = t->packed_bytes;
        p->units += ck_product_units(p, phase);
        p->packs += packs;
        t->packed_bytes += packs * p->in_channels * p->out_channels * size;
    }
}

/* The least scratch that the largest tile of any phase needs. */
static void size_scratch(trial *t, generator *r)
{
    ck_product *p = &t->p;
    int64_t size = ck_size(p->gemm.arithmetic), channels = ck_min(p->channel_block, p->out_channels);
    int64_t patch = 0, filter = 0, tile = 0;
    for (int64_t i = 0; i < p->phase_count; i++) {
        const ck_phase *phase = &t->phases[i];
        int64_t pixels = ck_min(p->pixel_block, run_length(p, phase));
        int64_t step = ck_sum_block(phase->window.rows * phase->window.cols * p->in_channels);
        if (phase->image_layout.kind == CK_COPY)
            patch = ck_max(patch, pixels * step * size);
        if (phase->filter_layout.kind == CK_COPY && !p->packed)
            filter = ck_max(filter, step * channels * size);
        if (phase->out_layout.kind == CK_COPY)
            tile = ck_max(tile, pixels * channels * size);
    }
    p->patch_bytes = random_scratch(r, patch);
    p->filter_bytes = random_scratch(r, filter);
    p->tile_bytes = random_scratch(r, tile);
    int64_t pixels = count_of(t->image.length) / p->groups;
    p->stage_bytes = one_in(r, 3) ? 0 : size * (one_in(r, 2) ? pixels : between(r, 1, pixels));
}

static void set_up(trial *t, const problem *q, bool backward, generator *r, double (*draw)(generator *, ck_type))
{
    *t = (trial){.q = *q, .backward = backward};
    ck_product *p = &t->p;
    ck_type arithmetic = one_in(r, 3) ? CK_F64 : CK_F32;
    p->gemm = (ck_gemm){multiply_plainly, &t->blas, arithmetic};
    t->image = strided_random(r, backward ? GRID_LENGTHS(q) : IMAGE_LENGTHS(q), backward ? PIXEL_GRADIENT : PIXELS,
                               arithmetic);
    t->filter = strided_random(r, FILTER_LENGTHS(q), TAPS, arithmetic);
    t->result = strided_random(r, backward ? IMAGE_LENGTHS(q) : GRID_LENGTHS(q), PIXEL_RESULT, arithmetic);
    strided_fill(r, &t->image, draw);
    strided_fill(r, &t->filter, draw);
    p->pixels = (ck_pixels){.array = t->image.array,
                            .load = ck_loader(&t->image.array, arithmetic),
                            .plain = is_plain(&t->image, arithmetic)};
    p->images = q->images;
    p->groups = q->groups;
    p->in_channels = backward ? q->out : q->in;
    p->out_channels = backward ? q->in : q->out;
    p->image_group = p->in_channels * t->image.array.stride[3];
    p->out_group = p->out_channels * t->result.array.stride[3];
    p->filter_group = q->out * t->filter.array.stride[3];
    p->filter = t->filter.array;
    if (backward) {
        p->filter.stride[2] = t->filter.array.stride[3];
        p->filter.stride[3] = t->filter.array.stride[2];
    }
    p->load_filter = ck_loader(&t->filter.array, arithmetic);
    p->store = ck_storer(&t->result.array, arithmetic);
    p->out_data = t->result.array.data;
    p->phases = t->phases;
    find_phases(q, backward, &t->set);
    for (int a = 0; a < t->set.count[0]; a++)
        for (int b = 0; b < t->set.count[1]; b++)
            set_phase(t, &t->phases[p->phase_count++], &t->set.axes[0][a], &t->set.axes[1][b]);
    bool across = choose_layouts(t, r);
    p->within_image = !across || one_in(r, 3);
    p->run = (ck_run)between(r, p->within_image ? CK_RUN_IMAGE : CK_RUN_ALL, CK_RUN_ROW);
    p->pixel_block = between(r, 1, one_in(r, 2) ? 12 : q->images * q->size[0] * q->size[1] + 5);
    p->channel_block = one_in(r, 2) ? p->out_channels : between(r, 1, p->out_channels);
    number_units(t);
    if (t->phases[0].filter_layout.kind == CK_COPY && one_in(r, 2))
        p->packed = t->packed = shared_new(t->packed_bytes);
    size_scratch(t, r);
}

static int run_on(trial *t, int threads, int workers)
{
    const ck_product *p = &t->p;
    spoil_scratch(p->patch_bytes + p->filter_bytes + p->tile_bytes + p->stage_bytes);
    memset(t->result.memory, NOTHING, (size_t)t->result.bytes);
    return ck_product_run(p, &(ck_job){.threads = threads, .max_workers = workers});
}

static bool right(const trial *t)
{
    double *image = strided_values(&t->image), *filter = strided_values(&t->filter);
    double *result = calloc((size_t)count_of(t->result.length), sizeof *result);
    convolve(&t->q, t->backward ? result : image, filter, t->backward ? image : result, t->backward ? SUM_X : SUM_Y);
    if (t->backward)
        drop_unreached(&t->q, &t->set, result);
    bool same = strided_holds(&t->result, result) && (!t->packed || shared_intact(t->packed, t->packed_bytes));
    free(image);
    free(filter);
    free(result);
    return same;
}

static void tear_down(trial *t)
{
    strided_free(&t->image);
    strided_free(&t->filter);
    strided_free(&t->result);
    free(t->packed);
}

/* A trial holds pointers into itself. */
#define WITH_TRIAL(T, SEED, BACKWARD, DRAW)                                                                           \
    generator r = seeded((uint64_t)(SEED));                                                                           \
    problem q = random_problem(&r);                                                                                   \
    trial T;                                                                                                          \
    set_up(&T, &q, BACKWARD, &r, DRAW)

static void products_equal_the_direct_convolution(void)
{
    int image[3] = {0}, filter[3] = {0}, result[3] = {0}, run[3] = {0}, packed = 0, staged = 0, many = 0;
    int crossing = 0, blocks[2] = {0};
    for (int seed = 0; seed < CASES; seed++) {
        WITH_TRIAL(t, seed, seed % 2, small_integer);
        int threads = (int)between(&r, 1, MOST_THREADS), workers = (int)between(&r, 1, MOST_THREADS);
        int code = run_on(&t, threads, workers);
        bool good = code == CK_OK && right(&t);
        if (!good)
            fprintf(stderr, "seed %d\n", seed);
        CHECK(good);
        image[t.phases[0].image_layout.kind]++;
        filter[t.phases[0].filter_layout.kind]++;
        result[t.phases[0].out_layout.kind]++;
        run[t.p.run]++;
        packed += t.p.packed != NULL;
        staged += !t.p.pixels.plain && t.p.stage_bytes > 0;
        many += t.p.phase_count > 1;
        blocks[t.backward] += t.p.in_channels * t.q.filter[0] * t.q.filter[1] > CK_SUM_BLOCK;
        bool in_place = t.phases[0].image_layout.kind != CK_COPY || t.phases[0].out_layout.kind != CK_COPY;
        crossing += in_place && t.p.run == CK_RUN_ALL && t.q.images > 1;
        tear_down(&t);
    }
    for (int i = 0; i < 3; i++)
        CHECK(image[i] >= 20 && filter[i] >= 20 && result[i] >= 20 && run[i] >= 20);
    CHECK(packed >= 100 && staged >= 100 && many >= 100 && crossing >= 10);
    CHECK(blocks[0] >= 10 && blocks[1] >= 10);
}

static void bits_are_the_same_on_any_number_of_threads(void)
{
    for (int seed = 0; seed < 150; seed++) {
        WITH_TRIAL(t, seed, seed % 2, any_number);
        CHECK(run_on(&t, 1, 1) == CK_OK);
        unsigned char *first = malloc((size_t)t.result.bytes);
        memcpy(first, t.result.memory, (size_t)t.result.bytes);
        for (int threads = 2; threads <= MOST_THREADS; threads++) {
            CHECK(run_on(&t, threads, MOST_THREADS) == CK_OK);
            CHECK(memcmp(first, t.result.memory, (size_t)t.result.bytes) == 0);
        }
        free(first);
        tear_down(&t);
    }
}

static void too_little_scratch_is_refused_before_anything_is_written(void)
{
    int refused = 0;
    for (int seed = 0; seed < 300; seed++) {
        WITH_TRIAL(t, seed, false, small_integer); /* one phase: no tile is larger than the first */
        int64_t *parts[] = {&t.p.patch_bytes, &t.p.filter_bytes, &t.p.tile_bytes};
        for (int i = 0; i < 3; i++) {
            int64_t enough = *parts[i], size = ck_size(t.p.gemm.arithmetic);
            if (enough == 0)
                continue;
            *parts[i] = ck_max(0, enough - 64) / size * size; /* sizes may be rounded up to 64 */
            CHECK(run_on(&t, 1, 1) == CK_BAD_PLAN);
            CHECK(untouched(&t.result) && atomic_load(&t.blas.calls) == 0);
            *parts[i] = enough;
            refused++;
        }
        tear_down(&t);
    }
    CHECK(refused > 100);
}

static void a_stopped_product_leaves_nothing_running(void)
{
    for (int seed = 0; seed < 6; seed++) {
        generator r = seeded((uint64_t)seed);
        problem q = {.images = 2, .groups = 2, .in = 2, .out = 4, .size = {12, 12}, .filter = {3, 3}, .stride = {1, 1},
                     .dilation = {1, 1}, .before = {1, 1}, .grid = {12, 12}};
        trial t;
        set_up(&t, &q, seed % 2, &r, small_integer);
        t.p.pixel_block = t.p.channel_block = 1;
        t.blas.delay_us = 500;
        number_units(&t);
        ck_job limits = {.threads = 4, .max_workers = 4, .poll = stop_at_once};
        CHECK(stopped_cleanly(&t.blas, ck_product_run(&t.p, &limits)));
        CHECK(atomic_load(&t.blas.calls) < t.p.units);
        tear_down(&t);
    }
}

static void a_stopped_product_leaves_its_tile_unwritten(void)
{
    enum { BLOCKS = 10 };
    generator r = seeded(0);
    problem q = {.images = 1, .groups = 1, .in = 300, .out = 2, .size = {4, 4}, .filter = {4, 4}, .stride = {1, 1},
                 .dilation = {1, 1}, .grid = {1, 1}};
    trial t;
    set_up(&t, &q, false, &r, small_integer);
    t.phases[0].out_layout = (ck_layout){CK_COPY, 0};
    t.p.channel_block = q.out;
    t.p.patch_bytes = t.p.filter_bytes = t.p.tile_bytes = 1 << 14;
    t.blas.delay_us = 10000;
    number_units(&t);
    CHECK(t.p.units == 1);
    ck_job limits = {.threads = 1, .max_workers = 1, .poll = stop_at_once};
    CHECK(stopped_cleanly(&t.blas, ck_product_run(&t.p, &limits)));
    CHECK(atomic_load(&t.blas.calls) < BLOCKS && untouched(&t.result));
    tear_down(&t);
}

int main(void)
{
    RUN(products_equal_the_direct_convolution);
    RUN(bits_are_the_same_on_any_number_of_threads);
    RUN(too_little_scratch_is_refused_before_anything_is_written);
    RUN(a_stopped_product_leaves_nothing_running);
    RUN(a_stopped_product_leaves_its_tile_unwritten);
    return summary();
}
