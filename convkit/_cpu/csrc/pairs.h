/* bfloat16 numbers laid down as the pairs that a register tile of CK_BF16 reads, bit by bit as they are. */
#ifndef CK_PAIRS_H
#define CK_PAIRS_H

#include "kernels.h"

/* to[i * t0 + j * t1] = {a[i, j], b[i, j]} for i < n0 and j < n1, where a and b hold numbers f0 and f1 bytes apart, at even
 * addresses or odd; the steps of `to` are in pairs.  NULL stands for an array of zeros.  `bulk` is what the kernel's level
 * has for it, or NULL. */
void ck_pair_up(const ck_pairing *bulk, ck_pair *to, int64_t t0, int64_t t1, const char *a, const char *b, int64_t f0,
                int64_t f1, int64_t n0, int64_t n1);

/* Rows of n1 numbers as rows of half as many pairs of neighbours, rounded up: to[i * t0 + p * t1] holds numbers 2p and
 * 2p + 1 of row i, and zero after the last number. */
void ck_pair_neighbours(const ck_pairing *bulk, ck_pair *to, int64_t t0, int64_t t1, const char *from, int64_t f0,
                        int64_t f1, int64_t n0, int64_t n1);

#endif
