#include "int8_image.h"
#include "product.h"

#include <string.h>

typedef struct {
    int64_t image0, images, row0, rows, col0, cols; /* of the result */
    int64_t group, panel0, panels;
} tile;

/* Pixels that meet one panel before the next; their sums stay in the first-level cache if they are stored at all. */
enum { PIECE_BYTES = 8192 };

/* Of a line of the cache. */
enum { CK_LINE_BYTES = 64 };

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
    if (d->depthwise) {
        const ck_int8_columns c = ck_int8_columns_of(d, form);
        const int64_t unit = d->kernel->columns * CK_UNIT_BYTES, row = unit * d->row_pitch;
        for (int64_t i = 0; i < c.rows * c.steps; i++)
            *at++ = i / w->cols % c.unit_rows * row + (w->col_at[i % w->cols] - col0) * unit;
        return;
    }
    for (const ck_int8_run *run = d->runs; run < d->runs + d->run_count; run++) {
        const int64_t row = (w->row_at[run->row_tap] - row0) * d->row_pitch;
        for (int64_t term = 0; term < run->count; term += ck_form_unit(form)) {
            *at++ = (row + (w->col_at[run->col_tap] - col0) * d->pitch + term) * size;
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

/* Lays the tile's pixels down.  With `only_small`, stops and returns false when a byte is 128 or more. */
static bool stage(const ck_int8 *d, const tile *t, const reach *r, ck_form form, uint8_t flip, bool only_small, char *to)
{
    const int64_t size = ck_form_size(form);
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

/* Memory that the next piece reads or writes, of which each register tile of this one asks for a part: the tiles of a
 * piece go through it line by line of all their pixels at once, in no order that a prefetcher follows. */
typedef struct {
    const char *pixels, *out;
    int64_t pixel_bytes, out_bytes;
} next_piece;

static void fetch(const char *from, int64_t bytes, int64_t part, int64_t parts, const bool to_write)
{
    for (int64_t at = bytes * part / parts, end = bytes * (part + 1) / parts; at < end; at += CK_LINE_BYTES)
        if (to_write)
            __builtin_prefetch(from + at, 1, 2);
        else
            __builtin_prefetch(from + at, 0, 2);
}

/* Where pixels of both are read and written where they lie, side by side. */
static next_piece next_of(const task *k, const piece *p, const char *pixels)
{
    const ck_int8 *d = k->d;
    const int64_t count = ck_min(p->count, k->t->cols - p->col - p->count), out_step = d->out.stride[2];
    next_piece next = {0};
    if (!k->how.in_place || d->groups > 1 || count <= 0)
        return next;
    if (k->pixel_step == d->in_channels) {
        next.pixels = pixels + p->count * k->pixel_step;
        next.pixel_bytes = count * k->pixel_step;
    }
    if (ck_int8_in_place(&d->out) && out_step == d->out_channels * size_of(d->out.type)) {
        next.out = d->out.data + place_in(&d->out, k->t, p) + p->count * out_step;
        next.out_bytes = count * out_step;
    }
    return next;
}

/* Register tiles take equal parts of the piece, since the time of a part is not far from proportional to its pixels. */
static void multiply(const task *k, const piece *p, int64_t panel, ck_int8_products *x)
{
    const ck_int8_kernel *kernel = k->d->kernel;
    const ck_int8_dot_fn dot = (k->d->depthwise ? kernel->depthwise : kernel->dot)[k->how.form];
    const uint32_t count = (uint32_t)p->count, most = (uint32_t)rows_of(k->d, k->how.form);
    const uint32_t tiles = (count + most - 1) / most, least = count / tiles, larger = count % tiles;
    const next_piece next = next_of(k, p, x->a);
    const int64_t parts = tiles * k->t->panels, first = (panel - k->t->panel0) * tiles;
    for (uint32_t i = 0; i < tiles; i++) {
        fetch(next.pixels, next.pixel_bytes, first + i, parts, false);
        fetch(next.out, next.out_bytes, first + i, parts, true);
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
        if (!d->depthwise && p->taps.end - p->taps.first < d->window.rows) {
            memcpy(start, x.start, sizeof start);
            correct(d, k->t->group, b->panel, k->how.flip, p->taps, start);
            x.start = start;
        }
    }
    if (end < last) {
        multiply(k, p, b->panel, &x);
        return;
    }
    const destination to = destination_of(k, p, b->panel);
    if (to.channels == columns && size_of(d->out.type) == 1) {
        x.epilogue = &to.epilogue;
        x.side = to.side;
        x.side_step = to.side_step;
        x.out = to.out;
        x.out_step = to.out_step;
        multiply(k, p, b->panel, &x);
    } else {
        multiply(k, p, b->panel, &x);
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

static void each_piece(const task *k, piece_fn fn, void *ctx)
{
    const int64_t most = piece_of(k->d, k->how.form);
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

/* Whether the units of a row fit, and the rows that they are laid down from. */
static bool depthwise_fits(const ck_int8 *d, const reach *r)
{
    int64_t most = 0;
    for (int form = CK_BYTES; form < CK_FORMS; form++)
        if (d->form[form].steps)
            most = ck_max(most, ck_int8_unit_bytes(d, (ck_form)form, r->cols));
    return r->cols <= d->row_pitch && most + ck_int8_row_bytes(d, r->cols) <= d->stage_bytes;
}

static bool fits(const ck_int8 *d, const tile *t, const reach *r)
{
    const int64_t columns = d->kernel->columns, size = d->kernel->pairs_saturate ? 2 : 1;
    int64_t most = 0;
    for (int form = CK_BYTES; form < CK_FORMS; form++) {
        const ck_int8_form *f = &d->form[form];
        const int64_t count = f->steps ? ck_min(t->cols, piece_of(d, (ck_form)form)) : 0;
        const int64_t kept = !d->depthwise && f->steps > f->block_steps ? t->images * t->rows * t->cols : count;
        if (kept * columns * 4 > d->sums_bytes)
            return false;
        most = ck_max(most, count);
    }
    const bool staged = d->depthwise ? depthwise_fits(d, r)
                                     : reads_in_place(d) ||
                                           (t->images * r->image_pitch * size + CK_UNIT_BYTES <= d->stage_bytes &&
                                            r->cols * d->pitch <= d->row_pitch);
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
        k.pixel_step = w->col_step * d->pitch * size;
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

/* The units of some rows of results, of the channels of one panel. */
typedef struct {
    const ck_int8 *d;
    const tile *t;
    const reach *r;
    ck_int8_columns columns;
    int64_t image, row0, rows, panel; /* row0: of the image, where the first tap row of the first result is */
    ck_form form;
    uint8_t flip;
    char *to, *bytes; /* `bytes` are for CK_UNIT_BYTES rows of the reach */
} column_units;

typedef struct {
    int64_t left, right;
} inside;

static void each_twice(int64_t n, const char *restrict from, char *restrict to)
{
    for (int64_t i = 0; i < n; i++)
        to[2 * i] = to[2 * i + 1] = from[i];
}

/* The channels of each pixel as often as results want them; `bytes` hold `columns` of each. */
static void repeat_channels(const ck_int8 *d, int64_t c0, int64_t channels, int64_t n, char *bytes)
{
    const int64_t columns = d->kernel->columns, m = d->multiplier;
    char pixel[CK_INT8_MOST_COLUMNS], half[CK_INT8_MOST_COLUMNS];
    uint8_t from[CK_INT8_MOST_COLUMNS];
    for (int64_t j = 0, c = 0, same = c0 % m; j < channels; j++) {
        from[j] = (uint8_t)c;
        if (++same == m)
            same = 0, c++;
    }
    for (; n > 0; n--, bytes += columns) {
        memcpy(pixel, bytes, (size_t)columns);
        if (m == 2) {
            each_twice(columns / 2, pixel, bytes);
        } else if (m == 4) {
            each_twice(columns / 4, pixel, half);
            each_twice(columns / 2, half, bytes);
        } else {
            for (int64_t j = 0; j < channels; j++)
                bytes[j] = pixel[from[j]];
        }
    }
}

/* Whether a panel's worth of channels from channel c on can be read of every pixel of row y, where they lie: those beyond
 * the last one are the next pixel's or the next row's. */
static bool is_readable(const ck_int8 *d, int64_t y, int64_t c)
{
    const int64_t columns = d->kernel->columns;
    const bool whole = c + columns <= d->out_channels / d->multiplier;
    return ck_int8_in_place(&d->image) && y >= 0 && y + !whole < d->window.height &&
           (whole || d->image.stride[1] >= columns);
}

/* The columns of the reach that are inside the image. */
static inside inside_of(const ck_int8 *d, const reach *r)
{
    const int64_t left = ck_min(r->cols, ck_max(0, -r->col0));
    return (inside){left, ck_max(left, ck_min(r->cols, d->window.width - r->col0))};
}

/* A panel's worth of channels of a row of the reach that is readable, and padding beside it. */
static void copy_row(const column_units *u, int64_t y, int64_t c, char *to)
{
    const ck_int8 *d = u->d;
    const int64_t columns = d->kernel->columns, *stride = d->image.stride;
    const inside in = inside_of(d, u->r);
    const char *from = ck_channel(&d->image, c) + (u->t->image0 + u->image) * stride[0] + y * stride[1] +
                       (u->r->col0 + in.left) * stride[2];
    memset(to, (uint8_t)d->input_zero_point, (size_t)(in.left * columns));
    memset(to + in.right * columns, (uint8_t)d->input_zero_point, (size_t)((u->r->cols - in.right) * columns));
    for (int64_t j = in.left; j < in.right; j++, from += stride[2])
        for (int64_t i = 0; i < columns; i += 8) /* columns are whole pairs of units */
            memcpy(to + j * columns + i, from + i, 8);
}

/* One row of units by way of `bytes`, with the padding among them; `y` is its first row of pixels.  With `only_small`,
 * returns false instead when a byte is 128 or more. */
static bool lay_units(const column_units *u, int64_t y, int64_t taps, bool only_small, char *to)
{
    const ck_int8 *d = u->d;
    const int64_t columns = d->kernel->columns, m = d->multiplier, c0 = u->panel * columns, unit = columns * CK_UNIT_BYTES;
    const int64_t channels = ck_min(columns, d->out_channels - c0), first = c0 / m, last = (c0 + channels - 1) / m;
    const int64_t row_bytes = u->r->cols * columns;
    for (int64_t a = 0; a < taps; a++) {
        char *row = u->bytes + a * row_bytes;
        const int64_t here = y + a * u->columns.tap_pitch;
        if (is_readable(d, here, first))
            copy_row(u, here, first, row);
        else
            lay_row(d, u->t, u->r, u->image, here, first, last - first + 1, CK_BYTES, 0, row, columns);
        if (m > 1)
            repeat_channels(d, c0, channels, u->r->cols, row);
    }
    if (only_small && any_large(u->bytes, taps * row_bytes))
        return false;
    d->kernel->gather(u->form, d->image.type == CK_I8, u->flip, to, unit, u->bytes, columns, row_bytes, taps, u->r->cols);
    return true;
}

/* The same from the image itself, of which all those rows are inside. */
static void take_units(const column_units *u, int64_t y, int64_t taps, char *to)
{
    const ck_int8 *d = u->d;
    const int64_t columns = d->kernel->columns, unit = columns * CK_UNIT_BYTES, *stride = d->image.stride;
    const int64_t padding = ck_form_unit(u->form) * columns;
    const inside in = inside_of(d, u->r);
    fill(u->form, u->flip, d->input_zero_point, to, in.left * padding);
    fill(u->form, u->flip, d->input_zero_point, to + in.right * unit, (u->r->cols - in.right) * padding);
    const char *from = ck_channel(&d->image, u->panel * columns) + (u->t->image0 + u->image) * stride[0] +
                       y * stride[1] + (u->r->col0 + in.left) * stride[2];
    d->kernel->gather(u->form, d->image.type == CK_I8, u->flip, to + in.left * unit, unit, from, stride[2],
                      u->columns.tap_pitch * stride[1], taps, in.right - in.left);
}

/* Lays down what some rows of results meet.  With `only_small`, as above. */
static bool lay_columns(const column_units *u, bool only_small)
{
    const ck_int8 *d = u->d;
    const int64_t columns = d->kernel->columns, terms = ck_form_unit(u->form), pitch = u->columns.tap_pitch;
    const int64_t met = d->window.rows + u->columns.rows - 1, c0 = u->panel * columns;
    const bool plain = !only_small && d->multiplier == 1;
    for (int64_t i = 0; i < u->columns.unit_rows; i++) {
        const int64_t taps = ck_min(terms, met - i * terms), y = u->row0 + i * terms * pitch, end = y + (taps - 1) * pitch;
        char *to = u->to + i * d->row_pitch * columns * CK_UNIT_BYTES;
        if (plain && is_readable(d, y, c0) && is_readable(d, end, c0))
            take_units(u, y, taps, to);
        else if (!lay_units(u, y, taps, only_small, to))
            return false;
    }
    return true;
}

/* Lays down what some rows of results meet, in the form that gives exact sums of a panel. */
static laid lay_exactly(column_units *u, bool narrow)
{
    u->form = CK_BYTES;
    u->columns = ck_int8_columns_of(u->d, CK_BYTES);
    u->flip = narrow && u->d->image.type == CK_I8 ? 0x80 : 0;
    if (!lay_columns(u, !narrow)) {
        u->form = CK_WORDS;
        u->columns = ck_int8_columns_of(u->d, CK_WORDS);
        lay_columns(u, false);
    }
    return (laid){u->form, u->flip, false};
}

/* Asks for a panel's share of the rows that the next rows of results are the first to meet: panel after panel, memory is
 * read in pieces that no prefetcher follows. */
static void fetch_rows(const column_units *u, int64_t step)
{
    const ck_int8 *d = u->d;
    const int64_t *stride = d->image.stride, panels = u->t->panels, bytes = u->r->cols * stride[2];
    const int64_t first = u->row0 + (d->window.rows + u->columns.rows - 2) * u->columns.tap_pitch + 1;
    const int64_t number = u->panel - u->t->panel0, begin = bytes * number / panels, end = bytes * (number + 1) / panels;
    if (!ck_int8_in_place(&d->image) || stride[2] <= 0)
        return;
    for (int64_t y = ck_max(0, first); y < ck_min(d->window.height, first + step); y++) {
        const char *row = d->image.data + (u->t->image0 + u->image) * stride[0] + y * stride[1] + u->r->col0 * stride[2];
        for (int64_t at = begin; at < end; at += CK_LINE_BYTES)
            __builtin_prefetch(row + at, 0, 2);
    }
}

/* Each channel alone: some rows of results at a time, all their channels, so that memory is walked through in order. */
static void run_depthwise(const ck_int8 *d, const tile *t, const reach *r, const parts *scratch, ck_worker *worker)
{
    const ck_window *w = &d->window;
    const int64_t columns = d->kernel->columns, together = ck_int8_columns_of(d, CK_BYTES).rows;
    char *bytes = scratch->pixels + d->stage_bytes - ck_int8_row_bytes(d, r->cols);
    if (t->panel0 + t->panels == panels_of(d) && d->out_channels % columns) /* what is beyond the channels, nobody reads */
        memset(bytes, 0, (size_t)ck_int8_row_bytes(d, r->cols));
    for (int64_t panel = t->panel0; panel < t->panel0 + t->panels; panel++) {
        const uint8_t flip = is_narrow(d, 0, panel) && d->image.type == CK_I8 ? 0x80 : 0;
        gather_factors(d, 0, panel, flip, &scratch->factors[panel - t->panel0]);
    }
    for (int64_t n = 0; n < t->images; n++)
        for (int64_t i = 0; i < t->rows && !ck_worker_stop(worker); i += together)
            for (int64_t panel = t->panel0; panel < t->panel0 + t->panels; panel++) {
                column_units u = {.d = d, .t = t, .r = r, .image = n, .panel = panel, .to = scratch->pixels, .bytes = bytes,
                                  .row0 = (t->row0 + i) * w->row_step + w->row_at[0]};
                const laid how = lay_exactly(&u, is_narrow(d, 0, panel));
                fetch_rows(&u, together * w->row_step);
                const task k = {.d = d, .t = t, .how = how, .scratch = scratch,
                                .pixels = scratch->pixels, .pixel_step = w->col_step * columns * CK_UNIT_BYTES,
                                .tap_row_steps = u.columns.steps};
                const block all = {panel, 0, together * u.columns.steps};
                const int64_t most = piece_of(d, k.how.form), rows = ck_min(together, t->rows - i);
                for (int64_t row = 0; row < rows; row++)
                    for (int64_t j = 0; j < t->cols; j += most) {
                        const piece p = {n, i + row, j, ck_min(most, t->cols - j), {row, row + 1}};
                        run_block(&k, &p, &all, scratch->sums);
                    }
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
    if (d->depthwise)
        run_depthwise(d, &t, &r, &scratch, worker);
    else
        run_tile(d, &t, &r, &scratch, worker);
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
