/* The micro-kernels of convolutions that do not mix channels: taps multiply vectors, nothing is summed across one. */
#ifndef CK_DEPTHWISE_KERNELS_H
#define CK_DEPTHWISE_KERNELS_H

#include "kernels.h"

/* One row of output pixels, or two neighbouring ones, and the taps that they meet, channels last:
 * out[i * out_row + p * out_step + l] = sum over the taps (a, b) of
 * x[(i + a) * x_row + b * x_tap + p * x_step + l] * w[a * w_row + b * w_tap + l], plus what out holds if `add`, for
 * i < rows <= 2, p < positions and l < lanes.  One chain per sum, in the order of the taps: the caller passes at most
 * CK_SUM_BLOCK of them; there may be no columns, but there is a row.  Steps are in elements and may be negative.  Only
 * the rows x_first <= i + a < x_end of x are there, 0 <= x_first <= x_end < rows + tap_rows; others count as zero and are
 * not read, nor is, with `left`, what the first tap column meets from the first pixel, and with `right`, what the last
 * one meets from the last pixel; tap_cols is then at least 2.  Otherwise exactly what the formula names is read and
 * written; no alignment is needed.
 * out must not overlap x or w.  `streams`: the result should bypass the caches if its vectors are aligned; `fetches`: how
 * many rows of x the next rows of pixels are the first to meet, if x is not in a cache and they will be wanted; or 0.  `head` and `tail` are for pairs only. */
typedef struct {
    int64_t rows, positions, lanes, tap_rows, tap_cols, x_first, x_end, fetches;
    const void *x, *w;
    int64_t x_row, x_tap, x_step, w_row, w_tap;
    void *out;
    int64_t out_row, out_step;
    bool add, left, right, streams, head, tail;
} ck_depthwise_rows;

typedef void (*ck_depthwise_rows_fn)(const ck_depthwise_rows *rows);

/* As above, where `positions` are pairs of output pixels and the taps are three columns, two output pixels apart; one row:
 * out[2 * p * out_step + l] = sum over a of x[a * x_row + p * x_tap + l] * w[a * w_row + w_tap + l],
 * out[(2 * p + 1) * out_step + l] = sum over a of x[a * x_row + p * x_tap + l] * w[a * w_row + 2 * w_tap + l]
 *                                               + x[a * x_row + (p + 1) * x_tap + l] * w[a * w_row + l].
 * With `left`, column 0 of x counts as zero and is not read, with `right`, column number `positions`; with `head`, the
 * first output pixel is not written, with `tail`, the last one.  `add`, `x_step` and `tap_cols` are not used. */
typedef void (*ck_depthwise_pairs_fn)(const ck_depthwise_rows *pairs);

/* out[p][l] = sum over the taps t of x[at[t] + p * x_step + l] * w[t], plus what out holds if `add`, for p < positions
 * and l < lanes; otherwise as above. */
typedef void (*ck_depthwise_forward_fn)(int64_t positions, int64_t lanes, const void *x, int64_t x_step,
                                        const int64_t *at, int64_t taps, const void *w, void *out, int64_t out_step,
                                        bool add);

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

/* A block of output pixels and the taps that they all meet, channels last:
 * sums[a * sums_row + b * sums_tap + l] += sum over r < rows and p < positions of
 * x[a * x_row + b * x_tap + r * x_down + p * x_step + l] * dy[r * dy_down + p * dy_step + l], for l < lanes; rows *
 * positions is at most CK_SUM_BLOCK, and otherwise as the function above; `left` and `right` as in `ck_depthwise_rows`, for
 * every row.  `fetches`: how many rows of x a row of pixels
 * is the first to meet, if neither array is in a cache and the block below will be wanted next; or 0. */
typedef struct {
    int64_t rows, positions, lanes, tap_rows, tap_cols, fetches;
    const void *x, *dy;
    int64_t x_row, x_tap, x_down, x_step, dy_down, dy_step;
    void *sums;
    int64_t sums_row, sums_tap;
    bool left, right;
} ck_depthwise_sums;

typedef void (*ck_depthwise_sums_fn)(const ck_depthwise_sums *sums);

