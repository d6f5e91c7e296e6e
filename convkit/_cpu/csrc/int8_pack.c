#include "int8.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { UNIT = CK_UNIT_BYTES };

/* Four rows of 16 weights become 16 columns of four. */
static void interleave(const int8_t (*rows)[CK_INT8_MOST_COLUMNS], int64_t columns, int8_t *to)
{
    int64_t j = 0;
#ifdef __SSE2__
    for (; j + 16 <= columns; j += 16) {
        __m128i row[UNIT];
        for (int u = 0; u < UNIT; u++)
            row[u] = _mm_loadu_si128((const __m128i *)(rows[u] + j));
        for (int half = 0; half < 2; half++) {
            __m128i first = half ? _mm_unpackhi_epi8(row[0], row[1]) : _mm_unpacklo_epi8(row[0], row[1]);
            __m128i second = half ? _mm_unpackhi_epi8(row[2], row[3]) : _mm_unpacklo_epi8(row[2], row[3]);
            __m128i *at = (__m128i *)(to + (j + 8 * half) * UNIT);
            _mm_storeu_si128(at, _mm_unpacklo_epi16(first, second));
            _mm_storeu_si128(at + 1, _mm_unpackhi_epi16(first, second));
        }
    }
#endif
    for (; j < columns; j++)
        for (int u = 0; u < UNIT; u++)
            to[j * UNIT + u] = rows[u][j];
}

/* The same of two rows, widened. */
static void interleave_words(const int8_t (*rows)[CK_INT8_MOST_COLUMNS], int64_t columns, int8_t *to)
{
    for (int64_t j = 0; j < columns; j++) {
        int16_t pair[2] = {rows[0][j], rows[1][j]};
        memcpy(to + j * UNIT, pair, sizeof pair);
    }
}

static void add_sums(const int8_t *row, int64_t columns, int32_t *sums)
{
    for (int64_t j = 0; j < columns; j++)
        sums[j] += row[j];
}

/* The most that two neighbouring weights of the same sign add up to, the sign left out. */
static int32_t peak_of(const int8_t *first, const int8_t *second, int64_t columns, int32_t peak)
{
    int16_t most = (int16_t)peak;
    for (int64_t j = 0; j < columns; j++) {
        int16_t a = first[j], b = second[j];
        int16_t above = (int16_t)((a > 0 ? a : 0) + (b > 0 ? b : 0)), below = (int16_t)((a < 0 ? -a : 0) + (b < 0 ? -b : 0));
        int16_t larger = above > below ? above : below;
        most = most > larger ? most : larger;
    }
    return most;
}

/* The weights of `count` terms from term `at` of a run on, zeros beyond its end and beyond the last channel. */
static void load_rows(const ck_int8 *d, const ck_int8_run *run, int64_t group, int64_t panel, int64_t at, int64_t count,
                      int8_t (*rows)[CK_INT8_MOST_COLUMNS])
{
    const int64_t columns = d->kernel->columns, step = d->filter_out;
    const int64_t n = ck_min(columns, d->out_channels - panel * columns);
    for (int64_t u = 0; u < count; u++) {
        int64_t term = at + u, b = run->col_tap + term / d->in_channels, c = term % d->in_channels;
        if (n < columns || term >= run->count)
            memset(rows[u], 0, (size_t)columns);
        if (term >= run->count)
            continue;
        const char *from = d->filter + run->row_tap * d->filter_stride[0] + b * d->filter_stride[1] +
                           c / 4 * d->filter_block + c % 4 * d->filter_lane +
                           (group * d->out_channels + panel * columns) * step;
        if (step == 1 && n == 16)
            memcpy(rows[u], from, 16);
        else if (step == 1)
            memcpy(rows[u], from, (size_t)n);
        else
            for (int64_t j = 0; j < n; j++)
                rows[u][j] = (int8_t)from[j * step];
    }
}

/* A panel's weights in one form, and the sums of each tap row if they are wanted; returns the most that pairs of weights
 * add up to. */
