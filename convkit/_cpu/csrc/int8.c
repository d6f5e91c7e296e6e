#include "int8_image.h"
#include "product.h"

#include <string.h>

typedef struct {
    int64_t image0, images, row0, rows, col0, cols; /* of the result */
    int64_t group, panel0, panels;
} tile;

/* Pixels that meet one panel before the next; their sums stay in the first-level cache if they are stored at all. */
enum { PIECE_BYTES = 8192 };

static int64_t rows_of(const ck_int8 *d, ck_form form)
{
    return d->depthwise ? CK_DEPTHWISE_ROWS : d->kernel->rows[form];
}

static int64_t piece_of(const ck_int8 *d, ck_form form)
{
    const int64_t rows = rows_of(d, form);
    return rows * ck_max(1, PIECE_BYTES / (rows * d->kernel->columns * 4));
}

/* Whether pixels need not be laid down: one tap meets each where it lies, and no unit reaches into another pixel. */
static bool reads_in_place(const ck_int8 *d)
{
    const ck_window *w = &d->window;
    return !d->kernel->pairs_saturate && w->rows == 1 && w->cols == 1 && w->row_at[0] == 0 && w->col_at[0] == 0 &&
           w->height == w->out_height && w->width == w->out_width && w->row_step == 1 && w->col_step == 1 &&
           d->in_channels % CK_UNIT_BYTES == 0 && ck_int8_in_place(&d->image);
}

static int64_t panels_of(const ck_int8 *d) { return ck_ceil_div(d->out_channels, d->kernel->columns); }

int64_t ck_int8_units(const ck_int8 *d)
{
    return d->groups * ck_ceil_div(d->images, d->image_block) * ck_ceil_div(d->window.out_height, d->row_block) *
           ck_ceil_div(d->window.out_width, d->col_block) * ck_ceil_div(panels_of(d), d->panel_block);
}

static void least_and_most(const int64_t *at, int64_t taps, int64_t *least, int64_t *most)
{
    *least = *most = at[0];
    for (int64_t i = 1; i < taps; i++) {
        *least = ck_min(*least, at[i]);
        *most = ck_max(*most, at[i]);
    }
}

void ck_int8_place_steps(const ck_int8 *d, ck_form form, int64_t *at)
{
    const ck_window *w = &d->window;
    const int64_t size = ck_form_size(form);
    int64_t row0, col0, most;
    least_and_most(w->row_at, w->rows, &row0, &most);
    least_and_most(w->col_at, w->cols, &col0, &most);
    for (const ck_int8_run *run = d->runs; run < d->runs + d->run_count; run++) {
        const int64_t row = (w->row_at[run->row_tap] - row0) * d->row_pitch;
        for (int64_t term = 0; term < run->count; term += ck_form_unit(form)) {
            const int64_t tap = run->col_tap + (d->depthwise ? term : 0);
            *at++ = (row + (w->col_at[tap] - col0) * d->pitch + (d->depthwise ? 0 : term)) * size;
        }
    }
}

static void cut(int64_t *unit, int64_t total, int64_t block, int64_t *start, int64_t *count)
{
    int64_t blocks = ck_ceil_div(total, block);
    *start = *unit % blocks * block;
    *count = ck_min(block, total - *start);
    *unit /= blocks;
}

static tile tile_of(const ck_int8 *d, int64_t unit)
{
    tile t;
    cut(&unit, panels_of(d), d->panel_block, &t.panel0, &t.panels);
    cut(&unit, d->window.out_width, d->col_block, &t.col0, &t.cols);
    cut(&unit, d->window.out_height, d->row_block, &t.row0, &t.rows);
    cut(&unit, d->images, d->image_block, &t.image0, &t.images);
    t.group = unit;
    return t;
}

/* The pixels that a tile reaches, padding included; rows and columns count from the image's first. */
typedef struct {
    int64_t row0, rows, col0, cols, image_pitch;
} reach;

static reach reach_of(const ck_int8 *d, const tile *t)
{
    const ck_window *w = &d->window;
    int64_t low, high, left, right;
    least_and_most(w->row_at, w->rows, &low, &high);
    least_and_most(w->col_at, w->cols, &left, &right);
    reach r = {t->row0 * w->row_step + low, (t->rows - 1) * w->row_step + high - low + 1,
               t->col0 * w->col_step + left, (t->cols - 1) * w->col_step + right - left + 1, 0};
    r.image_pitch = r.rows * d->row_pitch;
    return r;
}

