/* AVX-512 with dot products of pairs of bfloat16 numbers; sums are vectors of float32. */
#ifndef CK_SIMD_AVX512BF16_H
#define CK_SIMD_AVX512BF16_H

#include "simd_avx512.h"

#include <string.h>

#undef ISA_NAME
#undef ISA_LEVEL
#undef ISA_SUFFIX
#define ISA_NAME "avx512bf16"
#define ISA_LEVEL CK_AVX512BF16
#define ISA_SUFFIX avx512bf16

typedef __m512i bf16_vector;

static inline bf16_vector bf16_load(const ck_pair *from) { return _mm512_loadu_si512(from); }
static inline bf16_vector bf16_broadcast(const ck_pair *from)
{
    int32_t pair; /* at any even address */
    memcpy(&pair, from, sizeof pair);
    return _mm512_set1_epi32(pair);
}
static inline f32_vector bf16_fma(bf16_vector a, bf16_vector b, f32_vector c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

static inline void bf16_round(char *to, f32_vector low, f32_vector high)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

#endif
