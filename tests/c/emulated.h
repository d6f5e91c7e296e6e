/* The register tile of bfloat16 pairs on any CPU: the body that level avx512bf16 compiles, over an emulated VDPBF16PS. */
#ifndef EMULATED_H
#define EMULATED_H

#include "bfloat.h"
#include "kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#ifndef ISA_SUFFIX
#define ISA_NAME "emulated"
#define ISA_LEVEL CK_GENERIC
#define ISA_SUFFIX emulated
#endif
#define ISA_ROWS 14

enum { EMULATED_LANES = 16 };

typedef struct {
    float lane[EMULATED_LANES];
} f32_vector;

typedef struct {
    ck_pair lane[EMULATED_LANES];
} bf16_vector;

static inline f32_vector f32_zero(void) { return (f32_vector){{0}}; }
static inline void f32_store(float *to, f32_vector v) { memcpy(to, &v, sizeof v); }
static inline f32_vector f32_load(const float *from)
{
    f32_vector v;
    memcpy(&v, from, sizeof v);
    return v;
}
static inline f32_vector f32_add(f32_vector a, f32_vector b)
{
    for (int i = 0; i < EMULATED_LANES; i++)
        a.lane[i] += b.lane[i];
    return a;
}

static inline bf16_vector bf16_load(const ck_pair *from)
{
    bf16_vector v;
    memcpy(&v, from, sizeof v);
    return v;
}
static inline bf16_vector bf16_broadcast(const ck_pair *from)
{
    bf16_vector v;
    for (int i = 0; i < EMULATED_LANES; i++)
        v.lane[i] = *from;
    return v;
}

static inline float flushed(float value) { return fabsf(value) < FLT_MIN ? copysignf(0, value) : value; }

static inline float emulated_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return flushed(value);
}

/* a * b + c rounded once, to nearest even; subnormal operands and results are zeros of their sign. */
static inline float emulated_fma(float a, float b, float c)
{
    float sum = fmaf(a, b, flushed(c));
    /* Rounded up to the least normal number, it was subnormal if it still is below when nothing underflows. */
    if (fabsf(sum) == FLT_MIN && fabsf(fmaf(a * 0x1p50f, b * 0x1p50f, c * 0x1p100f)) < FLT_MIN * 0x1p100f)
        return copysignf(0, sum);
    return flushed(sum);
}

/* Intel's manual: first the products of the odd elements are added, then those of the even ones. */
static inline f32_vector bf16_fma(bf16_vector a, bf16_vector b, f32_vector c)
{
    for (int i = 0; i < EMULATED_LANES; i++) {
        const ck_pair x = a.lane[i], y = b.lane[i];
        float sum = emulated_fma(emulated_value(x.second), emulated_value(y.second), c.lane[i]);
        c.lane[i] = emulated_fma(emulated_value(x.first), emulated_value(y.first), sum);
    }
    return c;
}

/* The instruction that rounds takes subnormal numbers for zeros, too. */
static inline void bf16_round(char *to, f32_vector low, f32_vector high)
{
    uint16_t rounded[2 * EMULATED_LANES];
    for (int i = 0; i < EMULATED_LANES; i++) {
        rounded[i] = ck_bfloat_of_float(flushed(low.lane[i]));
        rounded[EMULATED_LANES + i] = ck_bfloat_of_float(flushed(high.lane[i]));
    }
    memcpy(to, rounded, sizeof rounded);
}

#define T bf16
#define ROUND bf16_round
#define NUMBER ck_pair
#define SUM f32
#define SUM_NUMBER float
#define ARITHMETIC CK_BF16
#include "dot_body.inc"

#endif
