/* Tests of the depthwise kernels: every one of the table that this CPU can run, against plain loops, in memory of which
 * not an element more is allocated than the contract lets a kernel touch. */
#include "check.h"
#include "convert.h"
#include "depthwise_kernels.h"

#include <math.h>
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

static double get(const ck_depthwise_kernel *k, const void *memory, int64_t i)
{
    return k->arithmetic == CK_F64 ? ((const double *)memory)[i] : (double)((const float *)memory)[i];
}

static void set(const ck_depthwise_kernel *k, void *memory, int64_t i, double value)
{
    if (k->arithmetic == CK_F64)
        ((double *)memory)[i] = value;
    else
        ((float *)memory)[i] = (float)value;
}

/* `count` small whole numbers. */
static void *numbers(const ck_depthwise_kernel *k, int64_t count)
{
    void *memory = malloc((size_t)(count * ck_size(k->arithmetic)));
    for (int64_t i = 0; i < count; i++)
        set(k, memory, i, (double)between(-4, 4));
    return memory;
}

static void *copy_of(const ck_depthwise_kernel *k, const void *memory, int64_t count)
{
    size_t bytes = (size_t)(count * ck_size(k->arithmetic));
    return memcpy(malloc(bytes), memory, bytes);
}

/* Checks that memory holds what was expected, gaps that no one may write included. */
static bool same(const ck_depthwise_kernel *k, const void *a, const void *b, int64_t count)
{
    bool good = true;
    for (int64_t i = 0; i < count; i++)
        good = good && get(k, a, i) == get(k, b, i);
    return good;
}

static void try_planes(const ck_depthwise_kernel *k, bool grid, int64_t positions, int64_t lanes)
{
    int64_t tap_rows = between(1, 9), tap_cols = between(1, 4), taps = tap_rows * tap_cols, at[MOST_TAPS];
    int64_t x_step = between(0, 1) ? between(1, 5) : lanes + between(0, 3), last = 0, out_step = lanes + between(0, 3);
    for (int64_t t = 0; t < taps; t++) {
        at[t] = grid && t >= tap_cols ? at[t - tap_cols] + x_step : between(0, 50);
        last = ck_max(last, at[t]);
    }
    int64_t outs = (positions - 1) * out_step + lanes;
    void *x = numbers(k, last + (positions - 1) * x_step + lanes), *w = numbers(k, taps);
    void *out = numbers(k, outs), *expected = copy_of(k, out, outs);
    bool add = between(0, 1);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t l = 0; l < lanes; l++) {
            double sum = add ? get(k, out, p * out_step + l) : 0;
            for (int64_t t = 0; t < taps; t++)
                sum += get(k, x, at[t] + p * x_step + l) * get(k, w, t);
            set(k, expected, p * out_step + l, sum);
        }
    if (grid)
        k->by_grid(positions, lanes, x, x_step, at, tap_rows, tap_cols, w, out, out_step, add);
    else
        k->by_tap(positions, lanes, x, x_step, at, taps, w, out, out_step, add);
    CHECK(same(k, out, expected, outs));
    free(x), free(w), free(out), free(expected);
}

/* Memory for numbers at offsets of either sign: `lowest` and `highest` are the extremes of those that are used. */
static void *numbers_between(const ck_depthwise_kernel *k, int64_t lowest, int64_t highest, void **zero)
{
    void *memory = numbers(k, highest - lowest + 1);
    *zero = (char *)memory - lowest * ck_size(k->arithmetic);
    return memory;
}

/* The lowest (`sign` -1) or highest (1) offset of `count` steps. */
static int64_t reach(int64_t count, int64_t step, int sign) { return sign * step > 0 ? (count - 1) * step : 0; }

/* As `numbers`, now and then aligned as stores that bypass the caches need it. */
static void *numbers_aligned(const ck_depthwise_kernel *k, int64_t count)
{
    void *memory = numbers(k, count), *aligned;
    size_t bytes = (size_t)(count * ck_size(k->arithmetic));
    if (between(0, 1) || posix_memalign(&aligned, 64, bytes))
        return memory;
    memcpy(aligned, memory, bytes);
    free(memory);
    return aligned;
}

