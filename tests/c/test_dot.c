/* Tests of the register tiles: every kernel of the table that this CPU can run, and that of bfloat16 pairs over emulated
 * instructions, against plain loops. */
#include "check.h"
#include "emulated.h"
#include "multiply.h"
#include "strided.h"

enum { MOST_ROWS = 14, MOST_COLUMNS = 32, MOST_TERMS = 2 * CK_SUM_BLOCK, MOST_SEGMENTS = 7, FAR = 30 };

/* Of an element of an operand. */
static int64_t size_of(const ck_dot_kernel *kernel)
{
    return ck_products(kernel->arithmetic) * bytes_of(kernel->arithmetic);
}


/* Memory of which not an element more is allocated, or with zones on both sides that nobody may write; all NaN. */
typedef struct {
    unsigned char *memory;
    char *origin; /* of index 0, which need not be one of the elements */
    int64_t guard, bytes;
} buffer;

/* Room for the indices low .. high, `offset` bytes past an aligned address. */
static buffer buffer_new(int64_t low, int64_t high, int64_t size, int64_t offset, bool exact)
{
    buffer b = {.guard = exact ? offset : GUARD + offset};
    b.bytes = b.guard + (high - low + 1) * size + (exact ? 0 : GUARD);
    b.memory = malloc((size_t)b.bytes);
    memset(b.memory, NOTHING, (size_t)b.bytes);
    b.origin = (char *)b.memory + b.guard - low * size;
    return b;
}

typedef struct {
    const ck_dot_kernel *kernel;
    bool along, rounded, add, exact, integers;
    int64_t rows, terms, a_step, b_step, ldc, segment_count;
    ck_segment segments[MOST_SEGMENTS];
    buffer a, b, c, halves;
    /* What the kernel is to see and to give; a term is a product of numbers here. */
    double left[MOST_TERMS + 1][MOST_ROWS], right[MOST_TERMS + 1][MOST_COLUMNS], before[MOST_ROWS][MOST_COLUMNS];
} trial;

static int64_t a_index(const trial *t, const ck_segment *s, int64_t row, int64_t term)
{
    return s->a_at + (t->along ? row + term * t->a_step : row * t->a_step + term);
}

static int64_t b_index(const trial *t, const ck_segment *s, int64_t term)
{
    return s->b_at + term * (t->along ? t->b_step : t->kernel->columns);
}

/* Cuts the terms into segments anywhere, some of them empty, some upon each other. */
static void place_segments(trial *t, generator *r, bool many)
{
    int64_t left = t->terms;
    t->segment_count = many ? between(r, 2, MOST_SEGMENTS) : t->terms ? 1 : between(r, 0, 1);
    for (int64_t s = 0; s < t->segment_count; s++) {
        int64_t count = s == t->segment_count - 1 ? left : between(r, 0, left);
        t->segments[s] = (ck_segment){between(r, -FAR, FAR), between(r, -FAR, FAR), count};
        left -= count;
    }
}

static int64_t random_offset(generator *r, int64_t size)
{
    const int64_t offsets[] = {0, size, 3 * size};
    return offsets[between(r, 0, 2)];
}

static void make_operands(trial *t, generator *r)
{
    int64_t low[2] = {INT64_MAX, INT64_MAX}, high[2] = {INT64_MIN, INT64_MIN}, size = size_of(t->kernel);
    for (int64_t s = 0; s < t->segment_count; s++) {
        const ck_segment *part = &t->segments[s];
        if (part->count == 0)
            continue;
        low[0] = ck_min(low[0], a_index(t, part, 0, 0));
        high[0] = ck_max(high[0], a_index(t, part, t->rows - 1, part->count - 1));
        low[1] = ck_min(low[1], b_index(t, part, 0));
        high[1] = ck_max(high[1], b_index(t, part, part->count - 1) + t->kernel->columns - 1);
    }
    if (t->terms == 0) /* not an element */
        low[0] = low[1] = 1, high[0] = high[1] = 0;
    int64_t unit = bytes_of(t->kernel->arithmetic), sum = bytes_of(sum_type(t->kernel->arithmetic));
    t->a = buffer_new(low[0], high[0], size, random_offset(r, unit), t->exact);
    t->b = buffer_new(low[1], high[1], size, random_offset(r, unit), t->exact);
    t->c = buffer_new(0, (t->rows - 1) * t->ldc + t->kernel->columns - 1, sum, random_offset(r, sum), t->exact);
    t->halves = buffer_new(0, (t->rows - 1) * t->ldc + t->kernel->columns - 1, 2, random_offset(r, 2), t->exact);
}

