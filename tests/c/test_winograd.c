/* Tests of Winograd convolutions and filter gradients at every ISA level: tails, places, blocks, threads, guard zones. */
#include "check.h"
#include "problem.h"
#include "watched.h"
#include "winograd.h"
#include "winograd_gradient.h"

enum { TRIALS = 600 };

/* The transforms of a level, whose results are known to be finite: a number that was never written is a NaN. */
static const ck_winograd_kernel *watched_transforms;
static atomic_int not_finite;

static bool watched_taps(int64_t count, void *sums, int64_t element_step)
{
    bool finite = watched_transforms->taps(count, sums, element_step);
    atomic_fetch_add(&not_finite, !finite);
    return finite;
}

static bool watched_result(int64_t channels, const void *sums, int64_t element_step, void *to, int64_t row_step,
                           int64_t col_step, int64_t rows, int64_t cols)
{
    bool finite = watched_transforms->result(channels, sums, element_step, to, row_step, col_step, rows, cols);
    atomic_fetch_add(&not_finite, !finite);
    return finite;
}

static const ck_winograd_kernel *transforms(ck_type arithmetic, ck_isa isa, int64_t tile)
{
    static ck_winograd_kernel kernel;
    watched_transforms = ck_winograd_kernel_for(arithmetic, isa, tile);
    kernel = *watched_transforms;
    kernel.result = watched_result;
    kernel.taps = watched_taps;
    atomic_store(&not_finite, 0);
    return &kernel;
}

typedef enum { FORWARD, INPUT, FILTER } operation;

typedef struct {
    problem q;
    operation op;
    int64_t tile; /* outputs along a side of one */
    strided first, second, result; /* image or output gradient, filter or output gradient */
    ck_winograd w;
    ck_winograd_gradient g;
    ck_direct_gradient again[2][2];
    offsets rows, cols;
    int64_t shared_bytes, scratch_bytes;
} trial;

static problem random_layer(generator *r, const ck_dot_kernel *kernel)
{
    problem q = {.images = between(r, 1, 4), .groups = one_in(r, 3) ? between(r, 2, 3) : 1, .filter = {3, 3},
                 .stride = {1, 1}, .dilation = {1, 1}};
    bool deep = one_in(r, 12);
    q.in = deep ? between(r, 500, 700) : between(r, 1, 40);
    q.out = deep ? between(r, 1, 6) : between(r, 1, 2 * kernel->columns + 3);
    if (deep && one_in(r, 2)) {
        int64_t in = q.in;
        q.in = q.out;
        q.out = in;
    }
    for (int axis = 0; axis < 2; axis++) {
        int64_t after;
        do {
            q.size[axis] = between(r, 1, deep ? 6 : 13);
            q.before[axis] = between(r, 0, 4);
            after = between(r, 0, 4);
        } while (q.size[axis] + q.before[axis] + after < 3);
        q.grid[axis] = q.size[axis] + q.before[axis] + after - 2;
    }
    return q;
}

static ck_tile_source source_of(const strided *s, const ck_dot_kernel *kernel, const int64_t size[2], int64_t tile,
                                int64_t reach, const int64_t first[2])
{
    bool plain = is_plain(s, kernel->arithmetic);
    return (ck_tile_source){.pixels = {.array = s->array, .load = ck_loader_for(&s->array, kernel), .plain = plain},
                            .height = size[0], .width = size[1], .tile = tile, .reach = reach, .row_at = first[0],
                            .col_at = first[1], .in_place = plain};
}

static void cut_tiles(generator *r, const trial *t, const int64_t out[2], int64_t *image, int64_t *row, int64_t *col)
{
    int64_t rows = ck_tiles_along(out[0], t->tile), cols = ck_tiles_along(out[1], t->tile);
    *row = one_in(r, 2) ? rows : between(r, 1, rows);
    *col = one_in(r, 2) ? cols : between(r, 1, cols);
    *image = *row == rows && *col == cols ? between(r, 1, t->q.images) : 1;
}

