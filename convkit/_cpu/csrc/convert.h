/* Conversions between the dtypes of arrays and the dtype of the arithmetic, element by element of strided blocks. */
#ifndef CK_CONVERT_H
#define CK_CONVERT_H

#include "array.h"

/* Reads n elements `from_step` bytes apart and writes them `to_step` elements of the arithmetic's dtype apart. */
typedef void (*ck_load_fn)(void *to, int64_t to_step, const char *from, int64_t from_step, int64_t n);

/* The way back; with `add`, adds to what is there in the arithmetic's dtype and then rounds to the array's. */
typedef void (*ck_store_fn)(char *to, int64_t to_step, const void *from, int64_t from_step, int64_t n, bool add);

/* The converters between an array and the arithmetic's dtype (CK_F32 or CK_F64); NULL for pairs that never meet. */
ck_load_fn ck_loader(const ck_array *array, ck_type arithmetic);
ck_store_fn ck_storer(const ck_array *array, ck_type arithmetic);

static inline int64_t ck_size(ck_type arithmetic) { return arithmetic == CK_F64 ? 8 : 4; }

/* Two-dimensional blocks of n0 x n1 elements; steps of the block in elements of `size` bytes, of the array in bytes. */
void ck_load_block(ck_load_fn load, int64_t size, char *to, int64_t t0, int64_t t1, const char *from, int64_t f0,
                   int64_t f1, int64_t n0, int64_t n1);
void ck_store_block(ck_store_fn store, int64_t size, char *to, int64_t t0, int64_t t1, const char *from, int64_t f0,
                    int64_t f1, int64_t n0, int64_t n1, bool add);

#endif
