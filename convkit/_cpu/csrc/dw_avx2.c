/* The depthwise kernels of level avx2.  16 registers: 12 sums, 2 weights or gradients, and one of x. */
#include "depthwise_kernels.h"
#include "simd_avx2.h"

#define DW_POSITIONS 6
#define DW_GRID 4
#define DW_TAPS 6

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "depthwise_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "depthwise_body.inc"