static int64_t staged_numbers(const ck_tile_source *s, int64_t images, int64_t rows, int64_t cols, int64_t channels)
{
    return s->in_place ? 0 : images * ((rows - 1) * s->tile + s->reach) * ((cols - 1) * s->tile + s->reach) * channels;
}

static void set_up_products(trial *t, generator *r, const ck_dot_kernel *kernel, ck_isa isa)
{
    const problem *q = &t->q;
    ck_winograd *w = &t->w;
    bool turned = t->op == INPUT;
    int64_t size = ck_size(kernel->arithmetic), columns = kernel->columns;
    const int64_t first[] = {turned ? q->before[0] - 2 : -q->before[0], turned ? q->before[1] - 2 : -q->before[1]};
    const int64_t *in = turned ? q->grid : q->size, *out = turned ? q->size : q->grid;
    *w = (ck_winograd){.product = kernel, .kernel = transforms(kernel->arithmetic, isa, t->tile), .images = q->images,
                       .groups = q->groups, .in_channels = turned ? q->out : q->in,
                       .out_channels = turned ? q->in : q->out, .out_height = out[0], .out_width = out[1],
                       .filter = t->second.array, .out = t->result.array};
    w->image = source_of(&t->first, kernel, in, t->tile, w->kernel->reach, first);
    w->load_filter = ck_loader_for(&t->second.array, kernel);
    w->store = ck_storer_for(&t->result.array, kernel);
    w->image_group = w->in_channels * t->first.array.stride[3];
    w->filter_group = q->out * t->second.array.stride[3];
    w->out_group = w->out_channels * t->result.array.stride[3];
    if (turned) {
        const int64_t *s = t->second.array.stride;
        const int64_t stride[] = {-s[0], -s[1], s[3], s[2]};
        memcpy(w->filter.stride, stride, sizeof stride);
        w->filter.data += 2 * (s[0] + s[1]);
    }
    w->out_in_place = is_plain(&t->result, kernel->arithmetic) && !one_in(r, 4);
    int64_t panels = ck_ceil_div(w->out_channels, columns), most = ck_min(CK_SUM_BLOCK, w->in_channels);
    cut_tiles(r, t, out, &w->image_block, &w->row_block, &w->col_block);
    w->channel_block = one_in(r, 2) ? most : between(r, ck_min(most, 9), most);
    w->panels_at_once = between(r, 1, panels);
    w->panel_block = between(r, 1, w->panels_at_once);
    int64_t tiles = w->image_block * w->row_block * w->col_block, width = w->panel_block * columns;
    int64_t loaded = ck_min(CK_SUM_BLOCK / CK_TAPS, w->in_channels);
    int64_t elements = w->kernel->elements, outputs = t->tile * t->tile;
    w->stage_bytes = size * (ck_winograd_step(w->channel_block, size) +
                             staged_numbers(&w->image, w->image_block, w->row_block, w->col_block, w->channel_block));
    w->image_bytes = size * elements * ck_winograd_step(tiles * ck_winograd_step(w->channel_block, size), size);
    w->sums_bytes = size * elements * ck_winograd_step(tiles * ck_winograd_step(width, size), size);
    w->out_bytes = w->out_in_place ? 0 : size * tiles * outputs * width;
    w->again_bytes = size * (loaded * (elements + CK_TAPS * columns) + outputs * columns);
    t->scratch_bytes = w->stage_bytes + w->image_bytes + w->sums_bytes + w->out_bytes + w->again_bytes;
    t->shared_bytes =
        w->groups * w->panels_at_once * elements * ck_winograd_step(w->in_channels * columns, size) * size;
    w->packed = one_in(r, 3) ? NULL : shared_new(t->shared_bytes);
    w->filter_bytes = w->packed ? 0 : size * elements * ck_winograd_step(w->channel_block * columns, size);
    t->scratch_bytes += w->filter_bytes;
}