static void try_rows(const ck_depthwise_kernel *k, int64_t positions, int64_t lanes)
{
    int64_t rows = between(1, 2), tap_rows = between(1, 4), tap_cols = between(0, 8), most = tap_rows + rows - 1;
    int64_t x_first = between(0, most), x_end = between(0, 2) ? most : between(x_first, most);
    bool empty = x_first >= x_end || tap_cols == 0, add = between(0, 1);
    bool left = tap_cols > 1 && between(0, 1), right = tap_cols > 1 && between(0, 1);
    int64_t x_tap = lanes + between(0, 3), x_step = between(0, 3) ? between(1, 2) * x_tap : lanes + between(0, 9);
    int64_t x_row = between(0, 90), w_tap = between(0, 1) ? lanes : -lanes - 1, w_row = between(-50, 50);
    int64_t out_step = lanes + between(0, 3) * between(0, 1), out_row = positions * out_step + between(0, 1);
    int64_t outs = (rows - 1) * out_row + (positions - 1) * out_step + lanes;
    void *x, *w, *out = numbers_aligned(k, outs), *expected = copy_of(k, out, outs);
    int64_t across = (tap_cols - 1) * x_tap + (positions - 1) * x_step + lanes - 1;
    void *x_memory = numbers_between(k, empty ? 0 : x_first * x_row, empty ? 0 : (x_end - 1) * x_row + across, &x);
    void *w_memory = numbers_between(k, empty ? 0 : reach(tap_rows, w_row, -1) + reach(tap_cols, w_tap, -1),
                                     empty ? 0 : reach(tap_rows, w_row, 1) + reach(tap_cols, w_tap, 1) + lanes - 1, &w);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t p = 0; p < positions; p++)
            for (int64_t l = 0; l < lanes; l++) {
                int64_t to = i * out_row + p * out_step + l;
                double sum = add ? get(k, out, to) : 0;
                for (int64_t a = ck_max(0, x_first - i); a < ck_min(tap_rows, x_end - i); a++)
                    for (int64_t b = 0; b < tap_cols; b++)
                        if (!(left && p == 0 && b == 0) && !(right && p == positions - 1 && b == tap_cols - 1))
                            sum += get(k, x, (i + a) * x_row + b * x_tap + p * x_step + l) *
                                   get(k, w, a * w_row + b * w_tap + l);
                set(k, expected, to, sum);
            }
    const ck_depthwise_rows r = {.rows = rows, .positions = positions, .lanes = lanes, .tap_rows = tap_rows,
                                 .tap_cols = tap_cols, .x_first = x_first, .x_end = x_end, .fetches = between(0, 2),
                                 .x = x, .w = w, .x_row = x_row, .x_tap = x_tap, .x_step = x_step, .w_row = w_row,
                                 .w_tap = w_tap, .out = out, .out_row = out_row, .out_step = out_step, .add = add,
                                 .left = left, .right = right, .streams = between(0, 1)};
    k->by_rows(&r);
    CHECK(same(k, out, expected, outs));
    free(x_memory), free(w_memory), free(out), free(expected);
}

