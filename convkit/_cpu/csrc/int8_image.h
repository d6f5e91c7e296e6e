/* Rows of pixels in and out of images in any layout, and pixels laid down for the register tiles. */
#ifndef CK_INT8_IMAGE_H
#define CK_INT8_IMAGE_H

#include "int8.h"

static inline const char *ck_channel(const ck_int8_image *image, int64_t c)
{
    return image->data + c / 4 * image->block + c % 4 * image->lane;
}

/* Whether channels of a pixel are neighbours that the kernels read and write where they lie. */
bool ck_int8_in_place(const ck_int8_image *image);

/* Lays n pixels' channels c0 .. c0 + channels - 1 down, `pitch` elements from pixel to pixel; `at` is the bytes from the
 * image's first pixel to the first of these.  The image is of bytes. */
void ck_int8_load(const ck_int8_kernel *kernel, const ck_int8_image *image, ck_form form, uint8_t flip, int64_t at,
                  int64_t c0, int64_t channels, int64_t n, char *to, int64_t pitch);

/* The same for side inputs of any dtype, which stay as they are but for their byte order. */
void ck_int8_load_side(const ck_int8_kernel *kernel, const ck_int8_image *image, int64_t at, int64_t c0,
                       int64_t channels, int64_t n, char *to, int64_t pitch);

/* The way back, for results of any dtype. */
void ck_int8_store(const ck_int8_kernel *kernel, const ck_int8_image *image, int64_t at, int64_t c0, int64_t channels,
                   int64_t n, const char *from, int64_t pitch);

#endif
