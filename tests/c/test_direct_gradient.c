/* Tests of the filter gradient by register tiles, at every ISA level. */
#include "check.h"
#include "direct_gradient.h"
#include "problem.h"
#include "watched.h"

enum { CASES = 2400 };

typedef struct {
    problem q;
    strided image, gradient, result;
    ck_direct_gradient g;
    offsets rows, cols;
    int64_t tiles, blocks, partial_bytes;
} trial;

static int64_t panels_of(const ck_direct_gradient *g) { return ck_ceil_div(g->out_channels, g->kernel->columns); }

static int64_t strips_of(const ck_direct_gradient *g) { return ck_ceil_div(g->in_channels, g->strip); }

static int64_t blocks_in(const ck_direct_gradient *g, int64_t images, int64_t rows, int64_t cols)
{
    return ck_ceil_div(images, g->image_block) * ck_ceil_div(rows, g->row_block) * ck_ceil_div(cols, g->col_block);
}

/* All that are summed, one after another. */
static int64_t blocks_of(const trial *t)
{
    const ck_direct_gradient *g = &t->g;
    int64_t images = t->q.images, rows = t->q.grid[0], cols = t->q.grid[1];
    if (ck_products(g->kernel->arithmetic) == 1)
        return blocks_in(g, images, rows, cols);
    return blocks_in(g, images / 2, rows, cols) + blocks_in(g, images % 2, rows / 2, cols) +
           blocks_in(g, images % 2, rows % 2, cols / 2) + blocks_in(g, images % 2, rows % 2, cols % 2);
}

static void cut(trial *t, generator *r)
{
    const problem *q = &t->q;
    ck_direct_gradient *g = &t->g;
    int64_t products = ck_products(g->kernel->arithmetic), images = q->images, rows = q->grid[0], cols = q->grid[1];
    if (products == 2) { /* blocks are of the first pixels of pairs */
        int64_t *halved = images > 1 ? &images : rows > 1 ? &rows : &cols;
        *halved = ck_max(1, *halved / 2);
    }
    g->row_block = one_in(r, 2) ? rows : between(r, 1, rows);
    g->col_block = one_in(r, 2) ? cols : between(r, 1, cols);
    bool whole = g->row_block == rows && g->col_block == cols;
    int64_t most = CK_SUM_BLOCK / products / (rows * cols);
    g->image_block = whole ? between(r, 1, ck_min(images, most)) : 1;
    g->strip = one_in(r, 2) ? q->in : between(r, 1, q->in);
    g->tap_block = between(r, 1, q->filter[0]);
    g->strip_block = between(r, 1, strips_of(g));
    g->strips_at_once = between(r, 1, g->strip_block);
    g->panel_block = between(r, 1, panels_of(g));
    t->tiles = q->groups * ck_ceil_div(q->filter[0], g->tap_block) * ck_ceil_div(strips_of(g), g->strip_block) *
               ck_ceil_div(panels_of(g), g->panel_block);
    t->blocks = blocks_of(t);
    g->slice_blocks = one_in(r, 2) ? t->blocks : between(r, 1, t->blocks);
    g->slices = ck_ceil_div(t->blocks, g->slice_blocks);
    g->out_in_place = !one_in(r, 4) && !g->accumulate && g->slices == 1 && q->out % g->kernel->columns == 0 &&
                      is_plain(&t->result, sum_type(g->kernel->arithmetic));
}

/* The pixels along an axis that are laid down for `count` output pixels. */
static int64_t laid_for(const int64_t *at, int64_t taps, int64_t count, int64_t step)
{
    bool apart = true;
    for (int64_t i = 1; i < taps; i++)
        apart = apart && (at[i] - at[0]) % step == 0;
    return apart ? (reach_of(at, taps, count, step) - 1) / step + 1 : reach_of(at, taps, count, step);
}

