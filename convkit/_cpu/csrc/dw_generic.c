/* The depthwise kernels of level generic.  16 registers: 8 sums and 2 weights, or 10 and 2 gradients, and products. */
#include "depthwise_kernels.h"
#include "spans_generic.h"

#define DW_POSITIONS 4
#define DW_GRID 4
#define DW_STRIP 4
#define DW_MASKS 0
#define DW_TAPS 5
#define DW_PLANE_SUMS 10

/* There are no stores that bypass the caches. */
#define f32_stream f32_store
#define f64_stream f64_store
#define ISA_FENCE() ((void)0)

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "depthwise_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "depthwise_body.inc"