static void fill(ck_form form, uint8_t flip, int64_t value, char *to, int64_t n)
{
    if (form == CK_BYTES) {
        memset(to, (uint8_t)value ^ flip, (size_t)n);
    } else {
        int16_t word = (int16_t)value;
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * 2, &word, sizeof word);
    }
}

/* Lays down one row of the image, and padding beside it; `to` is of as many pixels as the reach has columns. */
static void lay_row(const ck_int8 *d, const tile *t, const reach *r, int64_t image, int64_t y, int64_t c0,
                    int64_t channels, ck_form form, uint8_t flip, char *to, int64_t pitch)
{
    const ck_window *w = &d->window;
    const int64_t size = ck_form_size(form);
    const int64_t left = ck_min(r->cols, ck_max(0, -r->col0));
    const int64_t right = ck_max(left, ck_min(r->cols, w->width - r->col0));
    if (y < 0 || y >= w->height || left == right) {
        fill(form, flip, d->input_zero_point, to, r->cols * pitch);
        return;
    }
    fill(form, flip, d->input_zero_point, to, left * pitch);
    fill(form, flip, d->input_zero_point, to + right * pitch * size, (r->cols - right) * pitch);
    ck_int8_load(d->kernel, &d->image, form, flip,
                 (t->image0 + image) * d->image.stride[0] + y * d->image.stride[1] +
                     (r->col0 + left) * d->image.stride[2],
                 c0, channels, right - left, to + left * pitch * size, pitch);
}

/* Whether any byte is 128 or more. */
static bool any_large(const char *bytes, int64_t n)
{
    uint8_t all = 0;
    for (int64_t i = 0; i < n; i++)
        all |= (uint8_t)bytes[i];
    return all & 0x80;
}

/* Whether all taps of a row are in one unit, in every form that may be taken: then there are none but for the pixels of
 * the result. */
static bool is_one_unit(const ck_int8 *d)
{
    return d->window.cols <= ck_form_unit(d->kernel->pairs_saturate ? CK_WORDS : CK_BYTES);
}

/* Pixels from unit to unit of a depthwise convolution, and from tap to tap. */
static int64_t unit_step(const ck_int8 *d) { return is_one_unit(d) ? d->window.col_step : 1; }

static int64_t tap_distance(const ck_int8 *d)
{
    return d->window.cols > 1 ? d->window.col_at[1] - d->window.col_at[0] : 1;
}

/* Taps that a unit holds; of the last one in a row, some may lie beyond the filter, for weights that are 0. */
static int64_t unit_taps(const ck_int8 *d) { return ck_min(CK_UNIT_BYTES, d->window.cols); }

/* Pixels of a row that are laid down. */
static int64_t staged_cols(const ck_int8 *d, const tile *t, const reach *r)
{
    return d->depthwise && is_one_unit(d) ? t->cols : r->cols;
}

/* Columns of the image that n units reach. */
static int64_t unit_reach(const ck_int8 *d, int64_t n)
{
    return (n - 1) * unit_step(d) + (unit_taps(d) - 1) * tap_distance(d) + 1;
}

/* What lays down the units of one panel's channels in one row of the image. */
typedef struct {
    const ck_int8 *d;
    const tile *t;
    const reach *r;
    int64_t image, y, c0, channels;
    ck_form form;
    uint8_t flip;
    char *to, *bytes; /* `bytes` are of as many columns as the units reach */
} unit_row;

/* Units first .. end - 1 by way of `bytes`, with the padding among them.  With `only_small`, returns false instead when a
 * byte is 128 or more. */
static bool lay_units(const unit_row *u, int64_t first, int64_t end, bool only_small)
{
    const ck_int8 *d = u->d;
    const int64_t columns = d->kernel->columns, step = d->pitch * ck_form_size(u->form);
    if (first >= end)
        return true;
    reach part = *u->r;
    part.col0 += first * unit_step(d);
    part.cols = unit_reach(d, end - first);
    lay_row(d, u->t, &part, u->image, u->y, u->c0, u->channels, CK_BYTES, u->flip, u->bytes, columns);
    if (only_small && any_large(u->bytes, part.cols * columns))
        return false;
    d->kernel->gather(u->form, d->image.type == CK_I8, 0, u->to + first * step, step, u->bytes,
                      unit_step(d) * columns, tap_distance(d) * columns, unit_taps(d), end - first);
    return true;
}

