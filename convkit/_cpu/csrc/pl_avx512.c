/* The planar kernels of level avx512.  32 registers: 24 sums, 6 vectors of x, and a weight. */
#include "lanes_avx512.h"
#include "planar_kernels.h"

#define PLANAR_SUMS 24
#define PLANAR_MASKS 1
#define PLANAR_TAP_ROWS 4
#define PLANAR_TAP_COLS 5

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "planar_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "planar_body.inc"
