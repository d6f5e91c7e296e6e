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
/* 0 for a NaN. */
static inline f32_vector f32_number(f32_vector v)
{
    EACH_LANE v.lane[l] = v.lane[l] == v.lane[l] ? v.lane[l] : 0;
    return v;
}
/* Within low and high, to the nearest even integer. */
static inline i32_vector i32_of_f32(f32_vector v, f32_vector low, f32_vector high)
{
    i32_vector i;
    EACH_LANE
    {
        float t = v.lane[l] > low.lane[l] ? v.lane[l] : low.lane[l];
        i.lane[l] = (uint32_t)lrintf(t < high.lane[l] ? t : high.lane[l]);
    }
    return i;
}
/* A row of two vectors as bytes, which their elements fit; what is cut off is the sign's. */
static inline void bytes_store(bool is_signed, void *to, const i32_vector *row)
{
    (void)is_signed;
    EACH_LANE((uint8_t *)to)[l] = (uint8_t)row[0].lane[l];
    EACH_LANE((uint8_t *)to)[l + VECTOR_LANES] = (uint8_t)row[1].lane[l];
}
static inline void bytes_store_pair(bool is_signed, void *to0, void *to1, const i32_vector *row0,
                                    const i32_vector *row1)
{
    bytes_store(is_signed, to0, row0);
    bytes_store(is_signed, to1, row1);
}

#endif
