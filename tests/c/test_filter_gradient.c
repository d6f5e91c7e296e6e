/* Tests of the filter gradient. */
#include "check.h"
#include "filter_gradient.h"
#include "problem.h"

enum { CASES = 2000 };

typedef struct {
    problem q;
    strided image, gradient, result;
    ck_filter_gradient g;
    offsets rows, cols;
    int64_t tiles, partial_bytes;
    multiplier blas;
} trial;

static int64_t patch_of(const problem *q) { return q->filter[0] * q->filter[1] * q->in; }

static bool sees_itself(const problem *q)
{
    bool itself = true;
    for (int axis = 0; axis < 2; axis++)
        itself = itself && q->filter[axis] == 1 && q->stride[axis] == 1 && q->before[axis] == 0 &&
                 q->grid[axis] == q->size[axis];
    return itself;
}

/* Uses arrays in place wherever they can be, or now and then not; returns whether images may be crossed. */
static bool choose_layouts(trial *t, generator *r)
{
    const problem *q = &t->q;
    ck_filter_gradient *g = &t->g;
    ck_type arithmetic = g->gemm.arithmetic;
    bool across = true, in_place[3] = {!one_in(r, 4), !one_in(r, 4), !one_in(r, 4)};
    if (in_place[0] && sees_itself(q))
        g->image_layout =
            pixel_layout(&t->image, t->image.length, t->image.array.stride, q->in, arithmetic, &across);
    if (in_place[1])
        g->gradient_layout =
            pixel_layout(&t->gradient, t->gradient.length, t->gradient.array.stride, q->out, arithmetic, &across);
    if (in_place[2] && !g->accumulate && strided_usable(&t->result, arithmetic))
        g->out_layout = matrix_layout(3, FILTER_LENGTHS(q), t->result.array.stride, q->out,
                                      t->result.array.stride[3], ck_size(arithmetic));
    if (g->out_layout.kind == CK_COLUMNS)
        g->out_layout = (ck_layout){CK_COPY, 0};
    return across;
}

static void cut(trial *t, generator *r)
{
    const problem *q = &t->q;
    ck_filter_gradient *g = &t->g;
    int64_t total = q->images * q->grid[0] * q->grid[1], patch = patch_of(q);
    g->patch_block = one_in(r, 2) ? patch : between(r, 1, patch);
    g->channel_block = one_in(r, 2) ? q->out : between(r, 1, q->out);
    g->pixel_block = between(r, 1, ck_min(total, CK_SUM_BLOCK));
    g->slice_pixels = one_in(r, 2) ? total : g->pixel_block * between(r, 1, ck_ceil_div(total, g->pixel_block));
    g->slices = ck_ceil_div(total, g->slice_pixels);
    t->tiles = q->groups * ck_ceil_div(patch, g->patch_block) * ck_ceil_div(q->out, g->channel_block);
    g->tiles_at_once = between(r, 1, t->tiles);
}

static void size_scratch(trial *t, generator *r)
{
    ck_filter_gradient *g = &t->g;
    int64_t size = ck_size(g->gemm.arithmetic), tile = g->patch_block * g->channel_block * size;
    int64_t pixels = count_of(t->image.length) / g->groups;
    if (g->image_layout.kind == CK_COPY)
        g->patch_bytes = random_scratch(r, g->pixel_block * g->patch_block * size);
    if (g->gradient_layout.kind == CK_COPY)
        g->gradient_bytes = random_scratch(r, g->pixel_block * g->channel_block * size);
    if (g->slices == 1 && g->out_layout.kind == CK_COPY)
        g->tile_bytes = random_scratch(r, tile);
    g->stage_bytes = one_in(r, 3) ? 0 : size * (one_in(r, 2) ? pixels : between(r, 1, pixels));
    if (g->slices > 1) {
        t->partial_bytes = g->tiles_at_once * g->slices * tile;
        g->partials = shared_new(t->partial_bytes);
    }
}

