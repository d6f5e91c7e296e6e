#include "depthwise.h"

#include <string.h>

static void reach_of(const int64_t *at, int64_t taps, int64_t first, int64_t count, int64_t step, int64_t *start,
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

/* Every second number, in loops that compilers make vectors of: strides of 2 are the usual ones. */
#define EVERY_SECOND(NAME, TYPE)                                                                                       \
    static void NAME(const TYPE *restrict from, int64_t count, TYPE *restrict to)                                      \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++)                                                                            \
            to[i] = from[2 * i];                                                                                       \
    }

EVERY_SECOND(every_second_f32, float)
EVERY_SECOND(every_second_f64, double)

/* Copies one row of a plane: of every remainder, the columns col0 + remainder + i * step for i < pitch. */
static void stage_row(const ck_pixels *pixels, int64_t width, int64_t size, const char *row, int64_t col0, int64_t step,
                      int64_t pitch, char *to)
{
    int64_t stride = pixels->array.stride[2];
    for (int64_t remainder = 0; remainder < step; remainder++, to += pitch * size) {
        int64_t first = col0 + remainder;
        int64_t left = first < 0 ? ck_min(pitch, ck_ceil_div(-first, step)) : 0;
        int64_t right = first < width ? ck_max(left, ck_min(pitch, ck_ceil_div(width - first, step))) : left;
        memset(to, 0, (size_t)(left * size));
        memset(to + right * size, 0, (size_t)((pitch - right) * size));
        const char *from = row + (first + left * step) * stride;
        if (pixels->plain && step == 1)
            memcpy(to + left * size, from, (size_t)((right - left) * size));
        else if (pixels->plain && step == 2 && stride == size && size == 8)
            every_second_f64((const double *)from, right - left, (double *)(to + left * size));
        else if (pixels->plain && step == 2 && stride == size)
            every_second_f32((const float *)from, right - left, (float *)(to + left * size));
        else if (right > left)
            pixels->load(to + left * size, 1, from, step * stride, right - left);
    }
}

/* Rows of planes up to so many bytes are cleared all at once, and then only the image's part of them is copied. */
enum { SHORT_ROW = 512 };

bool ck_depthwise_look(const ck_depthwise_kernel *kernel, const ck_window *w, const ck_pixels *pixels,
                       const ck_block *block, int64_t channels, int64_t repeats, bool planes, char *scratch,
                       int64_t bytes, ck_depthwise_view *v)
{
    int64_t size = ck_size(kernel->arithmetic);
    const ck_array *a = &pixels->array;
    int64_t row0, rows, col0, cols;
    reach_of(w->row_at, w->rows, block->row0, block->rows, w->row_step, &row0, &rows);
    reach_of(w->col_at, w->cols, block->col0, block->cols, w->col_step, &col0, &cols);
    bool inside = row0 >= 0 && col0 >= 0 && row0 + rows <= w->height && col0 + cols <= w->width;
    if (pixels->plain && (planes ? inside && w->col_step == 1 : repeats == 1)) {
        int64_t pixel = a->stride[2] / size;
        int64_t row = a->stride[1] / size, channel = a->stride[3] / size;
        *v = (ck_depthwise_view){a->data, 0, 0, row, w->col_step * pixel, pixel, channel, inside};
        return true;
    }
    if (!planes) {
        ck_view padded;
        int64_t numbers = rows * cols * channels, lanes = channels * repeats;
        if (numbers * repeats * size > bytes)
            return false;
        char *staged = scratch + numbers * (repeats - 1) * size;
        if (!ck_stage_padded(w, pixels, block, channels, size, staged, numbers * size, &padded))
            return false;
        if (repeats > 1)
            kernel->repeat(numbers, repeats, staged, scratch);
        *v = (ck_depthwise_view){scratch, row0, col0, cols * lanes, w->col_step * lanes, lanes, 1, true};
        return true;
    }
    int64_t pitch = ck_ceil_div(cols, w->col_step), row_step = pitch * w->col_step;
    if (channels * rows * row_step * size > bytes)
        return false;
    *v = (ck_depthwise_view){scratch, row0, col0, row_step, 1, pitch, rows * row_step, true};
    if (pixels->plain && w->col_step == 1 && cols * size <= SHORT_ROW) {
        int64_t top = ck_max(0, row0), left = ck_max(0, col0);
        int64_t high = ck_min(w->height, row0 + rows) - top, wide = ck_min(w->width, col0 + cols) - left;
        memset(scratch, 0, (size_t)(channels * rows * cols * size));
        for (int64_t c = 0; wide > 0 && c < channels; c++)
            kernel->copy(high, wide, a->data + top * a->stride[1] + left * a->stride[2] + c * a->stride[3],
                         a->stride[1] / size, scratch + ((c * rows + top - row0) * cols + left - col0) * size, cols);
        return true;
    }
    for (int64_t c = 0; c < channels; c++)
        for (int64_t row = row0; row < row0 + rows; row++, scratch += row_step * size) {
            if (row < 0 || row >= w->height)
                memset(scratch, 0, (size_t)(row_step * size));
            else
                stage_row(pixels, w->width, size, a->data + row * a->stride[1] + c * a->stride[3], col0, w->col_step,
                          pitch, scratch);
        }
    return true;
}

