/* Patches times filters: the forward convolution, and the input gradient as one such product per stride phase.
 *
 * The result is cut into tiles of pixels x channels; a tile is one chunk of the pool, summed over the patch in blocks of
 * at most CK_SUM_BLOCK terms in a fixed order.  Nothing here depends on the number of threads.
 */
#ifndef CK_PRODUCT_H
#define CK_PRODUCT_H

#include "multiply.h"
#include "patches.h"
#include "pool.h"

/* An error code of the pool's: sizes that the planner and these loops disagree on.  Never seen unless there is a bug. */
enum { CK_BAD_PLAN = 16 };

/* The pixels of the result that see the same taps at the same distances: all of them in a forward convolution, every
 * stride-th row and column in an input gradient. */
typedef struct {
    ck_window window;
    ck_array out;                      /* the phase's pixels of the result; its data is not used, but ... */
    int64_t out_at;                    /* ... the product's out_data this many bytes on, group 0 */
    const int64_t *row_tap, *col_tap;  /* the filter's tap of each tap of the window */
    ck_layout image_layout;            /* not CK_COPY: pixels of the image and of the grid are the same, one tap */
    ck_layout filter_layout;           /* not CK_COPY: the filter's taps and channels are used where they lie */
    ck_layout out_layout;
    int64_t first_unit, first_pack;    /* units and packing units of the phases before this one */
    int64_t packed_at;                 /* bytes of packed filter before this one's */
} ck_phase;

/* Tiles are cut out of runs of pixels: all of a phase, those of one image, or those of one row. */
typedef enum { CK_RUN_ALL, CK_RUN_IMAGE, CK_RUN_ROW } ck_run;

typedef struct {
    ck_gemm gemm;
    ck_pixels pixels; /* the image, group 0 */
    ck_array filter;  /* tap row, tap column, channel in, channel out, of group 0 */
    char *out_data;
    int64_t image_group, filter_group, out_group; /* bytes from one group to the next */
    ck_load_fn load_filter;
    ck_store_fn store;
    int64_t images, groups, in_channels, out_channels; /* channels per group */
    int64_t phase_count;
    const ck_phase *phases;
    int64_t units, packs; /* of all phases */
    int64_t pixel_block, channel_block;
    ck_run run;
    bool within_image; /* an array used without copying is no matrix across images; `run` is not CK_RUN_ALL then */
    char *packed;      /* the whole filter, packed once for all tiles; NULL: each tile converts what it needs */
    int64_t patch_bytes, filter_bytes, tile_bytes, stage_bytes; /* parts of a participant's scratch, in this order */
} ck_product;

int ck_product_run(const ck_product *product, const ck_job *limits);

/* Tiles of one phase. */
int64_t ck_product_units(const ck_product *product, const ck_phase *phase);

#endif
