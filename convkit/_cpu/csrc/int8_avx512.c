/* The int8 kernels of level avx512, as those of avx2. */
#include "int8_avx512.h"

#define LEVEL CK_AVX512
#define LEVEL_NAME "avx512"
#define SUFFIX avx512
#define BYTES_ROWS 12
#define BYTES_DOT pairs_dot
#define SATURATES true
#define WORDS_ROWS 14
#define WORDS_DOT words_dot
#include "int8_body.inc"
