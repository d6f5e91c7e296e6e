/* The Winograd filter gradient of 3x3 filters at stride 1: image and output gradient are transformed tile by tile and
 * multiplied, and the sums over tiles are transformed back once.
 *
 * A part is a block of channels in x some panels of channels out.  Its tiles are taken a block at a time, in order; where
 * there are too few parts, slices of the blocks are summed apart and added in order, as in filter_gradient.h.
 *
 * A part is finished piece by piece, a piece being some channels in x one panel.  One that is not finite then is computed
 * again by direct_gradient.h: transforming mixes the pixels of a tile and its sums, so that an infinity, or an overflow on
 * the way, would reach taps that do not meet it.
 */
#ifndef CK_WINOGRAD_GRADIENT_H
#define CK_WINOGRAD_GRADIENT_H

#include "direct_gradient.h"
#include "winograd_tiles.h"

typedef struct {
    const ck_dot_kernel *product;
    const ck_winograd_kernel *kernel; /* of the same arithmetic */
    ck_tile_source image;             /* what each tile of the output gradient meets, */
    ck_tile_source gradient;          /* and its own pixels */
    ck_array out;                     /* tap row, tap column, channel in, channel out, of group 0 */
    int64_t image_group, gradient_group, out_group; /* bytes from one group to the next */
    ck_store_fn store;
    bool accumulate;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t channel_block, panel_block;                /* of a part */
    int64_t piece_block;                       /* channels in of a piece; channel_block is a multiple, or all channels */
    int64_t image_block, row_block, col_block; /* tiles of a block, at most CK_SUM_BLOCK; image_block > 1 only with all rows
                                                * and columns */
    int64_t slices, slice_blocks;
    /* What computes a piece again, by whether it has fewer channels in than piece_block, and fewer channels out than a
     * panel: for one group and so many channels, its arrays where those of group 0 begin.  NULL where there is no such
     * piece. */
    const ck_direct_gradient *again[2][2];
    char *shared;        /* [piece]: bytes, set to 1 where a piece is not finite; */
    int64_t piece_bytes; /* from here on, if there is more than one slice, [slice][part][panel][element][channel in]
                          * [product->columns], elements ck_winograd_step apart; and the partials of `again`, later */
    int64_t stage_bytes; /* parts of a participant's scratch: a pixel of zeros and the pixels of a block, */
    int64_t image_bytes, gradient_bytes; /* both transformed, */
    int64_t sums_bytes;                  /* and the sums of a part, if there is one slice */
} ck_winograd_gradient;

int ck_winograd_gradient_run(const ck_winograd_gradient *gradient, const ck_job *limits);

#endif
