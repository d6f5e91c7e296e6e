/* Convolutions that do not mix channels: depthwise ones, and a single channel in and out.
 *
 * There is no matrix product in them, and nothing to gain from one.  Vectors run along the channels of a pixel, or
 * along the columns of a plane, whichever lies densely or is long; in the second case columns are staged by their
 * remainder by the stride, so that those of one tap are neighbours.  Tiles of pixels x channels are the pool's chunks.
 *
 * Channels last, pixels are read where they lie, and taps outside the image are left out; so are planes where the
 * kernels have the filter's size, and others are staged with their padding.  Serves the forward convolution, and the input gradient as one such convolution per stride phase, all phases
 * of a tile in one chunk.  With several filters per channel (a multiplier), channels last, each channel is staged as
 * often, or the sums of its filters are added; planes need neither.
 */
#ifndef CK_DEPTHWISE_H
#define CK_DEPTHWISE_H

#include "depthwise_kernels.h"
#include "padded.h"
#include "product.h"

/* Where a tile finds its pixels; (row0, col0) is at `data`, steps are in elements.  Columns with the same remainder by
 * the window's step are neighbours, `col_step` apart, and remainders `remainder_step`. */
typedef struct {
    const char *data;
    int64_t row0, col0;
    int64_t row_step, col_step, remainder_step, channel_step;
    bool padded; /* pixels outside the image are there, as zeros */
} ck_depthwise_view;

/* Shows what the window reaches from the block, of one image: where it lies if it is plain and, along columns, all
 * inside, or else copied to `scratch`, padded with zeros.  pixels->array.data is the image's first channel of the
 * block.  `planes`: vectors run along columns; if not, each channel is there `repeats` times.  False, and nothing is
 * written, if it takes more than `bytes`. */
bool ck_depthwise_look(const ck_depthwise_kernel *kernel, const ck_window *window, const ck_pixels *pixels,
                       const ck_block *block, int64_t channels, int64_t repeats, bool planes, char *scratch,
                       int64_t bytes, ck_depthwise_view *view);

/* The distance of neighbouring taps. */
static inline int64_t ck_pitch(const int64_t *at, int64_t taps) { return taps > 1 ? at[1] - at[0] : 0; }

/* Taps or output pixels number `first` to `last` - 1. */
typedef struct {
    int64_t first, last;
} ck_span;

/* Channels last, the taps that output pixel `at` meets along an axis: all of them in a padded view, or else those
 * inside the image of `size` pixels.  `taps_at` must ascend evenly, as every window's do here. */
static inline ck_span ck_taps_inside(const ck_depthwise_view *view, const int64_t *taps_at, int64_t taps, int64_t at,
                                     int64_t step, int64_t size)
{
    ck_span span = {0, taps};
    if (view->padded)
        return span;
    while (span.first < span.last && at * step + taps_at[span.first] < 0)
        span.first++;
    while (span.first < span.last && at * step + taps_at[span.last - 1] >= size)
        span.last--;
    return span;
}

/* Of the output pixels `start` to `start + count - 1` along an axis, those that meet all taps. */
static inline ck_span ck_whole_windows(const ck_depthwise_view *view, const int64_t *taps_at, int64_t taps,
                                       int64_t step, int64_t size, int64_t start, int64_t count)
{
    ck_span span = {start, start + count};
    if (view->padded)
        return span;
    int64_t room = size - taps_at[taps - 1];
    span.first = ck_min(span.last, ck_max(start, taps_at[0] < 0 ? ck_ceil_div(-taps_at[0], step) : 0));
    span.last = ck_max(span.first, ck_min(span.last, room > 0 ? ck_ceil_div(room, step) : 0));
    return span;
}

/* Columns of output pixels with whole windows, and their neighbours that miss one column of taps only, which kernels sum
 * with them: the first column of the first one (`left`), the last of the last one (`right`). */
typedef struct {
    ck_span span;
    bool left, right;
} ck_columns;

static inline ck_columns ck_whole_columns(const ck_depthwise_view *v, const ck_window *w, int64_t start, int64_t count)
{
    ck_columns c = {ck_whole_windows(v, w->col_at, w->cols, w->col_step, w->width, start, count), false, false};
    if (w->cols == 1 || c.span.first == c.span.last)
        return c;
    ck_span before = ck_taps_inside(v, w->col_at, w->cols, c.span.first - 1, w->col_step, w->width);
    ck_span after = ck_taps_inside(v, w->col_at, w->cols, c.span.last, w->col_step, w->width);
    c.left = c.span.first > start && before.first == 1 && before.last == w->cols;
    c.right = c.span.last < start + count && after.first == 0 && after.last == w->cols - 1;
    c.span.first -= c.left;
    c.span.last += c.right;
    return c;
}

/* The element of the view that the block's first output pixel meets at tap (a, b). */
static inline int64_t ck_depthwise_at(const ck_depthwise_view *v, const ck_window *w, const ck_block *block, int64_t a,
                                      int64_t b)
{
    int64_t row = block->row0 * w->row_step + w->row_at[a] - v->row0;
    int64_t col = block->col0 * w->col_step + w->col_at[b] - v->col0;
    return row * v->row_step + col % w->col_step * v->remainder_step + col / w->col_step * v->col_step;
}

typedef struct {
    ck_window window;
    ck_array out;                     /* the phase's pixels of the result; its data is not used, but ... */
    int64_t out_at;                   /* ... the plan's out_data this many bytes on */
    const int64_t *row_tap, *col_tap; /* the filter's tap of each tap of the window */
    bool out_in_place;                /* the arithmetic's own dtype, native, aligned, dense where vectors run */
    bool pairs; /* of pixels along a row, as kernels sum them; the window has then the columns that a pair meets, and ... */
    bool head, tail; /* ... of a whole row, the first or the last pixel is no part of the result */
    bool unpadded; /* planes are read and written where they lie, by kernels that know where the image ends */
    bool flat; /* planes are narrow: whole ones are summed as one row, padding included, which fills more of a vector */
    int64_t packed_at;
} ck_depthwise_phase;

typedef struct {
    const ck_depthwise_kernel *kernel;
    bool planes;          /* vectors run along columns */
    bool gathers;         /* the multiplier's channels are the image's, and are summed; else they are the result's */
    bool filter_in_place; /* its numbers are used where they lie; then nothing is packed */
    bool streams;         /* image and result are in place, and larger than the caches */
    ck_pixels pixels;     /* the image; plain: as the result in place */
    ck_array filter;      /* tap row, tap column, unused, channel */
    char *out_data;
    ck_load_fn load_filter;
    ck_store_fn store;
    int64_t images, groups, multiplier; /* filters of a group, which is one channel on the other side */
    int64_t phase_count;
    const ck_depthwise_phase *phases;
    int64_t grid_rows, grid_cols;                /* those of the largest phase; a tile has all phases of its pixels */
    int64_t row_block, col_block, group_block;   /* size of a tile, of one image */
    char *packed;                                /* [phase][tap][filter], with planes [phase][filter][tap], of pairs [..][row][3 columns] */
    int64_t stage_bytes, tile_bytes;             /* parts of a participant's scratch */
} ck_depthwise;

int ck_depthwise_run(const ck_depthwise *depthwise, const ck_job *limits);

#endif