typedef struct {
    int64_t image, group0, groups;
    ck_block block;
} tile;

static void cut(int64_t *unit, int64_t total, int64_t block, int64_t *start, int64_t *count)
{
    int64_t blocks = ck_ceil_div(total, block);
    *start = *unit % blocks * block;
    *count = ck_min(block, total - *start);
    *unit /= blocks;
}

static tile tile_of(const ck_depthwise *d, int64_t unit)
{
    tile t;
    cut(&unit, d->groups, d->group_block, &t.group0, &t.groups);
    cut(&unit, d->grid_cols, d->col_block, &t.block.col0, &t.block.cols);
    cut(&unit, d->grid_rows, d->row_block, &t.block.row0, &t.block.rows);
    t.block.images = 1;
    t.image = unit;
    return t;
}

static int64_t units_of(const ck_depthwise *d)
{
    return d->images * ck_ceil_div(d->grid_rows, d->row_block) * ck_ceil_div(d->grid_cols, d->col_block) *
           ck_ceil_div(d->groups, d->group_block);
}

/* Columns of the filter that a phase meets. */
static int64_t filter_cols(const ck_depthwise_phase *phase) { return phase->pairs ? 3 : phase->window.cols; }

/* One phase's taps of the filter. */
static void pack_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    (void)worker;
    const ck_depthwise *d = ctx;
    const ck_depthwise_phase *phase = &d->phases[unit];
    const int64_t *stride = d->filter.stride;
    int64_t size = ck_size(d->kernel->arithmetic), cols = filter_cols(phase), taps = phase->window.rows * cols;
    int64_t filters = d->groups * d->multiplier;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t col = phase->pairs ? tap % cols : phase->col_tap[tap % cols];
        d->load_filter(d->packed + phase->packed_at + tap * (d->planes ? 1 : filters) * size, d->planes ? taps : 1,
                       d->filter.data + phase->row_tap[tap / cols] * stride[0] + col * stride[1], stride[3], filters);
    }
}

/* Where the sums of a tile go: steps from one row, column and channel to the next, in elements. */
typedef struct {
    char *data;
    int64_t row, col, channel;
} target;

/* Taps that are summed in one chain: rows x columns of the window, and whether anything was summed before. */
typedef struct {
    ck_span rows, cols;
    bool add;
} taps;

/* Whether these taps are whole rows of them, one below the other in neighbouring rows of the image. */
static bool is_grid(const ck_window *w, const taps *s)
{
    bool grid = w->row_step == 1;
    for (int64_t a = s->rows.first + 1; grid && a < s->rows.last; a++)
        grid = w->row_at[a] == w->row_at[a - 1] + 1;
    return grid;
}

/* Where the first pixel of the tile meets each of the taps; returns how many there are. */
static int64_t places(const ck_window *w, const ck_depthwise_view *v, const tile *t, const taps *s, int64_t *at)
{
    int64_t count = 0;
    for (int64_t a = s->rows.first; a < s->rows.last; a++)
        for (int64_t b = s->cols.first; b < s->cols.last; b++)
            at[count++] = ck_depthwise_at(v, w, &t->block, a, b);
    return count;
}

