/* Tests of the input gradient by col2im. */
#include "check.h"
#include "problem.h"
#include "scatter.h"

enum { CASES = 2000 };

typedef struct {
    problem q;
    strided gradient, filter, result;
    ck_scatter s;
    offsets rows, cols;
    multiplier blas;
} trial;

static void cut(trial *t, generator *r)
{
    const problem *q = &t->q;
    ck_scatter *s = &t->s;
    s->image_block = between(r, 1, q->images);
    s->channel_block = one_in(r, 2) ? q->in : between(r, 1, q->in);
    s->pixel_block = between(r, 1, one_in(r, 2) ? 12 : q->images * q->grid[0] * q->grid[1] + 5);
    s->tap_block = s->channel_block < q->in ? 1 : between(r, 1, q->filter[1]);
}

static void size_scratch(trial *t, generator *r)
{
    const problem *q = &t->q;
    ck_scatter *s = &t->s;
    int64_t size = ck_size(s->gemm.arithmetic);
    int64_t all = s->image_block * q->grid[0] * q->grid[1], pixels = ck_min(s->pixel_block, all);
    bool levels = q->filter[0] * q->filter[1] > CK_SUM_BLOCK;
    int64_t tile = s->image_block * q->size[0] * q->size[1] * s->channel_block * size;
    s->gradient_bytes = random_scratch(r, pixels * q->out * size);
    s->filter_bytes = random_scratch(r, s->tap_block * s->channel_block * q->out * size);
    s->column_bytes = random_scratch(r, s->tap_block * s->channel_block * pixels * size);
    s->tile_bytes = random_scratch(r, tile);
    s->total_bytes = levels ? random_scratch(r, tile) : 0;
}

static void set_up(trial *t, const problem *q, generator *r, double (*draw)(generator *, ck_type))
{
    *t = (trial){.q = *q, .rows = forward_offsets(q, 0), .cols = forward_offsets(q, 1)};
    ck_scatter *s = &t->s;
    ck_type arithmetic = one_in(r, 3) ? CK_F64 : CK_F32;
    t->gradient = strided_random(r, GRID_LENGTHS(q), PIXEL_GRADIENT, arithmetic);
    t->filter = strided_random(r, FILTER_LENGTHS(q), TAPS, arithmetic);
    t->result = strided_random(r, IMAGE_LENGTHS(q), PIXEL_RESULT, arithmetic);
    strided_fill(r, &t->gradient, draw);
    strided_fill(r, &t->filter, draw);
    s->gemm = (ck_gemm){multiply_plainly, &t->blas, arithmetic};
    s->window = forward_window(q, &t->rows, &t->cols);
    s->gradients = t->gradient.array;
    s->filter = t->filter.array;
    s->out = t->result.array;
    s->load_gradient = ck_loader(&s->gradients, arithmetic);
    s->load_filter = ck_loader(&s->filter, arithmetic);
    s->store = ck_storer(&s->out, arithmetic);
    s->images = q->images;
    s->groups = q->groups;
    s->in_channels = q->in;
    s->out_channels = q->out;
    s->gradient_group = q->out * s->gradients.stride[3];
    s->filter_group = q->out * s->filter.stride[3];
    s->out_group = q->in * s->out.stride[3];
    cut(t, r);
    size_scratch(t, r);
}

static int run_on(trial *t, int threads, int workers)
{
    const ck_scatter *s = &t->s;
    spoil_scratch(s->gradient_bytes + s->filter_bytes + s->column_bytes + s->tile_bytes + s->total_bytes);
    memset(t->result.memory, NOTHING, (size_t)t->result.bytes);
    return ck_scatter_run(s, &(ck_job){.threads = threads, .max_workers = workers});
}

static bool right(const trial *t)
{
    double *gradient = strided_values(&t->gradient), *filter = strided_values(&t->filter);
    double *result = calloc((size_t)count_of(t->result.length), sizeof *result);
    convolve(&t->q, result, filter, gradient, SUM_X);
    bool same = strided_holds(&t->result, result);
    free(gradient);
    free(filter);
    free(result);
    return same;
}

static void tear_down(trial *t)
{
    strided_free(&t->gradient);
    strided_free(&t->filter);
    strided_free(&t->result);
}

/* A trial holds pointers into itself. */
#define WITH_TRIAL(T, SEED, DRAW)                                                                                     \
    generator r = seeded((uint64_t)(SEED));                                                                           \
    problem q = random_problem(&r);                                                                                   \
    trial T;                                                                                                          \
    set_up(&T, &q, &r, DRAW)

static void gradients_equal_the_plain_sums(void)
{
    int cut_channels = 0, cut_images = 0, merged = 0, separate = 0, deep = 0;
    for (int seed = 0; seed < CASES; seed++) {
        WITH_TRIAL(t, seed, small_integer);
        int threads = (int)between(&r, 1, MOST_THREADS), workers = (int)between(&r, 1, MOST_THREADS);
        int code = run_on(&t, threads, workers);
        bool good = code == CK_OK && right(&t);
        if (!good)
            fprintf(stderr, "seed %d\n", seed);
        CHECK(good);
        cut_channels += t.s.channel_block < t.q.in;
        cut_images += t.s.image_block < t.q.images;
        merged += t.s.tap_block > 1 && t.q.dilation[1] == 1;
        separate += t.s.tap_block > 1 && t.q.dilation[1] > 1;
        deep += t.q.out > CK_SUM_BLOCK;
        tear_down(&t);
    }
    CHECK(cut_channels >= 100 && cut_images >= 100 && merged >= 50 && separate >= 50 && deep >= 20);
}

