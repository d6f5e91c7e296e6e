#include "pairs.h"

#include <string.h>

/* Pairs that are laid down before the next row's, where `to` is not written densely: the lines that are touched stay in the
 * first-level cache from one row to the next.  As in convert.c. */
enum { PIECE = 64, LEAST_BULK = 4 };

static inline uint16_t number_at(const char *from)
{
    uint16_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline void copy_neighbours(ck_pair *to, int64_t to_step, const char *from, int64_t step, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * to_step, from + i * step, sizeof *to);
}

static inline void interleave(ck_pair *restrict to, const char *a, const char *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (ck_pair){number_at(a + 2 * i), number_at(b + 2 * i)};
}

/* One row of pairs. */
static void pair_row(ck_pair *to, int64_t to_step, const char *a, const char *b, int64_t step, int64_t n)
{
    const char none[2] = {0};
    if (a && b == a + 2) {
        if (to_step == 1 && step == 4)
            memcpy(to, a, (size_t)n * sizeof *to);
        else
            copy_neighbours(to, to_step, a, step, n);
    } else if (a && b && to_step == 1 && step == 2) {
        interleave(to, a, b, n);
    } else {
        int64_t a_step = a ? step : 0, b_step = b ? step : 0;
        a = a ? a : none;
        b = b ? b : none;
        for (int64_t i = 0; i < n; i++)
            to[i * to_step] = (ck_pair){number_at(a + i * a_step), number_at(b + i * b_step)};
    }
}

/* Whether the level's own code did it.  Short rows and columns are no work for it. */
static bool bulk_pairs(const ck_pairing *bulk, ck_pair *to, int64_t t0, int64_t t1, const char *a, const char *b,
                       int64_t f0, int64_t f1, int64_t n0, int64_t n1)
{
    bool whole = a && b == a + 2 && f1 == 4;
    if (n1 < LEAST_BULK || !(f1 == 2 || whole))
        return false;
    if (t1 == 1 && !whole)
        bulk->rows(to, t0, a, b, f0, n0, n1);
    else if (t0 == 1 && n0 >= LEAST_BULK)
        bulk->columns(to, t1, a, b, f0, n0, n1, whole);
    else
        return false;
    return true;
}

void ck_pair_up(const ck_pairing *bulk, ck_pair *to, int64_t t0, int64_t t1, const char *a, const char *b, int64_t f0,
                int64_t f1, int64_t n0, int64_t n1)
{
    if (t0 == n1 * t1 && f0 == n1 * f1) { /* one row of all */
        n1 *= n0;
        n0 = 1;
    }
    if (n1 == 1 || (ck_distance(f1) > ck_distance(f0) && n0 > 1)) { /* let dimension 1 be the array's denser one */
        int64_t swap = t0;
        t0 = t1, t1 = swap;
        swap = f0, f0 = f1, f1 = swap;
        swap = n0, n0 = n1, n1 = swap;
    }
    if (bulk && bulk_pairs(bulk, to, t0, t1, a, b, f0, f1, n0, n1))
        return;
    int64_t piece = t1 == 1 ? n1 : PIECE;
    for (int64_t start = 0; start < n1; start += piece)
        for (int64_t i = 0; i < n0; i++) {
            int64_t at = i * f0 + start * f1;
            pair_row(to + i * t0 + start * t1, t1, a ? a + at : NULL, b ? b + at : NULL, f1, ck_min(piece, n1 - start));
        }
}

void ck_pair_neighbours(const ck_pairing *bulk, ck_pair *to, int64_t t0, int64_t t1, const char *from, int64_t f0,
                        int64_t f1, int64_t n0, int64_t n1)
{
    int64_t whole = n1 / 2;
    if (whole)
        ck_pair_up(bulk, to, t0, t1, from, from + f1, f0, 2 * f1, n0, whole);
    if (n1 % 2)
        ck_pair_up(bulk, to + whole * t1, t0, t1, from + 2 * whole * f1, NULL, f0, f1, n0, 1);
}