static void size_scratch(trial *t, generator *r)
{
    ck_direct_gradient *g = &t->g;
    const ck_window *w = &g->window;
    int64_t size = ck_size(g->kernel->arithmetic), width = g->panel_block * g->kernel->columns;
    int64_t laid = laid_for(w->row_at, g->tap_block, g->row_block, w->row_step) *
                   laid_for(w->col_at, w->cols, g->col_block, w->col_step);
    if (!g->image_in_place)
        g->stage_bytes = random_scratch(r, g->image_block * laid * g->strips_at_once * g->strip * size);
    if (!g->gradient_in_place)
        g->gradient_bytes = random_scratch(r, g->image_block * g->row_block * g->col_block * width * size);
    int64_t channels = ck_min(g->strip_block * g->strip, g->in_channels);
    t->partial_bytes = t->tiles * g->slices * g->tap_block * w->cols * channels * width * size;
    g->partials = shared_new(t->partial_bytes);
}

static void set_up(trial *t, const problem *given, const ck_dot_kernel *kernel, generator *r,
                   double (*draw)(generator *, ck_type))
{
    *t = (trial){.q = *given, .rows = forward_offsets(given, 0), .cols = forward_offsets(given, 1)};
    const problem *q = &t->q;
    ck_direct_gradient *g = &t->g;
    ck_type arithmetic = kernel->arithmetic;
    t->image = strided_random(r, IMAGE_LENGTHS(q), PIXELS, arithmetic);
    t->gradient = strided_random(r, GRID_LENGTHS(q), PIXEL_GRADIENT, arithmetic);
    t->result = strided_random(r, FILTER_LENGTHS(q), TAP_RESULT, arithmetic);
    strided_fill(r, &t->image, draw);
    strided_fill(r, &t->gradient, draw);
    g->kernel = kernel;
    g->window = forward_window(q, &t->rows, &t->cols);
    g->pixels = (ck_pixels){.array = t->image.array,
                            .load = ck_loader(&t->image.array, arithmetic),
                            .plain = is_plain(&t->image, arithmetic)};
    g->gradients = (ck_pixels){.array = t->gradient.array,
                               .load = ck_loader(&t->gradient.array, arithmetic),
                               .plain = is_plain(&t->gradient, arithmetic)};
    g->out = t->result.array;
    g->store = ck_storer(&g->out, arithmetic);
    g->accumulate = one_in(r, 3);
    g->images = q->images;
    g->groups = q->groups;
    g->in_channels = q->in;
    g->out_channels = q->out;
    g->image_group = q->in * g->pixels.array.stride[3];
    g->gradient_group = q->out * g->gradients.array.stride[3];
    g->out_group = q->out * g->out.stride[3];
    bool pairs = arithmetic == CK_BF16;
    g->image_in_place = !one_in(r, 4) && g->pixels.plain && stays_inside(&g->window) && !pairs;
    g->gradient_in_place = !one_in(r, 4) && g->gradients.plain && q->out % kernel->columns == 0 && !pairs;
    cut(t, r);
    size_scratch(t, r);
}

static int run_on(trial *t, int threads, int workers)
{
    const ck_direct_gradient *g = &t->g;
    spoil_scratch(g->stage_bytes + g->gradient_bytes + 1);
    memset(g->partials, NOTHING, (size_t)t->partial_bytes);
    memset(t->result.memory, NOTHING, (size_t)t->result.bytes);
    if (g->accumulate) {
        generator r = seeded(1);
        strided_fill(&r, &t->result, small_integer);
    }
    return ck_direct_gradient_run(g, &(ck_job){.threads = threads, .max_workers = workers});
}

static bool right(const trial *t, int code)
{
    double *image = strided_values(&t->image), *gradient = strided_values(&t->gradient);
    double *result = calloc((size_t)count_of(t->result.length), sizeof *result);
    generator r = seeded(1);
    if (t->g.accumulate)
        for (int64_t i = 0; i < count_of(t->result.length); i++)
            result[i] = small_integer(&r, t->result.array.type);
    convolve(&t->q, image, result, gradient, SUM_W);
    bool same = code == CK_OK && strided_holds(&t->result, result) && shared_intact(t->g.partials, t->partial_bytes);
    free(image);
    free(gradient);
    free(result);
    return same;
}