static void try_pairs(const ck_depthwise_kernel *k, int64_t pairs, int64_t lanes)
{
    int64_t tap_rows = between(1, 3), x_first = between(0, tap_rows), x_end = between(x_first, tap_rows);
    bool left = between(0, 1), right = between(0, 1), head = between(0, 1), tail = between(0, 1);
    int64_t x_tap = lanes + between(0, 3), x_row = between(0, 90), w_tap = between(0, 1) ? lanes : -lanes - 1;
    int64_t w_row = between(-50, 50), out_step = lanes + between(0, 3) * between(0, 1);
    int64_t first = x_first * x_row + (left ? x_tap : 0);
    int64_t last = ck_max(first, (x_end - 1) * x_row + (pairs - right) * x_tap + lanes - 1);
    void *x, *w, *out, *x_memory = numbers_between(k, first, last, &x);
    void *w_memory = numbers_between(k, reach(tap_rows, w_row, -1) + reach(3, w_tap, -1),
                                     reach(tap_rows, w_row, 1) + reach(3, w_tap, 1) + lanes - 1, &w);
    int64_t skipped = head ? out_step : 0, outs = (2 * pairs - 1 - tail) * out_step + lanes - skipped;
    void *memory = numbers_aligned(k, ck_max(1, outs)), *expected_memory = copy_of(k, memory, ck_max(1, outs));
    out = (char *)memory - skipped * ck_size(k->arithmetic);
    void *expected = (char *)expected_memory - skipped * ck_size(k->arithmetic);
    for (int64_t p = 0; p < pairs; p++)
        for (int64_t l = 0; l < lanes; l++) {
            double one = 0, two = 0;
            for (int64_t a = x_first; a < x_end; a++) {
                int64_t from = a * x_row + p * x_tap + l, by = a * w_row + l;
                double here = left && p == 0 ? 0 : get(k, x, from);
                double next = right && p == pairs - 1 ? 0 : get(k, x, from + x_tap);
                one += here * get(k, w, by + w_tap);
                two += here * get(k, w, by + 2 * w_tap) + next * get(k, w, by);
            }
            if (!(head && p == 0))
                set(k, expected, 2 * p * out_step + l, one);
            if (!(tail && p == pairs - 1))
                set(k, expected, (2 * p + 1) * out_step + l, two);
        }
    const ck_depthwise_rows r = {.rows = 1, .positions = pairs, .lanes = lanes, .tap_rows = tap_rows, .x_first = x_first,
                                 .x_end = x_end, .fetches = between(0, 1), .x = x, .w = w, .x_row = x_row,
                                 .x_tap = x_tap, .w_row = w_row, .w_tap = w_tap, .out = out, .out_step = out_step,
                                 .left = left, .right = right, .streams = between(0, 1), .head = head, .tail = tail};
    k->by_pairs(&r);
    CHECK(same(k, memory, expected_memory, outs));
    free(x_memory), free(w_memory), free(memory), free(expected_memory);
}

static void try_sums(const ck_depthwise_kernel *k, int64_t positions, int64_t lanes)
{
    int64_t rows = between(1, 3), tap_rows = between(1, 5), tap_cols = between(1, 8), vector = k->lanes;
    int64_t x_tap = lanes + between(0, 3), x_step = between(0, 3) ? between(1, 2) * x_tap : lanes + between(0, 9);
    int64_t x_row = between(0, 90), x_down = between(0, 90), dy_down = between(0, 90), dy_step = lanes + between(0, 3);
    bool left = tap_cols > 1 && between(0, 1), right = tap_cols > 1 && between(0, 1);
    int64_t width = ck_ceil_div(lanes, vector) * vector, sums_tap = width + between(0, 3);
    int64_t sums_row = tap_cols * sums_tap + between(0, 3);
    int64_t total = (tap_rows - 1) * sums_row + (tap_cols - 1) * sums_tap + width;
    void *x = numbers(k, (tap_rows - 1) * x_row + (tap_cols - 1) * x_tap + (rows - 1) * x_down +
                             (positions - 1) * x_step + lanes);
    void *dy = numbers(k, (rows - 1) * dy_down + (positions - 1) * dy_step + lanes);
    void *sums = numbers(k, total), *expected = copy_of(k, sums, total);
    for (int64_t a = 0; a < tap_rows; a++)
        for (int64_t b = 0; b < tap_cols; b++)
            for (int64_t l = 0; l < lanes; l++) {
                double sum = get(k, sums, a * sums_row + b * sums_tap + l);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t p = left && b == 0; p < positions - (right && b == tap_cols - 1); p++)
                        sum += get(k, x, a * x_row + b * x_tap + r * x_down + p * x_step + l) *
                               get(k, dy, r * dy_down + p * dy_step + l);
                set(k, expected, a * sums_row + b * sums_tap + l, sum);
            }
    const ck_depthwise_sums s = {rows, positions, lanes, tap_rows, tap_cols, between(0, 2), x, dy, x_row, x_tap,
                                 x_down, x_step, dy_down, dy_step, sums, sums_row, sums_tap, left, right};
    k->by_sums(&s);
    CHECK(same(k, sums, expected, total));
    free(x), free(dy), free(sums), free(expected);
}

/* A plane, of which a window may reach beyond every side, and the memory that it takes. */
typedef struct {
    ck_depthwise_plane plane;
    void *x_memory, *w_memory, *out_memory, *expected_memory, *expected;
    int64_t outs;
} plane_case;

/* The pixel at (r, c), or zero. */
static double pixel(const ck_depthwise_kernel *k, const ck_depthwise_plane *p, int64_t r, int64_t c)
{
    bool inside = r >= 0 && r < p->height && c >= 0 && c < p->width;
    return inside ? get(k, p->x, r * p->x_row + c) : 0;
}

