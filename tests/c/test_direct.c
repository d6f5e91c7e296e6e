/* Tests of the direct convolution: forward, and input gradients phase by phase of the strides, at every ISA level. */
#include "check.h"
#include "direct.h"
#include "phases.h"
#include "watched.h"

enum { CASES = 2400 };

typedef struct {
    problem q;
    bool backward;
    strided image, filter, result; /* of a backward trial, `image` is the output gradient */
    ck_direct d;
    ck_direct_phase phases[MOST_PHASES];
    phase_set set;
    int64_t packed_bytes;
} trial;

static void set_phase(trial *t, ck_direct_phase *phase, const phase_axis *row, const phase_axis *col)
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

/* Whether the pixels of all rows and images lie evenly, so that pixel number n is n times the column's stride away. */
static bool even(const ck_array *a, int64_t images, int64_t height, int64_t width)
{
    return (height == 1 || a->stride[1] == width * a->stride[2]) &&
           (images == 1 || a->stride[0] == height * width * a->stride[2]);
}

static bool one_to_one(const ck_window *w)
{
    return w->rows == 1 && w->cols == 1 && w->row_at[0] == 0 && w->col_at[0] == 0 && w->row_step == 1 &&
           w->col_step == 1 && w->height == w->out_height && w->width == w->out_width;
}

/* Whether register tiles can round their sums into the result. */
static bool rounds(const trial *t)
{
    const ck_direct *d = &t->d;
    const ck_array *a = &t->result.array;
    return d->kernel->across_rounded && d->out_channels % d->kernel->columns == 0 && a->type == CK_BF16 && !a->swapped &&
           a->stride[3] == 2;
}

/* Uses arrays in place wherever they can be, or now and then not. */
static void choose_places(trial *t, generator *r)
{
    ck_direct *d = &t->d;
    bool image = !one_in(r, 4) && d->pixels.plain;
    bool result = !one_in(r, 4) && d->out_channels % d->kernel->columns == 0 &&
                  is_plain(&t->result, sum_type(d->kernel->arithmetic));
    for (int64_t i = 0; i < d->phase_count; i++) {
        ck_direct_phase *phase = &t->phases[i];
        const ck_window *w = &phase->window;
        bool gathered = d->pixel_block != 0;
        bool evenly = !gathered || even(&phase->out, d->images, w->out_height, w->out_width);
        phase->clipped = image && !gathered && !stays_inside(w) && one_in(r, 2);
        phase->in_place = image && (gathered ? one_to_one(w) && even(&d->pixels.array, d->images, w->height, w->width)
                                             : phase->clipped || stays_inside(w));
        phase->out_in_place = result && evenly;
        phase->rounded = !phase->clipped && !phase->out_in_place && evenly && rounds(t) && !one_in(r, 4);
    }
}

static int64_t panels_of(const ck_direct *d) { return ck_ceil_div(d->out_channels, d->kernel->columns); }

static void cut(trial *t, generator *r)
{
    ck_direct *d = &t->d;
    int64_t rows = 1, cols = 1, taps = 1;
    for (int64_t i = 0; i < d->phase_count; i++) {
        const ck_window *w = &t->phases[i].window;
        rows = ck_max(rows, w->out_height);
        cols = ck_max(cols, w->out_width);
        taps = ck_max(taps, w->rows * w->cols);
    }
    int64_t pixels = d->images * rows * cols, terms;
    terms = ck_min(CK_SUM_BLOCK / ck_products(d->kernel->arithmetic), taps * d->in_channels);
    d->pixel_block = one_in(r, 2) ? (one_in(r, 2) ? pixels : between(r, 1, pixels)) : 0;
    d->strips_first = one_in(r, 2);
    if (d->pixels.paired && !d->pixels.plain)
        d->pixel_block = 0;
    d->term_block = one_in(r, 3) ? between(r, 1, terms) : terms;
    d->row_block = one_in(r, 2) ? rows : between(r, 1, rows);
    d->col_block = one_in(r, 2) ? cols : between(r, 1, cols);
    d->image_block = d->row_block == rows && d->col_block == cols ? between(r, 1, d->images) : 1;
    d->panel_block = between(r, 1, panels_of(d));
}

