/* Level avx2vnni but for its one instruction, which is put together of those of AVX2: odd and even bytes multiply in 16
 * bits, where no pair of them meets. */
#include "int8_avx2.h"

static inline i32_vector exact_dot(i32_vector sum, i32_vector pixel, i32_vector filter)
{
    const __m256i even = _mm256_set1_epi16(0x00ff), ones = _mm256_set1_epi16(1);
    __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(pixel, even), filter);
    __m256i high = _mm256_maddubs_epi16(_mm256_andnot_si256(even, pixel), filter);
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)));
}

#define LEVEL CK_AVX2
#define LEVEL_NAME "avx2"
#define SUFFIX emulated
#define BYTES_ROWS 6
#define BYTES_DOT exact_dot
#define SATURATES false
#include "int8_body.inc"
