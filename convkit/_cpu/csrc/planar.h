/* Convolutions of few channels, out of the image or into the result: one filter, or a few, over planes of pixels.
 *
 * A tile of the register kernels has its channels in vectors and wastes most of one where they are few.  Here vectors
 * run along the columns, whatever the layout: a tile's pixels are staged as padded planes, columns apart by their
 * remainder by the stride.  With one filter a vector of pixels serves several rows of the result, with more it serves
 * several filters.  Only where the image is of many channels, and neighbours in memory, do vectors run along those, and
 * what is left in a vector is added up in the end.  Tiles of pixels, of one image, with all their filters are the pool's chunks.
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
    bool out_in_place;                /* the arithmetic's own dtype, native, aligned, dense where sums are */
    /* What one sum runs over, at most CK_SUM_BLOCK terms a lane; whole columns if they fit, and then whole rows. */
    int64_t channel_block, tap_rows, tap_cols;
    int64_t first_unit, packed_at;
} ck_planar_phase;

typedef struct {
    const ck_planar_kernel *kernel;
    bool interleaved; /* vectors run along channels; a block of them is then a number of whole vectors, or all */
    ck_pixels pixels; /* the image; plain: the arithmetic's own dtype, native, aligned; interleaved: channels dense */
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
    char *packed;                    /* [phase][block of filters][channel][tap][filter]; interleaved: planar_inner.c */
    int64_t stage_bytes, tile_bytes; /* parts of a participant's scratch */
} ck_planar;

/* A tile at work, and the part of its taps and channels that is being summed. */
typedef struct {
    const ck_planar *p;
    const ck_planar_phase *phase;
    ck_block block;
    int64_t image;
    ck_planar_view view;
    const char *pixels;
    char *sums;
    int64_t sums_row, sums_pixel, sums_filter; /* steps of the sums in elements */
    int64_t channel0, channels, row0, rows, col0, cols;
    bool add;
} ck_planar_part;

/* planar_inner.c: packing and summing where vectors run along channels.  The second is false, and nothing is written, if
 * the pixels do not fit the plan's stage_bytes of scratch. */
void ck_planar_pack_inner(const ck_planar *planar, const ck_planar_phase *phase, int64_t first, int64_t count, char *to);
bool ck_planar_sum_inner(ck_planar_part *part, char *scratch, ck_worker *worker);

/* Bytes of a phase's packed taps of so many filters. */
static inline int64_t ck_planar_packed(const ck_planar *p, const ck_planar_phase *phase, int64_t filters)
{
    int64_t lanes = p->interleaved ? p->kernel->lanes : 1;
    return phase->window.rows * phase->window.cols * ck_ceil_div(p->channels, lanes) * lanes * filters *
           ck_size(p->kernel->arithmetic);
}

int64_t ck_planar_units(const ck_planar *planar, const ck_planar_phase *phase);
int ck_planar_run(const ck_planar *planar, const ck_job *limits);

#endif
