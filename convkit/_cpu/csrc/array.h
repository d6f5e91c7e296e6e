/* Strided four-dimensional arrays of any dtype, as NumPy hands them over. */
#ifndef CK_ARRAY_H
#define CK_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    CK_F32,
    CK_F64,
    CK_F16,
    CK_BF16,
    CK_BOOL,
    CK_I8,
    CK_U8,
    CK_I16,
    CK_U16,
    CK_I32,
    CK_U32,
    CK_I64,
    CK_U64,
    CK_TYPES
} ck_type;

/* Images are seen as N, H, W, C and filters as H, W, I, O; strides are in bytes, of either sign or zero. */
typedef struct {
    char *data;
    int64_t stride[4];
    ck_type type;
    bool swapped; /* elements are in the other byte order */
} ck_array;

static inline int64_t ck_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t ck_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ck_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t ck_distance(int64_t step) { return step < 0 ? -step : step; }

#endif
