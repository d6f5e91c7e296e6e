/* The planar kernels of level generic.  16 registers at least: 8 sums, as many as 4 vectors of x, a weight, and products. */
#include "shuffle_generic.h"
#include "planar_kernels.h"

#define PLANAR_SUMS 8
#define PLANAR_MASKS 0
#define PLANAR_TAP_ROWS 2
#define PLANAR_TAP_COLS 4

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "planar_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "planar_body.inc"