static double draw(const trial *t, generator *r)
{
    return (t->integers ? small_integer : any_number)(r, t->kernel->arithmetic);
}

/* Writes a number of an operand in the first pass; returns it. */
static double visit(const trial *t, generator *r, const buffer *b, int64_t index, int pass)
{
    ck_type type = t->kernel->arithmetic;
    char *at = b->origin + index * bytes_of(type);
    if (pass == 0)
        set_element(type, false, at, draw(t, r));
    return element(type, false, at);
}

/* Gives every element that belongs to a term its number; all others stay NaN. */
static void fill(trial *t, generator *r)
{
    ck_type sum = sum_type(t->kernel->arithmetic);
    int64_t numbers = ck_products(t->kernel->arithmetic), columns = t->kernel->columns;
    for (int pass = 0; pass < 2; pass++) /* read once all is written, since segments may share elements */
        for (int64_t s = 0, term = 0; s < t->segment_count; s++)
            for (int64_t n = 0; n < t->segments[s].count * numbers; n++, term++) {
                int64_t at = n / numbers, part = n % numbers;
                for (int64_t i = 0; i < t->rows; i++)
                    t->left[term][i] = visit(t, r, &t->a, a_index(t, &t->segments[s], i, at) * numbers + part, pass);
                for (int64_t j = 0; j < columns; j++)
                    t->right[term][j] =
                        visit(t, r, &t->b, (b_index(t, &t->segments[s], at) + j) * numbers + part, pass);
            }
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            char *at = t->c.origin + (i * t->ldc + j) * bytes_of(sum);
            if (t->add)
                set_element(sum, false, at, draw(t, r));
            t->before[i][j] = t->add ? element(sum, false, at) : 0;
        }
}

static bool close_enough(const trial *t, int64_t i, int64_t j, double seen)
{
    long double sum = t->before[i][j], scale = fabsl(sum);
    int64_t terms = t->terms * ck_products(t->kernel->arithmetic);
    for (int64_t term = 0; term < terms; term++) {
        long double product = (long double)t->left[term][i] * t->right[term][j];
        sum += product;
        scale += fabsl(product);
    }
    long double eps = t->kernel->arithmetic == CK_F64 ? DBL_EPSILON : FLT_EPSILON;
    if (t->integers)
        return seen == (t->rounded ? ck_float_of_bfloat(ck_bfloat_of_float((float)sum)) : (double)sum);
    long double error = (terms + 1) * eps * scale;
    return fabsl(seen - sum) <= error + (t->rounded ? (fabsl(sum) + error) / 256 : 0);
}

/* Whether c holds the sums, or `halves` holds them rounded, and NaN in all other bytes. */
static bool right(trial *t)
{
    ck_type type = t->rounded ? t->kernel->arithmetic : sum_type(t->kernel->arithmetic);
    const buffer *to = t->rounded ? &t->halves : &t->c;
    int64_t size = bytes_of(type);
    bool good = true;
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t j = 0; j < t->kernel->columns; j++) {
            char *at = to->origin + (i * t->ldc + j) * size;
            good = good && close_enough(t, i, j, element(type, false, at));
            memset(at, NOTHING, (size_t)size);
        }
    for (int64_t i = 0; i < to->bytes; i++)
        good = good && to->memory[i] == NOTHING;
    return good;
}

static unsigned char *copy_of(const buffer *b)
{
    unsigned char *copy = malloc((size_t)b->bytes);
    memcpy(copy, b->memory, (size_t)b->bytes);
    return copy;
}

static bool unchanged(const buffer *b, unsigned char *copy)
{
    bool same = memcmp(b->memory, copy, (size_t)b->bytes) == 0;
    free(copy);
    return same;
}

