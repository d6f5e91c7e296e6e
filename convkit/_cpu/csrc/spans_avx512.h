/* Vectors of simd_avx512.h of which any neighbouring numbers are read or written, their halves, and every second number
 * of two of them. */
#ifndef CK_SPANS_AVX512_H
#define CK_SPANS_AVX512_H

#include "lanes_avx512.h"

typedef __mmask16 f32_span;
typedef __mmask8 f64_span;

/* Numbers first .. end - 1 of a vector, 0 <= first <= end <= all of them; others are not read, count as zero, are not
 * written. */
static inline f32_span f32_between(int64_t first, int64_t end) { return (f32_span)((1u << end) - (1u << first)); }
static inline f64_span f64_between(int64_t first, int64_t end) { return (f64_span)((1u << end) - (1u << first)); }
static inline f32_vector f32_load_span(const float *from, f32_span s) { return _mm512_maskz_loadu_ps(s, from); }
static inline f64_vector f64_load_span(const double *from, f64_span s) { return _mm512_maskz_loadu_pd(s, from); }
static inline void f32_store_span(float *to, f32_vector v, f32_span s) { _mm512_mask_storeu_ps(to, s, v); }
static inline void f64_store_span(double *to, f64_vector v, f64_span s) { _mm512_mask_storeu_pd(to, s, v); }

/* Of two vectors one behind the other, numbers 0, 2, 4, ..., and 1, 3, 5, ... */
static inline f32_vector f32_evens(f32_vector a, f32_vector b)
{
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
static inline f32_vector f32_odds(f32_vector a, f32_vector b)
{
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}
static inline f64_vector f64_evens(f64_vector a, f64_vector b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
}
static inline f64_vector f64_odds(f64_vector a, f64_vector b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
}

/* The first and the last vector of a0, b0, a1, b1, ... */
static inline f32_vector f32_zip_first(f32_vector a, f32_vector b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
}
static inline f32_vector f32_zip_last(f32_vector a, f32_vector b)
{
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}
static inline f64_vector f64_zip_first(f64_vector a, f64_vector b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b);
}
static inline f64_vector f64_zip_last(f64_vector a, f64_vector b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b);
}

/* Eight floats: as fast as sixteen on a CPU that splits those, where no more are wanted. */
typedef __m256 f32h_vector;
typedef __mmask8 f32h_span;

static inline f32h_vector f32h_zero(void) { return _mm256_setzero_ps(); }
static inline f32h_vector f32h_broadcast(const float *from) { return _mm256_broadcast_ss(from); }
static inline f32h_vector f32h_load(const float *from) { return _mm256_loadu_ps(from); }
static inline void f32h_store(float *to, f32h_vector v) { _mm256_storeu_ps(to, v); }
static inline f32h_vector f32h_add(f32h_vector a, f32h_vector b) { return _mm256_add_ps(a, b); }
static inline f32h_vector f32h_fma(f32h_vector a, f32h_vector b, f32h_vector c) { return _mm256_fmadd_ps(a, b, c); }
static inline void f32h_sum_4(const f32h_vector *v, float *to) { _mm_storeu_ps(to, m256_sum_4(v[0], v[1], v[2], v[3])); }
/* Half a line of the cache does not bypass it. */
static inline void f32h_stream(float *to, f32h_vector v) { _mm256_storeu_ps(to, v); }
static inline f32h_span f32h_between(int64_t first, int64_t end) { return (f32h_span)((1u << end) - (1u << first)); }
static inline f32h_vector f32h_load_span(const float *from, f32h_span s) { return _mm256_maskz_loadu_ps(s, from); }
static inline void f32h_store_span(float *to, f32h_vector v, f32h_span s) { _mm256_mask_storeu_ps(to, s, v); }
static inline f32h_vector f32h_evens(f32h_vector a, f32h_vector b)
{
    return _mm256_permutex2var_ps(a, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), b);
}
static inline f32h_vector f32h_odds(f32h_vector a, f32h_vector b)
{
    return _mm256_permutex2var_ps(a, _mm256_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15), b);
}
static inline f32h_vector f32h_zip_first(f32h_vector a, f32h_vector b)
{
    return _mm256_permutex2var_ps(a, _mm256_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11), b);
}
static inline f32h_vector f32h_zip_last(f32h_vector a, f32h_vector b)
{
    return _mm256_permutex2var_ps(a, _mm256_setr_epi32(4, 12, 5, 13, 6, 14, 7, 15), b);
}

#endif
