/* As spans_avx512.h, for the vectors of simd_generic.h. */
#ifndef CK_SPANS_GENERIC_H
#define CK_SPANS_GENERIC_H

#include "shuffle_generic.h"

typedef struct {
    int64_t first, end;
} f32_span;
typedef f32_span f64_span;

#define GENERIC_SPANS(T, V, NUMBER)                                                                                    \
    static inline T##_span T##_between(int64_t first, int64_t end) { return (T##_span){first, end}; }                  \
    static inline V T##_load_span(const NUMBER *from, T##_span s)                                                      \
    {                                                                                                                  \
        V v = {0};                                                                                                     \
        for (int64_t i = s.first; i < s.end; i++)                                                                      \
            v[i] = from[i];                                                                                            \
        return v;                                                                                                      \
    }                                                                                                                  \
    static inline void T##_store_span(NUMBER *to, V v, T##_span s)                                                     \
    {                                                                                                                  \
        for (int64_t i = s.first; i < s.end; i++)                                                                      \
            to[i] = v[i];                                                                                              \
    }

GENERIC_SPANS(f32, f32_vector, float)
GENERIC_SPANS(f64, f64_vector, double)

static inline f32_vector f32_evens(f32_vector a, f32_vector b) { return (f32_vector){a[0], a[2], b[0], b[2]}; }
static inline f32_vector f32_odds(f32_vector a, f32_vector b) { return (f32_vector){a[1], a[3], b[1], b[3]}; }
static inline f64_vector f64_evens(f64_vector a, f64_vector b) { return (f64_vector){a[0], b[0]}; }
static inline f64_vector f64_odds(f64_vector a, f64_vector b) { return (f64_vector){a[1], b[1]}; }
static inline f32_vector f32_zip_first(f32_vector a, f32_vector b) { return (f32_vector){a[0], b[0], a[1], b[1]}; }
static inline f32_vector f32_zip_last(f32_vector a, f32_vector b) { return (f32_vector){a[2], b[2], a[3], b[3]}; }
static inline f64_vector f64_zip_first(f64_vector a, f64_vector b) { return (f64_vector){a[0], b[0]}; }
static inline f64_vector f64_zip_last(f64_vector a, f64_vector b) { return (f64_vector){a[1], b[1]}; }

#endif