/* The same from the image itself, where all pixels that units reach are inside it. */
static void take_units(const unit_row *u, int64_t first, int64_t end)
{
    const ck_int8 *d = u->d;
    const int64_t step = d->pitch * ck_form_size(u->form), *stride = d->image.stride;
    const char *from = ck_channel(&d->image, u->c0) + (u->t->image0 + u->image) * stride[0] + u->y * stride[1] +
                       (u->r->col0 + first * unit_step(d)) * stride[2];
    d->kernel->gather(u->form, d->image.type == CK_I8, u->flip, u->to + first * step, step, from,
                      unit_step(d) * stride[2], tap_distance(d) * stride[2], unit_taps(d), end - first);
}

static bool stage_depthwise(const ck_int8 *d, const tile *t, const reach *r, ck_form form, uint8_t flip,
                            bool only_small, char *to)
{
    const int64_t columns = d->kernel->columns, size = ck_form_size(form), c0 = t->panel0 * columns;
    const int64_t units = staged_cols(d, t, r), channels = ck_min(columns, d->out_channels - c0), step = unit_step(d);
    char *bytes = to + t->images * r->image_pitch * size;
    /* The first unit that starts in the image, and the first that ends beyond it. */
    const int64_t inside = d->window.width - r->col0 - unit_reach(d, 1);
    const int64_t left = ck_min(units, r->col0 < 0 ? ck_ceil_div(-r->col0, step) : 0);
    const int64_t right = ck_max(left, ck_min(units, inside < 0 ? 0 : inside / step + 1));
    if (channels < columns) /* bytes beyond the channels are for columns that nobody reads */
        memset(bytes, 0, (size_t)(unit_reach(d, units) * columns));
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < r->rows; i++) {
            const unit_row u = {d, t, r, n, r->row0 + i, c0, channels, form, flip,
                                to + (n * r->image_pitch + i * d->row_pitch) * size, bytes};
            /* Bytes beyond the last channel are the next row's. */
            const bool readable = channels == columns || (d->image.stride[1] >= columns && u.y + 1 < d->window.height);
            const bool direct = !only_small && readable && ck_int8_in_place(&d->image) && u.y >= 0 &&
                                u.y < d->window.height && left < right;
            if (!lay_units(&u, 0, direct ? left : units, only_small))
                return false;
            if (direct) {
                take_units(&u, left, right);
                lay_units(&u, right, units, false);
            }
        }
    return true;
}

/* Lays the tile's pixels down.  With `only_small`, stops and returns false when a byte is 128 or more. */
static bool stage(const ck_int8 *d, const tile *t, const reach *r, ck_form form, uint8_t flip, bool only_small, char *to)
{
    const int64_t size = ck_form_size(form);
    if (d->depthwise)
        return stage_depthwise(d, t, r, form, flip, only_small, to);
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < r->rows; i++) {
            char *row = to + (n * r->image_pitch + i * d->row_pitch) * size;
            lay_row(d, t, r, n, r->row0 + i, t->group * d->in_channels, d->in_channels, form, flip, row, d->pitch);
            if (only_small && any_large(row, r->cols * d->pitch))
                return false;
        }
    /* The last unit may reach beyond the last pixel. */
    memset(to + t->images * r->image_pitch * size, 0, CK_UNIT_BYTES);
    return true;
}

/* How pixels are read: as they were laid down, flipped there, or where they lie, and flipped in registers. */
typedef struct {
    ck_form form;
    uint8_t flip;
    bool in_place;
} laid;

/* Whether bytes multiply exactly in a panel, whatever the pixels. */
static bool is_narrow(const ck_int8 *d, int64_t group, int64_t panel)
{
    return !d->kernel->pairs_saturate ||
           ((const int32_t *)(d->packed + d->peaks_at))[group * panels_of(d) + panel] <= CK_NARROW_PAIR;
}