static void check_trial(trial *t, generator *r, bool many)
{
    int64_t columns = t->kernel->columns;
    t->a_step = t->along ? t->rows + between(r, 0, 9) : between(r, 1, 9) + (one_in(r, 2) ? t->terms : 0);
    t->b_step = columns + (one_in(r, 2) ? 0 : between(r, 1, 9));
    t->ldc = columns + (one_in(r, 2) ? 0 : between(r, 1, 9));
    t->exact = one_in(r, 2);
    place_segments(t, r, many);
    make_operands(t, r);
    fill(t, r);
    unsigned char *a = copy_of(&t->a), *b = copy_of(&t->b), *c = copy_of(&t->c);
    if (t->rounded)
        t->kernel->across_rounded(t->rows, t->a.origin, t->a_step, t->b.origin, t->segments, t->segment_count,
                                  t->c.origin, t->ldc, t->add, t->halves.origin, 2 * t->ldc);
    else
        (t->along ? t->kernel->along : t->kernel->across)(t->rows, t->a.origin, t->a_step, t->b.origin, t->b_step,
                                                          t->segments, t->segment_count, t->c.origin, t->ldc, t->add);
    bool a_kept = unchanged(&t->a, a), b_kept = unchanged(&t->b, b), c_kept = unchanged(&t->c, c);
    bool good = a_kept && b_kept && (c_kept || !t->rounded) && right(t);
    if (!good)
        fprintf(stderr, "%s %s: %d rows, %d terms in %d segments, add %d, exact %d\n", t->kernel->name,
                t->rounded ? "rounded" : t->along ? "along" : "across", (int)t->rows, (int)t->terms, (int)t->segment_count, t->add, t->exact);
    CHECK(good);
    free(t->a.memory);
    free(t->b.memory);
    free(t->c.memory);
    free(t->halves.memory);
}

/* The table's kernels, and the one that is not in it. */
static const ck_dot_kernel *kernel_number(int i)
{
    int count = 0;
    while (ck_dot_kernels[count])
        count++;
    return i < count ? ck_dot_kernels[i] : i == count ? &ck_dot_bf16_emulated : NULL;
}

static void check_kernels(bool along, bool rounded, bool integers)
{
    static trial t;
    static const int64_t large[] = {63, 64, 65, 509, 511, 512};
    generator r = seeded((uint64_t)(2 * along + integers));
    const ck_dot_kernel *kernel;
    for (int k = 0; (kernel = kernel_number(k)); k++) {
        if (!ck_isa_runs(kernel->isa) || (rounded && !kernel->across_rounded))
            continue;
        CHECK(kernel->rows <= MOST_ROWS && kernel->columns <= MOST_COLUMNS);
        for (int64_t rows = 1; rows <= kernel->rows; rows++)
            for (int64_t number = 0; number <= 20 + 6; number += UNDER_TSAN ? 3 : 1)
                for (int choice = 0; choice < 4; choice++) {
                    t.kernel = kernel;
                    t.along = along;
                    t.rounded = rounded;
                    t.integers = integers;
                    t.add = choice & 1;
                    t.rows = rows;
                    t.terms = number <= 20 ? number : large[number - 21];
                    check_trial(&t, &r, choice & 2);
                }
    }
}

static void sums_across_neighbouring_terms_are_exact(void) { check_kernels(false, false, true); }
static void sums_along_neighbouring_rows_are_exact(void) { check_kernels(true, false, true); }
static void sums_across_become_the_nearest_halves(void) { check_kernels(false, true, true); }
static void rounded_sums_across_stay_within_their_bound(void) { check_kernels(false, false, false); }
static void rounded_sums_along_stay_within_their_bound(void) { check_kernels(true, false, false); }
static void halves_of_sums_across_stay_within_their_bound(void) { check_kernels(false, true, false); }

static void kernels_are_chosen_by_level(void)
{
    for (int type = CK_F32; type <= CK_F64; type++)
        for (int isa = CK_GENERIC; isa < CK_ISAS; isa++) {
            const ck_dot_kernel *kernel = ck_dot_kernel_for((ck_type)type, (ck_isa)isa);
            CHECK(kernel && kernel->arithmetic == (ck_type)type && ck_isa_has((ck_isa)isa, kernel->isa));
            for (int i = 0; kernel && ck_dot_kernels[i]; i++) {
                const ck_dot_kernel *other = ck_dot_kernels[i];
                CHECK(other->arithmetic != (ck_type)type || !ck_isa_has((ck_isa)isa, other->isa) ||
                      other->isa <= kernel->isa);
            }
        }
    CHECK(!ck_dot_kernel_for(CK_BF16, CK_GENERIC) && !ck_dot_kernel_for(CK_BF16, CK_AVX512));
}

static void levels_have_what_they_build_on(void)
{
    for (int isa = CK_GENERIC; isa < CK_ISAS; isa++) {
        CHECK(ck_isa_has((ck_isa)isa, (ck_isa)isa) && ck_isa_has((ck_isa)isa, CK_GENERIC));
        for (int part = CK_GENERIC; part < CK_ISAS; part++)
            CHECK(!ck_isa_has((ck_isa)isa, (ck_isa)part) ||
                  (part <= isa && (ck_isa_runs((ck_isa)part) || !ck_isa_runs((ck_isa)isa))));
        CHECK(!ck_isa_runs((ck_isa)isa) || isa <= (int)ck_best_isa());
    }
    CHECK(ck_isa_runs(CK_GENERIC) && ck_isa_runs(ck_best_isa()));
    CHECK(ck_isa_has(CK_AVX512BF16, CK_AVX2) && !ck_isa_has(CK_AVX2, CK_AVX512));
    CHECK(!ck_isa_has(CK_AVX512BF16, CK_AVX2VNNI) && !ck_isa_has(CK_AVX2VNNI, CK_AVX512));
}

