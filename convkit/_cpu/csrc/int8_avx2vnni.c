/* The int8 kernels of level avx2vnni. */
#include "int8_avx2.h"

/* The form that wraps; _mm256_dpbusds_avx_epi32 would saturate. */
static inline i32_vector exact_dot(i32_vector sum, i32_vector pixel, i32_vector filter)
{
    return _mm256_dpbusd_avx_epi32(sum, pixel, filter);
}

#define LEVEL CK_AVX2VNNI
#define LEVEL_NAME "avx2vnni"
#define SUFFIX avx2vnni
#define BYTES_ROWS 6
#define BYTES_DOT exact_dot
#define SATURATES false
#include "int8_body.inc"