/* Rows of x in either order, and a filter that lies anyhow; `pixels` of out to a column, of which
 * the first `head` and the last `tail` are not there. */
static plane_case plane_of(const ck_depthwise_kernel *k, int64_t tap_rows, int64_t tap_cols, int64_t step, int64_t cols,
                           int64_t pixels, bool head, bool tail)
{
    int64_t height = between(1, 12), width = between(1, 2 * cols + 4), w_row = between(-9, 9), w_tap = between(-9, 9);
    int64_t rows = between(1, 9), wide = cols * pixels, x_row = (between(0, 1) ? 1 : -1) * (width + between(0, 3));
    int64_t out_row = wide + between(0, 3) * between(0, 1), skipped = head;
    plane_case c = {.plane = {.rows = rows, .cols = cols, .step = step, .tap_rows = tap_rows, .tap_cols = tap_cols,
                              .row = between(-4, 4), .col = between(-4, 4), .height = height, .width = width,
                              .x_row = x_row, .w_row = w_row, .w_tap = w_tap, .out_row = out_row,
                              .next = between(0, 9), .add = between(0, 1), .streams = between(0, 1)},
                    .outs = (rows - 1) * out_row + wide - head - tail};
    void *zero;
    c.x_memory = numbers_between(k, reach(height, x_row, -1), reach(height, x_row, 1) + width - 1, &zero);
    c.plane.x = zero;
    c.w_memory = numbers_between(k, reach(tap_rows, w_row, -1) + reach(tap_cols, w_tap, -1),
                                 reach(tap_rows, w_row, 1) + reach(tap_cols, w_tap, 1), &zero);
    c.plane.w = zero;
    c.out_memory = numbers_aligned(k, ck_max(1, c.outs));
    c.expected_memory = copy_of(k, c.out_memory, ck_max(1, c.outs));
    c.plane.out = (char *)c.out_memory - skipped * ck_size(k->arithmetic);
    c.expected = (char *)c.expected_memory - skipped * ck_size(k->arithmetic);
    return c;
}

static void end_plane(const ck_depthwise_kernel *k, plane_case *c)
{
    CHECK(same(k, c->out_memory, c->expected_memory, c->outs));
    free(c->x_memory), free(c->w_memory), free(c->out_memory), free(c->expected_memory);
}

static void try_plane(const ck_depthwise_kernel *k, int64_t taps, int64_t step, int64_t cols)
{
    plane_case c = plane_of(k, taps, taps, step, cols, 1, false, false);
    const ck_depthwise_plane *p = &c.plane;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = p->add ? get(k, p->out, i * p->out_row + j) : 0;
            for (int64_t a = 0; a < taps; a++)
                for (int64_t b = 0; b < taps; b++)
                    sum += pixel(k, p, p->row + i * step + a, p->col + j * step + b) *
                           get(k, p->w, a * p->w_row + b * p->w_tap);
            set(k, c.expected, i * p->out_row + j, sum);
        }
    CHECK(k->by_plane(p));
    end_plane(k, &c);
}

static void try_plane_pairs(const ck_depthwise_kernel *k, int64_t tap_rows, int64_t pairs)
{
    bool head = between(0, 1), tail = between(0, 1);
    plane_case c = plane_of(k, tap_rows, 3, 1, pairs, 2, head, tail);
    const ck_depthwise_plane *p = &c.plane;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < pairs; j++) {
            double sums[2] = {0, 0};
            for (int64_t a = 0; a < tap_rows; a++) {
                int64_t row = p->row + i + a, w = a * p->w_row;
                double here = pixel(k, p, row, p->col + j), next = pixel(k, p, row, p->col + j + 1);
                sums[0] += here * get(k, p->w, w + p->w_tap);
                sums[1] += here * get(k, p->w, w + 2 * p->w_tap) + next * get(k, p->w, w);
            }
            for (int64_t o = head && j == 0; o < 2 - (tail && j == pairs - 1); o++) {
                int64_t to = i * p->out_row + 2 * j + o;
                set(k, c.expected, to, sums[o] + (p->add ? get(k, p->out, to) : 0));
            }
        }
    CHECK(k->plane_pairs(p, head, tail));
    end_plane(k, &c);
}

