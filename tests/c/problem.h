/* Random convolutions, the plain loops that define them, and what the engine's drivers have in common. */
#ifndef PROBLEM_H
#define PROBLEM_H

#include "multiply.h"
#include "patches.h"
#include "pool.h"
#include "random.h"
#include "scratch.h"
#include "strided.h"

#include <stdatomic.h>
#include <time.h>

enum { MOST_TAPS = 4, ROOM_FOR_TAPS = 23, MOST_THREADS = 8 };

typedef struct {
    int64_t images, groups, in, out; /* channels per group */
    int64_t size[2], filter[2], stride[2], dilation[2], before[2], grid[2];
} problem;

/* Now and then with one tap per pixel, with sums of more than CK_SUM_BLOCK terms, or with many filters. */
static inline problem random_problem(generator *r)
{
    bool whole = one_in(r, 3), deep = one_in(r, 8), wide = !deep && one_in(r, 20);
    problem q;
    q.images = between(r, 1, 3);
    q.groups = one_in(r, 2) || deep || wide ? 1 : between(r, 2, 3);
    q.in = deep ? between(r, 60, 200) : between(r, 1, 5);
    q.out = wide ? between(r, 513, 600) : between(r, 1, 6);
    if (deep && one_in(r, 2)) { /* the sums of an input gradient */
        int64_t in = q.in;
        q.in = q.out;
        q.out = in;
    }
    for (int axis = 0; axis < 2; axis++) {
        int64_t most = deep || wide ? 3 : 9, after, reach;
        do {
            q.size[axis] = between(r, 1, most);
            q.filter[axis] = whole ? 1 : between(r, 1, MOST_TAPS);
            q.stride[axis] = whole ? 1 : between(r, 1, 3);
            q.dilation[axis] = one_in(r, 3) ? between(r, 2, 3) : 1;
            q.before[axis] = whole ? 0 : between(r, 0, 3);
            after = whole ? 0 : between(r, 0, 3);
            reach = (q.filter[axis] - 1) * q.dilation[axis] + 1;
        } while (q.size[axis] + q.before[axis] + after < reach);
        q.grid[axis] = (q.size[axis] + q.before[axis] + after - reach) / q.stride[axis] + 1;
    }
    return q;
}

#define IMAGE_LENGTHS(Q) ((int64_t[]){(Q)->images, (Q)->size[0], (Q)->size[1], (Q)->groups * (Q)->in})
#define FILTER_LENGTHS(Q) ((int64_t[]){(Q)->filter[0], (Q)->filter[1], (Q)->in, (Q)->groups * (Q)->out})
#define GRID_LENGTHS(Q) ((int64_t[]){(Q)->images, (Q)->grid[0], (Q)->grid[1], (Q)->groups * (Q)->out})

typedef struct {
    int64_t at[ROOM_FOR_TAPS], tap[ROOM_FOR_TAPS], taps;
} offsets;

/* Where a forward convolution's output pixels look in the image. */
static inline offsets forward_offsets(const problem *q, int axis)
{
    offsets o = {.taps = q->filter[axis]};
    for (int64_t tap = 0; tap < o.taps; tap++) {
        o.tap[tap] = tap;
        o.at[tap] = tap * q->dilation[axis] - q->before[axis];
    }
    return o;
}

static inline ck_window forward_window(const problem *q, const offsets *rows, const offsets *cols)
{
    return (ck_window){.height = q->size[0],      .width = q->size[1],       .out_height = q->grid[0],
                       .out_width = q->grid[1],   .row_step = q->stride[0],  .col_step = q->stride[1],
                       .rows = rows->taps,        .cols = cols->taps,        .row_at = rows->at,
                       .col_at = cols->at};
}

/* The convolution by its definition, and both gradients: adds to the one of the three dense arrays that `sum` names. */
typedef enum { SUM_Y, SUM_X, SUM_W } sum_kind;

static inline void convolve(const problem *q, double *x, double *w, double *y, sum_kind sum)
{
    int64_t ins = q->groups * q->in, outs = q->groups * q->out;
    for (int64_t pixel = 0; pixel < q->images * q->grid[0] * q->grid[1]; pixel++)
        for (int64_t tap = 0; tap < q->filter[0] * q->filter[1]; tap++) {
            int64_t n = pixel / (q->grid[0] * q->grid[1]), i = pixel / q->grid[1] % q->grid[0], j = pixel % q->grid[1];
            int64_t a = tap / q->filter[1], b = tap % q->filter[1];
            int64_t row = i * q->stride[0] + a * q->dilation[0] - q->before[0];
            int64_t col = j * q->stride[1] + b * q->dilation[1] - q->before[1];
            if (row < 0 || row >= q->size[0] || col < 0 || col >= q->size[1])
                continue;
            for (int64_t k = 0; k < outs; k++)
                for (int64_t c = 0; c < q->in; c++) {
                    double *at_x = x + ((n * q->size[0] + row) * q->size[1] + col) * ins + k / q->out * q->in + c;
                    double *at_w = w + (tap * q->in + c) * outs + k, *at_y = y + pixel * outs + k;
                    if (sum == SUM_Y)
                        *at_y += *at_x * *at_w;
                    else if (sum == SUM_X)
                        *at_x += *at_y * *at_w;
                    else
                        *at_w += *at_x * *at_y;
                }
        }
}

/* ---- a product of matrices by its definition ---- */

typedef struct {
    atomic_int inside, calls;
    long delay_us;
} multiplier;

