/* im2col: the pixels under each tap of a window, copied into the rows of a matrix. */
#ifndef CK_PATCHES_H
#define CK_PATCHES_H

#include "convert.h"

/* Where a window looks.  Output pixel (i, j) meets image pixel (i * row_step + row_at[a], j * col_step + col_at[b]) at
 * tap (a, b); what lies outside the image counts as zero and is never read.  The caller guarantees that the products fit
 * 64 bits and that the arrays live as long as the window. */
typedef struct {
    int64_t height, width;         /* of the image */
    int64_t out_height, out_width; /* of the output grid */
    int64_t row_step, col_step;
    int64_t rows, cols; /* taps */
    const int64_t *row_at, *col_at;
} ck_window;

/* Image memory, possibly of a part of the image only: `array.data` is pixel (row0, col0) of image number image0. */
typedef struct {
    ck_array array;
    int64_t image0, row0, col0;
    ck_load_fn load;
    bool plain;    /* the arithmetic's own dtype, native, aligned, channels adjacent */
    int64_t paired; /* CK_BF16: the channels of a group, of which two neighbours are an element (ck_pair); array.stride[3] is
                     * from element to element, and plain tells whether such pairs lie in memory already; otherwise 0 */
    const struct ck_pairing *pairing; /* of the kernel that takes them, or NULL */
    int64_t pitch; /* elements from pixel to pixel where padded.h lays them down; 0: as many as channels */
} ck_pixels;

/* Writes rows of k1 - k0 numbers, one per output pixel of pixel0 .. pixel0 + count - 1 (numbered over images, rows and
 * columns): the part k0 .. k1 - 1 of the patch, which is ordered by tap row, tap column, channel.  `size` is that of the
 * arithmetic's dtype. */
void ck_im2col(const ck_window *window, const ck_pixels *pixels, int64_t size, int64_t channels, int64_t pixel0,
               int64_t count, int64_t k0, int64_t k1, char *to);

/* The part of the images that those output pixels reach, clipped to the image; empty if rows or cols is not positive. */
typedef struct {
    int64_t image, images, row, rows, col, cols;
} ck_region;

ck_region ck_reach(const ck_window *window, int64_t pixel0, int64_t count);

/* Converts a region to a dense block of the arithmetic's dtype and returns it as pixels. */
ck_pixels ck_stage(const ck_pixels *pixels, const ck_region *region, int64_t size, int64_t channels, ck_type arithmetic,
                   char *to);

#endif
