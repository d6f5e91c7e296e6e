#include "panels.h"

#include "pairs.h"

#include <string.h>

/* Channels that are converted at a time; a row of them stays in the first-level cache. */
enum { CHANNELS_AT_ONCE = 256 };

/* Rows of a filter are far apart, so that the hardware does not see which come next. */
enum { ROWS_AHEAD = 12 };

/* Rows of whole panels, all in one dense run of memory. */
static void split_rows(int64_t size, int64_t columns, int64_t panels, const char *from, int64_t from_step, int64_t rows,
                       char *to, int64_t panel_step)
{
    int64_t bytes = columns * size;
    for (int64_t i = 0; i < rows; i++, from += from_step, to += bytes) {
        for (int64_t at = 0; i + ROWS_AHEAD < rows && at < panels * bytes; at += CACHE_LINE)
            __builtin_prefetch(from + ROWS_AHEAD * from_step + at);
        for (int64_t p = 0; p < panels; p++) {
            const char *source = from + p * bytes;
            char *target = to + p * panel_step * size;
            for (int64_t at = 0; at < bytes; at += 32) /* columns are two vectors of at least 16 bytes */
                memcpy(target + at, source + at, 32);
        }
    }
}

/* The same where a row has to be converted. */
static void convert_rows(const ck_direct *d, int64_t panels, const char *from, int64_t from_step, int64_t element,
                         int64_t rows, char *to, int64_t panel_step)
{
    double row[CHANNELS_AT_ONCE];
    int64_t size = ck_size(d->kernel->arithmetic), columns = d->kernel->columns, most = CHANNELS_AT_ONCE / columns;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t p = 0; p < panels; p += most) {
            int64_t count = ck_min(most, panels - p);
            d->load_filter(row, 1, from + i * from_step + p * columns * element, element, count * columns);
            split_rows(size, columns, count, (const char *)row, 0, 1, to + (i * columns + p * panel_step) * size,
                       panel_step);
        }
}

/* Terms of one tap: `rows` channels in, from the address of the first panel's first channel out on. */
static void pack_rows(const ck_direct *d, int64_t panels, int64_t channels, const char *from, int64_t rows, char *to,
                      int64_t panel_step)
{
    int64_t size = ck_size(d->kernel->arithmetic), columns = d->kernel->columns;
    int64_t in = d->filter.stride[2], out = d->filter.stride[3], whole = 0;
    bool own = d->filter.type == d->kernel->arithmetic && !d->filter.swapped;
    if (own && out == size)
        split_rows(size, columns, whole = channels / columns, from, in, rows, to, panel_step);
    else if (ck_distance(out) <= ck_distance(in))
        convert_rows(d, whole = channels / columns, from, in, out, rows, to, panel_step);
    for (int64_t p = whole; p < panels; p++) {
        int64_t count = ck_min(columns, channels - p * columns);
        char *panel = to + p * panel_step * size;
        if (count < columns)
            memset(panel, 0, (size_t)(rows * columns * size));
        ck_load_block(d->load_filter, size, panel, columns, 1, from + p * columns * out, in, out, rows, count);
    }
}

/* The same in pairs of terms: `rows` of them, made of `numbers` channels in. */
static void pack_pairs(const ck_direct *d, int64_t panels, int64_t channels, const char *from, int64_t rows,
                       int64_t numbers, char *to, int64_t panel_step)
{
    int64_t columns = d->kernel->columns, in = d->filter.stride[2] / 2, out = d->filter.stride[3];
    for (int64_t p = 0; p < panels; p++) {
        int64_t count = ck_min(columns, channels - p * columns);
        ck_pair *panel = (ck_pair *)to + p * panel_step;
        if (count < columns)
            memset(panel, 0, (size_t)(rows * columns) * sizeof *panel);
        ck_pair_neighbours(d->kernel->pairing, panel, 1, columns, from + p * columns * out, out, in, count, numbers);
    }
}

void ck_pack_panels(const ck_direct *d, const ck_direct_phase *phase, int64_t group, int64_t panel0, int64_t panels,
                    int64_t k0, int64_t k1, char *to, int64_t panel_step)
{
    int64_t columns = d->kernel->columns, size = ck_size(d->kernel->arithmetic), in = d->in_channels;
    int64_t channel0 = panel0 * columns, channels = ck_min(panels * columns, d->out_channels - channel0);
    const int64_t *stride = d->filter.stride;
    const char *group_data = d->filter.data + group * d->filter_group + channel0 * stride[3];
    while (k0 < k1) {
        int64_t tap = k0 / in, c = k0 - tap * in, rows = ck_min(in - c, k1 - k0);
        const char *from = group_data + phase->row_tap[tap / phase->window.cols] * stride[0] +
                           phase->col_tap[tap % phase->window.cols] * stride[1] + c * stride[2];
        if (d->pixels.paired)
            pack_pairs(d, panels, channels, from, rows, ck_min(2 * rows, d->pixels.paired - 2 * c), to, panel_step);
        else
            pack_rows(d, panels, channels, from, rows, to, panel_step);
        to += rows * columns * size;
        k0 += rows;
    }
}
