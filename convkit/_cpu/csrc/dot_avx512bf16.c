/* The register tile of level avx512bf16. */
#include "kernels.h"
#include "simd_avx512bf16.h"

#define T bf16
#define NUMBER ck_pair
#define SUM f32
#define SUM_NUMBER float
#define ARITHMETIC CK_BF16
#include "dot_body.inc"
