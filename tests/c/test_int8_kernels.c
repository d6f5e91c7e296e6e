/* Tests of the int8 kernels, each that this CPU can run, and of the shapes of those that it cannot, against plain loops. */
#include "check.h"
#include "int8_kernels.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const ck_int8_kernel ck_int8_lanes8, ck_int8_lanes16, ck_int8_emulated;

static const ck_int8_kernel *const emulated[] = {
    &ck_int8_lanes8, &ck_int8_lanes16,
#ifdef CK_WITH_X86
    &ck_int8_emulated,
#endif
    NULL,
};

/* Calls the test for every kernel that runs here. */
static void each_kernel(void (*test)(const ck_int8_kernel *kernel, generator *r))
{
    generator r = seeded(1);
    for (int i = 0; ck_int8_kernels[i]; i++)
        if (ck_isa_runs(ck_int8_kernels[i]->isa))
            test(ck_int8_kernels[i], &r);
    for (int i = 0; emulated[i]; i++)
        if (ck_isa_runs(emulated[i]->isa))
            test(emulated[i], &r);
}

enum { GUARD_BYTES = 64, NOTHING = 0xa5 };

/* `bytes` bytes of which not one more is allocated, or between zones that nobody may touch. */
typedef struct {
    unsigned char *memory, *data;
    int64_t bytes, guard;
} room;

static room room_new(generator *r, int64_t bytes)
{
    room m = {.bytes = bytes, .guard = one_in(r, 2) ? 0 : GUARD_BYTES + between(r, 0, 3)};
    m.memory = malloc((size_t)(bytes + 2 * m.guard + !(bytes + m.guard)));
    memset(m.memory, NOTHING, (size_t)(bytes + 2 * m.guard));
    m.data = m.memory + m.guard;
    return m;
}

static void room_free(room *m)
{
    for (int64_t i = 0; i < m->guard; i++)
        CHECK(m->memory[i] == NOTHING && m->data[m->bytes + i] == NOTHING);
    free(m->memory);
}

/* Random numbers, or nothing but the least or the greatest. */
static int number(generator *r, int kind, int low, int high)
{
    return kind == 0 ? low : kind == 1 ? high : (int)between(r, low, high);
}

/* Where the sums of a call of `dot` begin, and where their results go. */
typedef enum { ON_C, FROM_START, TO_BYTES } way;

static ck_int8_epilogue random_epilogue(generator *r, ck_type out_type, ck_type side_type, float *scale, float *bias);
static bool right(const ck_int8_epilogue *e, int64_t j, int32_t sum, const unsigned char *side, const unsigned char *out);

