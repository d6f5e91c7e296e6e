/* Random numbers that are the same in every run: a test names the seed of a failing case. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t state;
} generator;

static inline generator seeded(uint64_t seed) { return (generator){seed * 0x9e3779b97f4a7c15u + 1}; }

static inline uint64_t next_bits(generator *r) /* splitmix64 */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline int64_t between(generator *r, int64_t low, int64_t high)
{
    return low + (int64_t)(next_bits(r) % (uint64_t)(high - low + 1));
}

static inline bool one_in(generator *r, int64_t n) { return between(r, 1, n) == 1; }

static inline void shuffle(generator *r, int *items, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int64_t j = between(r, 0, i);
        int item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}

#endif
