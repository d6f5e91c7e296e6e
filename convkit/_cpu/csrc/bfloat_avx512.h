/* Copying bfloat16 numbers with AVX-512: pairs laid down in bulk, as pairs.h wants them, and sums stored. */
#ifndef CK_BFLOAT_AVX512_H
#define CK_BFLOAT_AVX512_H

#include "bfloat.h"
#include "kernels.h"

#include <immintrin.h>
#include <stddef.h>

enum { PAIRS = 16 }; /* in a vector */

/* The first n numbers of 16 or more; the rest is not read. */
static inline __mmask16 first_pairs(int64_t n) { return n >= PAIRS ? 0xffff : (__mmask16)((1u << n) - 1); }

/* Pairs of as many numbers of a and b as the mask has; NULL stands for zeros. */
static inline __m512i pairs_of(const char *a, const char *b, __mmask16 mask)
{
    __m512i first = a ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, a)) : _mm512_setzero_si512();
    __m512i second = b ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b)) : _mm512_setzero_si512();
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

/* The first n pairs of a vector go to memory. */
static inline void store_pairs(ck_pair *to, __m512i pairs, int64_t n)
{
    if (n >= PAIRS)
        _mm512_storeu_si512(to, pairs);
    else if (n > 0)
        _mm512_mask_storeu_epi32(to, first_pairs(n), pairs);
}

static void pair_rows(ck_pair *to, int64_t t0, const char *a, const char *b, int64_t f0, int64_t n0, int64_t n1)
{
    const __m512i lower = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                          36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(PAIRS));
    for (int64_t i = 0; i < n0; i++)
        for (int64_t j = 0; j < n1; j += 2 * PAIRS) {
            int64_t left = n1 - j, at = i * f0 + 2 * j;
            __mmask32 mask = left >= 2 * PAIRS ? ~0u : (1u << left) - 1;
            __m512i first = a ? _mm512_maskz_loadu_epi16(mask, a + at) : _mm512_setzero_si512();
            __m512i second = b ? _mm512_maskz_loadu_epi16(mask, b + at) : _mm512_setzero_si512();
            store_pairs(to + i * t0 + j, _mm512_permutex2var_epi16(first, lower, second), left);
            store_pairs(to + i * t0 + j + PAIRS, _mm512_permutex2var_epi16(first, upper, second), left - PAIRS);
        }
}

/* Turns 16 rows of 16 pairs into their columns. */
static inline void turn(__m512i v[PAIRS])
{
    __m512i w[PAIRS];
#pragma GCC unroll 16
    for (int i = 0; i < PAIRS; i += 2) {
        w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < PAIRS; i += 4)
        for (int k = 0; k < 2; k++) {
            v[i + 2 * k] = _mm512_unpacklo_epi64(w[i + k], w[i + 2 + k]);
            v[i + 2 * k + 1] = _mm512_unpackhi_epi64(w[i + k], w[i + 2 + k]);
        }
    /* v[4 q + k] holds, in each quarter of a register, column k of that quarter and of rows 4 q .. 4 q + 3. */
#pragma GCC unroll 16
    for (int k = 0; k < 4; k++) {
        w[k] = _mm512_shuffle_i32x4(v[k], v[4 + k], 0x88);
        w[4 + k] = _mm512_shuffle_i32x4(v[k], v[4 + k], 0xdd);
        w[8 + k] = _mm512_shuffle_i32x4(v[8 + k], v[12 + k], 0x88);
        w[12 + k] = _mm512_shuffle_i32x4(v[8 + k], v[12 + k], 0xdd);
    }
#pragma GCC unroll 16
    for (int k = 0; k < 4; k++) {
        v[k] = _mm512_shuffle_i32x4(w[k], w[8 + k], 0x88);
        v[8 + k] = _mm512_shuffle_i32x4(w[k], w[8 + k], 0xdd);
        v[4 + k] = _mm512_shuffle_i32x4(w[4 + k], w[12 + k], 0x88);
        v[12 + k] = _mm512_shuffle_i32x4(w[4 + k], w[12 + k], 0xdd);
    }
}

/* Up to 16 rows of up to 16 pairs as columns; rows are pairs already where `whole`, else they are made of a and b. */
static inline void turn_block(ck_pair *to, int64_t t1, const char *a, const char *b, int64_t f0, int64_t n0, int64_t n1,
                              bool whole)
{
    __m512i v[PAIRS];
    __mmask16 mask = first_pairs(n1), across = first_pairs(n0);
#pragma GCC unroll 16
    for (int i = 0; i < PAIRS; i++) {
        int64_t at = ck_min(i, n0 - 1) * f0;
        v[i] = whole ? _mm512_maskz_loadu_epi32(mask, a + at) : pairs_of(a ? a + at : NULL, b ? b + at : NULL, mask);
    }
    turn(v);
    if (n0 == PAIRS && n1 == PAIRS) {
#pragma GCC unroll 16
        for (int j = 0; j < PAIRS; j++)
            _mm512_storeu_si512(to + j * t1, v[j]);
    } else {
#pragma GCC unroll 16
        for (int j = 0; j < PAIRS; j++)
            if (j < n1)
                _mm512_mask_storeu_epi32(to + j * t1, across, v[j]);
    }
}

static void pair_columns(ck_pair *to, int64_t t1, const char *a, const char *b, int64_t f0, int64_t n0, int64_t n1,
                         bool whole)
{
    int64_t bytes = whole ? sizeof(ck_pair) : sizeof(uint16_t);
    for (int64_t j = 0; j < n1; j += PAIRS)
        for (int64_t i = 0; i < n0; i += PAIRS) {
            int64_t at = i * f0 + j * bytes;
            turn_block(to + j * t1 + i, t1, a ? a + at : NULL, b ? b + at : NULL, f0, ck_min(PAIRS, n0 - i),
                       ck_min(PAIRS, n1 - j), whole);
        }
}

static const ck_pairing pairing = {pair_rows, pair_columns};

/* As ck_store_fn in convert.h; without `add`, subnormal numbers become zeros. */
static void store_bfloat(char *to, int64_t to_step, const void *from, int64_t from_step, int64_t n, bool add)
{
    const float *in = from;
    int64_t i = 0;
    if (!add && to_step == 2 && from_step == 1) {
        for (; i + 2 * PAIRS <= n; i += 2 * PAIRS)
            _mm512_storeu_si512(to + 2 * i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(in + i + PAIRS),
                                                                         _mm512_loadu_ps(in + i)));
        for (; i + PAIRS <= n; i += PAIRS)
            _mm256_storeu_si256((__m256i *)(void *)(to + 2 * i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(in + i)));
        for (; i < n; i += PAIRS) /* of a part of a vector, which is slow */
            _mm256_mask_storeu_epi16(to + 2 * i, first_pairs(n - i),
                                     (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(first_pairs(n - i), in + i)));
    }
    for (; i < n; i++) {
        uint16_t number;
        memcpy(&number, to + i * to_step, sizeof number);
        number = ck_bfloat_of_float(add ? ck_float_of_bfloat(number) + in[i * from_step] : in[i * from_step]);
        memcpy(to + i * to_step, &number, sizeof number);
    }
}

#endif
