/* The depthwise kernels of level avx512.  32 registers: 14 to 18 sums, as many as 14 weights, 7 gradients, one of x. */
#include "depthwise_kernels.h"
#include "spans_avx512.h"

#define DW_POSITIONS 8
#define DW_GRID 4
#define DW_STRIP 7
#define DW_MASKS 1
#define DW_TAPS 9
#define DW_PLANE_SUMS 21

/* Stores that bypass the caches; `to` is aligned to the vector. */
static inline void f32_stream(float *to, f32_vector v) { _mm512_stream_ps(to, v); }
static inline void f64_stream(double *to, f64_vector v) { _mm512_stream_pd(to, v); }
#define ISA_FENCE _mm_sfence

#define T f32
#define NUMBER float
#define ARITHMETIC CK_F32
#define DW_HALF f32h
#include "depthwise_body.inc"

#define T f64
#define NUMBER double
#define ARITHMETIC CK_F64
#include "depthwise_body.inc"
