/* Transposed copies of blocks of 4x4 numbers, on any CPU. */
#ifndef CK_TRANSPOSE_GENERIC_H
#define CK_TRANSPOSE_GENERIC_H

#include <stdint.h>

enum { f32_BLOCK = 4, f64_BLOCK = 4 };

static inline void f32_transpose(const float *from, int64_t from_step, float *to, int64_t to_step)
{
    for (int64_t i = 0; i < f32_BLOCK; i++)
        for (int64_t j = 0; j < f32_BLOCK; j++)
            to[i * to_step + j] = from[j * from_step + i];
}

static inline void f64_transpose(const double *from, int64_t from_step, double *to, int64_t to_step)
{
    for (int64_t i = 0; i < f64_BLOCK; i++)
        for (int64_t j = 0; j < f64_BLOCK; j++)
            to[i * to_step + j] = from[j * from_step + i];
}

#endif