static void set_up(trial *t, const problem *q, generator *r, double (*draw)(generator *, ck_type))
{
    *t = (trial){.q = *q, .rows = forward_offsets(q, 0), .cols = forward_offsets(q, 1)};
    ck_filter_gradient *g = &t->g;
    ck_type arithmetic = one_in(r, 3) ? CK_F64 : CK_F32;
    t->image = strided_random(r, IMAGE_LENGTHS(q), PIXELS, arithmetic);
    t->gradient = strided_random(r, GRID_LENGTHS(q), PIXEL_GRADIENT, arithmetic);
    t->result = strided_random(r, FILTER_LENGTHS(q), TAP_RESULT, arithmetic);
    strided_fill(r, &t->image, draw);
    strided_fill(r, &t->gradient, draw);
    g->gemm = (ck_gemm){multiply_plainly, &t->blas, arithmetic};
    g->window = forward_window(q, &t->rows, &t->cols);
    g->pixels = (ck_pixels){.array = t->image.array,
                            .load = ck_loader(&t->image.array, arithmetic),
                            .plain = is_plain(&t->image, arithmetic)};
    g->gradients = t->gradient.array;
    g->out = t->result.array;
    g->load_gradient = ck_loader(&g->gradients, arithmetic);
    g->store = ck_storer(&g->out, arithmetic);
    g->accumulate = one_in(r, 3);
    g->images = q->images;
    g->groups = q->groups;
    g->in_channels = q->in;
    g->out_channels = q->out;
    g->image_group = q->in * g->pixels.array.stride[3];
    g->gradient_group = q->out * g->gradients.stride[3];
    g->out_group = q->out * g->out.stride[3];
    bool across = choose_layouts(t, r);
    g->within_image = !across || one_in(r, 3);
    cut(t, r);
    size_scratch(t, r);
}

