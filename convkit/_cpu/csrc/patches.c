#include "patches.h"

#include <string.h>

/* Most runs are a few dozen bytes, where a call of memcpy costs more than the copy. */
static inline void copy_run(char *to, const char *from, int64_t bytes)
{
    if (bytes >= 64) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (; bytes >= 16; bytes -= 16, to += 16, from += 16)
        memcpy(to, from, 16);
    for (; bytes > 0; bytes -= 4, to += 4, from += 4) /* sizes are multiples of 4 */
        memcpy(to, from, 4);
}

static inline void zero_run(char *to, int64_t bytes)
{
    if (bytes > 0)
        memset(to, 0, (size_t)bytes);
}

typedef struct {
    const ck_window *window;
    const ck_pixels *pixels;
    int64_t size, channels, ld;
} context;

static inline void read_run(const context *c, char *to, const char *from, int64_t n)
{
    if (c->pixels->plain)
        copy_run(to, from, n * c->size);
    else
        c->pixels->load(to, 1, from, c->pixels->array.stride[3], n);
}

/* Whether neighbouring taps of a row, channels and all, are one run in memory. */
static bool taps_merge(const context *c)
{
    const ck_window *w = c->window;
    if (c->pixels->array.stride[2] != c->channels * c->pixels->array.stride[3])
        return false;
    for (int64_t b = 1; b < w->cols; b++)
        if (w->col_at[b] != w->col_at[0] + b)
            return false;
    return true;
}

/* One tap row of `count` outputs that lie side by side, as runs of width x channel: elements k0 .. k1 - 1 of the tap
 * row, counted from its first tap's first channel. */
static void merged_runs(const context *c, const char *row, int64_t j, int64_t count, int64_t k0, int64_t k1, char *to)
{
    const ck_window *w = c->window;
    int64_t step = w->col_step * c->channels, end = w->width * c->channels;
    int64_t at = (j * w->col_step + w->col_at[0]) * c->channels + k0, length = k1 - k0;
    int64_t stride = c->pixels->array.stride[3], start = c->pixels->col0 * c->channels;
    for (int64_t q = 0; q < count; q++, at += step, to += c->ld) {
        int64_t before = ck_min(length, ck_max(0, -at));
        int64_t inside = ck_max(0, ck_min(length, end - at) - before);
        zero_run(to, before * c->size);
        if (inside > 0)
            read_run(c, to + before * c->size, row + (at + before - start) * stride, inside);
        zero_run(to + (before + inside) * c->size, (length - before - inside) * c->size);
    }
}

/* The same one tap column at a time, for channels c0 .. c1 - 1. */
static void tap_runs(const context *c, const char *row, int64_t j, int64_t count, int64_t b, int64_t c0, int64_t c1,
                     char *to)
{
    const ck_window *w = c->window;
    const ck_array *array = &c->pixels->array;
    int64_t col = j * w->col_step + w->col_at[b];
    for (int64_t q = 0; q < count; q++, col += w->col_step, to += c->ld) {
        if (col >= 0 && col < w->width)
            read_run(c, to, row + (col - c->pixels->col0) * array->stride[2] + c0 * array->stride[3], c1 - c0);
        else
            zero_run(to, (c1 - c0) * c->size);
    }
}

