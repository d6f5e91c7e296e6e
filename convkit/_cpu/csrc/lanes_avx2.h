/* Sums across the vectors of simd_avx2.h, four at a time. */
#ifndef CK_LANES_AVX2_H
#define CK_LANES_AVX2_H

#include "shuffle_avx2.h"
#include "simd_avx2.h"

static inline void f32_sum_4(const f32_vector *v, float *to) { _mm_storeu_ps(to, m256_sum_4(v[0], v[1], v[2], v[3])); }
static inline void f64_sum_4(const f64_vector *v, double *to)
{
    _mm256_storeu_pd(to, m256d_sum_4(v[0], v[1], v[2], v[3]));
}

#endif