static void number_units(trial *t)
{
    ck_direct *d = &t->d;
    d->units = d->packs = t->packed_bytes = 0;
    for (int64_t i = 0; i < d->phase_count; i++) {
        ck_direct_phase *phase = &t->phases[i];
        int64_t rows = d->groups * panels_of(d) * phase->window.rows * phase->window.cols * d->in_channels;
        phase->first_unit = d->units;
        phase->first_pack = d->packs;
        phase->packed_at = t->packed_bytes;
        d->units += ck_direct_units(d, phase);
        d->packs += ck_direct_packs(d, phase);
        t->packed_bytes += rows * d->kernel->columns * ck_size(d->kernel->arithmetic);
    }
}

/* The least scratch that the largest tile of any phase needs. */
static void size_scratch(trial *t, generator *r)
{
    ck_direct *d = &t->d;
    int64_t size = ck_size(d->kernel->arithmetic), staged = 0, filters = 0, tile = 0;
    for (int64_t i = 0; i < d->phase_count; i++) {
        const ck_window *w = &t->phases[i].window;
        int64_t rows = ck_min(d->row_block, w->out_height), cols = ck_min(d->col_block, w->out_width);
        int64_t reach = reach_of(w->row_at, w->rows, rows, w->row_step);
        reach *= reach_of(w->col_at, w->cols, cols, w->col_step);
        int64_t terms = ck_min(d->term_block, w->rows * w->cols * d->in_channels);
        int64_t pixels = d->image_block * rows * cols, copied = d->image_block * reach * d->in_channels;
        if (d->pixel_block) {
            pixels = ck_min(d->pixel_block, d->images * w->out_height * w->out_width);
            copied = (d->strips_first ? ck_min(d->kernel->rows, pixels) : pixels) * terms;
        }
        if (!t->phases[i].in_place)
            staged = ck_max(staged, copied * size);
        if (!d->packed)
            filters = ck_max(filters, d->panel_block * d->kernel->columns * terms * size);
        if (!t->phases[i].out_in_place)
            tile = ck_max(tile, pixels * d->panel_block * d->kernel->columns * size);
    }
    d->stage_bytes = random_scratch(r, staged);
    d->filter_bytes = random_scratch(r, filters);
    d->tile_bytes = random_scratch(r, tile);
}

/* Channels in become pairs, as direct.h says. */
static void pair_channels(trial *t)
{
    ck_direct *d = &t->d;
    ck_pixels *p = &d->pixels;
    const int64_t *stride = t->image.array.stride;
    p->paired = d->in_channels;
    p->pairing = d->kernel->pairing;
    p->plain = strided_usable(&t->image, CK_BF16) && stride[3] == 2 && d->in_channels % 2 == 0;
    for (int axis = 0; axis < 3; axis++)
        p->plain = p->plain && stride[axis] % (int64_t)sizeof(ck_pair) == 0;
    p->array.stride[3] *= 2;
    d->filter.stride[2] *= 2;
    d->in_channels = ck_ceil_div(d->in_channels, 2);
}

static void set_up(trial *t, const problem *given, bool backward, const ck_dot_kernel *kernel, generator *r,
                   double (*draw)(generator *, ck_type))
{
    *t = (trial){.q = *given, .backward = backward};
    const problem *q = &t->q;
    ck_direct *d = &t->d;
    ck_type arithmetic = kernel->arithmetic;
    t->image = strided_random(r, backward ? GRID_LENGTHS(q) : IMAGE_LENGTHS(q), backward ? PIXEL_GRADIENT : PIXELS,
                               arithmetic);
    t->filter = strided_random(r, FILTER_LENGTHS(q), TAPS, arithmetic);
    t->result = strided_random(r, backward ? IMAGE_LENGTHS(q) : GRID_LENGTHS(q), PIXEL_RESULT, arithmetic);
    strided_fill(r, &t->image, draw);
    strided_fill(r, &t->filter, draw);
    d->kernel = kernel;
    d->pixels = (ck_pixels){.array = t->image.array,
                            .load = ck_loader_for(&t->image.array, kernel),
                            .plain = is_plain(&t->image, arithmetic)};
    d->images = q->images;
    d->groups = q->groups;
    d->in_channels = backward ? q->out : q->in;
    d->out_channels = backward ? q->in : q->out;
    int64_t image_group = d->in_channels * t->image.array.stride[3];
    d->image_group = image_group;
    d->out_group = d->out_channels * t->result.array.stride[3];
    d->filter_group = q->out * t->filter.array.stride[3];
    d->filter = t->filter.array;
    if (backward) {
        d->filter.stride[2] = t->filter.array.stride[3];
        d->filter.stride[3] = t->filter.array.stride[2];
    }
    if (arithmetic == CK_BF16)
        pair_channels(t);
    d->load_filter = ck_loader_for(&t->filter.array, kernel);
    d->store = ck_storer_for(&t->result.array, kernel);
    d->out_data = t->result.array.data;
    d->phases = t->phases;
    find_phases(q, backward, &t->set);
    for (int a = 0; a < t->set.count[0]; a++)
        for (int b = 0; b < t->set.count[1]; b++)
            set_phase(t, &t->phases[d->phase_count++], &t->set.axes[0][a], &t->set.axes[1][b]);
    cut(t, r);
    choose_places(t, r);
    number_units(t);
    d->packed = one_in(r, 3) ? NULL : shared_new(t->packed_bytes);
    size_scratch(t, r);
}

