/* The micro-kernels: one table feeds dispatch, tests and benchmarks. */
#ifndef CK_KERNELS_H
#define CK_KERNELS_H

#include "convert.h"

/* ISA levels, the better ones later.  Not each has all that the ones before it have: CPUs with AVX-512 may lack AVX-VNNI. */
typedef enum { CK_GENERIC, CK_AVX2, CK_AVX2VNNI, CK_AVX512, CK_AVX512VNNI, CK_ISAS } ck_isa;

/* Whether every CPU of level `isa` can run what is compiled for level `part`. */
bool ck_isa_has(ck_isa isa, ck_isa part);

/* Whether the CPU has the level and the operating system saves its registers, and it is built in. */
bool ck_isa_runs(ck_isa isa);

/* Terms that lie evenly in both operands: `count` of them from a + a_at and b + b_at on, in elements. */
typedef struct {
    int64_t a_at, b_at, count;
} ck_segment;

/* A register tile: c[i][j] = sum over the terms t of a[i][t] * b[t][j], plus what c holds if `add`, for i < rows and all
 * j < columns of the kernel.  The sum runs in one chain per element, so that the caller passes at most CK_SUM_BLOCK
 * terms.  The caller guarantees 1 <= rows <= the kernel's rows, and that a, b and c may be accessed wherever rows,
 * columns and segments say; they are aligned to their elements, no more.  c must not overlap a or b.
 *
 * In `across`, rows are a_step elements apart and terms are neighbours in a; rows of b are `columns` elements, dense.
 * In `along`, rows are neighbours in a and terms are a_step elements apart; rows of b are b_step elements apart. */
typedef void (*ck_dot_fn)(int64_t rows, const void *a, int64_t a_step, const void *b, int64_t b_step,
                          const ck_segment *segments, int64_t segment_count, void *c, int64_t ldc, bool add);

typedef struct {
    const char *name; /* dot_<src>_<filter>_<acc>_<rows>x<vectors of columns>v_<isa> */
    ck_isa isa;
    ck_type arithmetic;
    int64_t rows, columns;
    ck_dot_fn across, along;
    ck_load_fn load_half; /* native float16 to CK_F32 and back, or NULL: what the level has no instructions for */
    ck_store_fn store_half;
} ck_dot_kernel;

/* All kernels that are built in, NULL at the end; lowest level first. */
extern const ck_dot_kernel *const ck_dot_kernels[];

/* The best kernel that level `isa` has, for CK_F32 or CK_F64. */
const ck_dot_kernel *ck_dot_kernel_for(ck_type arithmetic, ck_isa isa);

/* As ck_loader and ck_storer for the kernel's arithmetic, with the instructions of its level. */
ck_load_fn ck_loader_for(const ck_array *array, const ck_dot_kernel *kernel);
ck_store_fn ck_storer_for(const ck_array *array, const ck_dot_kernel *kernel);

/* The best level that runs. */
ck_isa ck_best_isa(void);

const char *ck_isa_name(ck_isa isa);

#endif
