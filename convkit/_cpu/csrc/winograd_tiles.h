/* The pixels of tiles, or of what these meet. */
#ifndef CK_WINOGRAD_TILES_H
#define CK_WINOGRAD_TILES_H

#include "padded.h"
#include "winograd_kernels.h"

typedef struct {
    ck_pixels pixels;      /* group 0 */
    int64_t height, width; /* what lies outside counts as zero */
    int64_t tile, reach;   /* pixels along a side, from one tile to the next, and that are taken of one; ... */
    int64_t row_at, col_at; /* ... the first of tile (i, j) is (tile i + row_at, tile j + col_at) */
    bool in_place;          /* the pixels are plain: read where they lie */
} ck_tile_source;

/* Where they are read; distances in bytes. */
typedef struct {
    const char *data;
    int64_t image_step, row_step, col_step;
} ck_tile_view;

/* Shows some channels of all the pixels of a block of tiles; `data` is the first channel of image 0 of the block.  Unless
 * they are read in place, they are copied to `to`; false, and nothing is written, if that takes more than `bytes`. */
bool ck_view_tiles(const ck_tile_source *source, const char *data, const ck_block *tiles, int64_t channels, int64_t size,
                   char *to, int64_t bytes, ck_tile_view *view);

/* The addresses of the pixels of tile (row, col) of one image of the block, row by row; that of `zeros` for those outside. */
void ck_tile_pixels(const ck_tile_source *source, const ck_tile_view *view, int64_t image, int64_t row, int64_t col,
                    const void *zeros, const void **pixels);

/* Tiles along one side of a result. */
static inline int64_t ck_tiles_along(int64_t pixels, int64_t tile) { return ck_ceil_div(pixels, tile); }

/* Numbers from one element to the next of a transformed filter, image or sums, and from one pixel to the next: an odd
 * number of cache lines, so that elements of one place do not compete for the same sets of a cache. */
static inline int64_t ck_winograd_step(int64_t numbers, int64_t size)
{
    return (ck_ceil_div(numbers * size, 64) | 1) * 64 / size;
}

#endif