static int run_on(trial *t, int threads, int workers)
{
    spoil_scratch(t->d.stage_bytes + t->d.filter_bytes + t->d.tile_bytes + 1);
    memset(t->result.memory, NOTHING, (size_t)t->result.bytes);
    return ck_direct_run(&t->d, &(ck_job){.threads = threads, .max_workers = workers});
}

static bool right(const trial *t)
{
    double *image = strided_values(&t->image), *filter = strided_values(&t->filter);
    double *result = calloc((size_t)count_of(t->result.length), sizeof *result);
    convolve(&t->q, t->backward ? result : image, filter, t->backward ? image : result, t->backward ? SUM_X : SUM_Y);
    if (t->backward)
        drop_unreached(&t->q, &t->set, result);
    bool same = strided_holds(&t->result, result) && (!t->d.packed || shared_intact(t->d.packed, t->packed_bytes));
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
    free(t->d.packed);
}

/* A trial holds pointers into itself. */
#define WITH_TRIAL(T, SEED, BACKWARD, DRAW)                                                                           \
    generator r = seeded((uint64_t)(SEED));                                                                           \
    problem q = random_problem(&r);                                                                                   \
    const ck_dot_kernel *kernel = watched(random_arithmetic(&r), level_of(SEED), 0);                                  \
    *((BACKWARD) ? &q.in : &q.out) = random_channels(&r, kernel);                                                     \
    trial T;                                                                                                          \
    set_up(&T, &q, BACKWARD, kernel, &r, DRAW)

static void products_equal_the_plain_convolution(void)
{
    int levels[CK_ISAS] = {0}, in_place[2] = {0}, out_in_place[2] = {0}, blocks[2] = {0}, uneven[3] = {0}, pairs[2] = {0};
    int many = 0, images = 0, tails = 0, staged = 0, gathered = 0, alone = 0, evenly[2] = {0}, clipped = 0, rounded = 0;
    for (int seed = 0; seed < CASES; seed++) {
        bool backward = seed / 3 % 2;
        WITH_TRIAL(t, seed, backward, small_integer);
        int threads = (int)between(&r, 1, MOST_THREADS), workers = (int)between(&r, 1, MOST_THREADS);
        bool good = run_on(&t, threads, workers) == CK_OK && right(&t);
        if (!good)
            fprintf(stderr, "seed %d, %s\n", seed, kernel->name);
        CHECK(good);
        levels[kernel->isa]++;
        if (kernel->arithmetic == CK_BF16)
            pairs[t.d.pixels.plain]++;
        in_place[t.phases[0].in_place]++;
        out_in_place[t.phases[0].out_in_place]++;
        many += t.d.phase_count > 1;
        images += t.d.image_block > 1;
        tails += t.d.out_channels % kernel->columns != 0;
        staged += !t.d.pixels.plain;
        gathered += t.d.pixel_block != 0;
        alone += !t.d.packed;
        evenly[0] += t.d.pixel_block && t.phases[0].in_place;
        clipped += t.phases[0].clipped;
        rounded += t.phases[0].rounded;
        evenly[1] += t.d.pixel_block && t.phases[0].out_in_place;
        const ck_window *w = &t.phases[0].window;
        uneven[0] += w->out_height % t.d.row_block != 0;
        uneven[1] += w->out_width % t.d.col_block != 0;
        uneven[2] += panels_of(&t.d) % t.d.panel_block != 0;
        blocks[backward] += w->rows * w->cols * t.d.in_channels > CK_SUM_BLOCK;
        tear_down(&t);
    }
    for (int level = 0; level < CK_ISAS; level++)
        CHECK(!has_tile((ck_isa)level) || levels[level] >= CASES / CK_ISAS);
    for (int i = 0; i < 2; i++)
        CHECK(in_place[i] >= 20 && out_in_place[i] >= 20 && blocks[i] >= 10);
    CHECK(gathered >= 400 && alone >= 200 && evenly[0] >= 10 && evenly[1] >= 10);
    CHECK(pairs[0] >= 100 && pairs[1] >= 50 && clipped >= 15 && rounded >= 15);
    CHECK(many >= 100 && images >= 50 && tails >= 100 && staged >= 100);
    CHECK(uneven[0] >= 50 && uneven[1] >= 50 && uneven[2] >= 50);
}

