/* Tests of the planar kernels: every one of the table that this CPU can run, against plain loops, in memory of which not
 * an element more is allocated than the contract lets a kernel touch. */
#include "check.h"
#include "convert.h"
#include "planar_kernels.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TAPS = 40 };

static unsigned long long state = 1;

/* A whole number from low to high. */
static int64_t between(int64_t low, int64_t high)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return low + (int64_t)((state >> 33) % (unsigned long long)(high - low + 1));
}

static double get(const ck_planar_kernel *k, const void *memory, int64_t i)
{
    return k->arithmetic == CK_F64 ? ((const double *)memory)[i] : (double)((const float *)memory)[i];
}

static void set(const ck_planar_kernel *k, void *memory, int64_t i, double value)
{
    if (k->arithmetic == CK_F64)
        ((double *)memory)[i] = value;
    else
        ((float *)memory)[i] = (float)value;
}

/* `count` small whole numbers. */
static void *numbers(const ck_planar_kernel *k, int64_t count)
{
    void *memory = malloc((size_t)(count * ck_size(k->arithmetic)));
    for (int64_t i = 0; i < count; i++)
        set(k, memory, i, (double)between(-4, 4));
    return memory;
}

static void *copy_of(const ck_planar_kernel *k, const void *memory, int64_t count)
{
    size_t bytes = (size_t)(count * ck_size(k->arithmetic));
    return memcpy(malloc(bytes), memory, bytes);
}

/* Whether memory holds what was expected, gaps that no one may write included. */
static bool same(const ck_planar_kernel *k, const void *a, const void *b, int64_t count)
{
    bool good = true;
    for (int64_t i = 0; i < count; i++)
        good = good && get(k, a, i) == get(k, b, i);
    return good;
}

/* Random offsets of taps; returns the largest. */
static int64_t offsets(int64_t *at, int64_t taps)
{
    int64_t last = 0;
    for (int64_t t = 0; t < taps; t++) {
        at[t] = between(0, 50);
        last = ck_max(last, at[t]);
    }
    return last;
}

static int64_t whole_vectors(const ck_planar_kernel *k, int64_t cols)
{
    return ck_ceil_div(cols, k->lanes) * k->lanes;
}

static void try_list(const ck_planar_kernel *k, int64_t filters, int64_t cols)
{
    int64_t taps = between(1, 9), channels = between(1, 3), at[MOST_TAPS], last = offsets(at, taps);
    int64_t x_channel = between(0, 90), w_channel = taps * filters + between(0, 2), line = cols + between(0, 3);
    int64_t count = (filters - 1) * line + cols;
    void *x = numbers(k, (channels - 1) * x_channel + last + whole_vectors(k, cols));
    void *w = numbers(k, (channels - 1) * w_channel + taps * filters);
    void *sums = numbers(k, count), *expected = copy_of(k, sums, count);
    ck_planar_tile tile = {x, x_channel, channels, at, w, w_channel, sums, line, cols, between(0, 1)};
    for (int64_t f = 0; f < filters; f++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = tile.add ? get(k, sums, f * line + j) : 0;
            for (int64_t c = 0; c < channels; c++)
                for (int64_t t = 0; t < taps; t++)
                    sum += get(k, x, c * x_channel + at[t] + j) * get(k, w, c * w_channel + t * filters + f);
            set(k, expected, f * line + j, sum);
        }
    k->list(&tile, filters, taps);
    CHECK(same(k, sums, expected, count));
    free(x), free(w), free(sums), free(expected);
}

