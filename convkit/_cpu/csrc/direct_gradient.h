/* The filter gradient by register tiles that walk along the output pixels.
 *
 * A tile is a block of tap rows x strips of channels in x panels of channels out.  It is summed over blocks of at most
 * CK_SUM_BLOCK output pixels, in order; where there are too few tiles, slices of the blocks are summed apart and added in
 * order, as in filter_gradient.h.
 *
 * For each block the tile's output gradients are laid down panel by panel, and the image strip by strip, some strips at a
 * time; a panel then stays in the first-level cache while all these strips and taps meet it.  Where a pixel has few
 * channels, its taps are neighbours instead: a strip is all channels, and the taps of a row are one run of rows.
 *
 * The arithmetic CK_BF16 takes output pixels in pairs, of which the first ones are cut into blocks: a pixel of image n is
 * paired with the same one of image n + images / 2; in the last image, if their number is odd, row i with row
 * i + height / 2; in its last row, if that is left, one half of the columns with the other; a last pixel stays alone.
 */
#ifndef CK_DIRECT_GRADIENT_H
#define CK_DIRECT_GRADIENT_H

#include "kernels.h"
#include "product.h"
#include "strips.h"

typedef struct {
    const ck_dot_kernel *kernel;
    ck_window window;
    ck_pixels pixels;    /* the image, group 0 */
    ck_pixels gradients; /* the output gradient, group 0 */
    ck_array out;        /* tap row, tap column, channel in, channel out, of group 0 */
    int64_t image_group, gradient_group, out_group; /* bytes from one group to the next */
    ck_store_fn store;
    bool accumulate;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    bool image_in_place;                               /* no tap leaves the image, and the image is plain */
    bool gradient_in_place;                            /* plain, and panels are whole */
    bool out_in_place; /* plain, panels whole, one slice, not accumulated: summed where it belongs */
    int64_t image_block, row_block, col_block; /* pixels of one block; image_block > 1 only with whole images */
    int64_t strip;                             /* channels in of a strip */
    int64_t tap_block, strip_block, panel_block; /* tap rows, strips and panels of a tile */
    int64_t strips_at_once;                      /* strips that are laid down together */
    int64_t slices, slice_blocks;
    char *partials; /* unless out_in_place: [tile][slice][panel][tap][channel in][kernel->columns] */
    int64_t stage_bytes, gradient_bytes; /* parts of a participant's scratch */
} ck_direct_gradient;

int ck_direct_gradient_run(const ck_direct_gradient *gradient, const ck_job *limits);

#endif