/* Lays pixels down for panels of one kind, if they need to be: bytes if they give exact sums, else words. */
static laid lay_down(const ck_int8 *d, const tile *t, const reach *r, bool narrow, char *to)
{
    const bool in_place = reads_in_place(d);
    const laid bytes = {CK_BYTES, d->image.type == CK_I8 ? 0x80 : 0, in_place};
    const laid small = {CK_BYTES, 0, false}, words = {CK_WORDS, 0, false};
    if (in_place)
        return bytes;
    if (narrow) {
        stage(d, t, r, CK_BYTES, bytes.flip, false, to);
        return bytes;
    }
    if (stage(d, t, r, CK_BYTES, 0, true, to))
        return small;
    stage(d, t, r, CK_WORDS, 0, false, to);
    return words;
}

/* What the columns of one panel start from, all tap rows taken, and what the epilogue takes from arrays. */
typedef struct {
    int32_t start[CK_INT8_MOST_COLUMNS];
    float scale[CK_INT8_MOST_COLUMNS], bias[CK_INT8_MOST_COLUMNS];
} factors;

static const int32_t *sums_of(const ck_int8 *d, int64_t group, int64_t panel)
{
    return (const int32_t *)(d->packed + d->sums_at) +
           (group * panels_of(d) + panel) * d->window.rows * d->kernel->columns;
}

/* What pixels are larger by than they should be: their zero point, and 128 if they were shifted. */
static uint32_t excess_of(const ck_int8 *d, uint8_t flip) { return (uint32_t)(d->input_zero_point + flip); }

static void gather_factors(const ck_int8 *d, int64_t group, int64_t panel, uint8_t flip, factors *to)
{
    const int64_t columns = d->kernel->columns, n = ck_min(columns, d->out_channels - panel * columns);
    const int64_t first = group * d->out_channels + panel * columns;
    const int32_t *sums = sums_of(d, group, panel);
    memset(to, 0, sizeof *to);
    for (int64_t j = 0; j < n; j++) {
        uint32_t total = 0;
        for (int64_t a = 0; a < d->window.rows; a++)
            total += (uint32_t)sums[a * columns + j];
        to->start[j] = (int32_t)((d->integer_bias ? (uint32_t)d->integer_bias[first + j] : 0u) -
                                 excess_of(d, flip) * total);
        to->scale[j] = d->scale ? d->scale[d->scale_per_channel ? first + j : 0] : 0.0f;
        to->bias[j] = d->bias ? d->bias[first + j] : -0.0f;
    }
}

/* Tap rows first .. end - 1 are those that meet a row of the image; the others are left out, unless that is all. */
typedef struct {
    int64_t first, end;
} tap_rows;

static tap_rows tap_rows_of(const ck_int8 *d, int64_t y)
{
    const ck_window *w = &d->window;
    tap_rows taps = {0, w->rows};
    while (taps.first < taps.end && y * w->row_step + w->row_at[taps.first] < 0)
        taps.first++;
    while (taps.end > taps.first && y * w->row_step + w->row_at[taps.end - 1] >= w->height)
        taps.end--;
    return taps.first < taps.end ? taps : (tap_rows){0, w->rows};
}

/* Gives back what was taken off for the tap rows left out. */
static void correct(const ck_int8 *d, int64_t group, int64_t panel, uint8_t flip, tap_rows taps, int32_t *start)
{
    const int32_t *sums = sums_of(d, group, panel);
    for (int64_t a = 0; a < d->window.rows; a++)
        if (a < taps.first || a >= taps.end)
            for (int64_t j = 0; j < d->kernel->columns; j++)
                start[j] = (int32_t)((uint32_t)start[j] +
                                     excess_of(d, flip) * (uint32_t)sums[a * d->kernel->columns + j]);
}

/* Parts of a participant's scratch. */
typedef struct {
    char *pixels, *side, *out;
    int32_t *sums;
    factors *factors;
} parts;

typedef struct {
    const ck_int8 *d;
    const tile *t;
    laid how;
    const char *pixels; /* of the tile's first row and column, and the bytes to the next */
    int64_t image_step, row_step, pixel_step;
    int64_t tap_row_steps;
    const parts *scratch;
} task;

/* `count` pixels of a row of the tile, from column `col` on. */
typedef struct {
    int64_t image, row, col, count;
    tap_rows taps;
} piece;

/* A block of steps of one panel, which stays in the cache while all pieces pass. */
typedef struct {
    int64_t panel, first, end;
} block;

static int64_t size_of(ck_type type) { return type == CK_I8 || type == CK_U8 ? 1 : 4; }

static int64_t place_in(const ck_int8_image *image, const tile *t, const piece *p)
{
    return (t->image0 + p->image) * image->stride[0] + (t->row0 + p->row) * image->stride[1] +
           (t->col0 + p->col) * image->stride[2];
}

