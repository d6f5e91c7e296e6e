/* Pieces of images as the micro-kernels want them: dense, padded with zeros, in the arithmetic's dtype. */
#ifndef CK_PADDED_H
#define CK_PADDED_H

#include "patches.h"

/* Pixels of an output grid, of `images` images. */
typedef struct {
    int64_t images, row0, rows, col0, cols;
} ck_block;

/* Where pixels lie: the one at (row, col) of image n, counted from the block's first, is at
 * data + (n * image_step + (row - row0) * row_step + (col - col0) * col_step) * size. */
typedef struct {
    const char *data;
    int64_t row0, col0;
    int64_t image_step, row_step, col_step; /* in elements */
} ck_view;

/* Copies all that the window reaches from the block, zeros where that lies outside the image; pixels->array.data is the
 * block's first image.  False, and nothing is written, if it takes more than `bytes`. */
bool ck_stage_padded(const ck_window *window, const ck_pixels *pixels, const ck_block *block, int64_t channels,
                     int64_t size, char *to, int64_t bytes, ck_view *view);

#endif
