/* A kernel of the table behind a watch that holds its caller to the duties in kernels.h. */
#ifndef WATCHED_H
#define WATCHED_H

#include "emulated.h"
#include "problem.h"

static multiplier watch; /* of one run at a time */
static const ck_dot_kernel *watched_kernel;

/* Whether b holds numbers wherever the kernel reads, channels beyond the last included. */
static inline bool all_numbers(const char *b, int64_t b_step, int64_t columns, const ck_segment *segments,
                               int64_t segment_count)
{
    ck_type type = watched_kernel->arithmetic;
    bool good = true;
    for (int64_t s = 0; s < segment_count; s++)
        for (int64_t term = 0; term < segments[s].count; term++)
            for (int64_t j = 0; j < columns; j++) {
                int64_t numbers = ck_products(type);
                const char *at = b + (segments[s].b_at + term * b_step + j) * numbers * bytes_of(type);
                for (int64_t i = 0; i < numbers; i++)
                    good = good && !isnan(element(type, false, at + i * bytes_of(type)));
            }
    return good;
}

static inline void watched_call(ck_dot_fn fn, int64_t columns, int64_t rows, const void *a, int64_t a_step, const void *b,
                                int64_t b_step, const ck_segment *segments, int64_t segment_count, void *c, int64_t ldc,
                                bool add)
{
    int64_t terms = 0;
    for (int64_t s = 0; s < segment_count; s++)
        terms += segments[s].count;
    atomic_fetch_add(&watch.inside, 1);
    atomic_fetch_add(&watch.calls, 1);
    CHECK(rows >= 1 && rows <= watched_kernel->rows);
    CHECK((terms >= 1 || !add) && terms * ck_products(watched_kernel->arithmetic) <= CK_SUM_BLOCK);
    CHECK(all_numbers(b, b_step, columns, segments, segment_count));
    if (watch.delay_us)
        nanosleep(&(struct timespec){0, watch.delay_us * 1000}, NULL);
    fn(rows, a, a_step, b, b_step, segments, segment_count, c, ldc, add);
    atomic_fetch_sub(&watch.inside, 1);
}

#define WATCHED(WALKER, PARTS)                                                                                         \
    static inline void watched_##WALKER(int64_t rows, const void *a, int64_t a_step, const void *b, int64_t b_step,    \
                                        const ck_segment *segments, int64_t segment_count, void *c, int64_t ldc,       \
                                        bool add)                                                                      \
    {                                                                                                                  \
        watched_call(watched_kernel->WALKER, watched_kernel->columns / PARTS, rows, a, a_step, b, b_step, segments,    \
                     segment_count, c, ldc, add);                                                                      \
    }

WATCHED(across, 1)
WATCHED(along, 1)
WATCHED(across_half, 2)
WATCHED(along_half, 2)

/* The kernel of a level, or the emulated one of pairs whatever the level, watched, each of its calls delayed; the one
 * returned before no longer works. */
static inline const ck_dot_kernel *watched(ck_type arithmetic, ck_isa isa, long delay_us)
{
    static ck_dot_kernel kernel;
    watched_kernel = arithmetic == CK_BF16 ? &ck_dot_bf16_emulated : ck_dot_kernel_for(arithmetic, isa);
    kernel = *watched_kernel;
    kernel.across = watched_across;
    kernel.along = watched_along;
    kernel.across_half = watched_across_half;
    kernel.along_half = watched_along_half;
    atomic_store(&watch.calls, 0);
    watch.delay_us = delay_us;
    return &kernel;
}

/* Whether the level has a register tile of its own, which this CPU can run. */
static inline bool has_tile(ck_isa isa) { return ck_isa_runs(isa) && ck_dot_kernel_for(CK_F32, isa)->isa == isa; }

/* Those levels, by turns. */
static inline ck_isa level_of(int seed)
{
    ck_isa found[CK_ISAS];
    int count = 0;
    for (int isa = CK_GENERIC; isa < CK_ISAS; isa++)
        if (has_tile((ck_isa)isa))
            found[count++] = (ck_isa)isa;
    return found[seed % count];
}

static inline ck_type random_arithmetic(generator *r)
{
    static const ck_type choices[] = {CK_F32, CK_F32, CK_F64, CK_BF16};
    return choices[between(r, 0, 3)];
}

/* Channels out that fill whole panels of a kernel, or leave a tail in the last one. */
static inline int64_t random_channels(generator *r, const ck_dot_kernel *kernel)
{
    return one_in(r, 2) ? kernel->columns * between(r, 1, 4) : between(r, 1, 3 * kernel->columns);
}

/* Whether no tap of any output pixel leaves the image. */
static inline bool stays_inside(const ck_window *w)
{
    bool inside = true;
    for (int64_t a = 0; a < w->rows; a++)
        inside = inside && w->row_at[a] >= 0 && (w->out_height - 1) * w->row_step + w->row_at[a] < w->height;
    for (int64_t b = 0; b < w->cols; b++)
        inside = inside && w->col_at[b] >= 0 && (w->out_width - 1) * w->col_step + w->col_at[b] < w->width;
    return inside;
}

/* The pixels along an axis that `count` output pixels reach. */
static inline int64_t reach_of(const int64_t *at, int64_t taps, int64_t count, int64_t step)
{
    int64_t low = at[0], high = at[0];
    for (int64_t i = 1; i < taps; i++) {
        low = ck_min(low, at[i]);
        high = ck_max(high, at[i]);
    }
    return (count - 1) * step + high - low + 1;
}

#endif
