/* Vectors of 16 bytes in the compiler's own notation, for any CPU.  Multiplication and addition are two roundings here. */
#ifndef CK_SIMD_GENERIC_H
#define CK_SIMD_GENERIC_H

#include <string.h>

#define ISA_NAME "generic"
#define ISA_LEVEL CK_GENERIC
#define ISA_SUFFIX generic
#define ISA_ROWS 4

typedef float f32_vector __attribute__((vector_size(16)));
typedef double f64_vector __attribute__((vector_size(16)));

#define GENERIC_OPERATIONS(T, V)                                                                                       \
    static inline V T##_load(const void *from)                                                                         \
    {                                                                                                                  \
        V v;                                                                                                           \
        memcpy(&v, from, sizeof v);                                                                                    \
        return v;                                                                                                      \
    }                                                                                                                  \
    static inline void T##_store(void *to, V v) { memcpy(to, &v, sizeof v); }                                          \
    static inline V T##_add(V a, V b) { return a + b; }                                                                \
    static inline V T##_fma(V a, V b, V c) { return a * b + c; }                                                       \
    static inline V T##_zero(void) { return (V){0}; }

GENERIC_OPERATIONS(f32, f32_vector)
GENERIC_OPERATIONS(f64, f64_vector)

static inline f32_vector f32_broadcast(const float *from) { return (f32_vector){*from, *from, *from, *from}; }
static inline f64_vector f64_broadcast(const double *from) { return (f64_vector){*from, *from}; }

#endif
