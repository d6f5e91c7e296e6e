/* Transposed copies of blocks of 8x8 floats or 4x4 doubles, and of 8 or 4 pixels of three channels, and sums
 * across vectors of 32 bytes; for AVX2 and every level above it. */
#ifndef CK_SHUFFLE_AVX2_H
#define CK_SHUFFLE_AVX2_H

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

/* Eight pixels of three channels: every lane of the three vectors that a channel needs is another one, so that it can be
 * blended out of them and then put in order; and the other way round. */
static inline void f32_split_3(const float *from, float *to, int64_t to_step)
{
    __m256 a = _mm256_loadu_ps(from), b = _mm256_loadu_ps(from + 8), c = _mm256_loadu_ps(from + 16);
    __m256 first = _mm256_blend_ps(_mm256_blend_ps(a, b, 0x92), c, 0x24);
    __m256 second = _mm256_blend_ps(_mm256_blend_ps(a, b, 0x24), c, 0x49);
    __m256 third = _mm256_blend_ps(_mm256_blend_ps(a, b, 0x49), c, 0x92);
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(first, _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5)));
    _mm256_storeu_ps(to + to_step, _mm256_permutevar8x32_ps(second, _mm256_setr_epi32(1, 4, 7, 2, 5, 0, 3, 6)));
    _mm256_storeu_ps(to + 2 * to_step, _mm256_permutevar8x32_ps(third, _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7)));
}

static inline void f32_merge_3(const float *from, int64_t from_step, float *to)
{
    __m256 a = _mm256_permutevar8x32_ps(_mm256_loadu_ps(from), _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5));
    __m256 b = _mm256_permutevar8x32_ps(_mm256_loadu_ps(from + from_step), _mm256_setr_epi32(5, 0, 3, 6, 1, 4, 7, 2));
    __m256 c =
        _mm256_permutevar8x32_ps(_mm256_loadu_ps(from + 2 * from_step), _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7));
    _mm256_storeu_ps(to, _mm256_blend_ps(_mm256_blend_ps(a, b, 0x92), c, 0x24));
    _mm256_storeu_ps(to + 8, _mm256_blend_ps(_mm256_blend_ps(a, b, 0x24), c, 0x49));
    _mm256_storeu_ps(to + 16, _mm256_blend_ps(_mm256_blend_ps(a, b, 0x49), c, 0x92));
}

/* The same of four pixels of doubles. */
static inline void f64_split_3(const double *from, double *to, int64_t to_step)
{
    __m256d a = _mm256_loadu_pd(from), b = _mm256_loadu_pd(from + 4), c = _mm256_loadu_pd(from + 8);
    __m256d first = _mm256_blend_pd(_mm256_blend_pd(a, b, 0x4), c, 0x2);
    __m256d second = _mm256_blend_pd(_mm256_blend_pd(a, b, 0x9), c, 0x4);
    __m256d third = _mm256_blend_pd(_mm256_blend_pd(a, b, 0x2), c, 0x9);
    _mm256_storeu_pd(to, _mm256_permute4x64_pd(first, 0x6c));
    _mm256_storeu_pd(to + to_step, _mm256_permute4x64_pd(second, 0xb1));
    _mm256_storeu_pd(to + 2 * to_step, _mm256_permute4x64_pd(third, 0xc6));
}

static inline void f64_merge_3(const double *from, int64_t from_step, double *to)
{
    __m256d a = _mm256_permute4x64_pd(_mm256_loadu_pd(from), 0x6c);
    __m256d b = _mm256_permute4x64_pd(_mm256_loadu_pd(from + from_step), 0xb1);
    __m256d c = _mm256_permute4x64_pd(_mm256_loadu_pd(from + 2 * from_step), 0xc6);
    _mm256_storeu_pd(to, _mm256_blend_pd(_mm256_blend_pd(a, b, 0x2), c, 0x4));
    _mm256_storeu_pd(to + 4, _mm256_blend_pd(_mm256_blend_pd(a, b, 0x9), c, 0x2));
    _mm256_storeu_pd(to + 8, _mm256_blend_pd(_mm256_blend_pd(a, b, 0x4), c, 0x9));
}

/* The sums of the numbers of each of four vectors. */
static inline __m128 m256_sum_4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256 all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

static inline __m256d m256d_sum_4(__m256d a, __m256d b, __m256d c, __m256d d)
{
    __m256d ab = _mm256_add_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
    __m256d cd = _mm256_add_pd(_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
    return _mm256_add_pd(_mm256_permute2f128_pd(ab, cd, 0x20), _mm256_permute2f128_pd(ab, cd, 0x31));
}

#endif