static void check_dot(const ck_int8_kernel *kernel, generator *r, ck_form form, int64_t rows, int64_t steps)
{
    const int64_t unit = ck_form_unit(form), columns = kernel->columns, reach = steps + 3;
    const int64_t a_step = one_in(r, 2) ? reach * CK_UNIT_BYTES : between(r, 1, 9);
    const bool pairs = form == CK_BYTES && kernel->pairs_saturate;
    const way how = (way)between(r, ON_C, TO_BYTES);
    const uint8_t flip = form == CK_BYTES && !kernel->pairs_saturate && one_in(r, 2) ? 0x80 : 0;
    const int kind = (int)between(r, 0, 4), x_low = form == CK_WORDS ? -255 : 0, x_high = 255;
    room a = room_new(r, (rows - 1) * a_step + reach * CK_UNIT_BYTES), b = room_new(r, steps * columns * CK_UNIT_BYTES);
    room c = room_new(r, rows * columns * 4), start = room_new(r, columns * 4);
    room side = room_new(r, rows * columns), out = room_new(r, rows * columns);
    int64_t *at = malloc((size_t)(steps + 1) * sizeof *at);
    for (int64_t s = 0; s < steps; s++)
        at[s] = between(r, 0, reach - 1) * CK_UNIT_BYTES;
    for (int64_t i = 0; i < a.bytes / 2 * 2; i += form == CK_WORDS ? 2 : 1) {
        int16_t word = (int16_t)number(r, kind, x_low, x_high);
        if (form == CK_WORDS)
            memcpy(a.data + i, &word, 2);
        else
            a.data[i] = (unsigned char)word;
    }
    /* Weights of pairs that stay within 16 bits, or all there are. */
    for (int64_t i = 0; i < steps * columns * unit; i++) {
        int16_t w = (int16_t)(pairs ? number(r, kind, -64, 64) : number(r, (int)between(r, 0, 4), -128, 127));
        memcpy(b.data + i * ck_form_size(form), &w, (size_t)ck_form_size(form));
    }
    for (int64_t i = 0; i < side.bytes; i++)
        side.data[i] = (unsigned char)next_bits(r);
    uint32_t *expected = calloc((size_t)(rows * columns), 4), *begin = calloc((size_t)columns, 4);
    for (int64_t j = 0; j < columns; j++)
        begin[j] = next_bits(r);
    memcpy(start.data, begin, (size_t)start.bytes);
    for (int64_t i = 0; i < rows * columns; i++) {
        expected[i] = how == ON_C ? (uint32_t)next_bits(r) : begin[i % columns];
        memcpy(c.data + i * 4, &expected[i], 4 * (how == ON_C));
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t s = 0; s < steps; s++)
            for (int64_t j = 0; j < columns; j++)
                for (int64_t u = 0; u < unit; u++) {
                    const unsigned char *x = a.data + i * a_step + at[s] + u * ck_form_size(form);
                    const unsigned char *w = b.data + ((s * columns + j) * unit + u) * ck_form_size(form);
                    int16_t x16, w16;
                    memcpy(&x16, x, sizeof x16 * (form == CK_WORDS));
                    memcpy(&w16, w, sizeof w16 * (form == CK_WORDS));
                    expected[i * columns + j] +=
                        form == CK_WORDS ? (uint32_t)(x16 * w16) : (uint32_t)((*x ^ flip) * (int8_t)*w);
                }
    float scale[CK_INT8_MOST_COLUMNS], bias[CK_INT8_MOST_COLUMNS];
    static const ck_type sides[] = {CK_TYPES, CK_I8, CK_U8};
    const ck_int8_epilogue e =
        random_epilogue(r, one_in(r, 2) ? CK_I8 : CK_U8, sides[between(r, 0, 2)], scale, bias);
    const ck_int8_products products = {
        .a = a.data, .a_step = a_step, .at = at, .steps = steps, .b = b.data, .flip = flip,
        .start = how == ON_C ? NULL : (const int32_t *)(const void *)start.data,
        .c = (int32_t *)(void *)c.data, .epilogue = how == TO_BYTES ? &e : NULL,
        .side = (const char *)side.data, .side_step = columns, .out = (char *)out.data, .out_step = columns,
    };
    kernel->dot[form](rows, &products);
    bool good = how == TO_BYTES || memcmp(c.data, expected, (size_t)c.bytes) == 0;
    for (int64_t i = 0; how == TO_BYTES && i < out.bytes; i++)
        good = good && right(&e, i % columns, (int32_t)expected[i], side.data + i, out.data + i);
    if (!good)
        fprintf(stderr, "%s form %d: %d rows, %d steps, way %d\n", kernel->name, form, (int)rows, (int)steps, how);
    CHECK(good);
    free(expected);
    free(begin);
    free(at);
    room_free(&a);
    room_free(&b);
    room_free(&c);
    room_free(&start);
    room_free(&side);
    room_free(&out);
}

static void check_dots(const ck_int8_kernel *kernel, generator *r)
{
    for (int form = CK_BYTES; form < CK_FORMS; form++) {
        CHECK((kernel->dot[form] != NULL) == (kernel->rows[form] > 0));
        for (int64_t rows = 1; rows <= kernel->rows[form]; rows++)
            for (int64_t steps = 0; steps < 40; steps++)
                check_dot(kernel, r, (ck_form)form, rows, steps < 38 ? steps / 2 : 43 + steps);
    }
}

