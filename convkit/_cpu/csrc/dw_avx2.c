/* The depthwise kernels of level avx2.  16 registers: 12 sums, 2 weights or gradients, and one of x. */
#include "depthwise_kernels.h"
#include "spans_avx2.h"

#define DW_POSITIONS 6
#define DW_GRID 4
#define DW_STRIP 4
#define DW_MASKS 0
#define DW_TAPS 6
#define DW_PLANE_SUMS 10

/* Stores that bypass the caches; `to` is aligned to the vector. */
static inline void f32_stream(float *to, f32_vector v) { _mm256_stream_ps(to, v); }
static inline void f64_stream(double *to, f64_vector v) { _mm256_stream_pd(to, v); }
#define ISA_FENCE _mm_sfence

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#include "depthwise_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "depthwise_body.inc"