/* Where a piece's results of one panel go: to the array, or to scratch that is stored from there. */
typedef struct {
    ck_int8_epilogue epilogue;
    int64_t c0, channels, at;
    const char *side;
    int64_t side_step;
    char *out;
    int64_t out_step;
} destination;

static destination destination_of(const task *k, const piece *p, int64_t panel)
{
    const ck_int8 *d = k->d;
    const int64_t columns = d->kernel->columns, first = panel * columns;
    const factors *f = &k->scratch->factors[panel - k->t->panel0];
    destination to = {
        .epilogue = {.out = d->out.type, .side = d->side.type, .scale = f->scale, .bias = f->bias,
                     .side_scale = d->side_scale, .low = d->low, .high = d->high,
                     .zero_point = d->output_zero_point, .relu = d->relu},
        .c0 = k->t->group * d->out_channels + first,
        .channels = ck_min(columns, d->out_channels - first),
        .at = place_in(&d->out, k->t, p),
        .side = k->scratch->side,
        .out = k->scratch->out,
        .out_step = columns * size_of(d->out.type),
    };
    if (ck_int8_in_place(&d->out)) {
        to.out = (char *)ck_channel(&d->out, to.c0) + to.at;
        to.out_step = d->out.stride[2];
    }
    if (d->side.type == CK_TYPES)
        return to;
    const int64_t side_at = place_in(&d->side, k->t, p);
    if (ck_int8_in_place(&d->side)) {
        to.side = ck_channel(&d->side, to.c0) + side_at;
        to.side_step = d->side.stride[2];
    } else {
        ck_int8_load_side(d->kernel, &d->side, side_at, to.c0, to.channels, p->count, k->scratch->side, columns);
        to.side_step = columns * size_of(d->side.type);
    }
    return to;
}

/* Register tiles take equal parts of the piece, since the time of a part is not far from proportional to its pixels. */
static void multiply(const task *k, const piece *p, ck_int8_products *x)
{
    const ck_int8_kernel *kernel = k->d->kernel;
    const ck_int8_dot_fn dot = (k->d->depthwise ? kernel->depthwise : kernel->dot)[k->how.form];
    const uint32_t count = (uint32_t)p->count, most = (uint32_t)rows_of(k->d, k->how.form);
    const uint32_t tiles = (count + most - 1) / most, least = count / tiles, larger = count % tiles;
    for (uint32_t i = 0; i < tiles; i++) {
        const int64_t n = least + (i < larger);
        dot(n, x);
        x->a = (const char *)x->a + n * x->a_step;
        x->c += n * kernel->columns;
        x->side += n * x->side_step;
        x->out += n * x->out_step;
    }
}

/* Adds the steps of a block that the piece's taps have to its sums, and finishes them after the last of its steps: in
 * registers where that is a whole panel of bytes. */
static void run_block(const task *k, const piece *p, const block *b, int32_t *sums)
{
    const ck_int8 *d = k->d;
    const ck_int8_form *f = &d->form[k->how.form];
    const int64_t columns = d->kernel->columns;
    const int64_t begin = p->taps.first * k->tap_row_steps, last = p->taps.end * k->tap_row_steps;
    const int64_t from = ck_max(b->first, begin), end = ck_min(b->end, last);
    if (from >= end)
        return;
    ck_int8_products x = {
        .a = k->pixels + p->image * k->image_step + p->row * k->row_step + p->col * k->pixel_step,
        .a_step = k->pixel_step,
        .at = f->at + from,
        .steps = end - from,
        .b = d->packed + f->packed_at +
             ((k->t->group * panels_of(d) + b->panel) * f->steps + from) * columns * CK_UNIT_BYTES,
        .flip = k->how.in_place ? k->how.flip : 0,
        .c = sums,
        .side = k->scratch->side,
        .out = k->scratch->out,
    };
    int32_t start[CK_INT8_MOST_COLUMNS];
    if (from == begin) {
        x.start = k->scratch->factors[b->panel - k->t->panel0].start;
        if (p->taps.end - p->taps.first < d->window.rows) {
            memcpy(start, x.start, sizeof start);
            correct(d, k->t->group, b->panel, k->how.flip, p->taps, start);
            x.start = start;
        }
    }
    if (end < last) {
        multiply(k, p, &x);
        return;
    }
    const destination to = destination_of(k, p, b->panel);
    if (to.channels == columns && size_of(d->out.type) == 1) {
        x.epilogue = &to.epilogue;
        x.side = to.side;
        x.side_step = to.side_step;
        x.out = to.out;
        x.out_step = to.out_step;
        multiply(k, p, &x);
    } else {
        multiply(k, p, &x);
        d->kernel->finish(p->count, to.channels, sums, &to.epilogue, to.side, to.side_step, to.out, to.out_step);
    }
    if (!ck_int8_in_place(&d->out))
        ck_int8_store(d->kernel, &d->out, to.at, to.c0, to.channels, p->count, to.out, columns);
}

