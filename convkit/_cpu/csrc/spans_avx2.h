/* As spans_avx512.h, for the vectors of simd_avx2.h. */
#ifndef CK_SPANS_AVX2_H
#define CK_SPANS_AVX2_H

#include "lanes_avx2.h"

typedef __m256i f32_span;
typedef __m256i f64_span;

static inline f32_span f32_between(int64_t first, int64_t end)
{
    return _mm256_andnot_si256(f32_first(first), f32_first(end));
}
static inline f64_span f64_between(int64_t first, int64_t end)
{
    return _mm256_andnot_si256(f64_first(first), f64_first(end));
}
static inline f32_vector f32_load_span(const float *from, f32_span s) { return _mm256_maskload_ps(from, s); }
static inline f64_vector f64_load_span(const double *from, f64_span s) { return _mm256_maskload_pd(from, s); }
static inline void f32_store_span(float *to, f32_vector v, f32_span s) { _mm256_maskstore_ps(to, s, v); }
static inline void f64_store_span(double *to, f64_vector v, f64_span s) { _mm256_maskstore_pd(to, s, v); }

/* The two middle quarters change places. */
static inline __m256d middle_swapped(__m256d v) { return _mm256_permute4x64_pd(v, 0xd8); }
static inline f32_vector f32_evens(f32_vector a, f32_vector b)
{
    return _mm256_castpd_ps(middle_swapped(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88))));
}
static inline f32_vector f32_odds(f32_vector a, f32_vector b)
{
    return _mm256_castpd_ps(middle_swapped(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd))));
}
static inline f64_vector f64_evens(f64_vector a, f64_vector b) { return middle_swapped(_mm256_unpacklo_pd(a, b)); }
static inline f64_vector f64_odds(f64_vector a, f64_vector b) { return middle_swapped(_mm256_unpackhi_pd(a, b)); }

static inline f32_vector f32_zip_first(f32_vector a, f32_vector b)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
static inline f32_vector f32_zip_last(f32_vector a, f32_vector b)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
static inline f64_vector f64_zip_first(f64_vector a, f64_vector b)
{
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x20);
}
static inline f64_vector f64_zip_last(f64_vector a, f64_vector b)
{
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x31);
}

#endif
