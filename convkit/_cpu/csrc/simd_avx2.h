/* AVX2 and FMA: 16 registers of 32 bytes.  12 sums, 2 of b and 2 of a fill them. */
#ifndef CK_SIMD_AVX2_H
#define CK_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define ISA_NAME "avx2"
#define ISA_LEVEL CK_AVX2
#define ISA_SUFFIX avx2
#define ISA_ROWS 6
#define ISA_AHEAD 0

typedef __m256 f32_vector;
typedef __m256d f64_vector;

static inline f32_vector f32_load(const float *from) { return _mm256_loadu_ps(from); }
static inline f64_vector f64_load(const double *from) { return _mm256_loadu_pd(from); }
static inline void f32_store(float *to, f32_vector v) { _mm256_storeu_ps(to, v); }
static inline void f64_store(double *to, f64_vector v) { _mm256_storeu_pd(to, v); }
static inline f32_vector f32_add(f32_vector a, f32_vector b) { return _mm256_add_ps(a, b); }
static inline f64_vector f64_add(f64_vector a, f64_vector b) { return _mm256_add_pd(a, b); }
static inline f32_vector f32_fma(f32_vector a, f32_vector b, f32_vector c) { return _mm256_fmadd_ps(a, b, c); }
static inline f64_vector f64_fma(f64_vector a, f64_vector b, f64_vector c) { return _mm256_fmadd_pd(a, b, c); }
static inline f32_vector f32_zero(void) { return _mm256_setzero_ps(); }
static inline f64_vector f64_zero(void) { return _mm256_setzero_pd(); }
static inline f32_vector f32_broadcast(const float *from) { return _mm256_broadcast_ss(from); }
static inline f64_vector f64_broadcast(const double *from) { return _mm256_broadcast_sd(from); }

/* The first n of a vector's numbers, 0 < n < all of them; the rest is not read, counts as zero, is not written. */
static inline __m256i f32_first(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256i f64_first(int64_t n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
static inline f32_vector f32_load_part(const float *from, int64_t n) { return _mm256_maskload_ps(from, f32_first(n)); }
static inline f64_vector f64_load_part(const double *from, int64_t n) { return _mm256_maskload_pd(from, f64_first(n)); }
static inline void f32_store_part(float *to, f32_vector v, int64_t n) { _mm256_maskstore_ps(to, f32_first(n), v); }
static inline void f64_store_part(double *to, f64_vector v, int64_t n) { _mm256_maskstore_pd(to, f64_first(n), v); }

#endif