static void try_grid(const ck_planar_kernel *k, int64_t rows, int64_t cols)
{
    int64_t tap_rows = rows + between(0, 4), tap_cols = between(1, 6), channels = between(1, 2), at[MOST_TAPS];
    int64_t last = offsets(at, tap_cols), x_row = between(0, 60), x_channel = between(0, 90);
    int64_t w_row = tap_cols + between(0, 2), line = cols + between(0, 3), count = (rows - 1) * line + cols;
    int64_t w_channel = (tap_rows - 1) * w_row + tap_cols + between(0, 2);
    void *x = numbers(k, (channels - 1) * x_channel + (rows + tap_rows - 2) * x_row + last + whole_vectors(k, cols));
    void *w = numbers(k, (channels - 1) * w_channel + (tap_rows - 1) * w_row + tap_cols);
    void *sums = numbers(k, count), *expected = copy_of(k, sums, count);
    ck_planar_tile tile = {x, x_channel, channels, at, w, w_channel, sums, line, cols, between(0, 1)};
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = tile.add ? get(k, sums, i * line + j) : 0;
            for (int64_t c = 0; c < channels; c++)
                for (int64_t a = 0; a < tap_rows; a++)
                    for (int64_t b = 0; b < tap_cols; b++)
                        sum += get(k, x, c * x_channel + (i + a) * x_row + at[b] + j) *
                               get(k, w, c * w_channel + a * w_row + b);
            set(k, expected, i * line + j, sum);
        }
    k->grid(&tile, rows, x_row, tap_rows, tap_cols, w_row);
    CHECK(same(k, sums, expected, count));
    free(x), free(w), free(sums), free(expected);
}

static void try_inner(const ck_planar_kernel *k, int64_t filters, int64_t pixels)
{
    int64_t taps = between(1, 4), channels = between(1, 50), at[MOST_TAPS], last = offsets(at, taps);
    int64_t x_pixel = between(0, 60), sums_pixel = filters + between(0, 2), padded = whole_vectors(k, channels);
    int64_t w_tap = padded * filters + between(0, 2), count = (pixels - 1) * sums_pixel + filters;
    bool add = between(0, 1);
    void *x = numbers(k, (pixels - 1) * x_pixel + last + channels);
    void *w = numbers(k, (taps - 1) * w_tap + padded * filters);
    void *sums = numbers(k, count), *expected = copy_of(k, sums, count);
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = channels; c < padded; c++)
            for (int64_t f = 0; f < filters; f++)
                set(k, w, t * w_tap + (c / k->lanes * filters + f) * k->lanes + c % k->lanes, 0);
    for (int64_t p = 0; p < pixels; p++)
        for (int64_t f = 0; f < filters; f++) {
            double sum = add ? get(k, sums, p * sums_pixel + f) : 0;
            for (int64_t t = 0; t < taps; t++)
                for (int64_t c = 0; c < channels; c++)
                    sum += get(k, x, p * x_pixel + at[t] + c) *
                           get(k, w, t * w_tap + (c / k->lanes * filters + f) * k->lanes + c % k->lanes);
            set(k, expected, p * sums_pixel + f, sum);
        }
    k->inner(pixels, x, x_pixel, at, taps, channels, w, w_tap, filters, sums, sums_pixel, add);
    CHECK(same(k, sums, expected, count));
    free(x), free(w), free(sums), free(expected);
}

static void try_gradient(const ck_planar_kernel *k, int64_t tap_rows, int64_t tap_cols, int64_t cols)
{
    int64_t rows = between(1, 6), at[MOST_TAPS], last = offsets(at, tap_cols);
    int64_t x_row = between(0, 60), dy_row = between(0, 60), sums_row = tap_cols + between(0, 2);
    int64_t count = ((tap_rows - 1) * sums_row + tap_cols) * k->lanes;
    void *x = numbers(k, (rows + tap_rows - 2) * x_row + last + cols);
    void *dy = numbers(k, (rows - 1) * dy_row + cols);
    void *sums = numbers(k, count), *expected = copy_of(k, sums, count);
    for (int64_t a = 0; a < tap_rows; a++)
        for (int64_t b = 0; b < tap_cols; b++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < cols; j++) {
                    int64_t to = (a * sums_row + b) * k->lanes + j % k->lanes;
                    double product = get(k, x, (i + a) * x_row + at[b] + j) * get(k, dy, i * dy_row + j);
                    set(k, expected, to, get(k, expected, to) + product);
                }
    k->gradient(tap_rows, tap_cols, at, x, x_row, dy, dy_row, rows, cols, sums, sums_row);
    CHECK(same(k, sums, expected, count));
    free(x), free(dy), free(sums), free(expected);
}

