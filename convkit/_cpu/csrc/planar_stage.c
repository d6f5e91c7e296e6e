#include "planar_stage.h"

#include <string.h>

static void range_of(const int64_t *at, int64_t taps, int64_t *low, int64_t *high)
{
    *low = *high = at[0];
    for (int64_t t = 1; t < taps; t++) {
        *low = ck_min(*low, at[t]);
        *high = ck_max(*high, at[t]);
    }
}

ck_planar_view ck_planar_reach(const ck_window *w, const ck_block *block, int64_t lanes)
{
    int64_t top, bottom, left, right;
    range_of(w->row_at, w->rows, &top, &bottom);
    range_of(w->col_at, w->cols, &left, &right);
    ck_planar_view v = {.row0 = block->row0 * w->row_step + top, .col0 = block->col0 * w->col_step + left};
    v.rows = (block->rows - 1) * w->row_step + bottom - top + 1;
    v.pitch = ck_ceil_div(block->cols, lanes) * lanes + (right - left) / w->col_step;
    v.row_step = v.pitch * w->col_step;
    v.channel_step = v.rows * v.row_step;
    return v;
}

/* Copies `count` pixels of a row, `step` bytes apart, to their planes. */
static void copy_pixels(const ck_planar_kernel *kernel, const ck_pixels *pixels, int64_t channels, const char *from,
                        int64_t step, int64_t count, char *to, int64_t channel_step)
{
    int64_t size = ck_size(kernel->arithmetic), channel = pixels->array.stride[3];
    if (pixels->plain && channel == size && channels > 1)
        kernel->split(count, channels, from, step / size, to, channel_step);
    else if (pixels->plain && step == size)
        for (int64_t c = 0; c < channels; c++)
            memcpy(to + c * channel_step * size, from + c * channel, (size_t)(count * size));
    else
        for (int64_t c = 0; c < channels; c++)
            pixels->load(to + c * channel_step * size, 1, from + c * channel, step, count);
}

void ck_planar_stage(const ck_planar_kernel *kernel, const ck_window *w, const ck_pixels *pixels, int64_t channels,
                     const ck_planar_view *v, char *to)
{
    int64_t size = ck_size(kernel->arithmetic), step = w->col_step, plane = v->channel_step * size;
    const ck_array *a = &pixels->array;
    for (int64_t row = v->row0; row < v->row0 + v->rows; row++)
        for (int64_t col = v->col0; col < v->col0 + step; col++, to += v->pitch * size) {
            int64_t left = col < 0 ? ck_min(v->pitch, ck_ceil_div(-col, step)) : 0, right = left;
            if (row >= 0 && row < w->height && col < w->width)
                right = ck_max(left, ck_min(v->pitch, ck_ceil_div(w->width - col, step)));
            for (int64_t c = 0; c < channels; c++) {
                memset(to + c * plane, 0, (size_t)(left * size));
                memset(to + c * plane + right * size, 0, (size_t)((v->pitch - right) * size));
            }
            if (left < right)
                copy_pixels(kernel, pixels, channels, a->data + row * a->stride[1] + (col + left * step) * a->stride[2],
                            step * a->stride[2], right - left, to + left * size, v->channel_step);
        }
}

ck_planar_spacing ck_planar_spaced(const ck_window *w)
{
    int64_t distance = w->rows > 1 ? w->row_at[1] - w->row_at[0] : 1;
    bool even = distance > 0 && (distance == 1 || w->row_step == 1);
    for (int64_t a = 1; a < w->rows; a++)
        even = even && w->row_at[a] - w->row_at[a - 1] == distance;
    return (ck_planar_spacing){even, distance, w->row_step, distance * w->row_step};
}