/* What computes pieces of so many channels again, a row of output pixels at a time; returns the bytes of its partials. */
static int64_t set_up_again(trial *t, int few, int narrow, int64_t channels, int64_t filters)
{
    const problem *q = &t->q;
    const ck_dot_kernel *kernel = t->g.product;
    int64_t size = ck_size(kernel->arithmetic);
    if (channels == 0 || filters == 0)
        return 0;
    ck_direct_gradient *d = &t->again[few][narrow];
    *d = (ck_direct_gradient){.kernel = kernel, .window = forward_window(q, &t->rows, &t->cols),
                              .pixels = t->g.image.pixels, .gradients = t->g.gradient.pixels, .out = t->g.out,
                              .store = t->g.store, .accumulate = t->g.accumulate, .images = q->images, .groups = 1,
                              .in_channels = channels, .out_channels = filters, .image_block = 1, .row_block = 1,
                              .col_block = q->grid[1], .strip = channels, .tap_block = 3, .strip_block = 1,
                              .panel_block = 1, .strips_at_once = 1, .slices = 1,
                              .slice_blocks = q->images * q->grid[0]};
    d->stage_bytes = 3 * (q->grid[1] + 2) * channels * size;
    d->gradient_bytes = q->grid[1] * kernel->columns * size;
    t->g.again[few][narrow] = d;
    return CK_TAPS * channels * kernel->columns * size;
}

static void set_up_gradient(trial *t, generator *r, const ck_dot_kernel *kernel, ck_isa isa)
{
    const problem *q = &t->q;
    ck_winograd_gradient *g = &t->g;
    int64_t size = ck_size(kernel->arithmetic), columns = kernel->columns;
    const int64_t first[] = {-q->before[0], -q->before[1]}, here[] = {0, 0};
    *g = (ck_winograd_gradient){.product = kernel, .kernel = transforms(kernel->arithmetic, isa, t->tile),
                                .images = q->images, .groups = q->groups, .in_channels = q->in, .out_channels = q->out,
                                .out = t->result.array, .accumulate = one_in(r, 3)};
    g->image = source_of(&t->first, kernel, q->size, t->tile, g->kernel->reach, first);
    g->gradient = source_of(&t->second, kernel, q->grid, t->tile, t->tile, here);
    g->store = ck_storer_for(&t->result.array, kernel);
    g->image_group = q->in * t->first.array.stride[3];
    g->gradient_group = q->out * t->second.array.stride[3];
    g->out_group = q->out * t->result.array.stride[3];
    int64_t panels = ck_ceil_div(q->out, columns);
    g->piece_block = between(r, ck_min(q->in, 9), ck_min(q->in, 40));
    g->channel_block = one_in(r, 2) ? q->in : ck_min(q->in, g->piece_block * between(r, 1, 3));
    g->panel_block = between(r, 1, panels);
    cut_tiles(r, t, q->grid, &g->image_block, &g->row_block, &g->col_block);
    int64_t rows = ck_tiles_along(q->grid[0], t->tile), cols = ck_tiles_along(q->grid[1], t->tile);
    int64_t blocks =
        ck_ceil_div(q->images, g->image_block) * ck_ceil_div(rows, g->row_block) * ck_ceil_div(cols, g->col_block);
    g->slice_blocks = one_in(r, 2) ? blocks : between(r, 1, blocks);
    g->slices = ck_ceil_div(blocks, g->slice_blocks);
    int64_t tiles = g->image_block * g->row_block * g->col_block, width = g->panel_block * columns;
    int64_t step = ck_winograd_step(g->channel_block * columns, size), channels = ck_min(width, q->out);
    int64_t parts = q->groups * ck_ceil_div(q->in, g->channel_block) * ck_ceil_div(panels, g->panel_block);
    int64_t elements = g->kernel->elements, part = g->panel_block * elements * step * size, again = 0;
    g->stage_bytes =
        size *
        (ck_winograd_step(ck_max(g->channel_block, width), size) +
         ck_max(staged_numbers(&g->image, g->image_block, g->row_block, g->col_block, g->channel_block),
                staged_numbers(&g->gradient, g->image_block, g->row_block, g->col_block, channels)));
    g->image_bytes = size * elements * ck_winograd_step(tiles * ck_winograd_step(g->channel_block, size), size);
    g->gradient_bytes = size * elements * ck_winograd_step(tiles * ck_winograd_step(width, size), size);
    g->sums_bytes = g->slices > 1 ? 0 : part;
    g->piece_bytes = ck_ceil_div(parts * g->panel_block * ck_ceil_div(g->channel_block, g->piece_block), 64) * 64;
    t->scratch_bytes = g->stage_bytes + g->image_bytes + g->gradient_bytes + g->sums_bytes;
    t->rows = forward_offsets(q, 0);
    t->cols = forward_offsets(q, 1);
    for (int few = 0; few < 2; few++)
        for (int narrow = 0; narrow < 2; narrow++)
            again = ck_max(again, set_up_again(t, few, narrow, few ? q->in % g->piece_block : g->piece_block,
                                               narrow ? q->out % columns : q->out / columns ? columns : 0));
    t->shared_bytes = g->piece_bytes + ck_max(again, g->slices > 1 ? parts * g->slices * part : 0);
    g->shared = shared_new(t->shared_bytes);
}

