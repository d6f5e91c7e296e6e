/* AVX-512 F, BW, DQ, VL: 32 registers of 64 bytes.  28 sums, 2 of b and 2 of a fill them. */
#ifndef CK_SIMD_AVX512_H
#define CK_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define ISA_NAME "avx512"
#define ISA_LEVEL CK_AVX512
#define ISA_SUFFIX avx512
#define ISA_ROWS 14
#define ISA_AHEAD 16 /* terms of 28 multiply-adds each; tuned on an AMD EPYC 9004 */

typedef __m512 f32_vector;
typedef __m512d f64_vector;

static inline f32_vector f32_load(const float *from) { return _mm512_loadu_ps(from); }
static inline f64_vector f64_load(const double *from) { return _mm512_loadu_pd(from); }
static inline void f32_store(float *to, f32_vector v) { _mm512_storeu_ps(to, v); }
static inline void f64_store(double *to, f64_vector v) { _mm512_storeu_pd(to, v); }
static inline f32_vector f32_add(f32_vector a, f32_vector b) { return _mm512_add_ps(a, b); }
static inline f64_vector f64_add(f64_vector a, f64_vector b) { return _mm512_add_pd(a, b); }
static inline f32_vector f32_fma(f32_vector a, f32_vector b, f32_vector c) { return _mm512_fmadd_ps(a, b, c); }
static inline f64_vector f64_fma(f64_vector a, f64_vector b, f64_vector c) { return _mm512_fmadd_pd(a, b, c); }
static inline f32_vector f32_zero(void) { return _mm512_setzero_ps(); }
static inline f64_vector f64_zero(void) { return _mm512_setzero_pd(); }
static inline f32_vector f32_broadcast(const float *from) { return _mm512_set1_ps(*from); }
static inline f64_vector f64_broadcast(const double *from) { return _mm512_set1_pd(*from); }

/* The first n of a vector's numbers, 0 < n < all of them; the rest is not read, counts as zero, is not written. */
static inline f32_vector f32_load_part(const float *from, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
}
static inline f64_vector f64_load_part(const double *from, int64_t n)
{
    return _mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), from);
}
static inline void f32_store_part(float *to, f32_vector v, int64_t n)
{
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), v);
}
static inline void f64_store_part(double *to, f64_vector v, int64_t n)
{
    _mm512_mask_storeu_pd(to, (__mmask8)((1u << n) - 1), v);
}

#endif