static void try_plane_sums(const ck_depthwise_kernel *k, int64_t tap_cols, int64_t step, int64_t cols)
{
    int64_t tap_rows = between(1, 8);
    plane_case c = plane_of(k, tap_rows, tap_cols, step, cols, 1, false, false);
    const ck_depthwise_plane *p = &c.plane;
    int64_t dy_row = cols + between(0, 3), count = tap_rows * tap_cols;
    void *dy = numbers(k, (p->rows - 1) * dy_row + cols), *sums = numbers(k, count), *wanted = copy_of(k, sums, count);
    for (int64_t t = 0; t < count; t++) {
        double sum = get(k, sums, t);
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < cols; j++)
                sum += pixel(k, p, p->row + i * step + t / tap_cols, p->col + j * step + t % tap_cols) *
                       get(k, dy, i * dy_row + j);
        set(k, wanted, t, sum);
    }
    const ck_depthwise_plane_sums s = {*p, dy, dy_row, between(0, 9), sums};
    CHECK(k->plane_sums(&s));
    CHECK(same(k, sums, wanted, count));
    free(dy), free(sums), free(wanted);
    end_plane(k, &c);
}

/* A number that is not finite reaches the sums of its own windows alone. */
static void try_bad_pixel(const ck_depthwise_kernel *k, int64_t step, int64_t cols)
{
    plane_case c = plane_of(k, 3, 3, step, cols, 1, false, false);
    const ck_depthwise_plane *p = &c.plane;
    int64_t r = between(0, p->height - 1), column = between(0, p->width - 1), dy_row = cols;
    set(k, (void *)p->x, r * p->x_row + column, NAN);
    void *dy = numbers(k, p->rows * dy_row), *sums = numbers(k, 9);
    const ck_depthwise_plane_sums s = {*p, dy, dy_row, 0, sums};
    CHECK(k->plane_sums(&s));
    for (int64_t t = 0; t < 9; t++) {
        int64_t i = r - p->row - t / 3, j = column - p->col - t % 3;
        bool met = i >= 0 && i % step == 0 && i / step < p->rows && j >= 0 && j % step == 0 && j / step < cols;
        CHECK(met == isnan(get(k, sums, t)));
    }
    free(dy), free(sums);
    end_plane(k, &c);
}

static void a_size_without_kernels(const ck_depthwise_kernel *k)
{
    const ck_depthwise_plane bad[] = {{.rows = 1, .cols = 1, .step = 1, .tap_rows = 2, .tap_cols = 2},
                                      {.rows = 1, .cols = 1, .step = 1, .tap_rows = 9, .tap_cols = 9},
                                      {.rows = 1, .cols = 1, .step = 3, .tap_rows = 3, .tap_cols = 3}};
    for (int i = 0; i < 3; i++) {
        const ck_depthwise_plane_sums s = {.plane = bad[i]};
        CHECK(!k->by_plane(&bad[i]) && !k->plane_sums(&s) && !k->plane_pairs(&bad[i], false, false));
    }
    const ck_depthwise_plane oblong = {.rows = 1, .cols = 1, .step = 1, .tap_rows = 1, .tap_cols = 3};
    CHECK(!k->by_plane(&oblong));
}

/* In place, as the engine does: `repeat` from the end of its result, `fold` from its beginning. */
static void try_times(const ck_depthwise_kernel *k, int64_t count, int64_t times)
{
    int64_t size = ck_size(k->arithmetic), total = count * times;
    void *few = numbers(k, count), *many = numbers(k, total), *expected = copy_of(k, many, total);
    memcpy((char *)many + (total - count) * size, few, (size_t)(count * size));
    for (int64_t i = 0; i < total; i++)
        set(k, expected, i, get(k, few, i / times));
    k->repeat(count, times, (char *)many + (total - count) * size, many);
    CHECK(same(k, many, expected, total));
    for (int64_t i = 0; i < count; i++)
        set(k, few, i, (double)times * get(k, few, i));
    k->fold(count, times, many, many);
    CHECK(same(k, many, few, count));
    free(few), free(many), free(expected);
}