static bool is_wanted(const task *k, int64_t panel, bool narrow)
{
    return is_narrow(k->d, k->t->group, panel) == narrow;
}

typedef void (*piece_fn)(const task *k, const piece *p, void *ctx);

/* Whether the rows of a depthwise tile are one long row, of pixels that are laid down and of results. */
static bool in_one_row(const task *k)
{
    const ck_int8 *d = k->d;
    const int64_t cols = k->t->cols;
    return d->depthwise && k->row_step == cols * k->pixel_step && d->out.stride[1] == cols * d->out.stride[2] &&
           (d->side.type == CK_TYPES || d->side.stride[1] == cols * d->side.stride[2]);
}

static void each_piece(const task *k, piece_fn fn, void *ctx)
{
    const int64_t most = piece_of(k->d, k->how.form), pixels = k->t->rows * k->t->cols;
    if (in_one_row(k)) {
        for (int64_t n = 0; n < k->t->images; n++)
            for (int64_t j = 0; j < pixels; j += most) {
                const piece p = {n, 0, j, ck_min(most, pixels - j), {0, k->d->window.rows}};
                fn(k, &p, ctx);
            }
        return;
    }
    for (int64_t n = 0; n < k->t->images; n++)
        for (int64_t i = 0; i < k->t->rows; i++)
            for (int64_t j = 0; j < k->t->cols; j += most) {
                const piece p = {n, i, j, ck_min(most, k->t->cols - j), tap_rows_of(k->d, k->t->row0 + i)};
                fn(k, &p, ctx);
            }
}

/* All panels of a piece, so that its results are written together. */
static void run_all_panels(const task *k, const piece *p, void *narrow)
{
    for (int64_t panel = k->t->panel0; panel < k->t->panel0 + k->t->panels; panel++)
        if (is_wanted(k, panel, *(bool *)narrow)) {
            const block all = {panel, 0, k->d->form[k->how.form].steps};
            run_block(k, p, &all, k->scratch->sums);
        }
}

static bool in_blocks(const task *k)
{
    const ck_int8_form *f = &k->d->form[k->how.form];
    return f->steps > f->block_steps;
}

static void run_one_block(const task *k, const piece *p, void *ctx)
{
    int32_t *sums = k->scratch->sums;
    if (in_blocks(k))
        sums += ((p->image * k->t->rows + p->row) * k->t->cols + p->col) * k->d->kernel->columns;
    run_block(k, p, ctx, sums);
}

static void run_panels(const task *k, bool narrow)
{
    const ck_int8_form *f = &k->d->form[k->how.form];
    /* Planes are written one after the other: a piece of each would be more streams than a cache follows. */
    if (!in_blocks(k) && ck_int8_in_place(&k->d->out)) {
        each_piece(k, run_all_panels, &narrow);
        return;
    }
    for (int64_t panel = k->t->panel0; panel < k->t->panel0 + k->t->panels; panel++)
        for (int64_t first = 0; first < f->steps && is_wanted(k, panel, narrow); first += f->block_steps) {
            block b = {panel, first, ck_min(f->steps, first + f->block_steps)};
            each_piece(k, run_one_block, &b);
        }
}

