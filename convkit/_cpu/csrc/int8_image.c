#include "int8_image.h"

#include <string.h>

static int64_t size_of(ck_type type) { return type == CK_I8 || type == CK_U8 ? 1 : 4; }

static bool evenly(const ck_int8_image *image) { return image->block == 4 * image->lane; }

bool ck_int8_in_place(const ck_int8_image *image)
{
    return evenly(image) && image->lane == size_of(image->type) && (image->lane == 1 || !image->swapped);
}

/* Channels of a pixel in whole blocks of four bytes, and blocks of neighbouring pixels beside each other. */
static bool in_quads(const ck_int8_image *image, int64_t c0, int64_t channels)
{
    return image->lane == 1 && image->stride[2] == 4 && c0 % 4 == 0 && channels % 4 == 0;
}

void ck_int8_load(const ck_int8_kernel *kernel, const ck_int8_image *image, ck_form form, uint8_t flip, int64_t at,
                  int64_t c0, int64_t channels, int64_t n, char *to, int64_t pitch)
{
    const bool is_signed = image->type == CK_I8;
    const int64_t size = ck_form_size(form), step = image->stride[2];
    const char *from = ck_channel(image, c0) + at;
    if (evenly(image) && image->lane == 1) {
        if (step == channels && pitch == channels)
            kernel->spread(form, is_signed, flip, to, from, n * channels);
        else
            for (int64_t j = 0; j < n; j++)
                kernel->spread(form, is_signed, flip, to + j * pitch * size, from + j * step, channels);
    } else if (evenly(image) && step == 1) {
        kernel->weave(form, is_signed, flip, to, pitch, from, image->lane, channels, n);
    } else if (in_quads(image, c0, channels)) {
        for (int64_t c = 0; c < channels; c += 4, from += image->block)
            for (int64_t j = 0; j < n; j++)
                kernel->spread(form, is_signed, flip, to + (j * pitch + c) * size, from + j * 4, 4);
    } else {
        for (int64_t j = 0; j < n; j++)
            for (int64_t c = 0; c < channels; c++)
                kernel->spread(form, is_signed, flip, to + (j * pitch + c) * size,
                               ck_channel(image, c0 + c) + at + j * step, 1);
    }
}

static void copy_element(char *to, const char *from, int64_t size, bool swapped)
{
    if (size == 1)
        *to = *from;
    else
        for (int b = 0; b < 4; b++)
            to[b] = from[swapped ? 3 - b : b];
}

void ck_int8_load_side(const ck_int8_kernel *kernel, const ck_int8_image *image, int64_t at, int64_t c0,
                       int64_t channels, int64_t n, char *to, int64_t pitch)
{
    const int64_t size = size_of(image->type);
    if (size == 1) {
        ck_int8_load(kernel, image, CK_BYTES, 0, at, c0, channels, n, to, pitch);
        return;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t j = 0; j < n; j++)
            copy_element(to + (j * pitch + c) * size, ck_channel(image, c0 + c) + at + j * image->stride[2], size,
                         image->swapped);
}

void ck_int8_store(const ck_int8_kernel *kernel, const ck_int8_image *image, int64_t at, int64_t c0, int64_t channels,
                   int64_t n, const char *from, int64_t pitch)
{
    const int64_t size = size_of(image->type), step = image->stride[2];
    char *to = (char *)ck_channel(image, c0) + at;
    if (size == 1 && evenly(image) && step == 1) {
        kernel->weave(CK_BYTES, false, 0, to, image->lane, from, pitch, n, channels);
    } else if (size == 1 && in_quads(image, c0, channels)) {
        for (int64_t c = 0; c < channels; c += 4, to += image->block)
            for (int64_t j = 0; j < n; j++)
                memcpy(to + j * 4, from + j * pitch + c, 4);
    } else {
        for (int64_t c = 0; c < channels; c++)
            for (int64_t j = 0; j < n; j++)
                copy_element((char *)ck_channel(image, c0 + c) + at + j * step, from + (j * pitch + c) * size, size,
                             image->swapped);
    }
}