static void names_tell_type_rows_and_level(void)
{
    static const char *const types[CK_TYPES] = {[CK_F32] = "f32", [CK_F64] = "f64", [CK_BF16] = "bf16"};
    for (int i = 0; ck_dot_kernels[i]; i++) {
        const ck_dot_kernel *kernel = ck_dot_kernels[i];
        char start[64];
        const char *type = types[kernel->arithmetic], *level = ck_isa_name(kernel->isa);
        snprintf(start, sizeof start, "dot_%s_%s_%s_%dx", type, type, types[sum_type(kernel->arithmetic)], (int)kernel->rows);
        const char *last = strrchr(kernel->name, '_');
        CHECK(strncmp(kernel->name, start, strlen(start)) == 0 && last && strcmp(last + 1, level) == 0);
        for (int j = 0; j < i; j++)
            CHECK(strcmp(ck_dot_kernels[j]->name, kernel->name) != 0 && ck_dot_kernels[j]->isa <= kernel->isa);
    }
}

/* NaN aside, of which a conversion by instruction makes a quiet one. */
static bool same_bits(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]) && signbit(a[i]) == signbit(b[i])))
            return false;
    return true;
}

static void halves_load_as_in_portable_code(void)
{
    enum { ALL = 1 << 16 };
    static uint16_t halves[ALL];
    static float seen[ALL], expected[ALL];
    const ck_array array = {.type = CK_F16};
    for (int i = 0; i < ALL; i++)
        halves[i] = (uint16_t)i;
    ck_loader(&array, CK_F32)(expected, 1, (const char *)halves, 2, ALL);
    for (int k = 0; ck_dot_kernels[k]; k++) {
        if (ck_dot_kernels[k]->arithmetic != CK_F32 || !ck_isa_runs(ck_dot_kernels[k]->isa))
            continue;
        ck_load_fn load = ck_loader_for(&array, ck_dot_kernels[k]);
        load(seen, 1, (const char *)halves, 2, ALL);
        CHECK(same_bits(seen, expected, ALL));
        for (int64_t step = 1; step <= 3; step++)
            for (int64_t n = 0; n <= 20; n++) { /* tails, and elements apart on either side */
                float part[60];
                memset(part, NOTHING, sizeof part);
                load(part, step, (const char *)(halves + 15000), 2 * (4 - step), n);
                for (int64_t i = 0; i < 60; i++)
                    if (i % step == 0 && i / step < n)
                        CHECK(part[i] == expected[15000 + i / step * (4 - step)]);
                    else
                        CHECK(memcmp(part + i, (unsigned char[]){NOTHING, NOTHING, NOTHING, NOTHING}, 4) == 0);
            }
    }
}

static void halves_are_stored_as_in_portable_code(void)
{
    enum { MANY = 4096 };
    static float values[MANY];
    static uint16_t seen[MANY], expected[MANY];
    generator r = seeded(3);
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < MANY; i++) { /* floats of every size; ties of halves among them */
            uint32_t bits = (uint32_t)between(&r, 0, UINT32_MAX) & (one_in(&r, 2) ? ~0u : ~0xfffu);
            memcpy(values + i, &bits, sizeof bits);
        }
        for (int k = 0; ck_dot_kernels[k]; k++) {
            if (ck_dot_kernels[k]->arithmetic == CK_F64 || !ck_isa_runs(ck_dot_kernels[k]->isa))
                continue;
            bool pairs = ck_dot_kernels[k]->arithmetic == CK_BF16;
            for (int i = 0; pairs && i < MANY; i++)
                values[i] = fabsf(values[i]) < FLT_MIN ? copysignf(0, values[i]) : values[i];
            const ck_array array = {.type = pairs ? CK_BF16 : CK_F16};
            ck_store_fn store = ck_storer_for(&array, ck_dot_kernels[k]), plain = ck_storer(&array, CK_F32);
            int64_t n = between(&r, 0, MANY / 3), to_step = between(&r, 1, 3), from_step = between(&r, 1, 3);
            memset(seen, 0, sizeof seen);
            memset(expected, 0, sizeof expected);
            for (int add = 0; add <= 1; add++) {
                store((char *)seen, 2 * to_step, values, from_step, n, add);
                plain((char *)expected, 2 * to_step, values, from_step, n, add);
                CHECK(memcmp(seen, expected, sizeof seen) == 0);
            }
        }
    }
}

