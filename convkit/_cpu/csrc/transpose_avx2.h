/* Transposed copies of blocks of 8x8 floats or 4x4 doubles; for AVX2 and every level above it. */
#ifndef CK_TRANSPOSE_AVX2_H
#define CK_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stdint.h>

enum { f32_BLOCK = 8, f64_BLOCK = 4 };

static inline void f32_transpose(const float *from, int64_t from_step, float *to, int64_t to_step)
{
    __m256 r[8], s[8];
    /* Quarters of rows four apart share a register, so that all that is left happens within its halves. */
    for (int i = 0; i < 4; i++) {
        const float *low = from + i * from_step, *high = from + (i + 4) * from_step;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low + 4)), _mm_loadu_ps(high + 4), 1);
    }
    for (int half = 0; half < 8; half += 4) {
        __m256 *q = r + half, *t = s + half;
        t[0] = _mm256_unpacklo_ps(q[0], q[1]);
        t[1] = _mm256_unpackhi_ps(q[0], q[1]);
        t[2] = _mm256_unpacklo_ps(q[2], q[3]);
        t[3] = _mm256_unpackhi_ps(q[2], q[3]);
        float *row = to + half * to_step;
        _mm256_storeu_ps(row, _mm256_shuffle_ps(t[0], t[2], 0x44));
        _mm256_storeu_ps(row + to_step, _mm256_shuffle_ps(t[0], t[2], 0xee));
        _mm256_storeu_ps(row + 2 * to_step, _mm256_shuffle_ps(t[1], t[3], 0x44));
        _mm256_storeu_ps(row + 3 * to_step, _mm256_shuffle_ps(t[1], t[3], 0xee));
    }
}

static inline void f64_transpose(const double *from, int64_t from_step, double *to, int64_t to_step)
{
    __m256d r[4];
    for (int i = 0; i < 2; i++) {
        const double *low = from + i * from_step, *high = from + (i + 2) * from_step;
        r[i] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(low)), _mm_loadu_pd(high), 1);
        r[i + 2] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(low + 2)), _mm_loadu_pd(high + 2), 1);
    }
    _mm256_storeu_pd(to, _mm256_unpacklo_pd(r[0], r[1]));
    _mm256_storeu_pd(to + to_step, _mm256_unpackhi_pd(r[0], r[1]));
    _mm256_storeu_pd(to + 2 * to_step, _mm256_unpacklo_pd(r[2], r[3]));
    _mm256_storeu_pd(to + 3 * to_step, _mm256_unpackhi_pd(r[2], r[3]));
}

#endif
