/* Tests of how bfloat16 numbers are laid down in pairs, against plain loops. */
#include "check.h"
#include "isa.h"
#include "pairs.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 4000, MOST = 150, ROOM = 1 << 15 };

static unsigned char from[2][ROOM];
static ck_pair to[ROOM], expected[ROOM];

static void spoil(generator *r)
{
    for (int i = 0; i < ROOM; i++) {
        from[0][i] = (unsigned char)next_bits(r);
        from[1][i] = (unsigned char)next_bits(r);
    }
    memset(to, 0xff, sizeof to);
    memset(expected, 0xff, sizeof expected);
}

static uint16_t number(const unsigned char *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* What some level of this CPU has for laying down pairs, or NULL, as all have. */
static const ck_pairing *some_bulk(generator *r)
{
    const ck_dot_kernel *kernel = ck_dot_kernel_for(CK_BF16, ck_best_isa());
    return kernel && one_in(r, 2) ? kernel->pairing : NULL;
}

/* Steps of two dimensions, either of them the denser one, that reach no element twice. */
static void draw_steps(generator *r, int64_t unit, int64_t n0, int64_t n1, int64_t *s0, int64_t *s1)
{
    bool first = one_in(r, 2);
    int64_t dense = unit * (one_in(r, 2) ? 1 : between(r, 1, 3)), count = first ? n0 : n1;
    int64_t wide = dense * count + unit * (one_in(r, 2) ? 0 : between(r, 0, 5));
    *s0 = first ? dense : wide;
    *s1 = first ? wide : dense;
}

static int64_t last_of(int64_t n0, int64_t n1, int64_t s0, int64_t s1) { return (n0 - 1) * s0 + (n1 - 1) * s1; }

static void pairs_are_of_the_numbers_that_steps_name(void)
{
    int zeros = 0, backwards = 0, neighbours = 0;
    for (int seed = 0; seed < CASES; seed++) {
        generator r = seeded((uint64_t)seed);
        int64_t n0 = between(&r, 0, 12), n1 = between(&r, 0, one_in(&r, 4) ? MOST : 20), t0, t1, f0, f1;
        draw_steps(&r, 1, n0, n1, &t0, &t1);
        draw_steps(&r, one_in(&r, 4) ? 1 : 2, n0, n1, &f0, &f1);
        if (last_of(n0, n1, t0, t1) >= ROOM || last_of(n0, n1, f0, f1) + 4 >= ROOM)
            continue;
        spoil(&r);
        const unsigned char *a = from[0], *b = from[1];
        if (one_in(&r, 6))
            a = NULL;
        if (one_in(&r, 6))
            b = NULL;
        else if (a && one_in(&r, 3))
            b = a + 2, neighbours++;
        if (a && b && n0 && one_in(&r, 4)) { /* from the other end */
            a += (n0 - 1) * f0;
            b += (n0 - 1) * f0;
            f0 = -f0;
            backwards++;
        }
        zeros += !a || !b;
        for (int64_t i = 0; i < n0; i++)
            for (int64_t j = 0; j < n1; j++)
                expected[i * t0 + j * t1] =
                    (ck_pair){a ? number(a + i * f0 + j * f1) : 0, b ? number(b + i * f0 + j * f1) : 0};
        ck_pair_up(some_bulk(&r), to, t0, t1, (const char *)a, (const char *)b, f0, f1, n0, n1);
        CHECK(memcmp(to, expected, sizeof to) == 0);
    }
    CHECK(zeros >= CASES / 8 && backwards >= CASES / 10 && neighbours >= CASES / 8);
}

static void rows_of_an_odd_length_end_in_zero(void)
{
    for (int seed = 0; seed < CASES; seed++) {
        generator r = seeded((uint64_t)seed);
        int64_t n0 = between(&r, 1, 12), n1 = between(&r, 1, one_in(&r, 4) ? MOST : 20), t0, t1, f0, f1;
        draw_steps(&r, 1, n0, (n1 + 1) / 2, &t0, &t1);
        draw_steps(&r, 2, n0, n1, &f0, &f1);
        if (last_of(n0, (n1 + 1) / 2, t0, t1) >= ROOM || last_of(n0, n1, f0, f1) + 2 >= ROOM)
            continue;
        spoil(&r);
        for (int64_t i = 0; i < n0; i++)
            for (int64_t p = 0; 2 * p < n1; p++) {
                const unsigned char *at = from[0] + i * f0 + 2 * p * f1;
                expected[i * t0 + p * t1] = (ck_pair){number(at), 2 * p + 1 < n1 ? number(at + f1) : 0};
            }
        ck_pair_neighbours(some_bulk(&r), to, t0, t1, (const char *)from[0], f0, f1, n0, n1);
        CHECK(memcmp(to, expected, sizeof to) == 0);
    }
}

int main(void)
{
    RUN(pairs_are_of_the_numbers_that_steps_name);
    RUN(rows_of_an_odd_length_end_in_zero);
    return summary();
}
