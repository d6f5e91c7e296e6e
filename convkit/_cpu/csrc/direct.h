/* The direct convolution: register tiles over the image itself, and no patch matrix.
 *
 * Rows of the image, padded with zeros and converted where that is needed, lie in a buffer of one tile, or are read where
 * they are.  There each tap of a filter row meets neighbouring pixels at a fixed distance, so that the micro-kernels walk
 * over taps and channels by themselves.  The filter is packed once, in panels as wide as the register tile.
 *
 * Serves the forward convolution, and the input gradient as one such product per stride phase, as product.h does.
 */
#ifndef CK_DIRECT_H
#define CK_DIRECT_H

#include "kernels.h"
#include "product.h"

typedef struct {
    ck_window window;
    ck_array out;                     /* the phase's pixels of the result; its data is not used, but ... */
    int64_t out_at;                   /* ... the plan's out_data this many bytes on, group 0 */
    const int64_t *row_tap, *col_tap; /* the filter's tap of each tap of the window */
    bool in_place;                    /* no tap leaves the image, and the image is plain: read where it lies */
    bool out_in_place;                /* the result's pixels are plain and panels whole: summed where they belong */
    int64_t first_unit, first_pack, packed_at;
} ck_direct_phase;

typedef struct {
    const ck_dot_kernel *kernel;
    ck_pixels pixels; /* the image, group 0 */
    ck_array filter;  /* tap row, tap column, channel in, channel out, of group 0 */
    char *out_data;
    int64_t image_group, filter_group, out_group; /* bytes from one group to the next */
    ck_load_fn load_filter;
    ck_store_fn store;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t phase_count;
    const ck_direct_phase *phases;
    int64_t units, packs;
    int64_t image_block, row_block, col_block; /* size of a tile; image_block > 1 only with all rows and columns */
    int64_t panel_block;                       /* panels of channels out of a tile */
    char *packed;                              /* [phase][group][panel][term][kernel->columns], by ck_direct_pack */
    int64_t stage_bytes, tile_bytes;           /* parts of a participant's scratch */
} ck_direct;

int64_t ck_direct_units(const ck_direct *direct, const ck_direct_phase *phase);

/* Packs the filter into `packed`; computes with what is packed there; both. */
int ck_direct_pack(const ck_direct *direct, const ck_job *limits);
int ck_direct_run_packed(const ck_direct *direct, const ck_job *limits);
int ck_direct_run(const ck_direct *direct, const ck_job *limits);

#endif