/* Adds taps to every sum of one plane. */
static void add_to_plane(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t,
                         const ck_depthwise_view *v, const taps *s, const char *x, const char *weights, char *out,
                         int64_t out_row, bool flat, bool add)
{
    const ck_window *w = &phase->window;
    const ck_depthwise_kernel *kernel = d->kernel;
    int64_t at[CK_SUM_BLOCK], count = places(w, v, t, s, at), row_step = w->row_step * v->row_step;
    if (flat) { /* one row of `run` numbers */
        int64_t size = ck_size(kernel->arithmetic), pair = 2 * kernel->lanes;
        int64_t run = (t->block.rows - 1) * v->row_step + t->block.cols, pairs = run / pair, done = pairs * pair;
        if (pairs)
            kernel->by_tap(pairs, pair, x, pair, at, count, weights, out, pair, add);
        if (done < run)
            kernel->by_tap(1, run - done, x + done * size, 0, at, count, weights, out + done * size, 0, add);
    } else if (is_grid(w, s)) {
        int64_t cols = s->cols.last - s->cols.first;
        kernel->by_grid(t->block.rows, t->block.cols, x, row_step, at, count / cols, cols, weights, out, out_row, add);
    } else {
        kernel->by_tap(t->block.rows, t->block.cols, x, row_step, at, count, weights, out, out_row, add);
    }
}

/* Adds taps to every plane of the tile, those of a group's filters one after the other. */
static void add_planes(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t,
                       const ck_depthwise_view *v, const taps *s, bool flat, const target *to)
{
    int64_t size = ck_size(d->kernel->arithmetic), all = phase->window.rows * phase->window.cols, m = d->multiplier;
    const char *weights = d->packed + phase->packed_at +
                          (t->group0 * m * all + s->rows.first * phase->window.cols + s->cols.first) * size;
    for (int64_t k = 0; k < t->groups * m; k++, weights += all * size) {
        int64_t from = d->gathers ? k : k / m, out = d->gathers ? k / m : k;
        add_to_plane(d, phase, t, v, s, v->data + from * v->channel_step * size, weights,
                     to->data + out * to->channel * size, to->row, flat, s->add || (d->gathers && k % m));
    }
}

/* Rows of pixels and their taps, as the kernel takes them, without the columns. */
typedef struct {
    const ck_depthwise *d;
    const ck_window *window;
    const ck_depthwise_view *view;
    const taps *taps;
    ck_depthwise_rows rows;
    const char *x, *w; /* at column 0 and tap column 0 */
    char *out;         /* at output column 0 */
} pixel_rows;

/* Pixels that all meet the taps of `cols`; `left`, `right`: but the first tap of the first, the last of the last. */
static void add_pixels(pixel_rows *p, int64_t first, int64_t count, ck_span cols, bool left, bool right)
{
    int64_t size = ck_size(p->d->kernel->arithmetic);
    cols.first = ck_max(cols.first, p->taps->cols.first);
    cols.last = ck_max(cols.first, ck_min(cols.last, p->taps->cols.last));
    int64_t column = first * p->window->col_step + p->window->col_at[cols.first < cols.last ? cols.first : 0];
    p->rows.positions = count;
    p->rows.tap_cols = cols.last - cols.first;
    p->rows.left = left;
    p->rows.right = right;
    p->rows.x = p->x + (column - p->view->col0) * p->view->remainder_step * size;
    p->rows.w = p->w + cols.first * p->rows.w_tap * size;
    p->rows.out = p->out + first * p->rows.out_step * size;
    p->d->kernel->by_rows(&p->rows);
}

static void add_rows(pixel_rows *p, const ck_block *block)
{
    const ck_window *w = p->window;
    const int64_t end = block->col0 + block->cols;
    ck_columns most = ck_whole_columns(p->view, w, block->col0, block->cols);
    if (p->taps->cols.first > 0 || p->taps->cols.last < w->cols) { /* not all columns of taps are summed at once */
        most.span.first += most.left;
        most.span.last -= most.right;
        most.left = most.right = false;
    }
    for (int64_t j = block->col0; j < end; j++)
        if (j == most.span.first && most.span.first < most.span.last) {
            add_pixels(p, j, most.span.last - j, (ck_span){0, w->cols}, most.left, most.right);
            j = most.span.last - 1;
        } else {
            add_pixels(p, j, 1, ck_taps_inside(p->view, w->col_at, w->cols, j, w->col_step, w->width), false, false);
        }
}