/* Outputs j .. j + count - 1 of row i of one image. */
static void row_segment(const context *c, bool merged, const char *image, int64_t i, int64_t j, int64_t count,
                        int64_t k0, int64_t k1, char *to)
{
    const ck_window *w = c->window;
    int64_t tap_row = w->cols * c->channels;
    for (int64_t a = k0 / tap_row; a * tap_row < k1; a++) {
        int64_t first = ck_max(k0, a * tap_row), last = ck_min(k1, (a + 1) * tap_row);
        int64_t row = i * w->row_step + w->row_at[a];
        char *part = to + (first - k0) * c->size;
        if (row < 0 || row >= w->height) {
            for (int64_t q = 0; q < count; q++)
                zero_run(part + q * c->ld, (last - first) * c->size);
            continue;
        }
        const char *from = image + (row - c->pixels->row0) * c->pixels->array.stride[1];
        if (merged) {
            merged_runs(c, from, j, count, first - a * tap_row, last - a * tap_row, part);
            continue;
        }
        for (int64_t k = first - a * tap_row; k < last - a * tap_row;) {
            int64_t b = k / c->channels, c0 = k - b * c->channels;
            int64_t c1 = ck_min(c->channels, c0 + (last - a * tap_row - k));
            tap_runs(c, from, j, count, b, c0, c1, part + (k - (first - a * tap_row)) * c->size);
            k += c1 - c0;
        }
    }
}

void ck_im2col(const ck_window *window, const ck_pixels *pixels, int64_t size, int64_t channels, int64_t pixel0,
               int64_t count, int64_t k0, int64_t k1, char *to)
{
    const context c = {window, pixels, size, channels, (k1 - k0) * size};
    bool merged = taps_merge(&c);
    int64_t grid = window->out_height * window->out_width;
    while (count > 0) {
        int64_t n = pixel0 / grid, i = pixel0 % grid / window->out_width, j = pixel0 % window->out_width;
        int64_t segment = ck_min(count, window->out_width - j);
        const char *image = pixels->array.data + (n - pixels->image0) * pixels->array.stride[0];
        row_segment(&c, merged, image, i, j, segment, k0, k1, to);
        to += segment * c.ld;
        pixel0 += segment;
        count -= segment;
    }
}

static void span(int64_t first, int64_t last, int64_t step, const int64_t *at, int64_t taps, int64_t size,
                 int64_t *start, int64_t *length)
{
    int64_t low = at[0], high = at[0];
    for (int64_t t = 1; t < taps; t++) {
        low = ck_min(low, at[t]);
        high = ck_max(high, at[t]);
    }
    *start = ck_max(0, first * step + low);
    *length = ck_min(size, last * step + high + 1) - *start;
}

ck_region ck_reach(const ck_window *window, int64_t pixel0, int64_t count)
{
    int64_t grid = window->out_height * window->out_width, last = pixel0 + count - 1;
    ck_region r = {.image = pixel0 / grid, .images = last / grid - pixel0 / grid + 1};
    int64_t i0 = 0, i1 = window->out_height - 1, j0 = 0, j1 = window->out_width - 1;
    if (r.images == 1) {
        i0 = pixel0 % grid / window->out_width;
        i1 = last % grid / window->out_width;
        if (i0 == i1) {
            j0 = pixel0 % window->out_width;
            j1 = last % window->out_width;
        }
    }
    span(i0, i1, window->row_step, window->row_at, window->rows, window->height, &r.row, &r.rows);
    span(j0, j1, window->col_step, window->col_at, window->cols, window->width, &r.col, &r.cols);
    return r;
}

ck_pixels ck_stage(const ck_pixels *pixels, const ck_region *region, int64_t size, int64_t channels, ck_type arithmetic,
                   char *to)
{
    const ck_array *a = &pixels->array;
    ck_pixels staged = {.image0 = region->image, .row0 = region->row, .col0 = region->col, .plain = true};
    staged.array = (ck_array){.data = to, .type = arithmetic};
    staged.array.stride[3] = size;
    staged.array.stride[2] = channels * size;
    staged.array.stride[1] = region->cols * channels * size;
    staged.array.stride[0] = region->rows * region->cols * channels * size;
    for (int64_t n = 0; n < region->images; n++)
        for (int64_t i = 0; i < region->rows; i++)
            ck_load_block(pixels->load, size, to + n * staged.array.stride[0] + i * staged.array.stride[1], channels, 1,
                          a->data + (region->image + n) * a->stride[0] + (region->row + i) * a->stride[1] +
                              region->col * a->stride[2],
                          a->stride[2], a->stride[3], region->cols, channels);
    return staged;
}
