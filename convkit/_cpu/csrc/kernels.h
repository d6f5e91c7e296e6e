/* The micro-kernels: one table feeds dispatch, tests and benchmarks. */
#ifndef CK_KERNELS_H
#define CK_KERNELS_H

#include "convert.h"
#include "isa.h"

/* Two terms of a sum of bfloat16 products; where the number of terms is odd, `second` is zero in the last pair of both
 * operands. */
typedef struct {
    uint16_t first, second;
} ck_pair;

/* What a level has for laying down pairs in bulk: to[i, j] is made of number a[i, j] and number b[i, j], NULL standing for
 * zeros, for i < n0 and j < n1.  Rows of numbers are f0 bytes apart, numbers of a row are neighbours. */
typedef struct ck_pairing {
    /* Rows of neighbouring pairs, t0 apart. */
    void (*rows)(ck_pair *to, int64_t t0, const char *a, const char *b, int64_t f0, int64_t n0, int64_t n1);
    /* Columns of neighbouring pairs, t1 apart: a row's pairs lie across them.  If `whole`, the pairs lie in a already. */
    void (*columns)(ck_pair *to, int64_t t1, const char *a, const char *b, int64_t f0, int64_t n0, int64_t n1,
                    bool whole);
} ck_pairing;

/* The products that an element of both operands adds to a sum. */
static inline int64_t ck_products(ck_type arithmetic) { return arithmetic == CK_BF16 ? 2 : 1; }

/* Terms that lie evenly in both operands: `count` of them from a + a_at and b + b_at on, in elements. */
typedef struct {
    int64_t a_at, b_at, count;
} ck_segment;

/* A register tile: c[i][j] = sum over the terms t of a[i][t] * b[t][j], plus what c holds if `add`, for i < rows and all
 * j < columns of the kernel.  The sum runs in one chain per element, so that the caller passes at most CK_SUM_BLOCK
 * terms.  The caller guarantees 1 <= rows <= the kernel's rows, and that a, b and c may be accessed wherever rows,
 * columns and segments say; they are aligned to their elements, no more.  c must not overlap a or b.
 *
 * Elements are numbers of the kernel's arithmetic.  CK_BF16: those of a and b are a ck_pair, and each adds two products,
 * so that the caller passes half as many; c is float32.  Subnormal numbers count as zeros there, in operands and sums.
 *
 * In `across`, rows are a_step elements apart and terms are neighbours in a; rows of b are `columns` elements, dense.
 * In `along`, rows are neighbours in a and terms are a_step elements apart; rows of b are b_step elements apart. */
typedef void (*ck_dot_fn)(int64_t rows, const void *a, int64_t a_step, const void *b, int64_t b_step,
                          const ck_segment *segments, int64_t segment_count, void *c, int64_t ldc, bool add);

/* As `across`, but the sums are not stored in c: they are rounded to native halves, a row's side by side and rows to_step
 * bytes apart.  c is read only if `add`. */
typedef void (*ck_rounded_fn)(int64_t rows, const void *a, int64_t a_step, const void *b, const ck_segment *segments,
                              int64_t segment_count, const void *c, int64_t ldc, bool add, char *to, int64_t to_step);

typedef struct {
    const char *name; /* dot_<src>_<filter>_<acc>_<rows>x<vectors of columns>v_<isa> */
    ck_isa isa;
    ck_type arithmetic;
    int64_t rows, columns;
    ck_dot_fn across, along;
    ck_rounded_fn across_rounded; /* of CK_BF16, to bfloat16; or NULL */
    ck_load_fn load_half; /* native float16 to CK_F32 and back, or NULL: what the level has no instructions for */
    ck_store_fn store_half; /* of CK_BF16: to native bfloat16 */
    const ck_pairing *pairing; /* of CK_BF16, or NULL */
} ck_dot_kernel;

/* All kernels that are built in, NULL at the end; lower levels first. */
extern const ck_dot_kernel *const ck_dot_kernels[];

/* The kernel of the highest level that `isa` includes; NULL where there is none, which is never so for CK_F32 and CK_F64. */
const ck_dot_kernel *ck_dot_kernel_for(ck_type arithmetic, ck_isa isa);

/* As ck_loader and ck_storer for the kernel's arithmetic, with the instructions of its level. */
ck_load_fn ck_loader_for(const ck_array *array, const ck_dot_kernel *kernel);
ck_store_fn ck_storer_for(const ck_array *array, const ck_dot_kernel *kernel);

#endif
