/* The micro-kernels of convolutions of few channels: vectors run along the columns of planes and taps are broadcast, or
 * along the channels of the image where only the result has few. */
#ifndef CK_PLANAR_KERNELS_H
#define CK_PLANAR_KERNELS_H

#include "kernels.h"

/* Filters that `list` sums at a time, and rows that `grid` does. */
enum { CK_PLANAR_LINES = 4 };

/* Planes of pixels and where a tile of sums goes, steps in elements.  Pixels are read in whole vectors: the caller
 * guarantees `x` up to the next multiple of the kernel's lanes behind `cols`.  Sums are written up to `cols` exactly.
 * One chain per sum: at most CK_SUM_BLOCK terms in a call.  No alignment is needed; sums must not overlap the rest. */
typedef struct {
    const void *x;
    int64_t x_channel, channels;
    const int64_t *at; /* where the taps of a list, or of a row of a grid, lie from x on */
    const void *w;
    int64_t w_channel;
    void *sums;
    int64_t sums_line; /* from one filter to the next in `list`, from one row to the next in `grid` */
    int64_t cols;
    bool add; /* to what the sums hold */
} ck_planar_tile;

/* sums[k][j] = sum over c < channels and t < taps of x[c * x_channel + at[t] + j] * w[c * w_channel + t * filters + k],
 * for k < filters <= CK_PLANAR_LINES. */
typedef void (*ck_planar_list_fn)(const ck_planar_tile *tile, int64_t filters, int64_t taps);

/* sums[i][j] = sum over c, a < tap_rows, b < tap_cols of
 * x[c * x_channel + (i + a) * x_row + at[b] + j] * w[c * w_channel + a * w_row + b], for i < rows <= CK_PLANAR_LINES and
 * rows <= tap_rows: each vector of x serves all the rows that meet it. */
typedef void (*ck_planar_grid_fn)(const ck_planar_tile *tile, int64_t rows, int64_t x_row, int64_t tap_rows,
                                  int64_t tap_cols, int64_t w_row);

/* Vectors along the channels of interleaved pixels:
 * sums[p * sums_pixel + k] = sum over t < taps and c < channels of
 * x[p * x_pixel + at[t] + c] * w[t * w_tap + (c / lanes * filters + k) * lanes + c % lanes], plus what sums hold if
 * `add`, for p < pixels, k < filters <= CK_PLANAR_LINES.  Exactly those of x are read; w is padded with zeros to whole
 * vectors.  One chain per lane: taps * ceil(channels / lanes) is at most CK_SUM_BLOCK. */
typedef void (*ck_planar_inner_fn)(int64_t pixels, const void *x, int64_t x_pixel, const int64_t *at, int64_t taps,
                                   int64_t channels, const void *w, int64_t w_tap, int64_t filters, void *sums,
                                   int64_t sums_pixel, bool add);

/* Sums of products of two planes of pixels, a lane of a vector each:
 * sums[(a * sums_row + b) * lanes + l] += sum over i < rows and j < cols, j % lanes = l, of
 * x[(i + a) * x_row + at[b] + j] * dy[i * dy_row + j], for a < tap_rows <= tap_lines, b < tap_cols <= tap_runs.
 * Exactly what the formula names is read.  rows * ceil(cols / lanes) is at most CK_SUM_BLOCK. */
typedef void (*ck_planar_gradient_fn)(int64_t tap_rows, int64_t tap_cols, const int64_t *at, const void *x,
                                      int64_t x_row, const void *dy, int64_t dy_row, int64_t rows, int64_t cols,
                                      void *sums, int64_t sums_row);

/* Interleaved pixels to planes and back: to[c * to_channel + p] = from[p * from_pixel + c], or the other way round. */
typedef void (*ck_planar_split_fn)(int64_t pixels, int64_t channels, const void *from, int64_t from_pixel, void *to,
                                   int64_t to_channel);
typedef void (*ck_planar_merge_fn)(int64_t pixels, int64_t channels, const void *from, int64_t from_channel, void *to,
                                   int64_t to_pixel);

typedef struct {
    const char *name; /* planar_<src>_<filter>_<acc>_<vectors of sums>v_<isa> */
    ck_isa isa;
    ck_type arithmetic;
    int64_t lanes;               /* of one vector */
    int64_t tap_lines, tap_runs; /* rows and columns of taps that `gradient` sums at a time */
    ck_planar_list_fn list;
    ck_planar_grid_fn grid;
    ck_planar_inner_fn inner;
    ck_planar_gradient_fn gradient;
    ck_planar_split_fn split;
    ck_planar_merge_fn merge;
} ck_planar_kernel;

/* All kernels that are built in, NULL at the end; lowest level first. */
extern const ck_planar_kernel *const ck_planar_kernels[];

/* The kernel of the highest level that `isa` includes, for CK_F32 or CK_F64. */
const ck_planar_kernel *ck_planar_kernel_for(ck_type arithmetic, ck_isa isa);

#endif
