/* The depthwise kernels of level avx512.  32 registers: 16 or 18 sums, 2 weights or gradients, and one of x. */
#include "depthwise_kernels.h"
#include "simd_avx512.h"

#define DW_POSITIONS 8
#define DW_GRID 8
#define DW_TAPS 9

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "depthwise_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "depthwise_body.inc"
