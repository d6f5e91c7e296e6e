/* The Winograd filter gradient: image and output gradient are transformed tile by tile and multiplied, the sums over tiles
 * are transformed back once.
 *
 * A part is a block of channels in x some panels of channels out.  Its tiles are taken a block at a time, in order; where
 * there are too few parts, slices of the blocks are summed apart and added in order, as in filter_gradient.h.
 *
 * A panel of a part that is not finite in the end is left alone and marked: an infinity or an overflow on the way may have
 * reached filter taps that do not meet it.  The caller computes those again.
 */
#ifndef CK_WINOGRAD_GRADIENT_H
#define CK_WINOGRAD_GRADIENT_H

#include "product.h"
#include "winograd_tiles.h"

typedef struct {
    const ck_dot_kernel *product;
    const ck_winograd_kernel *kernel; /* of the same arithmetic */
    ck_tile_source image;             /* 6 x 6 pixels of each tile of the output gradient ... */
    ck_tile_source gradient;          /* ... and 4 x 4 of its own */
    ck_array out;                     /* tap row, tap column, channel in, channel out, of group 0 */
    int64_t image_group, gradient_group, out_group; /* bytes from one group to the next */
    ck_store_fn store;
    bool accumulate;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t channel_block, panel_block;                /* of a part */
    int64_t image_block, row_block, col_block; /* tiles of a block, at most CK_SUM_BLOCK; image_block > 1 only with all rows
                                                * and columns */
    int64_t slices, slice_blocks;
    unsigned char *failed; /* [part][panel]: set to 1 where a panel is not finite */
    char *partials; /* [part][slice][panel][element][channel in][product->columns], elements ck_winograd_step apart; used if
                     * there is more than one slice */
    int64_t stage_bytes;                  /* parts of a participant's scratch: a pixel of zeros and pixels of both, */
    int64_t image_bytes, gradient_bytes;  /* both transformed, */
    int64_t sums_bytes;                   /* and the sums of a part, if there is one slice */
} ck_winograd_gradient;

int ck_winograd_gradient_run(const ck_winograd_gradient *gradient, const ck_job *limits);

#endif