#define MULTIPLY(TYPE)                                                                                                \
    for (int64_t i = 0; i < m; i++)                                                                                   \
        for (int64_t j = 0; j < n; j++) {                                                                             \
            const TYPE *left = a, *right = b;                                                                         \
            TYPE sum = 0;                                                                                             \
            for (int64_t l = 0; l < k; l++)                                                                           \
                sum += left[transpose_a ? l * lda + i : i * lda + l] * right[transpose_b ? j * ldb + l : l * ldb + j];\
            TYPE *at = (TYPE *)c + i * ldc + j;                                                                       \
            *at = add ? *at + sum : sum;                                                                              \
        }

static inline void multiply_plainly(void *ctx, ck_type arithmetic, bool transpose_a, bool transpose_b, int64_t m,
                                    int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                                    bool add, void *c, int64_t ldc)
{
    multiplier *x = ctx;
    atomic_fetch_add(&x->inside, 1);
    atomic_fetch_add(&x->calls, 1);
    CHECK(m > 0 && n > 0 && k > 0 && k <= CK_SUM_BLOCK); /* as numerics promise, and as BLAS demands: */
    CHECK(lda >= (transpose_a ? m : k) && ldb >= (transpose_b ? k : n) && ldc >= n);
    if (x->delay_us)
        nanosleep(&(struct timespec){0, x->delay_us * 1000}, NULL);
    if (arithmetic == CK_F64) {
        MULTIPLY(double)
    } else {
        MULTIPLY(float)
    }
    atomic_fetch_sub(&x->inside, 1);
}

/* ---- arrays as matrices ---- */

/* The layout of a matrix whose rows are numbered over some axes, the innermost last; CK_COPY if it is none. */
static inline ck_layout matrix_layout(int axes, const int64_t *length, const int64_t *stride, int64_t columns,
                                      int64_t column_stride, int64_t size)
{
    int64_t step = 0, rows = 1;
    for (int axis = axes - 1; axis >= 0; axis--) {
        if (length[axis] == 1)
            continue;
        if (rows == 1)
            step = stride[axis];
        else if (stride[axis] != rows * step)
            return (ck_layout){CK_COPY, 0};
        rows *= length[axis];
    }
    if (columns == 1 || column_stride == size) {
        int64_t ld = rows > 1 ? step / size : columns;
        if (ld >= columns)
            return (ck_layout){CK_ROWS, ld};
    }
    if (rows == 1 || step == size) {
        int64_t ld = columns > 1 ? column_stride / size : rows;
        if (ld >= rows)
            return (ck_layout){CK_COLUMNS, ld};
    }
    return (ck_layout){CK_COPY, 0};
}

/* The layout of an N, H, W, C array as pixels and the channels of a group, if it is used in place; clears `across` if
 * images do not follow each other as rows do. */
static inline ck_layout pixel_layout(const strided *s, const int64_t length[4], const int64_t stride[4],
                                     int64_t channels, ck_type arithmetic, bool *across)
{
    int64_t size = ck_size(arithmetic);
    if (!strided_usable(s, arithmetic))
        return (ck_layout){CK_COPY, 0};
    ck_layout all = matrix_layout(3, length, stride, channels, stride[3], size);
    if (all.kind != CK_COPY)
        return all;
    ck_layout one = matrix_layout(2, length + 1, stride + 1, channels, stride[3], size);
    if (one.kind != CK_COPY)
        *across = false;
    return one;
}

static inline bool is_plain(const strided *s, ck_type arithmetic)
{
    return strided_usable(s, arithmetic) && s->array.stride[3] == ck_size(arithmetic);
}

/* ---- scratch and results ---- */

/* The scratch of the coming job is NaN from end to end. */
static inline void spoil_scratch(int64_t bytes)
{
    void *blocks[MOST_THREADS];
    for (int i = 0; i < MOST_THREADS; i++) {
        blocks[i] = ck_scratch_get((size_t)bytes);
        memset(blocks[i], NOTHING, (size_t)bytes);
    }
    for (int i = 0; i < MOST_THREADS; i++)
        ck_scratch_put(blocks[i]);
}

/* Shared memory of a plan: NaN, with a zone behind it that nobody may write. */
static inline char *shared_new(int64_t bytes)
{
    char *memory = aligned_alloc(64, (size_t)(bytes + GUARD + 63) / 64 * 64);
    memset(memory, NOTHING, (size_t)(bytes + GUARD));
    return memory;
}

static inline bool shared_intact(const char *memory, int64_t bytes)
{
    bool same = true;
    for (int64_t i = bytes; i < bytes + GUARD; i++)
        same = same && (unsigned char)memory[i] == NOTHING;
    return same;
}

static inline int64_t random_scratch(generator *r, int64_t least)
{
    return one_in(r, 2) ? least : (least + 63) / 64 * 64;
}

/* Whether all values are those of a result without a single written element. */
static inline bool untouched(const strided *s)
{
    bool same = true;
    for (int64_t i = 0; i < s->bytes; i++)
        same = same && s->memory[i] == NOTHING;
    return same;
}

/* ---- stopping ---- */

static inline int stop_at_once(void *ctx)
{
    (void)ctx;
    return 1;
}

/* Whether nothing ran any more when a stopped job returned. */
static inline bool stopped_cleanly(multiplier *x, int code)
{
    int calls = atomic_load(&x->calls);
    bool idle = atomic_load(&x->inside) == 0;
    nanosleep(&(struct timespec){0, 5 * 1000 * 1000}, NULL);
    return code == CK_STOPPED && idle && calls > 0 && atomic_load(&x->calls) == calls;
}

#endif
