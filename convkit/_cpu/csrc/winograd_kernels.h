/* The transforms of F(4x4, 3x3) and F(2x2, 3x3), vectorised over channels; docs/numerics.md derives their constants. */
#ifndef CK_WINOGRAD_KERNELS_H
#define CK_WINOGRAD_KERNELS_H

#include "kernels.h"

/* A tile is 4 x 4 output pixels or 2 x 2, which meet 6 x 6 pixels of the image or 4 x 4; a transformed tile has as many
 * elements as it meets pixels: 36 at the most. */
enum { CK_TILE_SIZES = 2, CK_MOST_REACHED = 36, CK_TAPS = 9 };

/* Transforms the pixels of one tile, each the address of `channels` neighbouring numbers.  Channel c of element e goes to
 * to[e * element_step + c / lanes * vector_step + c % lanes]; the last vector is filled with zeros.  Steps are in numbers
 * of the kernel's arithmetic, here and below; nothing needs alignment beyond that of a number. */
typedef void (*ck_winograd_pixels_fn)(int64_t channels, const void *const *pixels, void *to, int64_t element_step,
                                      int64_t vector_step);

/* The way back: sums[e * element_step + c], in whole vectors, become the tile's first rows x cols output pixels.  False if
 * some number of the whole tile is not finite. */
typedef bool (*ck_winograd_result_fn)(int64_t channels, const void *sums, int64_t element_step, void *to,
                                      int64_t row_step, int64_t col_step, int64_t rows, int64_t cols);

/* Transforms `count` filters, a multiple of the lanes: tap t of filter i is taps[t * tap_step + i], and its element e goes
 * to to[e * element_step + i]. */
typedef void (*ck_winograd_filter_fn)(int64_t count, const void *taps, int64_t tap_step, void *to, int64_t element_step);

/* The way back for sums of a filter gradient: tap t of filter i takes the place of sums[t * element_step + i].  False if
 * some number is not finite. */
typedef bool (*ck_winograd_taps_fn)(int64_t count, void *sums, int64_t element_step);

typedef struct {
    const char *name; /* winograd_<src>_f<tile>x<tile>_3x3_<isa> */
    ck_isa isa;
    ck_type arithmetic;
    int64_t lanes;
    int64_t tile, reach, elements; /* output pixels and pixels along a side of a tile; reach^2 */
    ck_winograd_pixels_fn image;    /* of reach^2 pixels, row by row */
    ck_winograd_pixels_fn gradient; /* of tile^2 pixels of an output gradient */
    ck_winograd_result_fn result;
    ck_winograd_filter_fn filter;
    ck_winograd_taps_fn taps;
} ck_winograd_kernel;

/* All kernels that are built in, NULL at the end; lowest level first. */
extern const ck_winograd_kernel *const ck_winograd_kernels[];

/* The kernel of the highest level that `isa` includes, for CK_F32 or CK_F64 and tiles of 4 or 2; NULL if there is none. */
const ck_winograd_kernel *ck_winograd_kernel_for(ck_type arithmetic, ck_isa isa, int64_t tile);

#endif