static void sums_are_exact(void) { each_kernel(check_dots); }

/* The longest sums that the interface allows, of the largest products: they wrap once the shift is in, and come back. */
static void check_longest(const ck_int8_kernel *kernel, generator *r)
{
    (void)r;
    enum { TERMS = 131071, STEPS = TERMS / 4 + 1 };
    if (kernel->pairs_saturate)
        return;
    uint8_t pixel[4] = {0, 0, 0, 0}; /* -128, shifted */
    int64_t *at = calloc(STEPS, sizeof *at);
    int8_t *b = calloc(STEPS, (size_t)kernel->columns * 4);
    uint32_t weights = 0;
    for (int64_t t = 0; t < TERMS; t++, weights += (uint32_t)-128)
        b[(t / 4 * kernel->columns) * 4 + t % 4] = -128;
    int32_t c[CK_INT8_MOST_COLUMNS];
    static const int32_t zeros[CK_INT8_MOST_COLUMNS];
    const ck_int8_products products = {.a = pixel, .at = at, .steps = STEPS, .b = b, .start = zeros, .c = c};
    kernel->dot[CK_BYTES](1, &products);
    CHECK((uint32_t)c[0] - 128u * weights == (uint32_t)TERMS * 128u * 128u);
    memset(pixel, 255, sizeof pixel);
    kernel->dot[CK_BYTES](1, &products);
    CHECK((int32_t)((uint32_t)c[0] - 128u * weights) == -128 * 127 * TERMS);
    free(at);
    free(b);
}

static void the_longest_sums_wrap_and_come_back(void) { each_kernel(check_longest); }

static float any_float(generator *r)
{
    static const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e38f, 1e-42f, 0.5f, -0.5f};
    if (one_in(r, 8))
        return special[between(r, 0, 8)];
    return (float)between(r, -2000, 2000) / (float)between(r, 1, 4000);
}

static int64_t size_of(ck_type type) { return type == CK_I8 || type == CK_U8 ? 1 : 4; }

static float side_of(ck_type type, const unsigned char *at)
{
    float value = 0;
    if (type == CK_F32)
        memcpy(&value, at, 4);
    return type == CK_I8 ? (int8_t)*at : type == CK_U8 ? *at : value;
}

static bool right(const ck_int8_epilogue *e, int64_t j, int32_t sum, const unsigned char *side, const unsigned char *out)
{
    if (e->out == CK_I32)
        return memcmp(&sum, out, 4) == 0;
    volatile float t = (float)sum * e->scale[j];
    if (e->side != CK_TYPES)
        t = fmaf(side_of(e->side, side), e->side_scale, t);
    t = t + e->bias[j];
    if (e->out == CK_F32) {
        float seen, wanted = e->relu && t <= 0 ? 0 : t;
        memcpy(&seen, out, 4);
        return isnan(wanted) ? isnan(seen) : memcmp(&seen, &wanted, 4) == 0;
    }
    float clipped = isnan(t) ? 0 : t < e->low ? e->low : t > e->high ? e->high : t;
    return *out == (unsigned char)((int)rintf(clipped) + e->zero_point);
}

static ck_int8_epilogue random_epilogue(generator *r, ck_type out_type, ck_type side_type, float *scale, float *bias)
{
    for (int64_t j = 0; j < CK_INT8_MOST_COLUMNS; j++) {
        scale[j] = any_float(r);
        bias[j] = one_in(r, 3) ? -0.0f : any_float(r);
    }
    ck_int8_epilogue e = {.out = out_type, .side = side_type, .scale = scale, .bias = bias,
                          .side_scale = any_float(r), .relu = out_type == CK_F32 && one_in(r, 2)};
    if (size_of(out_type) == 1) {
        const int low = out_type == CK_I8 ? -128 : 0;
        e.zero_point = low + (int32_t)between(r, 0, 255);
        e.low = one_in(r, 2) ? 0 : (float)(low - e.zero_point);
        e.high = (float)(low + 255 - e.zero_point);
    }
    return e;
}

