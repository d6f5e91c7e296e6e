/* The micro-kernels of convolutions that do not mix channels: taps multiply vectors, nothing is summed across one. */
#ifndef CK_DEPTHWISE_KERNELS_H
#define CK_DEPTHWISE_KERNELS_H

#include "kernels.h"

/* out[p][l] = sum over the taps t of x[at[t] + p * x_step + l] * w[t][l], plus what out holds if `add`, for
 * p < positions and l < lanes.  In `by_lane`, w[t][l] is w[t * w_step + l]; in `by_tap` it is w[t], the same for all
 * lanes.  One chain per sum: the caller passes at most CK_SUM_BLOCK taps.  Exactly what the formula names is read and
 * written; no alignment is needed.  out must not overlap x or w. */
typedef void (*ck_depthwise_forward_fn)(int64_t positions, int64_t lanes, const void *x, int64_t x_step,
                                        const int64_t *at, int64_t taps, const void *w, int64_t w_step, void *out,
                                        int64_t out_step, bool add);

/* As `by_tap`, for rows of taps that lie as rows of x do: at[a * tap_cols + b] = at[b] + a * x_step.  Each vector of x
 * then serves all the positions that meet it. */
typedef void (*ck_depthwise_grid_fn)(int64_t positions, int64_t lanes, const void *x, int64_t x_step, const int64_t *at,
                                     int64_t tap_rows, int64_t tap_cols, const void *w, void *out, int64_t out_step,
                                     bool add);

/* sums[t * sums_step + l] += sum over r < rows and p < count of
 * x[at[t] + r * x_row + p * x_step + l] * dy[r * dy_row + p * dy_step + l], for l < lanes; sums up to the next multiple
 * of the kernel's lanes are written too, with what they held.  rows * count is at most CK_SUM_BLOCK. */
typedef void (*ck_depthwise_gradient_fn)(int64_t taps, const int64_t *at, int64_t lanes, const void *x, int64_t x_row,
                                         int64_t x_step, const void *dy, int64_t dy_row, int64_t dy_step, int64_t rows,
                                         int64_t count, void *sums, int64_t sums_step);

/* Copies rows of n numbers; short ones too cost a few nanoseconds only. */
typedef void (*ck_depthwise_copy_fn)(int64_t rows, int64_t n, const void *from, int64_t from_row, void *to,
                                     int64_t to_row);

typedef struct {
    const char *name; /* depthwise_<src>_<filter>_<acc>_<positions>x<lanes>_<isa> */
    ck_isa isa;
    ck_type arithmetic;
    int64_t lanes; /* of one vector */
    ck_depthwise_forward_fn by_lane, by_tap;
    ck_depthwise_grid_fn by_grid;
    ck_depthwise_gradient_fn gradient;
    ck_depthwise_copy_fn copy;
} ck_depthwise_kernel;

/* All kernels that are built in, NULL at the end; lowest level first. */
extern const ck_depthwise_kernel *const ck_depthwise_kernels[];

/* The kernel of the highest level up to `isa`, for CK_F32 or CK_F64. */
const ck_depthwise_kernel *ck_depthwise_kernel_for(ck_type arithmetic, ck_isa isa);

#endif
