/* The Winograd transforms of level avx2. */
#include "simd_avx2.h"
#include "winograd_kernels.h"

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "winograd_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "winograd_body.inc"
