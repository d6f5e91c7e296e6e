/* The filter gradient by register tiles over images and output gradients where they lie.
 *
 * A tile is a block of tap rows x panels of channels out, with all taps and channels in of those rows.  It is summed over
 * blocks of at most CK_SUM_BLOCK output pixels, in order; where there are too few tiles, slices of the blocks are summed
 * apart and added in order, as in filter_gradient.h.
 */
#ifndef CK_DIRECT_GRADIENT_H
#define CK_DIRECT_GRADIENT_H

#include "direct.h"

typedef struct {
    const ck_dot_kernel *kernel;
    ck_window window;
    ck_pixels pixels;   /* the image, group 0 */
    ck_pixels gradients; /* the output gradient, group 0 */
    ck_array out;       /* tap row, tap column, channel in, channel out, of group 0 */
    int64_t image_group, gradient_group, out_group; /* bytes from one group to the next */
    ck_store_fn store;
    bool accumulate;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    bool image_in_place;                               /* no tap leaves the image, and the image is plain */
    bool gradient_in_place;                            /* plain, and panels are whole */
    int64_t image_block, row_block, col_block;         /* pixels of one block; image_block > 1 only with whole images */
    int64_t tap_block, panel_block;                    /* tap rows and panels of a tile */
    int64_t slices, slice_blocks;
    char *partials; /* [tile][slice][tap rows x taps x channels in][panels x columns] */
    int64_t stage_bytes, gradient_bytes; /* parts of a participant's scratch */
} ck_direct_gradient;

int ck_direct_gradient_run(const ck_direct_gradient *gradient, const ck_job *limits);

#endif
