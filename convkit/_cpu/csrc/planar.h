/* Convolutions of few channels, out of the image or into the result: one filter, or a few, over planes of pixels.
 *
 * A tile of the register kernels has its channels in vectors and wastes most of one where they are few.  Here vectors
 * run along the columns, whatever the layout: a tile's pixels are staged as padded planes, columns apart by their
 * remainder by the stride.  With one filter a vector of pixels serves several rows of the result, with more it serves
 * several filters.  Tiles of pixels, of one image, with all their filters are the pool's chunks.
 *
 * Serves the forward convolution, and the input gradient as one such convolution per stride phase, as direct.h does.
 */
#ifndef CK_PLANAR_H
#define CK_PLANAR_H

#include "planar_stage.h"
#include "product.h"

typedef struct {
    ck_window window;
    ck_array out;                     /* the phase's pixels of the result; its data is not used, but ... */
    int64_t out_at;                   /* ... the plan's out_data this many bytes on */
    const int64_t *row_tap, *col_tap; /* the filter's tap of each tap of the window */
    bool out_in_place;                /* the arithmetic's own dtype, native, aligned, columns dense */
    /* What one sum runs over, at most CK_SUM_BLOCK terms; all channels' rows of whole columns if they fit. */
    int64_t channel_block, tap_rows, tap_cols;
    int64_t first_unit, packed_at;
} ck_planar_phase;

typedef struct {
    const ck_planar_kernel *kernel;
    ck_pixels pixels; /* the image; plain: the arithmetic's own dtype, native, aligned */
    ck_array filter;  /* tap row, tap column, channel, filter */
    char *out_data;
    ck_load_fn load_filter;
    ck_store_fn store;
    bool out_plain; /* the arithmetic's own dtype, native, aligned, channels dense */
    int64_t images, channels, filters;
    int64_t filter_block; /* filters summed at a time, at most CK_PLANAR_LINES */
    int64_t phase_count;
    const ck_planar_phase *phases;
    int64_t units;
    int64_t row_block, col_block;    /* size of a tile */
    char *packed;                    /* [phase][block of filters][channel][tap][filter] */
    int64_t stage_bytes, tile_bytes; /* parts of a participant's scratch */
} ck_planar;

int64_t ck_planar_units(const ck_planar *planar, const ck_planar_phase *phase);
int ck_planar_run(const ck_planar *planar, const ck_job *limits);

#endif
