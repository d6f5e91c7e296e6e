/* The epilogue of floating-point sums, in every order of memory, against one number at a time. */
#include "check.h"
#include "float_epilogue.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 16, MOST_CHANNELS = 1100 };

typedef struct {
    ck_array array;
    char *memory;
    int64_t bytes;
} room;

/* An array of floats or doubles, by pixels, by planes, or with gaps; and reversed along rows, or off its alignment. */
static room room_new(generator *r, const int64_t *size, ck_type type)
{
    const int64_t item = type == CK_F64 ? 8 : 4, gap = one_in(r, 3) ? item : 0;
    const bool planes = one_in(r, 2);
    room m = {.array = {.type = type}};
    int64_t *stride = m.array.stride;
    stride[planes ? 2 : 3] = item + gap;
    stride[planes ? 3 : 2] = size[planes ? 2 : 3] * stride[planes ? 2 : 3];
    if (planes) {
        stride[1] = size[2] * stride[2];
        stride[3] = size[1] * stride[1];
        stride[0] = size[3] * stride[3];
    } else {
        stride[1] = size[2] * stride[2];
        stride[0] = size[1] * stride[1];
    }
    m.bytes = size[0] * stride[0];
    m.memory = malloc((size_t)m.bytes + 2 * GUARD);
    memset(m.memory, 0x5a, (size_t)m.bytes + 2 * GUARD);
    m.array.data = m.memory + GUARD + (one_in(r, 4) ? 1 : 0);
    if (one_in(r, 4)) {
        m.array.data += (size[1] - 1) * stride[1];
        stride[1] = -stride[1];
    }
    return m;
}

static char *place(const ck_array *array, const int64_t *at)
{
    char *data = array->data;
    for (int axis = 0; axis < 4; axis++)
        data += at[axis] * array->stride[axis];
    return data;
}

static double get(ck_type type, const char *from)
{
    float narrow;
    double wide;
    memcpy(&narrow, from, sizeof narrow);
    if (type == CK_F64)
        memcpy(&wide, from, sizeof wide);
    return type == CK_F64 ? wide : (double)narrow;
}

static void set(ck_type type, char *to, double value)
{
    float narrow = (float)value;
    memcpy(to, type == CK_F64 ? (const void *)&value : (const void *)&narrow, type == CK_F64 ? 8 : 4);
}

static double activated(const ck_float_epilogue *e, double t)
{
    switch (e->activation) {
    case CK_RELU: return t <= 0 ? 0 : t;
    case CK_RELU6: return t <= 0 ? 0 : t >= 6 ? 6 : t;
    case CK_ELU: return t > 0 ? t : e->arithmetic == CK_F64 ? expm1(t) : (double)expm1f((float)t);
    case CK_LEAKY_RELU: return t > 0 ? t : t * e->alpha;
    default: return t;
    }
}

static bool each(const int64_t *size, int64_t *at)
{
    for (int axis = 3; axis >= 0; axis--) {
        if (++at[axis] < size[axis])
            return true;
        at[axis] = 0;
    }
    return false;
}

static void check_one(generator *r)
{
    const ck_type type = one_in(r, 2) ? CK_F64 : CK_F32;
    const int64_t channels = one_in(r, 8) ? MOST_CHANNELS : between(r, 1, 40);
    const int64_t size[4] = {between(r, 1, 3), between(r, 1, 5), one_in(r, 8) ? 1100 : between(r, 1, 9),
                             channels == MOST_CHANNELS ? channels : between(r, 1, channels)};
    room sums = room_new(r, size, type), side = room_new(r, size, type), out = room_new(r, size, type);
    const bool has_side = one_in(r, 2), has_out = one_in(r, 2);
    char scale[MOST_CHANNELS * 8], bias[MOST_CHANNELS * 8];
    ck_float_epilogue e = {.sums = sums.array, .arithmetic = type, .side_scale = 0.25, .alpha = 0.5,
                           .activation = (ck_activation)between(r, CK_NO_ACTIVATION, CK_LEAKY_RELU)};
    memcpy(e.size, size, sizeof size);
    e.side = has_side ? side.array : e.side;
    e.out = has_out ? out.array : e.out;
    e.scale_per_channel = one_in(r, 2);
    e.scale = one_in(r, 3) ? NULL : scale;
    e.bias = one_in(r, 3) ? NULL : bias;
    const int64_t item = type == CK_F64 ? 8 : 4, count = size[0] * size[1] * size[2] * size[3];
    for (int64_t c = 0; c < size[3]; c++) {
        set(type, scale + c * item, (double)between(r, -4, 4) / 2);
        set(type, bias + c * item, (double)between(r, -9, 9));
    }
    double *expected = malloc((size_t)count * sizeof *expected);
    int64_t at[4] = {0}, number = 0;
    do {
        const double sum = one_in(r, 50) ? (double)NAN : (double)between(r, -20, 20), beside = (double)between(r, -20, 20);
        set(type, place(&sums.array, at), sum);
        set(type, place(&side.array, at), beside);
        double t = sum * (e.scale ? get(type, scale + (e.scale_per_channel ? at[3] : 0) * item) : 1);
        t += has_side ? beside * e.side_scale : 0;
        t += e.bias ? get(type, bias + at[3] * item) : 0;
        expected[number++] = activated(&e, t);
    } while (each(size, at));
    const ck_job limits = {.threads = (int)between(r, 1, 3), .max_workers = 3};
    CHECK(ck_float_epilogue_run(&e, &limits) == CK_OK);
    int64_t wrong = 0;
    number = 0;
    do {
        const double seen = get(type, place(has_out ? &out.array : &sums.array, at)), wanted = expected[number++];
        wrong += isnan(wanted) ? !isnan(seen) : seen != wanted;
    } while (each(size, at));
    CHECK(wrong == 0);
    for (int i = 0; i < GUARD; i++)
        CHECK(sums.memory[i] == 0x5a && out.memory[i] == 0x5a);
    free(expected);
    free(sums.memory);
    free(side.memory);
    free(out.memory);
}

static void steps_come_in_order_in_every_order_of_memory(void)
{
    generator r = seeded(1);
    for (int again = 0; again < 300; again++)
        check_one(&r);
}

int main(void)
{
    RUN(steps_come_in_order_in_every_order_of_memory);
    return summary();
}
