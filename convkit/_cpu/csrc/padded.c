#include "padded.h"

#include "pairs.h"

#include <string.h>

static void range_of(const int64_t *at, int64_t taps, int64_t first, int64_t count, int64_t step, int64_t *start,
                     int64_t *length)
{
    int64_t low = at[0], high = at[0];
    for (int64_t t = 1; t < taps; t++) {
        low = ck_min(low, at[t]);
        high = ck_max(high, at[t]);
    }
    *start = first * step + low;
    *length = (count - 1) * step + high - low + 1;
}

/* A run of pixels of a row. */
static void lay_pixels(const ck_pixels *p, int64_t channels, int64_t size, int64_t pitch, const char *from, int64_t count,
                       char *to)
{
    const int64_t *stride = p->array.stride;
    if (p->plain && stride[2] == channels * size && pitch == channels)
        memcpy(to, from, (size_t)(count * channels * size));
    else if (p->paired)
        ck_pair_neighbours(p->pairing, (ck_pair *)to, pitch, 1, from, stride[2], stride[3] / 2, count, p->paired);
    else
        ck_load_block(p->load, size, to, pitch, 1, from, stride[2], stride[3], count, channels);
}

bool ck_stage_padded(const ck_window *w, const ck_pixels *pixels, const ck_block *block, int64_t channels, int64_t size,
                     char *to, int64_t bytes, ck_view *view)
{
    const ck_array *a = &pixels->array;
    int64_t row0, rows, col0, cols, pitch = pixels->pitch ? pixels->pitch : channels;
    range_of(w->row_at, w->rows, block->row0, block->rows, w->row_step, &row0, &rows);
    range_of(w->col_at, w->cols, block->col0, block->cols, w->col_step, &col0, &cols);
    int64_t row_bytes = cols * pitch * size;
    if (block->images * rows * row_bytes > bytes)
        return false;
    *view = (ck_view){to, row0, col0, rows * cols * pitch, cols * pitch, pitch};
    int64_t left = ck_min(cols, ck_max(0, -col0)), right = ck_max(left, ck_min(cols, w->width - col0));
    if (left == 0 && right == cols && row0 >= 0 && row0 + rows <= w->height && a->stride[1] == cols * a->stride[2]) {
        for (int64_t n = 0; n < block->images; n++, to += rows * row_bytes) /* rows are one run */
            lay_pixels(pixels, channels, size, pitch, a->data + n * a->stride[0] + row0 * a->stride[1] + col0 * a->stride[2],
                       rows * cols, to);
        return true;
    }
    for (int64_t n = 0; n < block->images; n++)
        for (int64_t row = row0; row < row0 + rows; row++, to += row_bytes) {
            if (row < 0 || row >= w->height || left == right) {
                memset(to, 0, (size_t)row_bytes);
                continue;
            }
            memset(to, 0, (size_t)(left * pitch * size));
            memset(to + right * pitch * size, 0, (size_t)((cols - right) * pitch * size));
            const char *from = a->data + n * a->stride[0] + row * a->stride[1] + (col0 + left) * a->stride[2];
            lay_pixels(pixels, channels, size, pitch, from, right - left, to + left * pitch * size);
        }
    return true;
}
