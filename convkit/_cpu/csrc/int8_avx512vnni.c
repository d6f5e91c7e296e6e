/* The int8 kernels of level avx512vnni. */
#include "int8_avx512.h"

/* The form that wraps; _mm512_dpbusds_epi32 would saturate. */
static inline i32_vector exact_dot(i32_vector sum, i32_vector pixel, i32_vector filter)
{
    return _mm512_dpbusd_epi32(sum, pixel, filter);
}

#define LEVEL CK_AVX512VNNI
#define LEVEL_NAME "avx512vnni"
#define SUFFIX avx512vnni
#define BYTES_ROWS 14
#define BYTES_DOT exact_dot
#define SATURATES false
#include "int8_body.inc"
