/* Convolutions that do not mix channels: depthwise ones, and a single channel in and out.
 *
 * There is no matrix product in them, and nothing to gain from one.  Vectors run along the channels of a pixel, or
 * along the columns of a plane, whichever lies densely or is long; in the second case columns are staged by their
 * remainder by the stride, so that those of one tap are neighbours.  Tiles of pixels x channels are the pool's chunks.
 *
 * Serves the forward convolution, and the input gradient as one such convolution per stride phase, as direct.h does.
 */
#ifndef CK_DEPTHWISE_H
#define CK_DEPTHWISE_H

#include "depthwise_kernels.h"
#include "padded.h"
#include "product.h"

/* Where a tile finds its pixels; (row0, col0) is at `data`, steps are in elements.  Columns with the same remainder by
 * the window's step are neighbours, `col_step` apart, and remainders `remainder_step`. */
typedef struct {
    const char *data;
    int64_t row0, col0;
    int64_t row_step, col_step, remainder_step, channel_step;
} ck_depthwise_view;

/* Shows what the window reaches from the block, of one image: where it lies if it is plain and all inside, or else
 * copied to `scratch`, padded with zeros.  pixels->array.data is the image's first channel of the block.  `planes`:
 * vectors run along columns.  False, and nothing is written, if it takes more than `bytes`. */
bool ck_depthwise_look(const ck_depthwise_kernel *kernel, const ck_window *window, const ck_pixels *pixels,
                       const ck_block *block, int64_t channels, bool planes, char *scratch, int64_t bytes,
                       ck_depthwise_view *view);

/* The element of the view that the block's first output pixel meets at tap (a, b). */
static inline int64_t ck_depthwise_at(const ck_depthwise_view *v, const ck_window *w, const ck_block *block, int64_t a,
                                      int64_t b)
{
    int64_t row = block->row0 * w->row_step + w->row_at[a] - v->row0;
    int64_t col = block->col0 * w->col_step + w->col_at[b] - v->col0;
    return row * v->row_step + col % w->col_step * v->remainder_step + col / w->col_step * v->col_step;
}

typedef struct {
    ck_window window;
    ck_array out;                     /* the phase's pixels of the result; its data is not used, but ... */
    int64_t out_at;                   /* ... the plan's out_data this many bytes on */
    const int64_t *row_tap, *col_tap; /* the filter's tap of each tap of the window */
    bool out_in_place;                /* the arithmetic's own dtype, native, aligned, dense where vectors run */
    bool flat; /* planes are narrow: whole ones are summed as one row, padding included, which fills more of a vector */
    int64_t first_unit, packed_at;
} ck_depthwise_phase;

typedef struct {
    const ck_depthwise_kernel *kernel;
    bool planes;      /* vectors run along columns */
    ck_pixels pixels; /* the image; plain: as the result in place */
    ck_array filter;  /* tap row, tap column, unused, channel */
    char *out_data;
    ck_load_fn load_filter;
    ck_store_fn store;
    int64_t images, channels;
    int64_t phase_count;
    const ck_depthwise_phase *phases;
    int64_t units;
    int64_t row_block, col_block, channel_block; /* size of a tile, of one image */
    char *packed;                                /* [phase][tap][channel], with planes [phase][channel][tap] */
    int64_t stage_bytes, tile_bytes;             /* parts of a participant's scratch */
} ck_depthwise;

int64_t ck_depthwise_units(const ck_depthwise *depthwise, const ck_depthwise_phase *phase);
int ck_depthwise_run(const ck_depthwise *depthwise, const ck_job *limits);

#endif
