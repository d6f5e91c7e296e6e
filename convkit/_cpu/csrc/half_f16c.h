/* Conversions of float16 with F16C, eight at a time: as `ck_load_fn` and `ck_store_fn` in convert.h, with the same bits. */
#ifndef CK_HALF_F16C_H
#define CK_HALF_F16C_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static void load_half(void *to, int64_t to_step, const char *from, int64_t from_step, int64_t n)
{
    float *out = to;
    int64_t i = 0;
    if (to_step == 1 && from_step == 2)
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + 2 * i))));
    for (; i < n; i++) {
        uint16_t half;
        memcpy(&half, from + i * from_step, sizeof half);
        out[i * to_step] = _cvtsh_ss(half);
    }
}

static void store_half(char *to, int64_t to_step, const void *from, int64_t from_step, int64_t n, bool add)
{
    const float *in = from;
    int64_t i = 0;
    if (!add && to_step == 2 && from_step == 1)
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128((__m128i *)(void *)(to + 2 * i),
                             _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) {
        uint16_t half;
        memcpy(&half, to + i * to_step, sizeof half);
        half = _cvtss_sh(add ? _cvtsh_ss(half) + in[i * from_step] : in[i * from_step], _MM_FROUND_TO_NEAREST_INT);
        memcpy(to + i * to_step, &half, sizeof half);
    }
}

#endif