/* Numbers of one size, so that a sum's error tells of its terms. */
static double number(generator *r, ck_type type)
{
    return type >= CK_BOOL ? small_integer(r, type) : ldexp((double)between(r, -255, 255), -7);
}

static void set_up(trial *t, int seed, generator *r)
{
    ck_isa isa = level_of(seed);
    const ck_dot_kernel *kernel = watched(one_in(r, 3) ? CK_F64 : CK_F32, isa, 0);
    *t = (trial){.op = (operation)(seed / 3 % 3), .tile = seed / 9 % 2 ? 2 : 4, .q = random_layer(r, kernel)};
    const problem *q = &t->q;
    ck_type arithmetic = kernel->arithmetic;
    t->first = t->op == INPUT ? strided_random(r, GRID_LENGTHS(q), PIXEL_GRADIENT, arithmetic)
                              : strided_random(r, IMAGE_LENGTHS(q), PIXELS, arithmetic);
    t->second = t->op == FILTER ? strided_random(r, GRID_LENGTHS(q), PIXEL_GRADIENT, arithmetic)
                                : strided_random(r, FILTER_LENGTHS(q), TAPS, arithmetic);
    t->result = t->op == FILTER  ? strided_random(r, FILTER_LENGTHS(q), TAP_RESULT, arithmetic)
                : t->op == INPUT ? strided_random(r, IMAGE_LENGTHS(q), PIXEL_RESULT, arithmetic)
                                 : strided_random(r, GRID_LENGTHS(q), PIXEL_RESULT, arithmetic);
    strided_fill(r, &t->first, number);
    strided_fill(r, &t->second, number);
    (t->op == FILTER ? set_up_gradient : set_up_products)(t, r, kernel, isa);
}

static void tear_down(trial *t)
{
    strided_free(&t->first);
    strided_free(&t->second);
    strided_free(&t->result);
    free(t->op == FILTER ? t->g.shared : t->w.packed);
}

static int run_on(trial *t, int threads)
{
    const ck_job limits = {.threads = threads, .max_workers = threads};
    spoil_scratch(t->scratch_bytes);
    memset(t->result.memory, NOTHING, (size_t)t->result.bytes);
    if (t->op == FILTER)
        memset(t->g.shared, NOTHING, (size_t)t->shared_bytes);
    if (t->g.accumulate) {
        generator r = seeded(1);
        strided_fill(&r, &t->result, small_integer);
    }
    return t->op == FILTER ? ck_winograd_gradient_run(&t->g, &limits) : ck_winograd_run(&t->w, &limits);
}