static void bits_are_the_same_on_any_number_of_threads(void)
{
    for (int seed = 0; seed < 90; seed++) {
        WITH_TRIAL(t, seed, seed / 3 % 2, any_number);
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

/* Once packed, the filter itself is not looked at again. */
static void a_packed_filter_serves_many_runs(void)
{
    for (int seed = 0; seed < 90; seed++) {
        WITH_TRIAL(t, seed, seed / 3 % 2, any_number);
        CHECK(run_on(&t, 1, 1) == CK_OK);
        unsigned char *first = malloc((size_t)t.result.bytes);
        memcpy(first, t.result.memory, (size_t)t.result.bytes);
        if (!t.d.packed) /* the bits do not tell who packed */
            t.d.packed = shared_new(t.packed_bytes);
        memset(t.d.packed, NOTHING, (size_t)t.packed_bytes);
        CHECK(ck_direct_pack(&t.d, &(ck_job){.threads = 2, .max_workers = 2}) == CK_OK);
        memset(t.filter.memory, NOTHING, (size_t)t.filter.bytes);
        for (int threads = 1; threads <= 2; threads++) {
            memset(t.result.memory, NOTHING, (size_t)t.result.bytes);
            CHECK(ck_direct_compute(&t.d, &(ck_job){.threads = threads, .max_workers = threads}) == CK_OK);
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
        int64_t *parts[] = {&t.d.stage_bytes, &t.d.filter_bytes, &t.d.tile_bytes}, size = ck_size(kernel->arithmetic);
        for (int i = 0; i < 3; i++) {
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

static void a_stopped_convolution_leaves_nothing_running(void)
{
    for (int seed = 0; seed < 6; seed++) {
        generator r = seeded((uint64_t)seed);
        problem q = {.images = 2, .groups = 2, .in = 2, .out = 4, .size = {12, 12}, .filter = {3, 3}, .stride = {1, 1},
                     .dilation = {1, 1}, .before = {1, 1}, .grid = {12, 12}};
        trial t;
        set_up(&t, &q, seed % 2, watched(CK_F32, level_of(seed), 500), &r, small_integer);
        t.d.image_block = t.d.row_block = t.d.col_block = t.d.panel_block = 1;
        t.d.pixel_block = t.d.pixel_block != 0;
        number_units(&t);
        ck_job limits = {.threads = 4, .max_workers = 4, .poll = stop_at_once};
        CHECK(stopped_cleanly(&watch, ck_direct_run(&t.d, &limits)));
        CHECK(atomic_load(&watch.calls) < t.d.units);
        tear_down(&t);
    }
}

static void a_stopped_convolution_leaves_its_tile_unwritten(void)
{
    enum { BLOCKS = 10 };
    generator r = seeded(0);
    problem q = {.images = 1, .groups = 1, .in = 300, .out = 2, .size = {4, 4}, .filter = {4, 4}, .stride = {1, 1},
                 .dilation = {1, 1}, .grid = {1, 1}};
    trial t;
    set_up(&t, &q, false, watched(CK_F32, CK_GENERIC, 10000), &r, small_integer);
    CHECK(t.d.units == 1 && !t.phases[0].out_in_place);
    ck_job limits = {.threads = 1, .max_workers = 1, .poll = stop_at_once};
    CHECK(stopped_cleanly(&watch, ck_direct_run(&t.d, &limits)));
    CHECK(atomic_load(&watch.calls) < BLOCKS && untouched(&t.result));
    tear_down(&t);
}

int main(void)
{
    RUN(products_equal_the_plain_convolution);
    RUN(bits_are_the_same_on_any_number_of_threads);
    RUN(a_packed_filter_serves_many_runs);
    RUN(too_little_scratch_is_refused_before_anything_is_written);
    RUN(a_stopped_convolution_leaves_nothing_running);
    RUN(a_stopped_convolution_leaves_its_tile_unwritten);
    return summary();
}