static void tear_down(trial *t)
{
    strided_free(&t->image);
    strided_free(&t->gradient);
    strided_free(&t->result);
    free(t->g.partials);
}

/* A trial holds pointers into itself. */
#define WITH_TRIAL(T, SEED, DRAW)                                                                                     \
    generator r = seeded((uint64_t)(SEED));                                                                           \
    problem q = random_problem(&r);                                                                                   \
    const ck_dot_kernel *kernel = watched(random_arithmetic(&r), level_of(SEED), 0);                                  \
    q.out = random_channels(&r, kernel);                                                                              \
    trial T;                                                                                                          \
    set_up(&T, &q, kernel, &r, DRAW)

static void gradients_equal_the_plain_sums(void)
{
    int levels[CK_ISAS] = {0}, image[2] = {0}, gradient[2] = {0}, sliced = 0, added = 0, images = 0, tails = 0;
    int staged = 0, uneven[6] = {0}, merged[2] = {0}, strips[2] = {0}, out[2] = {0}, pairs = 0;
    for (int seed = 0; seed < CASES; seed++) {
        WITH_TRIAL(t, seed, small_integer);
        int threads = (int)between(&r, 1, MOST_THREADS), workers = (int)between(&r, 1, MOST_THREADS);
        bool good = right(&t, run_on(&t, threads, workers));
        if (!good)
            fprintf(stderr, "seed %d, %s\n", seed, kernel->name);
        CHECK(good);
        levels[kernel->isa]++;
        pairs += kernel->arithmetic == CK_BF16;
        image[t.g.image_in_place]++;
        gradient[t.g.gradient_in_place]++;
        sliced += t.g.slices > 1;
        added += t.g.accumulate;
        images += t.g.image_block > 1;
        tails += q.out % kernel->columns != 0;
        staged += !t.g.pixels.plain && !t.g.gradients.plain;
        merged[q.filter[1] > 1 && q.dilation[1] == 1]++;
        uneven[0] += q.grid[0] % t.g.row_block != 0;
        uneven[1] += q.grid[1] % t.g.col_block != 0;
        uneven[2] += panels_of(&t.g) % t.g.panel_block != 0;
        uneven[3] += q.filter[0] % t.g.tap_block != 0;
        uneven[4] += q.in % t.g.strip != 0;
        uneven[5] += strips_of(&t.g) % t.g.strip_block != 0;
        strips[t.g.strip < q.in]++;
        out[t.g.out_in_place]++;
        tear_down(&t);
    }
    for (int level = 0; level < CK_ISAS; level++)
        CHECK(!has_tile((ck_isa)level) || levels[level] >= CASES / CK_ISAS);
    for (int i = 0; i < 2; i++)
        CHECK(image[i] >= 50 && gradient[i] >= 50 && merged[i] >= 100 && strips[i] >= 400 && out[i] >= 50);
    CHECK(pairs >= CASES / 5);
    CHECK(sliced >= 200 && added >= 200 && images >= 100 && tails >= 100 && staged >= 100);
    for (int i = 0; i < 6; i++)
        CHECK(uneven[i] >= 50);
}

static void bits_are_the_same_on_any_number_of_threads(void)
{
    for (int seed = 0; seed < 90; seed++) {
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
        t.g.accumulate = false;
        int64_t *parts[] = {&t.g.stage_bytes, &t.g.gradient_bytes}, size = ck_size(kernel->arithmetic);
        for (int i = 0; i < 2; i++) {
            int64_t enough = *parts[i];
            if (enough == 0)
                continue;
            *parts[i] = ck_max(0, enough - 64) / size * size; /* sizes may be rounded up to 64 */
            CHECK(run_on(&t, 1, 1) == CK_BAD_PLAN);
            CHECK(untouched(&t.result) && atomic_load(&watch.calls) == 0);
            *parts[i] = enough;
            refused++;
        }
        tear_down(&t);
    }
    CHECK(refused > 100);
}