static double *expected_of(const trial *t)
{
    double *first = strided_values(&t->first), *second = strided_values(&t->second);
    double *result = calloc((size_t)count_of(t->result.length), sizeof *result);
    generator r = seeded(1);
    for (int64_t i = 0; t->g.accumulate && i < count_of(t->result.length); i++)
        result[i] = small_integer(&r, t->result.array.type);
    if (t->op == FORWARD)
        convolve(&t->q, first, second, result, SUM_Y);
    else if (t->op == INPUT)
        convolve(&t->q, result, second, first, SUM_X);
    else
        convolve(&t->q, first, result, second, SUM_W);
    free(first);
    free(second);
    return result;
}

/* Whether the result is within a rounding of the largest of its values, and no byte around its elements was written. */
static bool near(const strided *s, const double *expected, ck_type arithmetic)
{
    bool good = true;
    double largest = 1, unit = arithmetic == CK_F64 ? 0x1p-40 : 0x1p-14;
    unit = s->array.type == CK_F16 || s->array.type == CK_BF16 ? 0x1p-7 : unit;
    for (int64_t i = 0; i < count_of(s->length); i++)
        largest = fmax(largest, fabs(expected[i]));
    unsigned char *seen = malloc((size_t)s->bytes);
    memcpy(seen, s->memory, (size_t)s->bytes);
    EACH_ELEMENT(s)
    {
        const char *at = strided_at(s, i, j, k, l);
        good = good && fabs(element(s->array.type, s->array.swapped, at) - *expected++) <= unit * largest;
        memset(seen + ((const unsigned char *)at - s->memory), NOTHING, (size_t)bytes_of(s->array.type));
    }
    for (int64_t i = 0; i < s->bytes; i++)
        good = good && seen[i] == NOTHING;
    free(seen);
    return good;
}

static void products_come_near_the_plain_convolution(void)
{
    int levels[CK_ISAS] = {0}, in_place[2] = {0}, stored[2] = {0}, slices = 0, passes = 0, blocks = 0, alone = 0, small = 0;
    for (int seed = 0; seed < TRIALS; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, seed, &r);
        const ck_dot_kernel *kernel = t.op == FILTER ? t.g.product : t.w.product;
        double *expected = expected_of(&t);
        bool good = run_on(&t, (int)between(&r, 1, MOST_THREADS)) == CK_OK &&
                    near(&t.result, expected, kernel->arithmetic) &&
                    (t.op == FILTER ? shared_intact(t.g.shared, t.shared_bytes)
                                    : !t.w.packed || shared_intact(t.w.packed, t.shared_bytes)) &&
                    atomic_load(&not_finite) == 0;
        if (!good)
            fprintf(stderr, "seed %d, %s\n", seed, kernel->name);
        CHECK(good);
        levels[kernel->isa]++;
        in_place[t.op == FILTER ? t.g.image.in_place : t.w.image.in_place]++;
        stored[t.w.out_in_place] += t.op != FILTER;
        slices += t.g.slices > 1;
        passes += t.op != FILTER && t.w.panels_at_once < ck_ceil_div(t.w.out_channels, kernel->columns);
        blocks += t.op != FILTER && t.w.channel_block < t.w.in_channels;
        alone += t.op != FILTER && !t.w.packed;
        small += t.tile == 2;
        free(expected);
        tear_down(&t);
    }
    for (int level = 0; level < CK_ISAS; level++)
        CHECK(!has_tile((ck_isa)level) || levels[level] >= TRIALS / CK_ISAS);
    CHECK(in_place[0] >= 50 && in_place[1] >= 50 && stored[0] >= 50 && stored[1] >= 50);
    CHECK(slices >= 30 && passes >= 20 && blocks >= 30 && alone >= 50 && small >= 200 && small <= TRIALS - 200);
}