static bool fits(const ck_int8 *d, const tile *t, const reach *r)
{
    const int64_t columns = d->kernel->columns, size = d->kernel->pairs_saturate ? 2 : 1;
    int64_t most = 0;
    for (int form = CK_BYTES; form < CK_FORMS; form++) {
        const ck_int8_form *f = &d->form[form];
        const int64_t line = d->depthwise ? t->rows * t->cols : t->cols;
        const int64_t count = f->steps ? ck_min(line, piece_of(d, (ck_form)form)) : 0;
        const int64_t kept = f->steps > f->block_steps ? t->images * t->rows * t->cols : count;
        if (kept * columns * 4 > d->sums_bytes)
            return false;
        most = ck_max(most, count);
    }
    const int64_t pixels = staged_cols(d, t, r);
    const int64_t beyond = d->depthwise ? unit_reach(d, pixels) * columns : CK_UNIT_BYTES;
    const bool staged = reads_in_place(d) || (t->images * r->image_pitch * size + beyond <= d->stage_bytes &&
                                              pixels * d->pitch <= d->row_pitch);
    return staged &&
           t->panels * (int64_t)sizeof(factors) <= d->factor_bytes &&
           (d->side.type == CK_TYPES || ck_int8_in_place(&d->side) ||
            most * columns * size_of(d->side.type) <= d->side_bytes) &&
           (ck_int8_in_place(&d->out) || most * columns * size_of(d->out.type) <= d->out_bytes);
}

static task task_of(const ck_int8 *d, const tile *t, const reach *r, laid how, const parts *scratch)
{
    const ck_window *w = &d->window;
    const int64_t size = ck_form_size(how.form);
    task k = {.d = d, .t = t, .how = how, .scratch = scratch, .tap_row_steps = d->form[how.form].steps / w->rows};
    if (how.in_place) {
        const int64_t *stride = d->image.stride;
        k.pixels = ck_channel(&d->image, t->group * d->in_channels) + t->image0 * stride[0] + t->row0 * stride[1] +
                   t->col0 * stride[2];
        k.image_step = stride[0];
        k.row_step = stride[1];
        k.pixel_step = stride[2];
    } else {
        k.pixels = scratch->pixels;
        k.image_step = r->image_pitch * size;
        k.row_step = w->row_step * d->row_pitch * size;
        k.pixel_step = w->col_step / (d->depthwise ? unit_step(d) : 1) * d->pitch * size;
    }
    return k;
}

static void run_tile(const ck_int8 *d, const tile *t, const reach *r, const parts *scratch, ck_worker *worker)
{
    for (int narrow = 1; narrow >= 0; narrow--) {
        int64_t wanted = 0;
        for (int64_t panel = t->panel0; panel < t->panel0 + t->panels; panel++)
            wanted += is_narrow(d, t->group, panel) == (bool)narrow;
        if (wanted == 0)
            continue;
        if (ck_worker_stop(worker))
            return;
        const task k = task_of(d, t, r, lay_down(d, t, r, narrow, scratch->pixels), scratch);
        for (int64_t panel = t->panel0; panel < t->panel0 + t->panels; panel++)
            if (is_wanted(&k, panel, narrow))
                gather_factors(d, t->group, panel, k.how.flip, &scratch->factors[panel - t->panel0]);
        run_panels(&k, narrow);
    }
}

static void run_unit(void *ctx, int64_t unit, ck_worker *worker)
{
    const ck_int8 *d = ctx;
    const tile t = tile_of(d, unit);
    const reach r = reach_of(d, &t);
    char *start = ck_worker_scratch(worker), *sums = start + d->stage_bytes, *side = sums + d->sums_bytes;
    char *out = side + d->side_bytes;
    const parts scratch = {start, side, out, (int32_t *)sums, (factors *)(out + d->out_bytes)};
    if (!fits(d, &t, &r)) {
        ck_worker_fail(worker, CK_BAD_PLAN);
        return;
    }
    if (!d->depthwise) {
        run_tile(d, &t, &r, &scratch, worker);
        return;
    }
    for (int64_t panel = t.panel0; panel < t.panel0 + t.panels; panel++) {
        tile one = t;
        one.panel0 = panel;
        one.panels = 1;
        run_tile(d, &one, &r, &scratch, worker);
    }
}

int ck_int8_run_packed(const ck_int8 *d, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)d;
    job.fn = run_unit;
    job.chunks = d->units;
    job.scratch_bytes = (size_t)(d->stage_bytes + d->sums_bytes + d->side_bytes + d->out_bytes + d->factor_bytes);
    return ck_pool_run(&job);
}

int ck_int8_run_all(const ck_int8 *d, const ck_job *limits)
{
    int code = ck_int8_pack(d, limits);
    return code == CK_OK ? ck_int8_run_packed(d, limits) : code;
}
