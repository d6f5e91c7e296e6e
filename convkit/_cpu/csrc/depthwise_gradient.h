/* The filter gradient of a convolution that does not mix channels, vectors as in depthwise.h.
 *
 * A tile is a block of channels with all their taps, summed block of pixels by block of pixels; where there are too few
 * tiles, slices of the blocks are summed apart and added in order, as in filter_gradient.h.  Along columns, each lane
 * of a vector has a sum of its own, and those are added last.
 */
#ifndef CK_DEPTHWISE_GRADIENT_H
#define CK_DEPTHWISE_GRADIENT_H

#include "depthwise.h"

typedef struct {
    const ck_depthwise_kernel *kernel;
    bool planes, unpadded; /* as in depthwise.h */
    ck_window window;
    ck_pixels pixels, gradients; /* image and output gradient; plain: usable where they lie */
    ck_array out;                /* tap row, tap column, unused, channel */
    ck_store_fn store;
    bool accumulate;
    bool streams; /* image and gradient are in place, and larger than the caches */
    int64_t images, channels, multiplier; /* channels are the gradient's: so many of them to one of the image */
    int64_t row_block, col_block; /* pixels of one block; a row of one takes at most CK_SUM_BLOCK vectors */
    int64_t channel_block;
    int64_t slices, slice_blocks;
    char *partials; /* [tile][slice][tap][channels, whole vectors], with planes [tile][slice][channel][tap][lane],
                       of unpadded ones without lanes */
    int64_t stage_bytes, gradient_bytes; /* parts of a participant's scratch */
} ck_depthwise_gradient;

int ck_depthwise_gradient_run(const ck_depthwise_gradient *gradient, const ck_job *limits);

#endif
