/* The filter gradient: patches, transposed, times output gradients.
 *
 * The gradient is cut into tiles of taps-and-channels x filters.  Where there are enough tiles, each is summed over all
 * pixels in order.  Where there are too few, the pixels are cut into slices too; each (tile, slice) gives a partial sum,
 * and a second pass adds the partial sums in the order of the slices.  The planner fixes tiles and slices by geometry.
 */
#ifndef CK_FILTER_GRADIENT_H
#define CK_FILTER_GRADIENT_H

#include "product.h"

typedef struct {
    ck_gemm gemm;
    ck_window window;
    ck_pixels pixels;   /* the image, group 0 */
    ck_array gradients; /* the output gradient, group 0 */
    ck_array out;       /* tap row, tap column, channel in, channel out, of group 0 */
    int64_t image_group, gradient_group, out_group; /* bytes from one group to the next */
    ck_load_fn load_gradient;
    ck_store_fn store;
    bool accumulate;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    ck_layout image_layout, gradient_layout;           /* as in ck_phase */
    ck_layout out_layout;                              /* CK_ROWS: tiles are summed where they belong */
    int64_t patch_block, channel_block;                /* size of a tile */
    int64_t slices, slice_pixels;                      /* slice_pixels a multiple of pixel_block, or all */
    int64_t pixel_block;                               /* pixels of one product, at most CK_SUM_BLOCK */
    bool within_image;                                 /* no product spans two images */
    int64_t tiles_at_once;                             /* tiles whose partial sums `partials` holds */
    char *partials;                                    /* [tile at once][slice][patch_block * channel_block] */
    int64_t patch_bytes, gradient_bytes, tile_bytes, stage_bytes; /* parts of a participant's scratch */
} ck_filter_gradient;

int ck_filter_gradient_run(const ck_filter_gradient *gradient, const ck_job *limits);

#endif