/* Pairs of pixels; the columns of the filter are all of it. */
static void add_pairs(pixel_rows *p, const ck_depthwise_phase *phase, const ck_block *block)
{
    const ck_window *w = p->window;
    int64_t size = ck_size(p->d->kernel->arithmetic), first = block->col0 + w->col_at[0];
    bool begins = block->col0 == 0, ends = block->col0 + block->cols == w->out_width;
    p->rows.positions = block->cols;
    p->rows.out_step /= 2;
    p->rows.left = first < 0;
    p->rows.right = first + block->cols >= w->width;
    p->rows.head = begins && phase->head;
    p->rows.tail = ends && phase->tail;
    p->rows.x = p->x + first * p->rows.x_tap * size;
    p->rows.w = p->w;
    p->rows.out = p->out + block->col0 * p->rows.out_step * 2 * size;
    p->d->kernel->by_pairs(&p->rows);
    p->rows.out_step *= 2;
}

/* Adds taps to every pixel of the tile, channels last, two rows at a time where they share rows of pixels. */
static void add_lanes(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t, const ck_depthwise_view *v,
                      const taps *s, const target *to)
{
    const ck_window *w = &phase->window;
    const int64_t *stride = d->filter.stride;
    int64_t size = ck_size(d->kernel->arithmetic), filters = d->groups * d->multiplier;
    int64_t first = t->group0 * d->multiplier, tap_rows = s->rows.last - s->rows.first;
    int64_t pitch = w->rows > 1 ? ck_pitch(w->row_at, w->rows) : w->row_step;
    pixel_rows p = {.d = d, .window = w, .view = v, .taps = s};
    const char *weights = d->packed + phase->packed_at + first * size;
    p.rows = (ck_depthwise_rows){.lanes = t->groups * d->multiplier,
                                 .tap_rows = tap_rows,
                                 .x_row = pitch * v->row_step,
                                 .x_tap = ck_pitch(w->col_at, w->cols) * v->remainder_step,
                                 .x_step = w->col_step * v->remainder_step,
                                 .w_row = w->cols * filters,
                                 .w_tap = filters,
                                 .out_row = to->row,
                                 .out_step = to->col,
                                 .add = s->add,
                                 .streams = d->streams};
    if (d->filter_in_place) {
        int64_t col_tap = phase->pairs ? 0 : phase->col_tap[0];
        weights = d->filter.data + phase->row_tap[0] * stride[0] + col_tap * stride[1] + first * stride[3];
        p.rows.w_row = ck_pitch(phase->row_tap, w->rows) * stride[0] / size;
        p.rows.w_tap = (phase->pairs ? 1 : ck_pitch(phase->col_tap, w->cols)) * stride[1] / size;
    }
    p.w = weights + s->rows.first * p.rows.w_row * size;
    for (int64_t i = 0, rows; i < t->block.rows; i += rows) {
        int64_t row = (t->block.row0 + i) * w->row_step + w->row_at[s->rows.first]; /* of the image, at the first tap */
        rows = p.rows.rows = pitch == w->row_step && !phase->pairs ? ck_min(2, t->block.rows - i) : 1;
        p.rows.x_first = 0;
        p.rows.x_end = tap_rows + rows - 1;
        if (!v->padded) {
            int64_t room = ck_max(0, ck_ceil_div(w->height - row, pitch));
            p.rows.x_end = ck_min(p.rows.x_end, room);
            p.rows.x_first = ck_min(p.rows.x_end, row < 0 ? ck_ceil_div(-row, pitch) : 0);
        }
        p.rows.fetches = d->streams && phase == d->phases ? rows * w->row_step : 0;
        p.x = v->data + (row - v->row0) * v->row_step * size;
        p.out = to->data + (i * to->row - t->block.col0 * to->col) * size;
        if (phase->pairs)
            add_pairs(&p, phase, &t->block);
        else
            add_rows(&p, &t->block);
    }
}

