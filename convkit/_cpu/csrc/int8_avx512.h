/* Vectors of int8 kernels with AVX-512 F, BW, DQ and VL: 32 registers of 64 bytes.  28 sums, 2 of the filter, a pixel. */
#ifndef CK_INT8_AVX512_H
#define CK_INT8_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_LANES 16

typedef __m512i i32_vector;
typedef __m512 f32_vector;

static inline i32_vector i32_zero(void) { return _mm512_setzero_si512(); }
static inline i32_vector i32_load(const void *from) { return _mm512_loadu_si512(from); }
static inline void i32_store(void *to, i32_vector v) { _mm512_storeu_si512(to, v); }
static inline i32_vector i32_add(i32_vector a, i32_vector b) { return _mm512_add_epi32(a, b); }
static inline i32_vector i32_all(int32_t value) { return _mm512_set1_epi32(value); }
static inline i32_vector i32_unit(const void *from)
{
    int32_t unit;
    memcpy(&unit, from, sizeof unit);
    return _mm512_set1_epi32(unit);
}
static inline i32_vector i32_xor(i32_vector a, i32_vector b) { return _mm512_xor_si512(a, b); }
static inline i32_vector words_dot(i32_vector sum, i32_vector pixel, i32_vector filter)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pixel, filter));
}
/* Right where no pair of products leaves 16 bits. */
static inline i32_vector pairs_dot(i32_vector sum, i32_vector pixel, i32_vector filter)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(pixel, filter), _mm512_set1_epi16(1)));
}

static inline f32_vector f32_load(const void *from) { return _mm512_loadu_ps(from); }
static inline void f32_store(void *to, f32_vector v) { _mm512_storeu_ps(to, v); }
static inline f32_vector f32_all(float value) { return _mm512_set1_ps(value); }
static inline f32_vector f32_of_i32(i32_vector v) { return _mm512_cvtepi32_ps(v); }
static inline f32_vector f32_multiply(f32_vector a, f32_vector b) { return _mm512_mul_ps(a, b); }
static inline f32_vector f32_add(f32_vector a, f32_vector b) { return _mm512_add_ps(a, b); }
static inline f32_vector f32_fma(f32_vector a, f32_vector b, f32_vector c) { return _mm512_fmadd_ps(a, b, c); }
static inline f32_vector f32_of_i8(const void *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
static inline f32_vector f32_of_u8(const void *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
/* A NaN stays, as the second operand of max; -0 becomes 0. */
static inline f32_vector f32_relu(f32_vector v)
{
    f32_vector zero = _mm512_setzero_ps();
    return _mm512_add_ps(_mm512_max_ps(zero, v), zero);
}
/* At most high, to the nearest even integer; a NaN and what is too small become the least integer, or a NaN 0. */
static inline i32_vector i32_of_f32(f32_vector v, f32_vector high)
{
    return _mm512_cvtps_epi32(_mm512_min_ps(high, v));
}
static inline i32_vector i32_of_f32_or_nan(f32_vector v, f32_vector high)
{
    return _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), _mm512_min_ps(high, v));
}

static inline i32_vector i32_all_words(int16_t value) { return _mm512_set1_epi16(value); }
static inline i32_vector i32_all_bytes(int8_t value) { return _mm512_set1_epi8(value); }
/* Two rows of two vectors as bytes: plus zero_point, within the range of a signed byte and not below low, xor flip. */
static inline void bytes_store_pair(void *to0, void *to1, const i32_vector *row0, const i32_vector *row1,
                                    i32_vector zero_point, i32_vector low, i32_vector flip)
{
    __m512i words0 = _mm512_adds_epi16(_mm512_packs_epi32(row0[0], row0[1]), zero_point);
    __m512i words1 = _mm512_adds_epi16(_mm512_packs_epi32(row1[0], row1[1]), zero_point);
    __m512i bytes = _mm512_xor_si512(_mm512_max_epi8(_mm512_packs_epi16(words0, words1), low), flip);
    bytes = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
    _mm256_storeu_si256((__m256i *)to0, _mm512_castsi512_si256(bytes));
    _mm256_storeu_si256((__m256i *)to1, _mm512_extracti64x4_epi64(bytes, 1));
}

#endif