static int run_on(trial *t, int threads, int workers)
{
    const ck_filter_gradient *g = &t->g;
    spoil_scratch(g->patch_bytes + g->gradient_bytes + g->tile_bytes + g->stage_bytes);
    memset(t->result.memory, NOTHING, (size_t)t->result.bytes);
    if (g->accumulate) {
        generator r = seeded(1);
        strided_fill(&r, &t->result, small_integer);
    }
    return ck_filter_gradient_run(g, &(ck_job){.threads = threads, .max_workers = workers});
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
    bool same = code == CK_OK && strided_holds(&t->result, result);
    same = same && (!t->g.partials || shared_intact(t->g.partials, t->partial_bytes));
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
    trial T;                                                                                                          \
    set_up(&T, &q, &r, DRAW)

static void gradients_equal_the_plain_sums(void)
{
    int image[3] = {0}, gradient[3] = {0}, rows = 0, sliced = 0, batches = 0, staged = 0, added = 0, crossing = 0;
    for (int seed = 0; seed < CASES; seed++) {
        WITH_TRIAL(t, seed, small_integer);
        int threads = (int)between(&r, 1, MOST_THREADS), workers = (int)between(&r, 1, MOST_THREADS);
        int code = run_on(&t, threads, workers);
        bool good = right(&t, code);
        if (!good)
            fprintf(stderr, "seed %d\n", seed);
        CHECK(good);
        image[t.g.image_layout.kind]++;
        gradient[t.g.gradient_layout.kind]++;
        rows += t.g.out_layout.kind == CK_ROWS && t.g.slices == 1;
        sliced += t.g.slices > 1;
        batches += t.g.slices > 1 && t.g.tiles_at_once < t.tiles;
        staged += !t.g.pixels.plain && t.g.stage_bytes > 0;
        added += t.g.accumulate;
        crossing += !t.g.within_image && t.g.gradient_layout.kind != CK_COPY && t.q.images > 1;
        tear_down(&t);
    }
    for (int i = 0; i < 3; i++)
        CHECK(image[i] >= 20 && gradient[i] >= 20);
    CHECK(rows >= 50 && sliced >= 200 && batches >= 100 && staged >= 200 && added >= 200 && crossing >= 20);
}

static void partial_sums_of_large_tiles_are_added_in_parts(void)
{
    for (int seed = 0; seed < 8; seed++) {
        generator r = seeded((uint64_t)seed);
        problem q = {.images = 2, .groups = 1, .in = 41, .out = 67, .size = {5, 4}, .filter = {3, 3}, .stride = {2, 2},
                     .dilation = {1, 1}, .before = {1, 1}, .grid = {3, 2}};
        trial t;
        do {
            set_up(&t, &q, &r, small_integer);
            if (t.g.slices > 1 && t.g.patch_block * t.g.channel_block > 1 << 14)
                break;
            tear_down(&t);
        } while (true);
        CHECK(right(&t, run_on(&t, 3, 3)));
        tear_down(&t);
    }
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

/* The batches of tiles that partial sums leave room for change nothing either. */
static void bits_are_the_same_for_any_room_for_partial_sums(void)
{
    int compared = 0;
    for (int seed = 0; seed < 300; seed++) {
        WITH_TRIAL(t, seed, any_number);
        CHECK(run_on(&t, 2, 2) == CK_OK);
        unsigned char *first = malloc((size_t)t.result.bytes);
        memcpy(first, t.result.memory, (size_t)t.result.bytes);
        while (t.g.slices > 1 && t.g.tiles_at_once > 1) {
            t.g.tiles_at_once /= 2;
            CHECK(run_on(&t, 2, 2) == CK_OK);
            CHECK(memcmp(first, t.result.memory, (size_t)t.result.bytes) == 0);
            compared++;
        }
        free(first);
        tear_down(&t);
    }
    CHECK(compared > 30);
}

static void too_little_scratch_is_refused_before_anything_is_written(void)
{
    int refused = 0;
    for (int seed = 0; seed < 300; seed++) {
        WITH_TRIAL(t, seed, small_integer);
        t.g.accumulate = false;
        int64_t *parts[] = {&t.g.patch_bytes, &t.g.gradient_bytes, &t.g.tile_bytes, &t.g.pixel_block};
        for (int i = 0; i < 4; i++) {
            int64_t enough = *parts[i], size = ck_size(t.g.gemm.arithmetic);
            if (enough == 0)
                continue;
            *parts[i] = ck_max(0, enough - 64) / size * size; /* sizes may be rounded up to 64 */
            if (parts[i] == &t.g.pixel_block)
                t.g.pixel_block = CK_SUM_BLOCK + 1;
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
        problem q = {.images = 2, .groups = 2, .in = 4, .out = 8, .size = {6, 6}, .filter = {3, 3}, .stride = {1, 1},
                     .dilation = {1, 1}, .before = {1, 1}, .grid = {6, 6}};
        trial t;
        set_up(&t, &q, &r, small_integer);
        t.g.patch_block = t.g.channel_block = 1;
        t.blas.delay_us = 500;
        ck_job limits = {.threads = 4, .max_workers = 4, .poll = stop_at_once};
        CHECK(stopped_cleanly(&t.blas, ck_filter_gradient_run(&t.g, &limits)));
        CHECK(atomic_load(&t.blas.calls) < q.groups * patch_of(&q) * q.out * t.g.slices);
        tear_down(&t);
    }
}

static void a_stopped_gradient_leaves_its_tile_unwritten(void)
{
    generator r = seeded(0);
    problem q = {.images = 2, .groups = 1, .in = 4, .out = 8, .size = {6, 6}, .filter = {3, 3}, .stride = {1, 1},
                 .dilation = {1, 1}, .before = {1, 1}, .grid = {6, 6}};
    trial t;
    set_up(&t, &q, &r, small_integer);
    t.g.accumulate = false;
    t.g.out_layout = (ck_layout){CK_COPY, 0};
    t.g.patch_block = patch_of(&q);
    t.g.channel_block = q.out;
    t.g.slices = t.g.pixel_block = 1;
    t.g.slice_pixels = q.images * q.grid[0] * q.grid[1];
    t.g.patch_bytes = t.g.gradient_bytes = t.g.tile_bytes = 1 << 14;
    t.blas.delay_us = 2000;
    ck_job limits = {.threads = 1, .max_workers = 1, .poll = stop_at_once};
    CHECK(stopped_cleanly(&t.blas, ck_filter_gradient_run(&t.g, &limits)));
    CHECK(atomic_load(&t.blas.calls) < t.g.slice_pixels && untouched(&t.result));
    tear_down(&t);
}

int main(void)
{
    RUN(gradients_equal_the_plain_sums);
    RUN(partial_sums_of_large_tiles_are_added_in_parts);
    RUN(bits_are_the_same_on_any_number_of_threads);
    RUN(bits_are_the_same_for_any_room_for_partial_sums);
    RUN(too_little_scratch_is_refused_before_anything_is_written);
    RUN(a_stopped_gradient_leaves_nothing_running);
    RUN(a_stopped_gradient_leaves_its_tile_unwritten);
    return summary();
}
