/* Four-dimensional arrays with strides of all kinds, between guard zones.
 *
 * Every byte that belongs to no element holds 0xff, which makes a NaN of any float: reading one shows in the result,
 * writing one in strided_intact.
 */
#ifndef STRIDED_H
#define STRIDED_H

#include "random.h"
#include "values.h"

#include <stdlib.h>

enum { GUARD = 128, NOTHING = 0xff };

typedef struct {
    ck_array array;
    int64_t length[4];
    unsigned char *memory;
    int64_t bytes; /* of memory, guards included */
} strided;

typedef enum { DENSE, GAPS, ODD } tidiness; /* ODD: strides of either sign, and elements at odd addresses */

static inline int64_t count_of(const int64_t length[4]) { return length[0] * length[1] * length[2] * length[3]; }

static inline char *strided_at(const strided *s, int64_t i, int64_t j, int64_t k, int64_t l)
{
    const int64_t *stride = s->array.stride;
    return s->array.data + i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3];
}

/* `order` names the axes, the outermost first; `repeats` allows strides of zero. */
static inline strided strided_new(generator *r, const int64_t length[4], ck_type type, bool swapped,
                                  const int order[4], tidiness tidy, bool repeats)
{
    strided s = {.array = {.type = type, .swapped = swapped}};
    int64_t step = bytes_of(type), first = GUARD, span = bytes_of(type);
    memcpy(s.length, length, sizeof s.length);
    if (tidy == ODD)
        first += between(r, 0, 7);
    for (int a = 3; a >= 0; a--) {
        int axis = order[a];
        bool repeated = repeats && one_in(r, 8), backwards = tidy == ODD && one_in(r, 3);
        if (tidy != DENSE && one_in(r, 2))
            step += between(r, 0, 3) * (tidy == ODD ? 1 : bytes_of(type));
        s.array.stride[axis] = repeated ? 0 : backwards ? -step : step;
        if (repeated)
            continue;
        if (backwards)
            first += (length[axis] - 1) * step;
        span += (length[axis] - 1) * step;
        step *= length[axis];
    }
    s.bytes = span + 2 * GUARD + 8;
    s.memory = aligned_alloc(64, (size_t)(s.bytes + 63) / 64 * 64);
    memset(s.memory, NOTHING, (size_t)s.bytes);
    s.array.data = (char *)s.memory + first;
    return s;
}

/* What an array is for decides on its dtypes and the usual orders of its axes. */
typedef enum { PIXELS, PIXEL_GRADIENT, PIXEL_RESULT, TAPS, TAP_RESULT } purpose;

static inline ck_type random_type(generator *r, purpose use, ck_type arithmetic)
{
    static const ck_type floats[] = {CK_F32, CK_F16, CK_BF16}, wide[] = {CK_I32, CK_U32, CK_I64, CK_U64};
    static const ck_type integers[] = {CK_BOOL, CK_I8, CK_U8, CK_I16, CK_U16};
    bool result = use == PIXEL_RESULT || use == TAP_RESULT;
    if (one_in(r, 2) || (arithmetic == CK_BF16 && !result))
        return arithmetic;
    if (arithmetic == CK_BF16)
        return CK_F32;
    if (use == PIXELS && one_in(r, 2))
        return arithmetic == CK_F64 && one_in(r, 2) ? wide[between(r, 0, 3)] : integers[between(r, 0, 4)];
    return arithmetic == CK_F64 ? CK_F64 : floats[between(r, 0, 2)];
}

