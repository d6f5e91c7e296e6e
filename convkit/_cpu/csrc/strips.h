/* Blocks of pixels laid down in strips of a few channels, as register tiles that walk along pixels read them.
 *
 * A strip holds the same few channels of every pixel, one pixel after the other, so that a walk over many pixels touches a
 * few neighbouring lines and pages instead of one for every pixel.  The strip lies there for all taps at once. */
#ifndef CK_STRIPS_H
#define CK_STRIPS_H

#include "kernels.h"
#include "padded.h"

/* Where a window finds a block's pixels.  What output pixel (n, i, j), counted from the block's first, meets at tap (a, b)
 * in channel c of strip s is at data + (s * strip_step + n * image_step + i * row_step + j * col_step +
 * ck_tap_at(view, window, a, b) + c) * size. */
typedef struct {
    const char *data;
    int64_t strip_step, image_step, row_step, col_step; /* in elements */
    int64_t row_low, row_every, row_pitch;              /* a tap that looks `every` pixels further is a pitch away */
    int64_t col_low, col_every, col_pitch;
} ck_strips;

/* A division costs more than all else between two register tiles, and is seldom needed. */
static inline int64_t ck_steps_of(int64_t distance, int64_t every) { return every == 1 ? distance : distance / every; }

static inline int64_t ck_tap_at(const ck_strips *v, const ck_window *w, int64_t a, int64_t b)
{
    return ck_steps_of(w->row_at[a] - v->row_low, v->row_every) * v->row_pitch +
           ck_steps_of(w->col_at[b] - v->col_low, v->col_every) * v->col_pitch;
}

/* Lays down `channels` channels of all pixels that the window meets from the block, in strips of `strip`, the rest of the
 * last strip filled with zeros, and zeros where the window leaves the image.  pixels->array.data is the first of the
 * channels in the block's first image.  False, and nothing is written, if it takes more than `bytes`. */
bool ck_lay_strips(const ck_window *window, const ck_pixels *pixels, const ck_block *block, int64_t channels,
                   int64_t strip, int64_t size, char *to, int64_t bytes, ck_strips *view);

/* A block of bfloat16 pixels: `data` is the first of the channels in the block's first image. */
typedef struct {
    const char *data;
    ck_block block;
} ck_part;

/* The same for two blocks of one shape, laid down as pairs (ck_pair), each of a pixel of the first and one of the second
 * block; NULL stands for a second block of zeros.  Elements of the view are pairs, and pixels are those of one block. */
bool ck_lay_pairs(const ck_window *window, const ck_pairing *bulk, const int64_t stride[4], const ck_part *first,
                  const ck_part *second, int64_t channels, int64_t strip, char *to, int64_t bytes, ck_strips *view);

#endif
