/* Tests of the depthwise kernels: every one of the table that this CPU can run, against plain loops, in memory of which
 * not an element more is allocated than the contract lets a kernel touch. */
#include "check.h"
#include "convert.h"
#include "depthwise_kernels.h"

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

typedef enum { BY_LANE, BY_TAP, BY_GRID } way;

static void try_forward(const ck_depthwise_kernel *k, way how, int64_t positions, int64_t lanes)
{
    int64_t tap_rows = between(1, 9), tap_cols = between(1, 4), taps = tap_rows * tap_cols, at[MOST_TAPS];
    int64_t x_step = between(0, 1) ? between(1, 5) : lanes + between(0, 3), last = 0;
    int64_t w_step = lanes + between(0, 2), out_step = lanes + between(0, 3);
    for (int64_t t = 0; t < taps; t++) {
        at[t] = how == BY_GRID && t >= tap_cols ? at[t - tap_cols] + x_step : between(0, 50);
        last = ck_max(last, at[t]);
    }
    int64_t outs = (positions - 1) * out_step + lanes;
    void *x = numbers(k, last + (positions - 1) * x_step + lanes);
    void *w = numbers(k, how == BY_LANE ? (taps - 1) * w_step + lanes : taps);
    void *out = numbers(k, outs), *expected = copy_of(k, out, outs);
    bool add = between(0, 1);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t l = 0; l < lanes; l++) {
            double sum = add ? get(k, out, p * out_step + l) : 0;
            for (int64_t t = 0; t < taps; t++)
                sum += get(k, x, at[t] + p * x_step + l) * get(k, w, how == BY_LANE ? t * w_step + l : t);
            set(k, expected, p * out_step + l, sum);
        }
    if (how == BY_GRID)
        k->by_grid(positions, lanes, x, x_step, at, tap_rows, tap_cols, w, out, out_step, add);
    else
        (how == BY_LANE ? k->by_lane : k->by_tap)(positions, lanes, x, x_step, at, taps, w, w_step, out, out_step, add);
    CHECK(same(k, out, expected, outs));
    free(x), free(w), free(out), free(expected);
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

static void forward(way how)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_depthwise_kernels[i]->isa <= ck_best_isa(); i++)
        for (int64_t positions = 1; positions <= 19; positions++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                try_forward(ck_depthwise_kernels[i], how, positions, lanes);
}

static void each_position_and_lane_by_lane(void) { forward(BY_LANE); }
static void each_position_and_lane_by_tap(void) { forward(BY_TAP); }
static void each_position_and_lane_by_grid(void) { forward(BY_GRID); }

static void each_tap_and_lane_of_a_gradient(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_depthwise_kernels[i]->isa <= ck_best_isa(); i++)
        for (int64_t taps = 1; taps <= 20; taps++)
            for (int64_t lanes = 1; lanes <= 70; lanes++)
                try_gradient(ck_depthwise_kernels[i], taps, lanes);
}

static void each_length_of_a_copy(void)
{
    for (int i = 0; ck_depthwise_kernels[i] && ck_depthwise_kernels[i]->isa <= ck_best_isa(); i++)
        for (int64_t n = 1; n <= 70; n++)
            try_copy(ck_depthwise_kernels[i], between(1, 9), n);
}

int main(void)
{
    RUN(each_position_and_lane_by_lane);
    RUN(each_position_and_lane_by_tap);
    RUN(each_position_and_lane_by_grid);
    RUN(each_tap_and_lane_of_a_gradient);
    RUN(each_length_of_a_copy);
    return summary();
}