static void check_epilogue(const ck_int8_kernel *kernel, generator *r, ck_type out_type, ck_type side_type)
{
    const int64_t rows = between(r, 1, 11), columns = kernel->columns;
    const int64_t count = one_in(r, 2) ? columns : between(r, 1, columns), gap = one_in(r, 2) ? 0 : between(r, 1, 7);
    const int64_t side_bytes = side_type == CK_TYPES ? 0 : count * size_of(side_type), out_bytes = count * size_of(out_type);
    room sums = room_new(r, rows * columns * 4);
    room side = room_new(r, rows * side_bytes + (rows - 1) * gap), out = room_new(r, rows * out_bytes + (rows - 1) * gap);
    float scale[CK_INT8_MOST_COLUMNS], bias[CK_INT8_MOST_COLUMNS];
    const ck_int8_epilogue e = random_epilogue(r, out_type, side_type, scale, bias);
    for (int64_t i = 0; i < rows * columns; i++) {
        int32_t sum = one_in(r, 8) ? (int32_t)next_bits(r) : (int32_t)between(r, -5000, 5000);
        memcpy(sums.data + i * 4, &sum, 4);
    }
    for (int64_t i = 0; side_bytes && i < rows; i++)
        for (int64_t j = 0; j < count; j++) {
            float value = any_float(r);
            unsigned char *at = side.data + i * (side_bytes + gap) + j * size_of(side_type);
            if (side_type == CK_F32)
                memcpy(at, &value, 4);
            else
                *at = (unsigned char)next_bits(r);
        }
    kernel->finish(rows, count, (const int32_t *)(const void *)sums.data, &e, side.data, side_bytes + gap, out.data,
                   out_bytes + gap);
    bool good = true;
    for (int64_t i = 0; i < rows; i++) {
        unsigned char *row = out.data + i * (out_bytes + gap);
        for (int64_t j = 0; j < count; j++) {
            int32_t sum;
            memcpy(&sum, sums.data + (i * columns + j) * 4, 4);
            good = good && right(&e, j, sum, side.data + i * (side_bytes + gap) + j * size_of(side_type),
                                 row + j * size_of(out_type));
        }
        for (int64_t g = 0; g < gap && i + 1 < rows; g++)
            good = good && row[out_bytes + g] == NOTHING;
    }
    if (!good)
        fprintf(stderr, "%s: out %d, side %d, %d rows of %d\n", kernel->name, out_type, side_type, (int)rows, (int)count);
    CHECK(good);
    room_free(&sums);
    room_free(&side);
    room_free(&out);
}

static void check_epilogues(const ck_int8_kernel *kernel, generator *r)
{
    static const ck_type outs[] = {CK_I8, CK_U8, CK_F32}, sides[] = {CK_TYPES, CK_I8, CK_U8, CK_F32};
    for (int again = 0; again < 60; again++) {
        check_epilogue(kernel, r, CK_I32, CK_TYPES);
        for (int o = 0; o < 3; o++)
            for (int s = 0; s < 4; s++)
                check_epilogue(kernel, r, outs[o], sides[s]);
    }
}

static void the_epilogue_is_right_to_the_bit(void) { each_kernel(check_epilogues); }

