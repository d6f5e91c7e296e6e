/* Sums across the vectors of simd_avx512.h, four at a time. */
#ifndef CK_LANES_AVX512_H
#define CK_LANES_AVX512_H

#include "shuffle_avx2.h"
#include "simd_avx512.h"

static inline __m256 f32_halves(f32_vector v)
{
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
static inline __m256d f64_halves(f64_vector v)
{
    return _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
}
static inline void f32_sum_4(const f32_vector *v, float *to)
{
    _mm_storeu_ps(to, m256_sum_4(f32_halves(v[0]), f32_halves(v[1]), f32_halves(v[2]), f32_halves(v[3])));
}
static inline void f64_sum_4(const f64_vector *v, double *to)
{
    _mm256_storeu_pd(to, m256d_sum_4(f64_halves(v[0]), f64_halves(v[1]), f64_halves(v[2]), f64_halves(v[3])));
}

#endif
