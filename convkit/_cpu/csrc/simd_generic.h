/* Vectors of 16 bytes in the compiler's own notation, for any CPU.  Multiplication and addition are two roundings here. */
#ifndef CK_SIMD_GENERIC_H
#define CK_SIMD_GENERIC_H

#include <stdint.h>
#include <string.h>

#define ISA_NAME "generic"
#define ISA_LEVEL CK_GENERIC
#define ISA_SUFFIX generic
#define ISA_ROWS 4
#define ISA_AHEAD 0

typedef float f32_vector __attribute__((vector_size(16)));
typedef double f64_vector __attribute__((vector_size(16)));

#define GENERIC_OPERATIONS(T, V, NUMBER)                                                                               \
    static inline V T##_load(const void *from)                                                                         \
    {                                                                                                                  \
        V v;                                                                                                           \
        memcpy(&v, from, sizeof v);                                                                                    \
        return v;                                                                                                      \
    }                                                                                                                  \
    static inline void T##_store(void *to, V v) { memcpy(to, &v, sizeof v); }                                          \
    static inline V T##_add(V a, V b) { return a + b; }                                                                \
    static inline V T##_fma(V a, V b, V c) { return a * b + c; }                                                       \
    static inline V T##_zero(void) { return (V){0}; }                                                                  \
    /* The first n of a vector's numbers, 0 < n < all; the rest is not read, counts as zero, is not written. */        \
    static inline V T##_load_part(const NUMBER *from, int64_t n)                                                       \
    {                                                                                                                  \
        V v = {0};                                                                                                     \
        for (int64_t i = 0; i < n; i++)                                                                                \
            v[i] = from[i];                                                                                            \
        return v;                                                                                                      \
    }                                                                                                                  \
    static inline void T##_store_part(NUMBER *to, V v, int64_t n)                                                      \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to[i] = v[i];                                                                                              \
    }

GENERIC_OPERATIONS(f32, f32_vector, float)
GENERIC_OPERATIONS(f64, f64_vector, double)

static inline f32_vector f32_broadcast(const float *from) { return (f32_vector){*from, *from, *from, *from}; }
static inline f64_vector f64_broadcast(const double *from) { return (f64_vector){*from, *from}; }

#endif