static void try_shuffles(const ck_planar_kernel *k, int64_t pixels, int64_t channels)
{
    int64_t pixel = channels + (between(0, 1) ? 0 : between(1, 3)), plane = pixels + between(0, 3);
    int64_t interleaved = (pixels - 1) * pixel + channels, planes = (channels - 1) * plane + pixels;
    void *a = numbers(k, interleaved), *b = numbers(k, planes);
    void *as_planes = copy_of(k, b, planes), *as_pixels = copy_of(k, a, interleaved);
    for (int64_t p = 0; p < pixels; p++)
        for (int64_t c = 0; c < channels; c++) {
            set(k, as_planes, c * plane + p, get(k, a, p * pixel + c));
            set(k, as_pixels, p * pixel + c, get(k, b, c * plane + p));
        }
    void *split = copy_of(k, b, planes), *merged = copy_of(k, a, interleaved);
    k->split(pixels, channels, a, pixel, split, plane);
    k->merge(pixels, channels, b, plane, merged, pixel);
    CHECK(same(k, split, as_planes, planes));
    CHECK(same(k, merged, as_pixels, interleaved));
    free(a), free(b), free(as_planes), free(as_pixels), free(split), free(merged);
}

#define EACH_KERNEL(k)                                                                                                 \
    for (const ck_planar_kernel *const *at_ = ck_planar_kernels, *k = *at_; k && ck_isa_runs(k->isa); k = *++at_)

static void each_number_of_filters_and_columns_of_a_list(void)
{
    EACH_KERNEL(k)
        for (int64_t filters = 1; filters <= CK_PLANAR_LINES; filters++)
            for (int64_t cols = 1; cols <= 150; cols++)
                try_list(k, filters, cols);
}

static void each_number_of_rows_and_columns_of_a_grid(void)
{
    EACH_KERNEL(k)
        for (int64_t rows = 1; rows <= CK_PLANAR_LINES; rows++)
            for (int64_t cols = 1; cols <= 150; cols++)
                try_grid(k, rows, cols);
}

static void each_number_of_filters_and_pixels_along_channels(void)
{
    EACH_KERNEL(k)
        for (int64_t filters = 1; filters <= CK_PLANAR_LINES; filters++)
            for (int64_t pixels = 1; pixels <= 30; pixels++)
                for (int again = 0; again < 4; again++)
                    try_inner(k, filters, pixels);
}

static void each_tile_of_a_gradient(void)
{
    EACH_KERNEL(k)
        for (int64_t tap_rows = 1; tap_rows <= k->tap_lines; tap_rows++)
            for (int64_t tap_cols = 1; tap_cols <= k->tap_runs; tap_cols++)
                for (int64_t cols = 1; cols <= 40; cols++)
                    try_gradient(k, tap_rows, tap_cols, cols);
}

static void each_shape_of_a_shuffle(void)
{
    EACH_KERNEL(k)
        for (int64_t pixels = 1; pixels <= 34; pixels++)
            for (int64_t channels = 1; channels <= 20; channels++)
                try_shuffles(k, pixels, channels);
}

int main(void)
{
    RUN(each_number_of_filters_and_columns_of_a_list);
    RUN(each_number_of_rows_and_columns_of_a_grid);
    RUN(each_number_of_filters_and_pixels_along_channels);
    RUN(each_tile_of_a_gradient);
    RUN(each_shape_of_a_shuffle);
    return summary();
}
