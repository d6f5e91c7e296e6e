/* Matrix products by way of a BLAS function that the caller hands in, and how operands lie in memory. */
#ifndef CK_MULTIPLY_H
#define CK_MULTIPLY_H

#include "array.h"

/* No sum runs over more terms than this before it is added to a second-level sum (docs/numerics.md). */
enum { CK_SUM_BLOCK = 512 };

/* c (m x n, row-major, ldc) = op(a) (m x k) times op(b) (k x n), plus what c holds if `add`.  Without `add`, c is not
 * read.  `arithmetic` is CK_F32 or CK_F64.  Called from several threads at once. */
typedef void (*ck_gemm_fn)(void *ctx, ck_type arithmetic, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb, bool add, void *c,
                           int64_t ldc);

typedef struct {
    ck_gemm_fn fn;
    void *ctx;
    ck_type arithmetic;
} ck_gemm;

/* How an array of pixels and channels (or taps and channels) can be used as a matrix without a copy: CK_COPY not at all,
 * CK_ROWS with the channels of a pixel adjacent and pixels `ld` elements apart, CK_COLUMNS the other way round. */
typedef enum { CK_COPY, CK_ROWS, CK_COLUMNS } ck_matrix_kind;

typedef struct {
    ck_matrix_kind kind;
    int64_t ld;
} ck_layout;

/* A matrix in memory; `transposed` if its rows are stored as columns. */
typedef struct {
    char *data;
    int64_t ld;
    bool transposed;
} ck_matrix;

static inline void ck_multiply(const ck_gemm *gemm, int64_t m, int64_t n, int64_t k, ck_matrix a, ck_matrix b, bool add,
                               ck_matrix c)
{
    if (c.transposed) /* c' = b' a' */
        gemm->fn(gemm->ctx, gemm->arithmetic, !b.transposed, !a.transposed, n, m, k, b.data, b.ld, a.data, a.ld, add,
                 c.data, c.ld);
    else
        gemm->fn(gemm->ctx, gemm->arithmetic, a.transposed, b.transposed, m, n, k, a.data, a.ld, b.data, b.ld, add,
                 c.data, c.ld);
}

/* Where pixel `pixel` and channel `channel` of an array used without copying lie.  Pixels are numbered over images of
 * `grid` pixels; `within_image` tells that images need not follow each other in memory as rows do. */
static inline char *ck_address(const ck_array *array, const ck_layout *layout, int64_t size, int64_t grid,
                               bool within_image, int64_t pixel, int64_t channel)
{
    char *data = array->data;
    if (within_image) {
        data += pixel / grid * array->stride[0];
        pixel %= grid;
    }
    return data + (layout->kind == CK_ROWS ? pixel * layout->ld + channel : channel * layout->ld + pixel) * size;
}

/* The size of one of equal blocks of at most CK_SUM_BLOCK terms. */
static inline int64_t ck_sum_block(int64_t terms)
{
    int64_t blocks = ck_ceil_div(terms, CK_SUM_BLOCK);
    return blocks ? ck_ceil_div(terms, blocks) : 0;
}

#endif