/* Rows of a plane and a square filter that they meet, where the image lies:
 * out[i * out_row + j] = sum over a < tap_rows, b < tap_cols of x(row + i * step + a, col + j * step + b)
 *                        * w[a * w_row + b * w_tap], plus what out holds if `add`, for i < rows and j < cols,
 * where x(r, c) = x[r * x_row + c] for 0 <= r < height and 0 <= c < width, and else is zero and not read.  `streams`: as
 * in `ck_depthwise_rows`; `next`: how far from x the plane is that will be wanted next, if it is not in a cache; or 0. */
typedef struct {
    int64_t rows, cols, step, tap_rows, tap_cols, row, col, height, width;
    const void *x, *w;
    void *out;
    int64_t x_row, w_row, w_tap, out_row, next;
    bool add, streams;
} ck_depthwise_plane;

/* False, and nothing is written, unless the filter is of 3x3, 5x5 or 7x7 taps and the step 1 or 2. */
typedef bool (*ck_depthwise_plane_fn)(const ck_depthwise_plane *plane);

/* As `ck_depthwise_pairs_fn`, where j < cols are pairs: with w(a, b) = w[a * w_row + b * w_tap] and x as above,
 * out[i * out_row + 2 * j] = sum over a of x(row + i + a, col + j) * w(a, 1), and
 * out[i * out_row + 2 * j + 1] = sum over a of x(row + i + a, col + j) * w(a, 2)
 *                                            + x(row + i + a, col + j + 1) * w(a, 0),
 * plus what out holds if `add`; tap_cols is 3 and step is 1, or it is false and nothing is written. */
typedef bool (*ck_depthwise_plane_pairs_fn)(const ck_depthwise_plane *plane, bool head, bool tail);

/* sums[a * tap_cols + b] += sum over i < rows and j < cols of
 * x(row + i * step + a, col + j * step + b) * dy[i * dy_row + j], each lane of a vector of columns in a chain of its own;
 * rows * ceil(cols / lanes) is at most CK_SUM_BLOCK.  x as above; w, out, add and streams are not used.  False, and nothing is written, unless there are 3, 5 or 7 columns of taps and the step is 1 or 2. */
typedef struct {
    ck_depthwise_plane plane;
    const void *dy;
    int64_t dy_row, dy_next; /* as `next`, from dy */
    void *sums;
} ck_depthwise_plane_sums;

typedef bool (*ck_depthwise_plane_sums_fn)(const ck_depthwise_plane_sums *sums);

/* Copies rows of n numbers; short ones too cost a few nanoseconds only. */
typedef void (*ck_depthwise_copy_fn)(int64_t rows, int64_t n, const void *from, int64_t from_row, void *to,
                                     int64_t to_row);

/* `repeat`: to[i * times + j] = from[i] for i < count and j < times; `fold`: to[i] = sum over j of from[i * times + j].
 * The last number read by `repeat` may be the last one written, and `fold` may start where it reads. */
typedef void (*ck_depthwise_times_fn)(int64_t count, int64_t times, const void *from, void *to);

typedef struct {
    const char *name; /* depthwise_<src>_<filter>_<acc>_<positions>x<lanes>_<isa> */
    ck_isa isa;
    ck_type arithmetic;
    int64_t lanes; /* of one vector */
    ck_depthwise_rows_fn by_rows;
    ck_depthwise_pairs_fn by_pairs;
    ck_depthwise_forward_fn by_tap;
    ck_depthwise_grid_fn by_grid;
    ck_depthwise_gradient_fn gradient;
    ck_depthwise_sums_fn by_sums;
    ck_depthwise_plane_fn by_plane;
    ck_depthwise_plane_pairs_fn plane_pairs;
    ck_depthwise_plane_sums_fn plane_sums;
    ck_depthwise_copy_fn copy;
    ck_depthwise_times_fn repeat, fold;
} ck_depthwise_kernel;

/* All kernels that are built in, NULL at the end; lowest level first. */
extern const ck_depthwise_kernel *const ck_depthwise_kernels[];

/* The kernel of the highest level that `isa` includes, for CK_F32 or CK_F64. */
const ck_depthwise_kernel *ck_depthwise_kernel_for(ck_type arithmetic, ck_isa isa);

#endif
