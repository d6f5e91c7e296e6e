/* The direct convolution: register tiles over the image itself, or over few terms of few patches at a time.
 *
 * Walking: rows of the image, padded with zeros and converted where that is needed, lie in a buffer of one tile, or are
 * read where they are.  There each tap of a filter row meets neighbouring pixels at a fixed distance, so that the
 * micro-kernels walk over taps and channels by themselves.
 *
 * Gathering: a tile is a run of pixels, across rows and images, and the part of their patches that a block of terms needs
 * is copied into a dense matrix.  It stays in the second-level cache while all panels of the tile pass by.
 *
 * The filter is packed in panels as wide as the register tile: once for all tiles, or by each tile as it needs it.
 *
 * The arithmetic CK_BF16 takes channels in pairs: what is said of channels in and of terms, means pairs then, and strides
 * along channels in are those from pair to pair.  It gathers only where pixels are plain.
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
    bool in_place;     /* the image is plain and no tap leaves it: read where it lies */
    bool clipped;      /* walking, in place: taps leave the image at some pixels, and are left out there */
    bool out_in_place; /* the result's pixels are plain and panels whole: summed where they belong */
    bool rounded;      /* else, and not clipped: the result's pixels are halves as `across_rounded` stores them, panels are
                        * whole, and gathering, all pixels lie evenly: rounded into place with the last terms */
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
    int64_t pixel_block; /* pixels of a tile when gathering, where in_place and out_in_place say moreover that the pixels
                          * of all rows and images lie evenly (in_place: and meet the grid's one to one); 0: walking, */
    bool strips_first;   /* gathering: all panels, which stay in the second-level cache, for one strip of pixels */
    int64_t image_block, row_block, col_block; /* with tiles of this size; image_block > 1 only with all rows and columns */
    int64_t panel_block;                       /* panels of channels out of a tile */
    int64_t term_block;                        /* terms that a register tile sums at a time; at most CK_SUM_BLOCK products */
    char *packed; /* [phase][group][panel][term][kernel->columns], by ck_direct_pack; NULL: each tile packs its own */
    int64_t stage_bytes, filter_bytes, tile_bytes; /* parts of a participant's scratch: pixels, filter, sums */
} ck_direct;

/* Tiles of one phase, and chunks of packing its filter. */
int64_t ck_direct_units(const ck_direct *direct, const ck_direct_phase *phase);
int64_t ck_direct_packs(const ck_direct *direct, const ck_direct_phase *phase);

/* Packs the filter into `packed`; computes, with what is packed there if there is a `packed`; both. */
int ck_direct_pack(const ck_direct *direct, const ck_job *limits);
int ck_direct_compute(const ck_direct *direct, const ck_job *limits);
int ck_direct_run(const ck_direct *direct, const ck_job *limits);

#endif