/* One pair after another, each with its products, as a kernel adds them up. */
static float chain(const ck_dot_kernel *kernel, const ck_pair *a, const ck_pair *b, int64_t pairs)
{
    ck_pair panel[4][MOST_COLUMNS];
    float sums[MOST_COLUMNS];
    for (int64_t p = 0; p < pairs; p++)
        for (int64_t j = 0; j < kernel->columns; j++)
            panel[p][j] = b[p];
    kernel->across(1, a, 1, panel, kernel->columns, &(ck_segment){0, 0, pairs}, 1, sums, kernel->columns, false);
    return sums[0];
}

static uint16_t bits(double value) { return short_of_value(BFLOAT, value); }

static void pairs_take_subnormal_numbers_for_zeros(void)
{
    const ck_dot_kernel *kernel;
    for (int k = 0; (kernel = kernel_number(k)); k++) {
        if (kernel->arithmetic != CK_BF16 || !ck_isa_runs(kernel->isa))
            continue;
        ck_pair least = {bits(0x1p-126), bits(0)}, below = {bits(0x1.fcp-127), bits(0)}, one = {bits(1), bits(1)};
        ck_pair half = {bits(0.5), bits(0)}, large = {bits(0x1p100), bits(0)};
        CHECK(chain(kernel, &least, &one, 1) == 0x1p-126f);
        CHECK(chain(kernel, &below, &large, 1) == 0 && chain(kernel, &large, &below, 1) == 0);
        CHECK(chain(kernel, &least, &half, 1) == 0);
        ck_pair up[] = {{bits(0x1.8p-126), bits(0)}, {bits(-0x1p-126), bits(0)}}, ones[] = {one, one};
        CHECK(chain(kernel, up, ones, 2) == 0);
        ck_pair infinite = {bits(INFINITY), bits(0)};
        CHECK(isnan(chain(kernel, &infinite, &below, 1)) && chain(kernel, &infinite, &one, 1) == INFINITY);
    }
}

/* 1, then 2^-23 and 2^-24 in this order or the other: ties are rounded to even. */
static void emulated_pairs_add_the_second_product_first(void)
{
    const ck_pair one = {bits(1), bits(0)}, ones = {bits(1), bits(1)};
    const ck_pair b[] = {ones, ones}, up[] = {one, {bits(0x1p-24), bits(0x1p-23)}};
    const ck_pair down[] = {one, {bits(0x1p-23), bits(0x1p-24)}};
    CHECK(chain(&ck_dot_bf16_emulated, up, b, 2) == 1 + 0x1p-22f);
    CHECK(chain(&ck_dot_bf16_emulated, down, b, 2) == 1 + 0x1p-23f);
    /* Subnormal after rounding: 2^-126 - 2^-150 is a number of 24 bits, 2^-126 - 2^-151 is not. */
    CHECK(emulated_fma(-0x1p-75f, 0x1p-75f, 0x1p-126f) == 0);
    CHECK(emulated_fma(-0x1p-75f, 0x1p-76f, 0x1p-126f) == 0x1p-126f);
}

int main(void)
{
    for (int i = 0; ck_dot_kernels[i]; i++)
        if (!ck_isa_runs(ck_dot_kernels[i]->isa))
            printf("not run, this CPU has no %s: %s\n", ck_isa_name(ck_dot_kernels[i]->isa), ck_dot_kernels[i]->name);
    RUN(levels_have_what_they_build_on);
    RUN(kernels_are_chosen_by_level);
    RUN(names_tell_type_rows_and_level);
    RUN(halves_load_as_in_portable_code);
    RUN(halves_are_stored_as_in_portable_code);
    RUN(sums_across_neighbouring_terms_are_exact);
    RUN(sums_along_neighbouring_rows_are_exact);
    RUN(sums_across_become_the_nearest_halves);
    RUN(halves_of_sums_across_stay_within_their_bound);
    RUN(rounded_sums_across_stay_within_their_bound);
    RUN(rounded_sums_along_stay_within_their_bound);
    RUN(pairs_take_subnormal_numbers_for_zeros);
    RUN(emulated_pairs_add_the_second_product_first);
    return summary();
}
