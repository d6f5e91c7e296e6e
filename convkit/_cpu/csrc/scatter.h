/* The input gradient by col2im: output gradients times filters, added to the pixels that each tap came from.
 *
 * The inverse of im2col.  It does no more arithmetic than the forward convolution, whatever the sizes; the gathering
 * form (product.h) needs no additions to memory, but multiplies with padding where the output is much smaller than the
 * input.  A tile is a block of images x input channels with all its pixels, owned by one chunk, so that its sums have a
 * fixed order.
 */
#ifndef CK_SCATTER_H
#define CK_SCATTER_H

#include "product.h"

typedef struct {
    ck_gemm gemm;
    ck_window window;   /* from the output gradient's grid to the input gradient's pixels */
    ck_array gradients; /* the output gradient, group 0 */
    ck_array filter;    /* tap row, tap column, channel in, channel out, of group 0 */
    ck_array out;       /* the input gradient, group 0 */
    int64_t gradient_group, filter_group, out_group; /* bytes from one group to the next */
    ck_load_fn load_gradient, load_filter;
    ck_store_fn store;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t image_block, channel_block;                /* size of a tile */
    int64_t pixel_block;                               /* output pixels of one product */
    int64_t tap_block;                                 /* neighbouring taps of one product; 1 if channels are cut */
    /* Parts of a participant's scratch; total_bytes may be 0 where there are no more than CK_SUM_BLOCK taps. */
    int64_t gradient_bytes, filter_bytes, column_bytes, tile_bytes, total_bytes;
} ck_scatter;

int ck_scatter_run(const ck_scatter *scatter, const ck_job *limits);

#endif
