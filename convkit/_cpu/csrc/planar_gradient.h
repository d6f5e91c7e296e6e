/* The filter gradient of a convolution of few channels, vectors along columns as in planar.h.
 *
 * A block of both arrays is staged as planes, since whole rows of an image of 1024 columns would share a few sets of
 * the first-level cache.  Every pair of channel and filter sums it tap by tap, each lane of a vector
 * with a sum of its own.  Tiles are blocks of filters with all their taps; where there are too few of them, slices of
 * the blocks of pixels are summed apart.  Slices are added in order, and then the lanes.
 */
#ifndef CK_PLANAR_GRADIENT_H
#define CK_PLANAR_GRADIENT_H

#include "planar_stage.h"
#include "product.h"

typedef struct {
    const ck_planar_kernel *kernel;
    ck_window window;
    ck_pixels pixels, gradients; /* image and output gradient; plain as in planar.h */
    ck_array out;                /* tap row, tap column, channel, filter */
    ck_store_fn store;
    bool accumulate;
    int64_t images, channels, filters;
    int64_t row_block, col_block; /* pixels of one block: at most CK_SUM_BLOCK vectors */
    int64_t filter_block;
    int64_t slices, slice_blocks;
    char *partials; /* [tile][slice][channel][filter][tap][lane] */
    int64_t stage_bytes, gradient_bytes; /* parts of a participant's scratch */
} ck_planar_gradient;

int ck_planar_gradient_run(const ck_planar_gradient *gradient, const ck_job *limits);

#endif