static void store_tile(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t, const target *sums,
                       char *to)
{
    const int64_t *stride = phase->out.stride;
    int64_t size = ck_size(d->kernel->arithmetic), channels = t->groups * (d->gathers ? 1 : d->multiplier);
    if (phase->out_in_place && d->planes) { /* flat sums */
        for (int64_t c = 0; c < channels; c++)
            d->kernel->copy(t->block.rows, t->block.cols, sums->data + c * sums->channel * size, sums->row,
                            to + c * stride[3], stride[1] / size);
        return;
    }
    for (int64_t i = 0; i < t->block.rows; i++)
        ck_store_block(d->store, size, to + i * stride[1], stride[2], stride[3], sums->data + i * sums->row * size,
                       sums->col, sums->channel, t->block.cols, channels, false);
}

/* As many rows of taps as CK_SUM_BLOCK allows, or as many columns of one. */
static taps block_of_taps(const ck_window *w)
{
    taps block = {{0, 1}, {0, w->cols}, false};
    if (w->cols > CK_SUM_BLOCK)
        block.cols.last = ck_sum_block(w->cols);
    else
        block.rows.last = ck_ceil_div(w->rows, ck_ceil_div(w->rows, CK_SUM_BLOCK / w->cols));
    return block;
}

/* A tile's pixels of one phase, planes where they lie; false if there is no kernel for its filter. */
static bool run_planes(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t, ck_worker *worker)
{
    const ck_window *w = &phase->window;
    const ck_depthwise_kernel *kernel = d->kernel;
    const int64_t *x_stride = d->pixels.array.stride, *stride = phase->out.stride;
    int64_t size = ck_size(kernel->arithmetic), m = d->multiplier, cols = filter_cols(phase);
    int64_t first_image = t->group0 * (d->gathers ? m : 1), first_out = t->group0 * (d->gathers ? 1 : m);
    const char *image = d->pixels.array.data + t->image * x_stride[0] + first_image * x_stride[3];
    char *out = d->out_data + phase->out_at + t->image * stride[0] + t->block.row0 * stride[1] +
                t->block.col0 * stride[2] + first_out * stride[3];
    ck_depthwise_plane p = {.rows = t->block.rows, .cols = t->block.cols, .step = w->row_step, .tap_rows = w->rows,
                            .tap_cols = cols, .row = t->block.row0 * w->row_step + w->row_at[0],
                            .col = t->block.col0 * w->col_step + w->col_at[0], .height = w->height,
                            .width = w->width, .x_row = x_stride[1] / size, .w_row = cols, .w_tap = 1,
                            .out_row = stride[1] / size, .streams = d->streams};
    int64_t filter_bytes = w->rows * cols * size;
    const char *weights = d->packed + phase->packed_at;
    if (d->filter_in_place) {
        const int64_t *w_stride = d->filter.stride;
        weights = d->filter.data + phase->row_tap[0] * w_stride[0] + (phase->pairs ? 0 : phase->col_tap[0]) * w_stride[1];
        p.w_row = ck_pitch(phase->row_tap, w->rows) * w_stride[0] / size;
        p.w_tap = (phase->pairs ? 1 : ck_pitch(phase->col_tap, w->cols)) * w_stride[1] / size;
        filter_bytes = w_stride[3];
    }
    bool head = phase->head && t->block.col0 == 0, good = true;
    bool tail = phase->tail && t->block.col0 + t->block.cols == w->out_width;
    for (int64_t k = 0; good && k < t->groups * m && !ck_worker_stop(worker); k++) {
        p.x = image + (d->gathers ? k : k / m) * x_stride[3];
        p.w = weights + (t->group0 * m + k) * filter_bytes;
        p.out = out + (d->gathers ? k / m : k) * stride[3];
        p.add = d->gathers && k % m;
        bool another = d->gathers ? t->group0 * m + k + 1 < d->groups * m : k % m == 0 && t->group0 + k / m + 1 < d->groups;
        p.next = d->streams && phase == d->phases && another ? x_stride[3] / size : 0;
        good = phase->pairs ? kernel->plane_pairs(&p, head, tail) : kernel->by_plane(&p);
    }
    return good;
}