static problem column_of(int64_t images, int64_t rows)
{
    return (problem){.images = images, .groups = 1, .in = 1, .out = 1, .size = {rows, 1}, .filter = {1, 1},
                     .stride = {1, 1}, .dilation = {1, 1}, .grid = {rows, 1}};
}

static void blocks_hold_as_many_rows_as_a_sum_has_terms(void)
{
    for (int excess = 0; excess < 2; excess++) {
        generator r = seeded(0);
        problem q = column_of(2, CK_SUM_BLOCK / 2 + excess);
        trial t;
        set_up(&t, &q, watched(CK_F32, CK_GENERIC, 0), &r, small_integer);
        t.g.accumulate = false;
        t.g.row_block = q.grid[0];
        t.g.image_block = 2;
        t.g.slices = t.g.slice_blocks = 1;
        t.g.image_in_place = t.g.gradient_in_place = t.g.out_in_place = false;
        t.g.stage_bytes = t.g.gradient_bytes = 1 << 16;
        int code = run_on(&t, 1, 1);
        CHECK(excess ? code == CK_BAD_PLAN && untouched(&t.result) : right(&t, code));
        tear_down(&t);
    }
}

static void a_stopped_gradient_leaves_nothing_running(void)
{
    for (int seed = 0; seed < 6; seed++) {
        generator r = seeded((uint64_t)seed);
        problem q = {.images = 2, .groups = 2, .in = 4, .out = 40, .size = {6, 6}, .filter = {3, 3}, .stride = {1, 1},
                     .dilation = {1, 1}, .before = {1, 1}, .grid = {6, 6}};
        trial t;
        set_up(&t, &q, watched(CK_F32, level_of(seed), 2000), &r, small_integer);
        ck_job limits = {.threads = 4, .max_workers = 4, .poll = stop_at_once};
        t.g.accumulate = false;
        t.g.image_block = t.g.row_block = t.g.tap_block = t.g.panel_block = t.g.slices = 1;
        t.g.strips_at_once = t.g.strip_block = 1;
        t.g.out_in_place = false;
        t.g.slice_blocks = q.images * q.grid[0] * q.grid[1];
        memset(t.result.memory, NOTHING, (size_t)t.result.bytes);
        CHECK(stopped_cleanly(&watch, ck_direct_gradient_run(&t.g, &limits)));
        CHECK(untouched(&t.result));
        tear_down(&t);
    }
}

static void a_stopped_gradient_leaves_its_tile_unwritten(void)
{
    generator r = seeded(0);
    problem q = column_of(1, 30);
    trial t;
    set_up(&t, &q, watched(CK_F32, CK_GENERIC, 2000), &r, small_integer);
    t.g.accumulate = false;
    t.g.row_block = t.g.slices = 1;
    t.g.slice_blocks = q.grid[0];
    t.g.image_in_place = t.g.gradient_in_place = t.g.out_in_place = false;
    t.g.stage_bytes = t.g.gradient_bytes = 1 << 14;
    memset(t.result.memory, NOTHING, (size_t)t.result.bytes);
    ck_job limits = {.threads = 1, .max_workers = 1, .poll = stop_at_once};
    CHECK(stopped_cleanly(&watch, ck_direct_gradient_run(&t.g, &limits)));
    CHECK(atomic_load(&watch.calls) < q.grid[0] && untouched(&t.result));
    tear_down(&t);
}

int main(void)
{
    RUN(gradients_equal_the_plain_sums);
    RUN(bits_are_the_same_on_any_number_of_threads);
    RUN(too_little_scratch_is_refused_before_anything_is_written);
    RUN(blocks_hold_as_many_rows_as_a_sum_has_terms);
    RUN(a_stopped_gradient_leaves_nothing_running);
    RUN(a_stopped_gradient_leaves_its_tile_unwritten);
    return summary();
}
