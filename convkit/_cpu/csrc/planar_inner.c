#include "planar.h"

#include <string.h>

/* [tap][vector of channels][filter][lane], the last vector filled up with zeros. */
void ck_planar_pack_inner(const ck_planar *p, const ck_planar_phase *phase, int64_t first, int64_t count, char *to)
{
    const int64_t *stride = p->filter.stride;
    int64_t size = ck_size(p->kernel->arithmetic), lanes = p->kernel->lanes, cols = phase->window.cols;
    memset(to, 0, (size_t)ck_planar_packed(p, phase, count));
    for (int64_t tap = 0; tap < phase->window.rows * cols; tap++)
        for (int64_t c = 0; c < p->channels; c += lanes)
            for (int64_t k = 0; k < count; k++, to += lanes * size)
                p->load_filter(to, 1,
                               p->filter.data + phase->row_tap[tap / cols] * stride[0] +
                                   phase->col_tap[tap % cols] * stride[1] + c * stride[2] + (first + k) * stride[3],
                               stride[2], ck_min(lanes, p->channels - c));
}

/* Shows a block of channels of the pixels that a tile reaches: where they lie if all are inside, or else copied. */
static bool look(const ck_planar_part *t, char *scratch, ck_view *view)
{
    const ck_planar *p = t->p;
    const ck_window *w = &t->phase->window;
    int64_t size = ck_size(p->kernel->arithmetic);
    ck_pixels pixels = p->pixels;
    pixels.array.data += t->image * pixels.array.stride[0] + t->channel0 * pixels.array.stride[3];
    ck_planar_view reach = ck_planar_reach(w, &t->block, 1);
    int64_t right = reach.col0 + reach.row_step;
    if (pixels.plain && reach.row0 >= 0 && reach.col0 >= 0 && reach.row0 + reach.rows <= w->height &&
        right <= w->width) {
        *view = (ck_view){pixels.array.data, 0, 0, 0, pixels.array.stride[1] / size, pixels.array.stride[2] / size};
        return true;
    }
    return ck_stage_padded(w, &pixels, &t->block, t->channels, size, scratch, p->stage_bytes, view);
}

/* Adds a block of taps of all filters, row by row of the result. */
static void add_taps(const ck_planar_part *t, const ck_view *view)
{
    const ck_planar *p = t->p;
    const ck_window *w = &t->phase->window;
    int64_t size = ck_size(p->kernel->arithmetic), lanes = p->kernel->lanes, taps = t->rows * t->cols;
    int64_t all = ck_ceil_div(p->channels, lanes) * lanes, at[CK_SUM_BLOCK];
    for (int64_t tap = 0; tap < taps; tap++)
        at[tap] = (t->block.row0 * w->row_step + w->row_at[t->row0 + tap / t->cols] - view->row0) * view->row_step +
                  (t->block.col0 * w->col_step + w->col_at[t->col0 + tap % t->cols] - view->col0) * view->col_step;
    for (int64_t i = 0; i < t->block.rows; i++)
        for (int64_t first = 0; first < p->filters; first += p->filter_block) {
            int64_t count = ck_min(p->filter_block, p->filters - first);
            const char *weights = p->packed + t->phase->packed_at + ck_planar_packed(p, t->phase, first) +
                                  ((t->row0 * w->cols + t->col0) * all + t->channel0) * count * size;
            p->kernel->inner(t->block.cols, view->data + i * w->row_step * view->row_step * size,
                             w->col_step * view->col_step, at, taps, t->channels, weights, all * count, count,
                             t->sums + (i * t->sums_row + first) * size, t->sums_pixel, t->add);
        }
}

bool ck_planar_sum_inner(ck_planar_part *t, char *scratch, ck_worker *worker)
{
    const ck_planar_phase *phase = t->phase;
    const ck_window *w = &phase->window;
    for (t->channel0 = 0; t->channel0 < t->p->channels; t->channel0 += phase->channel_block) {
        if (t->channel0 && ck_worker_stop(worker))
            return true;
        ck_view view;
        t->channels = ck_min(phase->channel_block, t->p->channels - t->channel0);
        if (!look(t, scratch, &view))
            return false;
        for (t->row0 = 0; t->row0 < w->rows; t->row0 += phase->tap_rows)
            for (t->col0 = 0; t->col0 < w->cols; t->col0 += phase->tap_cols, t->add = true) {
                t->rows = ck_min(phase->tap_rows, w->rows - t->row0);
                t->cols = ck_min(phase->tap_cols, w->cols - t->col0);
                add_taps(t, &view);
            }
    }
    return true;
}
