/* The register tiles of level avx2. */
#include "half_f16c.h"
#include "kernels.h"
#include "simd_avx2.h"

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#define LOAD_HALF load_half
#define STORE_HALF store_half
#include "dot_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "dot_body.inc"
