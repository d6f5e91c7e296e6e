/* Pieces of images as the planar kernels want them: planes, padded with zeros, rows in whole vectors. */
#ifndef CK_PLANAR_STAGE_H
#define CK_PLANAR_STAGE_H

#include "padded.h"
#include "planar_kernels.h"

/* Planes of `rows` rows from (row0, col0) on, `channel_step` elements apart.  Columns with the same remainder by the
 * window's step are neighbours, `pitch` of them; a row has those of every remainder, one after the other. */
typedef struct {
    int64_t row0, col0, rows, pitch, row_step, channel_step;
} ck_planar_view;

/* What the window reaches from the block, and from the columns that fill up its last vector. */
ck_planar_view ck_planar_reach(const ck_window *window, const ck_block *block, int64_t lanes);

/* Copies that, of one image; pixels->array.data is its first channel.  `to` has room for channels * channel_step. */
void ck_planar_stage(const ck_planar_kernel *kernel, const ck_window *window, const ck_pixels *pixels,
                     int64_t channels, const ck_planar_view *view, char *to);

/* The element of a plane that the block's first pixel meets at tap (a, b). */
static inline int64_t ck_planar_at(const ck_planar_view *v, const ck_window *w, const ck_block *block, int64_t a,
                                   int64_t b)
{
    int64_t row = block->row0 * w->row_step + w->row_at[a] - v->row0;
    int64_t col = block->col0 * w->col_step + w->col_at[b] - v->col0;
    return row * v->row_step + col % w->col_step * v->pitch + col / w->col_step;
}

/* How rows that meet the same row of pixels are found, if tap rows lie evenly: `classes` of output rows, or else of tap
 * rows, `step` apart.  All rows and taps of a pair of classes are neighbours in rows of pixels `pixel_rows` apart. */
typedef struct {
    bool even;
    int64_t row_classes, tap_classes, pixel_rows;
} ck_planar_spacing;

ck_planar_spacing ck_planar_spaced(const ck_window *window);

#endif
