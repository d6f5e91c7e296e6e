/* Vectors of int8 kernels in plain C, for any CPU; VECTOR_LANES may be set before.  Tests give them the shapes of levels
 * that the machine at hand lacks. */
#ifndef CK_INT8_PORTABLE_H
#define CK_INT8_PORTABLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef VECTOR_LANES
#define VECTOR_LANES 4
#endif

/* Without vector registers nothing is gained by a copy for each number of rows, which takes compilers long. */
#define FINISH_TILE static __attribute__((noinline))
#define FINISH_TOGETHER 1

typedef struct {
    uint32_t lane[VECTOR_LANES]; /* unsigned: sums wrap */
} i32_vector;

typedef struct {
    float lane[VECTOR_LANES];
} f32_vector;

#define EACH_LANE for (int l = 0; l < VECTOR_LANES; l++)

static inline i32_vector i32_zero(void) { return (i32_vector){{0}}; }
static inline i32_vector i32_load(const void *from)
{
    i32_vector v;
    memcpy(&v, from, sizeof v);
    return v;
}
static inline void i32_store(void *to, i32_vector v) { memcpy(to, &v, sizeof v); }
static inline i32_vector i32_add(i32_vector a, i32_vector b)
{
    EACH_LANE a.lane[l] += b.lane[l];
    return a;
}
static inline i32_vector i32_xor(i32_vector a, i32_vector b)
{
    EACH_LANE a.lane[l] ^= b.lane[l];
    return a;
}
static inline i32_vector i32_all(int32_t value)
{
    i32_vector v;
    EACH_LANE v.lane[l] = (uint32_t)value;
    return v;
}
static inline i32_vector i32_unit(const void *from)
{
    int32_t unit;
    memcpy(&unit, from, sizeof unit);
    return i32_all(unit);
}
/* What vpdpbusd does: unsigned pixels, signed weights, sums that wrap. */
static inline i32_vector exact_dot(i32_vector sum, i32_vector pixel, i32_vector filter)
{
    EACH_LANE
    {
        uint8_t x[4];
        int8_t w[4];
        memcpy(x, &pixel.lane[l], sizeof x);
        memcpy(w, &filter.lane[l], sizeof w);
        sum.lane[l] += (uint32_t)(x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3]);
    }
    return sum;
}

static inline f32_vector f32_load(const void *from)
{
    f32_vector v;
    memcpy(&v, from, sizeof v);
    return v;
}
static inline void f32_store(void *to, f32_vector v) { memcpy(to, &v, sizeof v); }
static inline f32_vector f32_all(float value)
{
    f32_vector v;
    EACH_LANE v.lane[l] = value;
    return v;
}
static inline f32_vector f32_of_i32(i32_vector v)
{
    f32_vector f;
    EACH_LANE f.lane[l] = (float)(int32_t)v.lane[l];
    return f;
}
static inline f32_vector f32_multiply(f32_vector a, f32_vector b)
{
    EACH_LANE a.lane[l] *= b.lane[l];
    return a;
}
static inline f32_vector f32_add(f32_vector a, f32_vector b)
{
    EACH_LANE a.lane[l] += b.lane[l];
    return a;
}
static inline f32_vector f32_fma(f32_vector a, f32_vector b, f32_vector c)
{
    EACH_LANE c.lane[l] = fmaf(a.lane[l], b.lane[l], c.lane[l]);
    return c;
}
static inline f32_vector f32_of_i8(const void *from)
{
    f32_vector f;
    EACH_LANE f.lane[l] = ((const int8_t *)from)[l];
    return f;
}
static inline f32_vector f32_of_u8(const void *from)
{
    f32_vector f;
    EACH_LANE f.lane[l] = ((const uint8_t *)from)[l];
    return f;
}
static inline f32_vector f32_relu(f32_vector v)
{
    EACH_LANE v.lane[l] = v.lane[l] <= 0 ? 0 : v.lane[l]; /* a NaN stays, -0 becomes 0 */
    return v;
}
/* At most high, to the nearest even integer; a NaN and what is too small become the least integer, or a NaN 0. */
static inline i32_vector i32_of_f32(f32_vector v, f32_vector high)
{
    i32_vector i;
    EACH_LANE
    {
        float t = high.lane[l] < v.lane[l] ? high.lane[l] : v.lane[l];
        i.lane[l] = (uint32_t)(t >= -0x1p31f ? (int32_t)lrintf(t) : INT32_MIN);
    }
    return i;
}
static inline i32_vector i32_of_f32_or_nan(f32_vector v, f32_vector high)
{
    EACH_LANE v.lane[l] = v.lane[l] == v.lane[l] ? v.lane[l] : 0;
    return i32_of_f32(v, high);
}

static inline i32_vector i32_all_words(int16_t value) { return i32_all((int32_t)((uint16_t)value * 0x10001u)); }
static inline i32_vector i32_all_bytes(int8_t value) { return i32_all((int32_t)((uint8_t)value * 0x1010101u)); }
static inline int32_t within(int32_t value, int32_t low, int32_t high)
{
    return value < low ? low : value > high ? high : value;
}
/* A row of two vectors as bytes: plus zero_point, within the range of a signed byte and not below low, xor flip. */
static inline void bytes_store(void *to, const i32_vector *row, i32_vector zero_point, i32_vector low, i32_vector flip)
{
    const int16_t zero = (int16_t)zero_point.lane[0];
    const int8_t least = (int8_t)low.lane[0];
    for (int v = 0; v < 2; v++)
        EACH_LANE
        {
            int32_t value = within((int32_t)row[v].lane[l], INT16_MIN, INT16_MAX) + zero;
            ((uint8_t *)to)[v * VECTOR_LANES + l] = (uint8_t)((uint32_t)within(value, least, INT8_MAX) ^ flip.lane[0]);
        }
}
static inline void bytes_store_pair(void *to0, void *to1, const i32_vector *row0, const i32_vector *row1,
                                    i32_vector zero_point, i32_vector low, i32_vector flip)
{
    bytes_store(to0, row0, zero_point, low, flip);
    bytes_store(to1, row1, zero_point, low, flip);
}

#endif
