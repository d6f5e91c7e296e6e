/* The int8 kernels of level avx2.  Bytes multiply in pairs of 16 bits, which saturate; where they would, words. */
#include "int8_avx2.h"

#define LEVEL CK_AVX2
#define LEVEL_NAME "avx2"
#define SUFFIX avx2
#define BYTES_ROWS 6
#define BYTES_DOT pairs_dot
#define SATURATES true
#define WORDS_ROWS 6
#define WORDS_DOT words_dot
#include "int8_body.inc"