static inline strided strided_random(generator *r, const int64_t length[4], purpose use, ck_type arithmetic)
{
    static const int orders[3][4] = {{0, 1, 2, 3}, {3, 2, 0, 1}, {3, 0, 1, 2}}, planes[4] = {0, 3, 1, 2};
    bool input = use != PIXEL_RESULT && use != TAP_RESULT, pixels = use < TAPS;
    ck_type type = random_type(r, use, arithmetic);
    bool swapped = type != CK_BF16 && bytes_of(type) > 1 && one_in(r, 4);
    tidiness tidy = one_in(r, 2) ? DENSE : one_in(r, 2) ? GAPS : ODD;
    int order[4];
    memcpy(order, orders[pixels ? 0 : between(r, 0, 2)], sizeof order);
    if (pixels && one_in(r, 2))
        memcpy(order, planes, sizeof order);
    if (one_in(r, 4))
        shuffle(r, order, 4);
    return strided_new(r, length, type, swapped, order, tidy, input && one_in(r, 4));
}

#define EACH_ELEMENT(S)                                                                                               \
    for (int64_t i = 0; i < (S)->length[0]; i++)                                                                      \
        for (int64_t j = 0; j < (S)->length[1]; j++)                                                                  \
            for (int64_t k = 0; k < (S)->length[2]; k++)                                                              \
                for (int64_t l = 0; l < (S)->length[3]; l++)

/* Numbers whose sums and products are exact. */
static inline double small_integer(generator *r, ck_type type)
{
    bool is_unsigned = type == CK_U8 || type == CK_U16 || type == CK_U32 || type == CK_U64;
    return type == CK_BOOL ? (double)between(r, 0, 1) : (double)between(r, is_unsigned ? 0 : -3, 3);
}

/* Numbers whose sums depend on their order. */
static inline double any_number(generator *r, ck_type type)
{
    if (type >= CK_BOOL)
        return small_integer(r, type);
    double number = (double)between(r, -99999, 99999);
    return ldexp(number, -(int)between(r, 10, 20));
}

static inline void strided_fill(generator *r, strided *s, double (*draw)(generator *, ck_type))
{
    EACH_ELEMENT(s) set_element(s->array.type, s->array.swapped, strided_at(s, i, j, k, l), draw(r, s->array.type));
}

/* The values in C order; the caller frees them. */
static inline double *strided_values(const strided *s)
{
    double *values = malloc((size_t)count_of(s->length) * sizeof *values), *next = values;
    EACH_ELEMENT(s) *next++ = element(s->array.type, s->array.swapped, strided_at(s, i, j, k, l));
    return values;
}

/* Whether every element is the given value, rounded once, and no byte around them was written.  NaN in `expected`
 * stands for an element that nobody may have written. */
static inline bool strided_holds(const strided *s, const double *expected)
{
    unsigned char *seen = malloc((size_t)s->bytes);
    int bytes = bytes_of(s->array.type);
    bool same = true;
    memcpy(seen, s->memory, (size_t)s->bytes);
    EACH_ELEMENT(s)
    {
        char *at = strided_at(s, i, j, k, l), value[8];
        double wanted = *expected++;
        if (isnan(wanted))
            continue;
        set_element(s->array.type, s->array.swapped, value, wanted);
        if (wanted != 0)
            same = same && memcmp(value, at, (size_t)bytes) == 0;
        else /* of either sign */
            same = same && element(s->array.type, s->array.swapped, at) == 0;
        memset(seen + ((unsigned char *)at - s->memory), NOTHING, (size_t)bytes);
    }
    for (int64_t i = 0; i < s->bytes; i++)
        same = same && seen[i] == NOTHING;
    free(seen);
    return same;
}

/* Whether its elements are numbers of the arithmetic's dtype, to be used where they lie. */
static inline bool strided_usable(const strided *s, ck_type arithmetic)
{
    bool whole = s->array.type == arithmetic && !s->array.swapped;
    whole = whole && (uintptr_t)s->array.data % (size_t)bytes_of(arithmetic) == 0;
    for (int axis = 0; axis < 4; axis++)
        whole = whole && s->array.stride[axis] % bytes_of(arithmetic) == 0;
    return whole;
}

static inline void strided_free(strided *s) { free(s->memory); }

#endif