static void check_weave(const ck_int8_kernel *kernel, generator *r, int64_t lines, int64_t n)
{
    const ck_form form = one_in(r, 2) ? CK_WORDS : CK_BYTES;
    const bool is_signed = one_in(r, 2);
    const uint8_t flip = form == CK_BYTES && one_in(r, 2) ? 0x80 : 0;
    const int64_t gap = between(r, 0, 5), size = ck_form_size(form), line = n + gap, step = lines + between(r, 0, 5);
    room from = room_new(r, lines * line - gap), to = room_new(r, ((n - 1) * step + lines) * size);
    for (int64_t i = 0; i < from.bytes; i++)
        from.data[i] = (unsigned char)next_bits(r);
    kernel->weave(form, is_signed, flip, to.data, step, from.data, line, lines, n);
    bool good = true;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < step && j * step + i < to.bytes / size; i++) {
            uint8_t byte = from.data[ck_min(i, lines - 1) * line + j];
            int16_t wide = is_signed ? (int8_t)byte : byte, seen = 0;
            memcpy(&seen, to.data + (j * step + i) * size, (size_t)size);
            if (i >= lines)
                good = good && (uint8_t)seen == NOTHING;
            else
                good = good && (form == CK_WORDS ? seen == wide : (uint8_t)seen == (byte ^ flip));
        }
    room line_to = room_new(r, n * size);
    kernel->spread(form, is_signed, flip, line_to.data, from.data, n);
    for (int64_t j = 0; j < n; j++) {
        int16_t wide = is_signed ? (int8_t)from.data[j] : from.data[j], seen = 0;
        memcpy(&seen, line_to.data + j * size, (size_t)size);
        good = good && (form == CK_WORDS ? seen == wide : (uint8_t)seen == (from.data[j] ^ flip));
    }
    if (!good)
        fprintf(stderr, "%s: %d lines of %d, form %d\n", kernel->name, (int)lines, (int)n, form);
    CHECK(good);
    room_free(&from);
    room_free(&to);
    room_free(&line_to);
}

static void check_weaves(const ck_int8_kernel *kernel, generator *r)
{
    for (int64_t lines = 1; lines <= 37; lines++)
        for (int64_t n = 1; n <= 37; n++)
            check_weave(kernel, r, lines, n);
}

static void pixels_are_laid_down_in_order(void) { each_kernel(check_weaves); }

static void kernels_are_chosen_by_level(void)
{
    for (int isa = CK_GENERIC; isa < CK_ISAS; isa++) {
        const ck_int8_kernel *kernel = ck_int8_kernel_for((ck_isa)isa);
        CHECK(kernel && ck_isa_has((ck_isa)isa, kernel->isa));
        CHECK(ck_isa_has((ck_isa)isa, (ck_isa)isa) && ck_isa_has((ck_isa)isa, CK_GENERIC));
    }
    CHECK(!ck_isa_has(CK_AVX512VNNI, CK_AVX2VNNI) && ck_isa_has(CK_AVX512VNNI, CK_AVX512));
}

static void names_tell_rows_and_level(void)
{
    for (int i = 0; ck_int8_kernels[i]; i++) {
        const ck_int8_kernel *kernel = ck_int8_kernels[i];
        char name[64];
        snprintf(name, sizeof name, "int8_%dx%dx2v_%s", (int)kernel->rows[0], (int)kernel->rows[1],
                 ck_isa_name(kernel->isa));
        CHECK(strcmp(kernel->name, name) == 0 && kernel->pairs_saturate == (kernel->dot[CK_WORDS] != NULL));
        CHECK(kernel->columns <= CK_INT8_MOST_COLUMNS && kernel->rows[0] <= CK_INT8_MOST_ROWS);
    }
}

int main(void)
{
    for (int i = 0; ck_int8_kernels[i]; i++)
        if (!ck_isa_runs(ck_int8_kernels[i]->isa))
            printf("not run, this CPU has no %s: %s\n", ck_isa_name(ck_int8_kernels[i]->isa), ck_int8_kernels[i]->name);
    RUN(kernels_are_chosen_by_level);
    RUN(names_tell_rows_and_level);
    RUN(sums_are_exact);
    RUN(the_longest_sums_wrap_and_come_back);
    RUN(the_epilogue_is_right_to_the_bit);
    RUN(pixels_are_laid_down_in_order);
    return summary();
}