static void try_gradient(const ck_depthwise_kernel *k, int64_t taps, int64_t lanes)
{
    int64_t rows = between(1, 4), count = between(1, 9), at[MOST_TAPS], last = 0;
    int64_t x_step = between(1, lanes), dy_step = between(1, lanes);
    int64_t x_row = between(0, 60), dy_row = between(0, 60);
    int64_t width = ck_ceil_div(lanes, k->lanes) * k->lanes, sums_step = width + between(0, 3);
    for (int64_t t = 0; t < taps; t++) {
        at[t] = between(0, 50);
        last = ck_max(last, at[t]);
    }
    int64_t total = (taps - 1) * sums_step + width;
    void *x = numbers(k, last + (rows - 1) * x_row + (count - 1) * x_step + lanes);
    void *dy = numbers(k, (rows - 1) * dy_row + (count - 1) * dy_step + lanes);
    void *sums = numbers(k, total), *expected = copy_of(k, sums, total);
    for (int64_t t = 0; t < taps; t++)
        for (int64_t l = 0; l < lanes; l++) {
            double sum = get(k, sums, t * sums_step + l);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t p = 0; p < count; p++)
                    sum += get(k, x, at[t] + r * x_row + p * x_step + l) * get(k, dy, r * dy_row + p * dy_step + l);
            set(k, expected, t * sums_step + l, sum);
        }
    k->gradient(taps, at, lanes, x, x_row, x_step, dy, dy_row, dy_step, rows, count, sums, sums_step);
    CHECK(same(k, sums, expected, total));
    free(x), free(dy), free(sums), free(expected);
}

static void try_copy(const ck_depthwise_kernel *k, int64_t rows, int64_t n)
{
    int64_t from_row = n + between(0, 3), to_row = n + between(0, 3), total = (rows - 1) * to_row + n;
    void *from = numbers(k, (rows - 1) * from_row + n), *to = numbers(k, total), *expected = copy_of(k, to, total);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            set(k, expected, r * to_row + i, get(k, from, r * from_row + i));
    k->copy(rows, n, from, from_row, to, to_row);
    CHECK(same(k, to, expected, total));
    free(from), free(to), free(expected);
}

static void each_position_and_lane_of_planes(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t positions = 1; positions <= 19; positions++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                for (int grid = 0; grid < 2; grid++)
                    try_planes(ck_depthwise_kernels[i], grid, positions, lanes);
}

static void each_position_and_lane_of_rows(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t positions = 1; positions <= 27; positions++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                try_rows(ck_depthwise_kernels[i], positions, lanes);
}

static void each_pair_and_lane(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t pairs = 1; pairs <= 17; pairs++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                try_pairs(ck_depthwise_kernels[i], pairs, lanes);
}

static void each_position_and_lane_of_sums(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t positions = 1; positions <= 27; positions++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                try_sums(ck_depthwise_kernels[i], positions, lanes);
}

static void each_width_of_a_plane(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++) {
        const ck_depthwise_kernel *k = ck_depthwise_kernels[i];
        a_size_without_kernels(k);
        for (int64_t cols = 1; cols <= 70; cols++)
            for (int64_t step = 1; step <= 2; step++) {
                for (int64_t taps = 3; taps <= 7; taps += 2) {
                    try_plane(k, taps, step, cols);
                    try_plane_sums(k, taps, step, cols);
                }
                try_bad_pixel(k, step, cols);
            }
        for (int64_t pairs = 1; pairs <= 40; pairs++)
            for (int64_t tap_rows = 1; tap_rows <= 3; tap_rows++)
                try_plane_pairs(k, tap_rows, pairs);
    }
}

static void each_multiplier(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t times = 1; times <= 9; times++)
            for (int64_t count = 1; count <= 70; count++)
                try_times(ck_depthwise_kernels[i], count, times);
}

static void each_tap_and_lane_of_a_gradient(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t taps = 1; taps <= 20; taps++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                try_gradient(ck_depthwise_kernels[i], taps, lanes);
}

static void each_length_of_a_copy(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_isa_runs(ck_depthwise_kernels[i]->isa); i++)
        for (int64_t n = 1; n <= 70; n++)
            try_copy(ck_depthwise_kernels[i], between(1, 9), n);
}

int main(void)
{
    RUN(each_position_and_lane_of_rows);
    RUN(each_pair_and_lane);
    RUN(each_position_and_lane_of_planes);
    RUN(each_position_and_lane_of_sums);
    RUN(each_width_of_a_plane);
    RUN(each_multiplier);
    RUN(each_tap_and_lane_of_a_gradient);
    RUN(each_length_of_a_copy);
    return summary();
}
