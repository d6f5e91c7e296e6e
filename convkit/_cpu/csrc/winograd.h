/* Winograd convolution F(4x4, 3x3) or F(2x2, 3x3): the forward pass of 3x3 filters at stride 1, and the input gradient as
 * one of them with the filter turned around and its channels exchanged.
 *
 * A unit is a block of tiles x some panels of channels out.  For a block of channels in at a time it transforms the tiles'
 * pixels, and multiplies each of their elements with the transformed filter; the sums are transformed back.  The filter is
 * transformed once for all units, or where there is one block of tiles only, by each unit as it needs it.  A tile that
 * is not finite then is computed again, tap by tap: transforming mixes the pixels of a tile, so that an infinity, or an
 * overflow on the way, would reach outputs whose window does not hold it.
 */
#ifndef CK_WINOGRAD_H
#define CK_WINOGRAD_H

#include "product.h"
#include "winograd_tiles.h"

typedef struct {
    const ck_dot_kernel *product;
    const ck_winograd_kernel *kernel; /* of the same arithmetic */
    ck_tile_source image;             /* what each tile of the result meets */
    ck_array filter;                  /* tap row, tap column, channel in, channel out, of group 0 */
    ck_array out;                     /* group 0 */
    int64_t image_group, filter_group, out_group; /* bytes from one group to the next */
    ck_load_fn load_filter;
    ck_store_fn store;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t out_height, out_width;
    bool out_in_place;                         /* the result's pixels are plain */
    int64_t image_block, row_block, col_block; /* tiles of a unit; image_block > 1 only with all rows and columns */
    int64_t panel_block;                       /* panels of a unit */
    int64_t channel_block;                     /* channels in that are transformed at a time; at most CK_SUM_BLOCK */
    int64_t panels_at_once;                    /* panels of the filter that are transformed before units run */
    char *packed; /* [group][panel of those at once][element][channel in][product->columns], elements ck_winograd_step apart;
                   * NULL: each unit transforms what it needs of the filter */
    int64_t stage_bytes; /* parts of a participant's scratch: a pixel of zeros and those of the image, */
    int64_t image_bytes, sums_bytes; /* both transformed, */
    int64_t filter_bytes;            /* a block of channels of a panel, transformed, unless `packed`, */
    int64_t out_bytes;               /* the result, */
    int64_t again_bytes;             /* taps before they are transformed, and what computing a tile again takes */
} ck_winograd;

/* Transforms the filter, all panels of it, into `packed`; computes with what is there, or alone; both, some panels at a
 * time. */
int ck_winograd_pack(const ck_winograd *winograd, const ck_job *limits);
int ck_winograd_compute(const ck_winograd *winograd, const ck_job *limits);
int ck_winograd_run(const ck_winograd *winograd, const ck_job *limits);

#endif
