/* Transposed copies of blocks of 4x4 numbers, and of 4 pixels of three channels, and sums across
 * vectors, on any CPU. */
#ifndef CK_SHUFFLE_GENERIC_H
#define CK_SHUFFLE_GENERIC_H

#include "simd_generic.h"

enum { f32_BLOCK = 4, f64_BLOCK = 4 };

#define GENERIC_TRANSPOSES(T, NUMBER)                                                                                  \
    static inline void T##_transpose(const NUMBER *from, int64_t from_step, NUMBER *to, int64_t to_step)               \
    {                                                                                                                  \
        for (int64_t i = 0; i < T##_BLOCK; i++)                                                                        \
            for (int64_t j = 0; j < T##_BLOCK; j++)                                                                    \
                to[i * to_step + j] = from[j * from_step + i];                                                         \
    }                                                                                                                  \
    static inline void T##_split_3(const NUMBER *from, NUMBER *to, int64_t to_step)                                    \
    {                                                                                                                  \
        for (int64_t j = 0; j < T##_BLOCK; j++)                                                                        \
            for (int64_t i = 0; i < 3; i++)                                                                            \
                to[i * to_step + j] = from[3 * j + i];                                                                 \
    }                                                                                                                  \
    static inline void T##_merge_3(const NUMBER *from, int64_t from_step, NUMBER *to)                                  \
    {                                                                                                                  \
        for (int64_t j = 0; j < T##_BLOCK; j++)                                                                        \
            for (int64_t i = 0; i < 3; i++)                                                                            \
                to[3 * j + i] = from[i * from_step + j];                                                               \
    }                                                                                                                  \
    static inline void T##_sum_4(const T##_vector *v, NUMBER *to)                                                      \
    {                                                                                                                  \
        for (int i = 0; i < 4; i++) {                                                                                  \
            to[i] = v[i][0];                                                                                           \
            for (int l = 1; l < (int)(sizeof(T##_vector) / sizeof(NUMBER)); l++)                                       \
                to[i] += v[i][l];                                                                                      \
        }                                                                                                              \
    }

GENERIC_TRANSPOSES(f32, float)
GENERIC_TRANSPOSES(f64, double)

#endif