/* A tile's pixels of one phase; false if it does not fit the scratch memory. */
static bool run_phase(const ck_depthwise *d, const ck_depthwise_phase *phase, const tile *t, ck_worker *worker)
{
    const ck_window *w = &phase->window;
    const int64_t *stride = phase->out.stride;
    int64_t size = ck_size(d->kernel->arithmetic), rows = t->block.rows, cols = t->block.cols;
    int64_t image_first = t->group0 * (d->gathers ? d->multiplier : 1);
    int64_t out_first = t->group0 * (d->gathers ? 1 : d->multiplier);
    int64_t filters = t->groups * d->multiplier;
    bool repeats = !d->planes && !d->gathers, folds = !d->planes && d->gathers && d->multiplier > 1;
    char *scratch = ck_worker_scratch(worker);
    if (phase->unpadded)
        return run_planes(d, phase, t, worker);

    ck_depthwise_view v;
    ck_pixels pixels = d->pixels;
    pixels.array.data += t->image * pixels.array.stride[0] + image_first * pixels.array.stride[3];
    char *out = d->out_data + phase->out_at + t->image * stride[0] + t->block.row0 * stride[1] +
                t->block.col0 * stride[2] + out_first * stride[3];
    if (!ck_depthwise_look(d->kernel, w, &pixels, &t->block, d->gathers ? filters : t->groups,
                           repeats ? d->multiplier : 1, d->planes, scratch, d->stage_bytes, &v))
        return false;
    bool flat = phase->flat && v.data == scratch, in_place = phase->out_in_place && !flat && !folds;
    int64_t pitch = flat ? v.row_step : cols;
    target to = {out, stride[1] / size, stride[2] / size, stride[3] / size};
    if (!in_place) {
        int64_t lanes = d->planes && d->gathers ? t->groups : filters;
        to = d->planes ? (target){scratch + d->stage_bytes, pitch, 1, rows * pitch}
                       : (target){scratch + d->stage_bytes, cols * lanes, lanes, 1};
        if (rows * pitch * lanes * size > d->tile_bytes)
            return false;
    }
    taps step = block_of_taps(w), s = {.add = false};
    for (s.rows.first = 0; s.rows.first < w->rows; s.rows.first = s.rows.last)
        for (s.cols.first = 0; s.cols.first < w->cols; s.cols.first = s.cols.last, s.add = true) {
            if (s.add && ck_worker_stop(worker))
                return true;
            s.rows.last = ck_min(w->rows, s.rows.first + step.rows.last);
            s.cols.last = ck_min(w->cols, s.cols.first + step.cols.last);
            if (d->planes)
                add_planes(d, phase, t, &v, &s, flat, &to);
            else
                add_lanes(d, phase, t, &v, &s, &to);
        }
    if (folds) {
        d->kernel->fold(rows * cols * t->groups, d->multiplier, to.data, to.data);
        to = (target){to.data, cols * t->groups, t->groups, 1};
    }
    if (!in_place)
        store_tile(d, phase, t, &to, out);
    return true;
}

static void depthwise_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_depthwise *d = ctx;
    const tile whole = tile_of(d, unit);
    for (int64_t i = 0; i < d->phase_count; i++) {
        const ck_window *w = &d->phases[i].window;
        tile t = whole;
        t.block.rows = ck_min(t.block.rows, w->out_height - t.block.row0);
        t.block.cols = ck_min(t.block.cols, w->out_width - t.block.col0);
        if (i && ck_worker_stop(worker))
            return;
        if (t.block.rows > 0 && t.block.cols > 0 && !run_phase(d, &d->phases[i], &t, worker)) {
            ck_worker_fail(worker, CK_BAD_PLAN);
            return;
        }
    }
}

int ck_depthwise_run(const ck_depthwise *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    if (!d->filter_in_place) {
        job.fn = pack_unit;
        job.chunks = d->phase_count;
        job.scratch_bytes = 0;
        int code = ck_pool_run(&job);
        if (code != CK_OK)
            return code;
    }
    job.fn = depthwise_unit;
    job.chunks = units_of(d);
    /* At least a byte, so that the parts have addresses where nothing is copied. */
    job.scratch_bytes = (size_t)ck_max(1, d->stage_bytes + d->tile_bytes);
    return ck_pool_run(&job);
}