/* One pixel that each of 529 output pixels meets at a tap of its own. */
static const problem MANY_TAPS = {.images = 1, .groups = 1, .in = 1, .out = 1, .size = {1, 1}, .filter = {23, 23},
                                  .stride = {1, 1}, .dilation = {1, 1}, .before = {22, 22}, .grid = {23, 23}};

static void many_additions_to_a_pixel_have_a_second_level(void)
{
    for (int seed = 0; seed < 40; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, &MANY_TAPS, &r, small_integer);
        CHECK(t.s.total_bytes > 0);
        CHECK(run_on(&t, 2, 2) == CK_OK && right(&t));
        t.s.total_bytes = ck_max(0, t.s.total_bytes - 64); /* the size may be rounded up to 64 */
        CHECK(run_on(&t, 1, 1) == CK_BAD_PLAN && untouched(&t.result));
        tear_down(&t);
    }
}

static double one(generator *r, ck_type type)
{
    (void)r;
    (void)type;
    return 1;
}

/* In a float, a sum of 2^24 takes no notice of ones that are added one by one. */
static void small_terms_survive_a_large_one_before_them(void)
{
    int compared = 0;
    for (int seed = 0; seed < 40; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, &MANY_TAPS, &r, one);
        if (t.filter.array.type == CK_F32 && t.filter.array.stride[0] && t.filter.array.stride[1] &&
            t.result.array.type == CK_F32) {
            set_element(CK_F32, t.filter.array.swapped, t.filter.array.data, 0x1p24);
            t.s.pixel_block = count_of(t.gradient.length);
            t.s.tap_block = 1;
            size_scratch(&t, &r);
            CHECK(run_on(&t, 1, 1) == CK_OK);
            CHECK(element(CK_F32, t.result.array.swapped, t.result.array.data) > 0x1p24);
            compared++;
        }
        tear_down(&t);
    }
    CHECK(compared > 0);
}

static void bits_are_the_same_on_any_number_of_threads(void)
{
    for (int seed = 0; seed < 150; seed++) {
        WITH_TRIAL(t, seed, any_number);
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
        WITH_TRIAL(t, seed, small_integer);
        int64_t *parts[] = {&t.s.gradient_bytes, &t.s.filter_bytes, &t.s.column_bytes, &t.s.tile_bytes};
        for (int i = 0; i < 4; i++) {
            int64_t enough = *parts[i], size = ck_size(t.s.gemm.arithmetic);
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

static void a_stopped_gradient_leaves_nothing_running(void)
{
    for (int seed = 0; seed < 6; seed++) {
        generator r = seeded((uint64_t)seed);
        problem q = {.images = 4, .groups = 2, .in = 8, .out = 3, .size = {6, 6}, .filter = {3, 3}, .stride = {1, 1},
                     .dilation = {1, 1}, .before = {1, 1}, .grid = {6, 6}};
        trial t;
        set_up(&t, &q, &r, small_integer);
        t.s.image_block = t.s.channel_block = t.s.pixel_block = t.s.tap_block = 1;
        t.blas.delay_us = 500;
        ck_job limits = {.threads = 4, .max_workers = 4, .poll = stop_at_once};
        CHECK(stopped_cleanly(&t.blas, ck_scatter_run(&t.s, &limits)));
        CHECK(atomic_load(&t.blas.calls) < q.images * q.groups * q.in * 9 * 36);
        tear_down(&t);
    }
}

static void a_stopped_gradient_leaves_its_tile_unwritten(void)
{
    generator r = seeded(0);
    problem q = {.images = 2, .groups = 1, .in = 4, .out = 3, .size = {6, 6}, .filter = {3, 3}, .stride = {1, 1},
                 .dilation = {1, 1}, .before = {1, 1}, .grid = {6, 6}};
    trial t;
    set_up(&t, &q, &r, small_integer);
    t.s.image_block = q.images;
    t.s.channel_block = q.in;
    t.s.pixel_block = t.s.tap_block = 1;
    t.s.gradient_bytes = t.s.filter_bytes = t.s.column_bytes = t.s.tile_bytes = t.s.total_bytes = 1 << 14;
    t.blas.delay_us = 500;
    ck_job limits = {.threads = 1, .max_workers = 1, .poll = stop_at_once};
    CHECK(stopped_cleanly(&t.blas, ck_scatter_run(&t.s, &limits)));
    CHECK(atomic_load(&t.blas.calls) < 9 * q.images * q.grid[0] * q.grid[1] && untouched(&t.result));
    tear_down(&t);
}

int main(void)
{
    RUN(gradients_equal_the_plain_sums);
    RUN(many_additions_to_a_pixel_have_a_second_level);
    RUN(small_terms_survive_a_large_one_before_them);
    RUN(bits_are_the_same_on_any_number_of_threads);
    RUN(too_little_scratch_is_refused_before_anything_is_written);
    RUN(a_stopped_gradient_leaves_nothing_running);
    RUN(a_stopped_gradient_leaves_its_tile_unwritten);
    return summary();
}
