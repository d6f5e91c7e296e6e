/* The register tile of level avx512bf16. */
#include "bfloat_avx512.h"
#include "kernels.h"
#include "simd_avx512bf16.h"

#define T bf16
#define NUMBER ck_pair
#define SUM f32
#define SUM_NUMBER float
#define ARITHMETIC CK_BF16
#define LOAD_HALF NULL
#define STORE_HALF store_bfloat
#define PAIRING &pairing
#define ROUND bf16_round
#include "dot_body.inc"
