/* Convolutions of int8 or uint8 images with int8 filters: exact sums, and the epilogue on a tile's sums while they are
 * in the first-level cache.
 *
 * As direct.h: pixels of a tile are laid down with their padding, and register tiles walk over taps and channels there.
 * Bytes of signed images are shifted by 128 to be unsigned, and padding with them; how much that and the zero point of
 * the input add to a sum is known from the filter's sums, and taken off in integers.
 */
#ifndef CK_INT8_H
#define CK_INT8_H

#include "int8_kernels.h"
#include "patches.h"
#include "pool.h"

/* An image whose channels come in blocks of four (all layouts may be seen so): channel c of a pixel lies
 * c / 4 * block + c % 4 * lane bytes from its first. */
typedef struct {
    char *data;
    int64_t stride[3]; /* image, row, column */
    int64_t block, lane;
    ck_type type;
    bool swapped;
} ck_int8_image;

/* `count` terms of the patch, ordered by tap column and channel, that are neighbours where pixels are laid down. */
typedef struct {
    int64_t row_tap, col_tap, count;
} ck_int8_run;

/* Where the units of pixels lie in one form, and the filter that they meet. */
typedef struct {
    const int64_t *at; /* of each step */
    int64_t steps, block_steps; /* a block of steps is so long that its part of a panel stays in the first-level cache */
    int64_t packed_at;          /* in `packed`: [group][panel][step][column][unit] */
} ck_int8_form;

typedef struct {
    const ck_int8_kernel *kernel;
    ck_window window;
    ck_int8_image image, side, out; /* side.type is CK_TYPES where there is none */
    const char *filter;
    int64_t filter_stride[2]; /* tap row and column; channels in come in blocks of four, too */
    int64_t filter_block, filter_lane, filter_out;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t units, image_block, row_block, col_block, panel_block; /* image_block > 1 only with all rows and columns */
    /* Each channel has `multiplier` filters of its own: groups and in_channels are 1, out_channels are all; rows of taps
     * lie equally far apart.  There are no runs, and no pitches. */
    bool depthwise;
    int64_t multiplier;
    int64_t pitch, row_pitch; /* elements from pixel to pixel and row to row where they are laid down */
    const ck_int8_run *runs;
    int64_t run_count;
    ck_int8_form form[CK_FORMS]; /* words only where the kernel has them */
    int64_t sums_at, peaks_at;   /* in `packed`: [group][panel][tap row][column] sums, [group][panel] largest sums of pairs */
    char *packed;
    int64_t stage_bytes, sums_bytes, side_bytes, out_bytes, factor_bytes; /* parts of a participant's scratch */
    /* The epilogue. */
    int64_t input_zero_point;
    int32_t output_zero_point;
    float low, high, side_scale;
    bool relu, scale_per_channel;
    const float *scale;         /* one, or one per channel out; NULL where the result is CK_I32 */
    const float *bias;          /* per channel out, or NULL; and the same in integers */
    const int32_t *integer_bias;
} ck_int8;

int64_t ck_int8_units(const ck_int8 *problem);

/* How the units of a depthwise convolution are cut.  One holds a column of pixels, of as many rows as it has terms; `rows`
 * rows of results, one below the other, share those that they meet, each with zero weights for the others' rows. */
typedef struct {
    int64_t rows, tap_pitch, unit_rows, steps; /* tap_pitch: rows of the image from tap to tap; steps of one row of results */
} ck_int8_columns;

static inline ck_int8_columns ck_int8_columns_of(const ck_int8 *d, ck_form form)
{
    const ck_window *w = &d->window;
    const int64_t pitch = w->rows > 1 ? w->row_at[1] - w->row_at[0] : 1;
    const int64_t rows = w->rows > 1 && pitch == w->row_step ? 2 : 1;
    const int64_t unit_rows = ck_ceil_div(w->rows + rows - 1, ck_form_unit(form));
    return (ck_int8_columns){rows, pitch, unit_rows, unit_rows * w->cols};
}

/* Bytes of the units that n columns of the image take, and of the rows that they are laid down from. */
static inline int64_t ck_int8_unit_bytes(const ck_int8 *d, ck_form form, int64_t n)
{
    return ck_int8_columns_of(d, form).unit_rows * n * d->kernel->columns * CK_UNIT_BYTES;
}
static inline int64_t ck_int8_row_bytes(const ck_int8 *d, int64_t n) { return CK_UNIT_BYTES * n * d->kernel->columns; }

/* Writes where the steps of a form lie; there is room for its steps. */
void ck_int8_place_steps(const ck_int8 *problem, ck_form form, int64_t *at);

/* Packs the filter into `packed`; computes with what is packed there; both. */
int ck_int8_pack(const ck_int8 *problem, const ck_job *limits);
int ck_int8_run_packed(const ck_int8 *problem, const ck_job *limits);
int ck_int8_run_all(const ck_int8 *problem, const ck_job *limits);

#endif
