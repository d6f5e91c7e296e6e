/* What the bytes of an element mean, defined once more and without tricks: exact arithmetic on doubles. */
#ifndef VALUES_H
#define VALUES_H

#include "array.h"

#include <math.h>
#include <string.h>

typedef struct {
    int exponent_bits, fraction_bits;
} short_format;

static const short_format HALF = {5, 10}, BFLOAT = {8, 7};

static inline int bytes_of(ck_type type)
{
    static const uint8_t bytes[CK_TYPES] = {
        [CK_F32] = 4, [CK_F64] = 8, [CK_F16] = 2, [CK_BF16] = 2, [CK_BOOL] = 1, [CK_I8] = 1,  [CK_U8] = 1,
        [CK_I16] = 2, [CK_U16] = 2, [CK_I32] = 4, [CK_U32] = 4,  [CK_I64] = 8,  [CK_U64] = 8};
    return bytes[type];
}

/* The dtype of sums; the arithmetic CK_BF16 has bfloat16 numbers in its operands alone. */
static inline ck_type sum_type(ck_type arithmetic) { return arithmetic == CK_BF16 ? CK_F32 : arithmetic; }

static inline double value_of_short(short_format f, uint16_t bits)
{
    int most = (1 << f.exponent_bits) - 1, exponent = bits >> f.fraction_bits & most;
    int fraction = bits & ((1 << f.fraction_bits) - 1), hidden = 1 << f.fraction_bits;
    int least = 2 - (1 << (f.exponent_bits - 1)); /* exponent of the least normal number */
    double value;
    if (exponent == most)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, least - f.fraction_bits);
    else
        value = ldexp(hidden + fraction, exponent - 1 + least - f.fraction_bits);
    return bits & 0x8000 ? -value : value;
}

/* The nearest number of the format, ties to even; for a NaN any NaN. */
static inline uint16_t short_of_value(short_format f, double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits;
    int least = 2 - (1 << (f.exponent_bits - 1));
    if (isnan(value))
        return (uint16_t)(sign | infinity | 1);
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    value = fabs(value);
    int exponent = value == 0 ? least : ilogb(value);
    if (exponent < least)
        exponent = least;
    if (exponent > -least + 1)
        return (uint16_t)(sign | infinity);
    double units = nearbyint(ldexp(value, f.fraction_bits - exponent));
    int bits = (int)units; /* one unit beyond the largest fraction is the next exponent, or infinity */
    if (bits >= 1 << f.fraction_bits)
        bits += (exponent - least) << f.fraction_bits;
    return (uint16_t)(sign | bits);
}

static inline void copy_ordered(void *to, const void *from, int bytes, bool swapped)
{
    for (int i = 0; i < bytes; i++)
        ((char *)to)[i] = ((const char *)from)[swapped ? bytes - 1 - i : i];
}

#define AS(TYPE)                                                                                                      \
    do {                                                                                                              \
        TYPE typed;                                                                                                   \
        memcpy(&typed, raw, sizeof typed);                                                                            \
        return (double)(long double)typed;                                                                            \
    } while (0)

static inline double element(ck_type type, bool swapped, const char *at)
{
    char raw[8] = {0};
    uint16_t bits;
    copy_ordered(raw, at, bytes_of(type), swapped);
    memcpy(&bits, raw, sizeof bits);
    switch (type) {
    case CK_F32: AS(float);
    case CK_F64: AS(double);
    case CK_F16: return value_of_short(HALF, bits);
    case CK_BF16: return value_of_short(BFLOAT, bits);
    case CK_BOOL: return raw[0] != 0;
    case CK_I8: AS(int8_t);
    case CK_U8: AS(uint8_t);
    case CK_I16: AS(int16_t);
    case CK_U16: AS(uint16_t);
    case CK_I32: AS(int32_t);
    case CK_U32: AS(uint32_t);
    case CK_I64: AS(int64_t);
    default: AS(uint64_t);
    }
}

#undef AS

#define AS(TYPE)                                                                                                      \
    do {                                                                                                              \
        TYPE typed = (TYPE)value;                                                                                     \
        memcpy(raw, &typed, sizeof typed);                                                                            \
    } while (0)

static inline void set_element(ck_type type, bool swapped, char *at, double value)
{
    char raw[8] = {0};
    uint16_t bits;
    switch (type) {
    case CK_F32: AS(float); break;
    case CK_F64: AS(double); break;
    case CK_F16:
    case CK_BF16:
        bits = short_of_value(type == CK_F16 ? HALF : BFLOAT, value);
        memcpy(raw, &bits, sizeof bits);
        break;
    case CK_BOOL: raw[0] = value != 0; break;
    case CK_I8: AS(int8_t); break;
    case CK_U8: AS(uint8_t); break;
    case CK_I16: AS(int16_t); break;
    case CK_U16: AS(uint16_t); break;
    case CK_I32: AS(int32_t); break;
    case CK_U32: AS(uint32_t); break;
    case CK_I64: AS(int64_t); break;
    default: AS(uint64_t); break;
    }
    copy_ordered(at, raw, bytes_of(type), swapped);
}

#undef AS

#endif
