/* Tests of the conversions between the dtypes of arrays and those of the arithmetic. */
#include "check.h"
#include "convert.h"
#include "random.h"
#include "values.h"

#include <stdlib.h>

static const ck_type ARITHMETIC[] = {CK_F32, CK_F64};

static ck_load_fn loader(ck_type type, bool swapped, ck_type arithmetic)
{
    return ck_loader(&(ck_array){.type = type, .swapped = swapped}, arithmetic);
}

static ck_store_fn storer(ck_type type, bool swapped, ck_type arithmetic)
{
    return ck_storer(&(ck_array){.type = type, .swapped = swapped}, arithmetic);
}

static float float_from(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_from(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- which pairs there are ---- */

static bool loads(ck_type type, bool swapped, ck_type arithmetic)
{
    if (swapped && (bytes_of(type) == 1 || type == CK_BF16))
        return false;
    if (arithmetic == CK_F64)
        return type != CK_F32 && type != CK_F16 && type != CK_BF16;
    return type != CK_F64 && (type < CK_I32 || type == CK_F32);
}

static bool stores(ck_type type, bool swapped, ck_type arithmetic)
{
    return loads(type, swapped, arithmetic) && type <= CK_BF16;
}

static void exactly_the_pairs_that_meet_have_a_converter(void)
{
    for (int type = 0; type < CK_TYPES; type++)
        for (int swapped = 0; swapped < 2; swapped++)
            for (int a = 0; a < 2; a++) {
                CHECK((loader(type, swapped, ARITHMETIC[a]) != NULL) == loads(type, swapped, ARITHMETIC[a]));
                CHECK((storer(type, swapped, ARITHMETIC[a]) != NULL) == stores(type, swapped, ARITHMETIC[a]));
            }
}

/* ---- the 16-bit floats ---- */

typedef struct {
    ck_type type;
    short_format format;
    uint16_t infinity, quiet;
} short_type;

static const short_type SHORTS[] = {{CK_F16, {5, 10}, 0x7c00, 0x0200}, {CK_BF16, {8, 7}, 0x7f80, 0x0040}};

static bool is_nan_of(const short_type *s, uint16_t bits) { return (bits & 0x7fff) > s->infinity; }

static uint16_t stored(const short_type *s, float value)
{
    uint16_t bits;
    storer(s->type, false, CK_F32)((char *)&bits, 2, &value, 1, 1, false);
    return bits;
}

static void every_short_float_loads_exactly(void)
{
    for (size_t t = 0; t < 2; t++)
        for (int bits = 0; bits < 0x10000; bits++) {
            uint16_t raw = (uint16_t)bits;
            double wanted = value_of_short(SHORTS[t].format, raw);
            float value;
            loader(SHORTS[t].type, false, CK_F32)(&value, 1, (char *)&raw, 2, 1);
            if (is_nan_of(&SHORTS[t], raw)) {
                int shift = 23 - SHORTS[t].format.fraction_bits;
                CHECK(isnan(value));
                CHECK((bits_from(value) & 0x7fffff) == (uint32_t)(raw & (SHORTS[t].infinity ^ 0x7fff)) << shift);
            } else {
                CHECK((double)value == wanted);
            }
            CHECK(!signbit(value) == !(raw & 0x8000));
        }
}

static void every_short_float_survives_a_round_trip(void)
{
    for (size_t t = 0; t < 2; t++)
        for (int bits = 0; bits < 0x10000; bits++) {
            uint16_t raw = (uint16_t)bits;
            float value;
            loader(SHORTS[t].type, false, CK_F32)(&value, 1, (char *)&raw, 2, 1);
            CHECK(stored(&SHORTS[t], value) == (is_nan_of(&SHORTS[t], raw) ? raw | SHORTS[t].quiet : raw));
        }
}

static void check_rounding(const short_type *s, float value)
{
    CHECK(stored(s, value) == short_of_value(s->format, value));
    CHECK(stored(s, -value) == short_of_value(s->format, -value));
}

/* Between neighbours lie a tie and the floats next to it; beyond the largest finite number, the tie with infinity. */
static void ties_go_to_even_and_their_neighbours_do_not(void)
{
    for (size_t t = 0; t < 2; t++)
        for (uint16_t low = 0; low < SHORTS[t].infinity; low++) {
            double next = low + 1 < SHORTS[t].infinity ? value_of_short(SHORTS[t].format, low + 1)
                                                       : ldexp(1, 1 << (SHORTS[t].format.exponent_bits - 1));
            double tie = (value_of_short(SHORTS[t].format, low) + next) / 2;
            check_rounding(&SHORTS[t], (float)tie);
            check_rounding(&SHORTS[t], nextafterf((float)tie, 0));
            check_rounding(&SHORTS[t], nextafterf((float)tie, INFINITY));
        }
}

static void any_float_rounds_to_the_nearest(void)
{
    generator r = seeded(1);
    for (size_t t = 0; t < 2; t++) {
        for (int i = 0; i < 300000; i++) {
            float value = float_from((uint32_t)next_bits(&r));
            if (!isnan(value))
                check_rounding(&SHORTS[t], value);
        }
        static const float edges[] = {0,        0x1p-149f,  0x1p-126f, 0x1.fffffep127f, INFINITY,
                                      65504.0f, 65519.996f, 65520.0f,  0x1p-25f};
        for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
            check_rounding(&SHORTS[t], edges[i]);
    }
}

static void nan_stays_quiet_nan_of_its_sign(void)
{
    for (size_t t = 0; t < 2; t++)
        for (uint32_t fraction = 1; fraction < 0x800000; fraction = fraction * 5 / 4 + 1)
            for (int sign = 0; sign < 2; sign++) {
                uint16_t bits = stored(&SHORTS[t], float_from((uint32_t)sign << 31 | 0x7f800000u | fraction));
                CHECK(is_nan_of(&SHORTS[t], bits) && (bits & SHORTS[t].quiet) && bits >> 15 == sign);
            }
}

/* ---- the floats of the arithmetic ---- */

static void native_floats_keep_every_bit(void)
{
    generator r = seeded(2);
    for (int a = 0; a < 2; a++)
        for (int swapped = 0; swapped < 2; swapped++)
            for (int i = 0; i < 20000; i++) {
                uint64_t bits = next_bits(&r);
                char raw[8], ordered[8], back[8];
                int bytes = bytes_of(ARITHMETIC[a]);
                double value[1]; /* aligned for either dtype */
                if (one_in(&r, 4)) /* infinities and NaNs */
                    bits |= a ? 0x7ff0000000000000u : 0x7f800000u;
                memcpy(raw, &bits, 8);
                copy_ordered(ordered, raw, bytes, swapped);
                loader(ARITHMETIC[a], swapped, ARITHMETIC[a])(value, 1, ordered, bytes, 1);
                CHECK(memcmp(value, raw, (size_t)bytes) == 0);
                storer(ARITHMETIC[a], swapped, ARITHMETIC[a])(back, bytes, value, 1, 1, false);
                CHECK(memcmp(back, ordered, (size_t)bytes) == 0);
            }
}

/* ---- integers ---- */

static double loaded(ck_type type, bool swapped, ck_type arithmetic, const char *at)
{
    float f;
    double d;
    loader(type, swapped, arithmetic)(arithmetic == CK_F64 ? (void *)&d : (void *)&f, 1, at, 8, 1);
    return arithmetic == CK_F64 ? d : f;
}

static void check_integer(ck_type type, uint64_t bits)
{
    char raw[8], ordered[8];
    memcpy(raw, &bits, 8);
    for (int a = 0; a < 2; a++)
        for (int swapped = 0; swapped < 2; swapped++)
            if (loads(type, swapped, ARITHMETIC[a])) {
                copy_ordered(ordered, raw, bytes_of(type), swapped);
                CHECK(loaded(type, swapped, ARITHMETIC[a], ordered) == element(type, false, raw));
            }
}

static void integers_convert_at_their_extremes_and_in_between(void)
{
    generator r = seeded(3);
    for (ck_type type = CK_BOOL; type < CK_TYPES; type++) {
        int bits = 8 * bytes_of(type);
        for (int power = 0; power < bits; power++)
            for (int64_t around = -3; around <= 3; around++) {
                check_integer(type, ((uint64_t)1 << power) + (uint64_t)around);
                check_integer(type, 0 - ((uint64_t)1 << power) + (uint64_t)around);
            }
        for (int i = 0; i < 2000; i++)
            check_integer(type, next_bits(&r));
        if (bits <= 16)
            for (uint64_t i = 0; i < 0x10000; i++)
                check_integer(type, i);
    }
    CHECK(loaded(CK_I64, false, CK_F64, (char *)&(int64_t){INT64_MIN}) == -0x1p63);
    CHECK(loaded(CK_U64, false, CK_F64, (char *)&(uint64_t){UINT64_MAX}) == 0x1p64);
    CHECK(loaded(CK_I32, false, CK_F64, (char *)&(int32_t){INT32_MIN}) == -0x1p31);
    CHECK(loaded(CK_I16, false, CK_F32, (char *)&(int16_t){INT16_MIN}) == -0x1p15);
    CHECK(loaded(CK_I8, false, CK_F32, (char *)&(int8_t){INT8_MIN}) == -0x1p7);
    CHECK(loaded(CK_BOOL, false, CK_F32, (char *)&(uint8_t){2}) == 1);
}

/* ---- runs: any distance between elements, any alignment ---- */

/* The elements of a run, as bytes that are alive in both the array and a copy made one element at a time. */
typedef struct {
    int64_t n, step, bytes, first;
    char *data;
} run;

static run run_new(generator *r, int64_t size, bool repeats)
{
    int64_t steps[] = {size, size, -size, 2 * size, -3 * size, size + 1, -size - 3, 0};
    run a = {.n = between(r, 0, 150), .step = steps[between(r, 0, repeats ? 7 : 6)]};
    int64_t span = ck_max(0, a.n - 1) * (a.step < 0 ? -a.step : a.step), odd = between(r, 0, 3);
    a.bytes = span + size + odd;
    a.first = odd + (a.step < 0 ? span : 0);
    a.data = malloc((size_t)a.bytes);
    for (int64_t i = 0; i < a.bytes; i++)
        a.data[i] = (char)next_bits(r);
    return a;
}

static void a_run_loads_as_its_elements_do(void)
{
    generator r = seeded(4);
    for (int again = 0; again < 100; again++)
        for (int type = 0; type < CK_TYPES; type++)
            for (int which = 0; which < 4; which++) {
                ck_type arithmetic = ARITHMETIC[which & 1];
                bool swapped = which >> 1;
                if (!loads(type, swapped, arithmetic))
                    continue;
                ck_load_fn load = loader(type, swapped, arithmetic);
                run from = run_new(&r, bytes_of(type), true);
                int64_t step = one_in(&r, 2) ? 1 : between(&r, 2, 5), size = ck_size(arithmetic);
                size_t bytes = (size_t)((ck_max(0, from.n - 1) * step + 1) * size);
                char *got = malloc(bytes), *wanted = malloc(bytes);
                memset(got, 0xff, bytes);
                memset(wanted, 0xff, bytes);
                for (int64_t i = 0; i < from.n; i++)
                    load(wanted + i * step * size, 1, from.data + from.first + i * from.step, 8, 1);
                load(got, step, from.data + from.first, from.step, from.n);
                CHECK(memcmp(got, wanted, bytes) == 0);
                free(got);
                free(wanted);
                free(from.data);
            }
}

static void a_run_is_stored_as_its_elements_are(void)
{
    generator r = seeded(5);
    for (int again = 0; again < 200; again++)
        for (ck_type type = CK_F32; type <= CK_BF16; type++)
            for (int which = 0; which < 4; which++) {
                ck_type arithmetic = type == CK_F64 ? CK_F64 : CK_F32;
                bool swapped = which & 1, add = which >> 1;
                if (!stores(type, swapped, arithmetic))
                    continue;
                ck_store_fn store = storer(type, swapped, arithmetic);
                run to = run_new(&r, bytes_of(type), false);
                int64_t step = one_in(&r, 2) ? 1 : between(&r, 2, 5), size = ck_size(arithmetic);
                int64_t numbers = ck_max(0, to.n - 1) * step + 1;
                char *from = malloc((size_t)(numbers * size)), *wanted = malloc((size_t)to.bytes);
                for (int64_t i = 0; i < numbers; i++)
                    set_element(arithmetic, false, from + i * size, ldexp((double)between(&r, -9999, 9999), -12));
                memcpy(wanted, to.data, (size_t)to.bytes);
                for (int64_t i = 0; i < to.n; i++)
                    store(wanted + to.first + i * to.step, 8, from + i * step * size, 1, 1, add);
                store(to.data + to.first, to.step, from, step, to.n, add);
                CHECK(memcmp(to.data, wanted, (size_t)to.bytes) == 0);
                free(from);
                free(wanted);
                free(to.data);
            }
}

static void adding_rounds_the_sum_once(void)
{
    generator r = seeded(6);
    for (ck_type type = CK_F32; type <= CK_BF16; type++)
        for (int swapped = 0; swapped < 2; swapped++)
            for (int i = 0; i < 20000; i++) {
                ck_type arithmetic = type == CK_F64 ? CK_F64 : CK_F32;
                if (!stores(type, swapped, arithmetic))
                    continue;
                char at[8], wanted[8], number[8];
                set_element(type, swapped, at, ldexp((double)between(&r, -9999, 9999), -(int)between(&r, 0, 20)));
                double added = ldexp((double)between(&r, -99999, 99999), -(int)between(&r, 0, 20));
                double sum = element(type, swapped, at) + added;
                double aligned;
                set_element(arithmetic, false, number, added);
                memcpy(&aligned, number, 8);
                set_element(type, swapped, wanted, arithmetic == CK_F64 ? sum : (float)sum);
                storer(type, swapped, arithmetic)(at, 8, &aligned, 1, 1, true);
                CHECK(memcmp(at, wanted, (size_t)bytes_of(type)) == 0);
            }
}

/* ---- blocks ---- */

/* Random steps of two dimensions that keep all elements apart, or, if `repeats`, do not; and their span. */
static int64_t block_steps(generator *r, int64_t unit, const int64_t n[2], bool repeats, bool signs, int64_t step[2],
                           int64_t *first)
{
    int inner = one_in(r, 2);
    int64_t span = 0;
    step[inner] = unit * (one_in(r, 2) ? 1 : between(r, 1, 3));
    step[!inner] = step[inner] * ck_max(1, n[inner]) + unit * between(r, 0, 3);
    *first = 0;
    for (int d = 0; d < 2; d++) {
        int64_t reach = ck_max(0, n[d] - 1) * step[d];
        if (repeats && one_in(r, 6)) {
            step[d] = 0;
            continue;
        }
        span += reach;
        if (signs && one_in(r, 3)) {
            step[d] = -step[d];
            *first += reach;
        }
    }
    return span;
}

enum { ZONE = 64 };

static char *guarded(int64_t bytes)
{
    char *memory = malloc((size_t)(bytes + 2 * ZONE));
    memset(memory, 0xff, (size_t)(bytes + 2 * ZONE));
    return memory;
}

static int64_t block_length(generator *r) { return one_in(r, 4) ? between(r, 60, 200) : between(r, 0, 12); }

static void a_block_loads_as_two_plain_loops_do(void)
{
    static const ck_type types[] = {CK_F32, CK_F16, CK_BF16, CK_U8, CK_I16};
    generator r = seeded(7);
    for (int again = 0; again < 1500; again++) {
        ck_type type = types[between(&r, 0, 4)];
        int64_t n[2] = {block_length(&r), block_length(&r)}, t[2], f[2], start, unused;
        int64_t from_bytes = block_steps(&r, bytes_of(type), n, true, true, f, &start) + bytes_of(type);
        int64_t to_bytes = block_steps(&r, 1, n, false, false, t, &unused) * 4 + 4;
        ck_load_fn load = loader(type, false, CK_F32);
        char *from = malloc((size_t)from_bytes), *got = guarded(to_bytes), *wanted = guarded(to_bytes);
        for (int64_t i = 0; i < from_bytes; i++)
            from[i] = (char)next_bits(&r);
        for (int64_t i = 0; i < n[0]; i++)
            for (int64_t j = 0; j < n[1]; j++)
                load(wanted + ZONE + (i * t[0] + j * t[1]) * 4, 1, from + start + i * f[0] + j * f[1], 8, 1);
        ck_load_block(load, 4, got + ZONE, t[0], t[1], from + start, f[0], f[1], n[0], n[1]);
        CHECK(memcmp(got, wanted, (size_t)(to_bytes + 2 * ZONE)) == 0);
        free(from);
        free(got);
        free(wanted);
    }
}

static void a_block_is_stored_as_by_two_plain_loops(void)
{
    static const ck_type types[] = {CK_F64, CK_F64, CK_F32, CK_F16, CK_BF16};
    generator r = seeded(8);
    for (int again = 0; again < 1500; again++) {
        ck_type type = types[between(&r, 0, 4)], arithmetic = type == CK_F64 ? CK_F64 : CK_F32;
        int64_t n[2] = {block_length(&r), block_length(&r)}, t[2], f[2], start, unused, size = ck_size(arithmetic);
        int64_t to_bytes = block_steps(&r, bytes_of(type), n, false, true, t, &start) + bytes_of(type);
        int64_t numbers = block_steps(&r, 1, n, false, false, f, &unused) + 1;
        bool add = one_in(&r, 3);
        ck_store_fn store = storer(type, false, arithmetic);
        char *from = malloc((size_t)(numbers * size)), *got = guarded(to_bytes), *wanted = guarded(to_bytes);
        for (int64_t i = 0; i < numbers; i++)
            set_element(arithmetic, false, from + i * size, (double)between(&r, -99, 99));
        if (add) {
            memset(got + ZONE, 0, (size_t)to_bytes);
            memset(wanted + ZONE, 0, (size_t)to_bytes);
        }
        for (int64_t i = 0; i < n[0]; i++)
            for (int64_t j = 0; j < n[1]; j++)
                store(wanted + ZONE + start + i * t[0] + j * t[1], 8, from + (i * f[0] + j * f[1]) * size, 1, 1, add);
        ck_store_block(store, size, got + ZONE + start, t[0], t[1], from, f[0], f[1], n[0], n[1], add);
        CHECK(memcmp(got, wanted, (size_t)(to_bytes + 2 * ZONE)) == 0);
        free(from);
        free(got);
        free(wanted);
    }
}

int main(void)
{
    RUN(exactly_the_pairs_that_meet_have_a_converter);
    RUN(every_short_float_loads_exactly);
    RUN(every_short_float_survives_a_round_trip);
    RUN(ties_go_to_even_and_their_neighbours_do_not);
    RUN(any_float_rounds_to_the_nearest);
    RUN(nan_stays_quiet_nan_of_its_sign);
    RUN(native_floats_keep_every_bit);
    RUN(integers_convert_at_their_extremes_and_in_between);
    RUN(a_run_loads_as_its_elements_do);
    RUN(a_run_is_stored_as_its_elements_are);
    RUN(adding_rounds_the_sum_once);
    RUN(a_block_loads_as_two_plain_loops_do);
    RUN(a_block_is_stored_as_by_two_plain_loops);
    return summary();
}