static void bits_are_the_same_on_any_number_of_threads(void)
{
    for (int seed = 0; seed < 45; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, seed, &r);
        CHECK(run_on(&t, 1) == CK_OK);
        unsigned char *first = malloc((size_t)t.result.bytes);
        memcpy(first, t.result.memory, (size_t)t.result.bytes);
        for (int threads = 2; threads <= MOST_THREADS; threads += 3) {
            CHECK(run_on(&t, threads) == CK_OK);
            CHECK(memcmp(first, t.result.memory, (size_t)t.result.bytes) == 0);
        }
        free(first);
        tear_down(&t);
    }
}

/* A tile with a NaN is computed again: nobody else sees it. */
static void a_pixel_that_is_not_finite_reaches_its_windows_alone(void)
{
    for (int seed = 0; seed < 60; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, seed, &r);
        const strided *s = &t.first;
        if (s->array.type < CK_BOOL && s->array.stride[0] && s->array.stride[1] && s->array.stride[2] && s->array.stride[3])
            set_element(s->array.type, s->array.swapped,
                        strided_at(s, between(&r, 0, s->length[0] - 1), between(&r, 0, s->length[1] - 1),
                                   between(&r, 0, s->length[2] - 1), between(&r, 0, s->length[3] - 1)),
                        NAN);
        double *expected = expected_of(&t), *found;
        CHECK(run_on(&t, 2) == CK_OK);
        found = strided_values(&t.result);
        for (int64_t i = 0; i < count_of(t.result.length); i++)
            CHECK(!isnan(found[i]) == !isnan(expected[i]) || s->array.type >= CK_BOOL);
        free(expected);
        free(found);
        tear_down(&t);
    }
}

static void too_little_scratch_is_refused_before_anything_is_written(void)
{
    int refused = 0;
    for (int seed = 0; seed < 60; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, seed, &r);
        t.g.accumulate = false;
        int64_t *products[] = {&t.w.stage_bytes, &t.w.image_bytes, &t.w.sums_bytes, &t.w.filter_bytes,
                               &t.w.out_bytes, &t.w.again_bytes};
        int64_t *gradient[] = {&t.g.stage_bytes, &t.g.image_bytes, &t.g.gradient_bytes, &t.g.sums_bytes, &t.g.piece_bytes};
        int64_t **parts = t.op == FILTER ? gradient : products;
        for (int i = 0; i < (t.op == FILTER ? 5 : 6); i++) {
            int64_t enough = *parts[i];
            if (enough == 0)
                continue;
            *parts[i] = enough / 2 / 64 * 64;
            int code = run_on(&t, 1);
            CHECK(code == CK_BAD_PLAN && untouched(&t.result));
            *parts[i] = enough;
            refused++;
        }
        tear_down(&t);
    }
    CHECK(refused >= 100);
}

static void a_stopped_run_writes_no_more(void)
{
    for (int seed = 0; seed < 9; seed++) {
        generator r = seeded((uint64_t)seed);
        trial t;
        set_up(&t, seed, &r);
        watch.delay_us = 30 * 1000;
        const ck_job limits = {.threads = 2, .max_workers = 2, .poll = stop_at_once};
        int code = t.op == FILTER ? ck_winograd_gradient_run(&t.g, &limits) : ck_winograd_run(&t.w, &limits);
        int calls = atomic_load(&watch.calls); /* none, if transforming the filter took that long already */
        nanosleep(&(struct timespec){0, 5 * 1000 * 1000}, NULL);
        CHECK(code == CK_STOPPED && atomic_load(&watch.inside) == 0 && atomic_load(&watch.calls) == calls);
        tear_down(&t);
    }
}

int main(void)
{
    RUN(products_come_near_the_plain_convolution);
    RUN(bits_are_the_same_on_any_number_of_threads);
    RUN(a_pixel_that_is_not_finite_reaches_its_windows_alone);
    RUN(too_little_scratch_is_refused_before_anything_is_written);
    RUN(a_stopped_run_writes_no_more);
    return summary();
}
