/* Partial sums of slices, added in the order of the slices, and of lanes of vectors, in the order of the lanes. */
#ifndef CK_SLICES_H
#define CK_SLICES_H

#include "array.h"

#define CK_ADD_SLICES(NAME, TYPE)                                                                                      \
    static inline void NAME(char *sums, int64_t count, int64_t slices, int64_t distance)                               \
    {                                                                                                                  \
        TYPE *restrict total = (TYPE *)sums;                                                                           \
        for (int64_t s = 1; s < slices; s++) {                                                                         \
            const TYPE *restrict part = (const TYPE *)(sums + s * distance);                                           \
            for (int64_t i = 0; i < count; i++)                                                                        \
                total[i] += part[i];                                                                                   \
        }                                                                                                              \
    }

CK_ADD_SLICES(ck_add_slices_f32, float)
CK_ADD_SLICES(ck_add_slices_f64, double)

/* Adds `count` numbers of each slice, `distance` bytes apart, to those of the first. */
static inline void ck_add_slices(ck_type arithmetic, char *sums, int64_t count, int64_t slices, int64_t distance)
{
    (arithmetic == CK_F64 ? ck_add_slices_f64 : ck_add_slices_f32)(sums, count, slices, distance);
}

#define CK_ADD_LANES(NAME, TYPE)                                                                                       \
    static inline void NAME(TYPE *sums, int64_t count, int64_t lanes)                                                  \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            TYPE total = sums[i * lanes];                                                                              \
            for (int64_t l = 1; l < lanes; l++)                                                                        \
                total += sums[i * lanes + l];                                                                          \
            sums[i] = total;                                                                                           \
        }                                                                                                              \
    }

CK_ADD_LANES(ck_add_lanes_f32, float)
CK_ADD_LANES(ck_add_lanes_f64, double)

/* Sums that were kept for each lane of a vector, `count` of them side by side, become one number each. */
static inline void ck_add_lanes(ck_type arithmetic, char *sums, int64_t count, int64_t lanes)
{
    if (arithmetic == CK_F64)
        ck_add_lanes_f64((double *)sums, count, lanes);
    else
        ck_add_lanes_f32((float *)sums, count, lanes);
}

#endif