static int32_t pack_columns(const ck_int8 *d, int64_t panel, ck_form form, int32_t *sums)
{
    const ck_window *w = &d->window;
    const ck_int8_columns c = ck_int8_columns_of(d, form);
    const int64_t columns = d->kernel->columns, terms = ck_form_unit(form);
    const int64_t n = ck_min(columns, d->out_channels - panel * columns);
    int8_t rows[UNIT][CK_INT8_MOST_COLUMNS];
    int8_t *to = (int8_t *)d->packed + d->form[form].packed_at + panel * d->form[form].steps * columns * UNIT;
    int32_t peak = 0;
    for (int64_t i = 0; i < c.rows; i++)
        for (int64_t unit = 0; unit < c.unit_rows; unit++)
            for (int64_t b = 0; b < w->cols; b++, to += columns * UNIT) {
                memset(rows, 0, sizeof rows);
                for (int64_t u = 0; u < terms; u++) {
                    const int64_t a = unit * terms + u - i;
                    if (a < 0 || a >= w->rows)
                        continue;
                    const char *from = d->filter + a * d->filter_stride[0] + b * d->filter_stride[1] +
                                       panel * columns * d->filter_out;
                    for (int64_t j = 0; j < n; j++)
                        rows[u][j] = (int8_t)from[j * d->filter_out];
                    if (i == 0 && sums)
                        add_sums(rows[u], columns, sums + a * columns);
                }
                if (form == CK_BYTES)
                    interleave((const int8_t(*)[CK_INT8_MOST_COLUMNS])rows, columns, to);
                else
                    interleave_words((const int8_t(*)[CK_INT8_MOST_COLUMNS])rows, columns, to);
                peak = peak_of(rows[2], rows[3], columns, peak_of(rows[0], rows[1], columns, peak));
            }
    return peak;
}

/* One panel of a depthwise filter. */
static void pack_depthwise(void *ctx, int64_t panel, ck_worker *worker)
{
    (void)worker;
    const ck_int8 *d = ctx;
    const int64_t numbers = d->window.rows * d->kernel->columns;
    int32_t *sums = (int32_t *)(d->packed + d->sums_at) + panel * numbers;
    memset(sums, 0, (size_t)numbers * sizeof *sums);
    const int32_t peak = pack_columns(d, panel, CK_BYTES, sums);
    if (!d->kernel->pairs_saturate)
        return;
    ((int32_t *)(d->packed + d->peaks_at))[panel] = peak;
    if (peak > CK_NARROW_PAIR)
        pack_columns(d, panel, CK_WORDS, NULL);
}

/* One panel of one group. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_int8 *d = ctx;
    const int64_t columns = d->kernel->columns, panels = ck_ceil_div(d->out_channels, columns);
    const ck_int8_form *bytes = &d->form[CK_BYTES], *words = &d->form[CK_WORDS];
    int8_t rows[UNIT][CK_INT8_MOST_COLUMNS];
    int32_t *sums = (int32_t *)(d->packed + d->sums_at) + unit * d->window.rows * columns, peak = 0;
    memset(sums, 0, (size_t)(d->window.rows * columns) * sizeof *sums);
    int8_t *to = (int8_t *)d->packed + bytes->packed_at + unit * bytes->steps * columns * UNIT;
    for (const ck_int8_run *run = d->runs; run < d->runs + d->run_count; run++)
        for (int64_t at = 0; at < run->count; at += UNIT, to += columns * UNIT) {
            load_rows(d, run, unit / panels, unit % panels, at, UNIT, rows);
            interleave((const int8_t(*)[CK_INT8_MOST_COLUMNS])rows, columns, to);
            for (int u = 0; u < UNIT; u++)
                add_sums(rows[u], columns, sums + run->row_tap * columns);
            if (d->kernel->pairs_saturate)
                peak = peak_of(rows[2], rows[3], columns, peak_of(rows[0], rows[1], columns, peak));
        }
    if (!d->kernel->pairs_saturate)
        return;
    ((int32_t *)(d->packed + d->peaks_at))[unit] = peak;
    if (peak <= CK_NARROW_PAIR)
        return;
    to = (int8_t *)d->packed + words->packed_at + unit * words->steps * columns * UNIT;
    for (const ck_int8_run *run = d->runs; run < d->runs + d->run_count; run++)
        for (int64_t at = 0; at < run->count; at += 2, to += columns * UNIT) {
            load_rows(d, run, unit / panels, unit % panels, at, 2, rows);
            interleave_words((const int8_t(*)[CK_INT8_MOST_COLUMNS])rows, columns, to);
        }
}

int ck_int8_pack(const ck_int8 *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    job.fn = d->depthwise ? pack_depthwise : pack_unit;
    job.chunks = d->groups * ck_ceil_div(d->out_channels, d->kernel->columns);
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
