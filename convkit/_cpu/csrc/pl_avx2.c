/* The planar kernels of level avx2.  16 registers: 12 sums, 3 vectors of x or gradients, and a weight. */
#include "lanes_avx2.h"
#include "planar_kernels.h"

#define PLANAR_SUMS 12
#define PLANAR_MASKS 0
#define PLANAR_TAP_ROWS 3
#define PLANAR_TAP_COLS 4

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "planar_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "planar_body.inc"
