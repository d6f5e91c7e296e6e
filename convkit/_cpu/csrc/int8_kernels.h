/* The micro-kernels of int8 convolutions: one table feeds dispatch, tests and benchmarks.
 *
 * Pixels and filter meet in units of four bytes: a unit holds UNIT terms of one pixel, in one of two forms.
 *   bytes: four unsigned pixels against four signed weights.
 *   words: two pixels and two weights, each widened to 16 bits.
 * In depthwise convolutions a unit holds pixels of one channel, of as many rows, and each column meets the
 * units of its own channel: those of a pixel lie beside each other.
 * Sums are of 32 bits and wrap; what the true sum fits in comes out exactly.
 */
#ifndef CK_INT8_KERNELS_H
#define CK_INT8_KERNELS_H

#include "kernels.h"

typedef enum { CK_BYTES, CK_WORDS, CK_FORMS } ck_form;

enum { CK_UNIT_BYTES = 4, CK_INT8_MOST_COLUMNS = 32, CK_INT8_MOST_ROWS = 14, CK_DEPTHWISE_ROWS = 6 };

/* Two weights of the same sign may add up to this much if all bytes are to multiply exactly in pairs of 16 bits; bytes
 * below 128 always do. */
enum { CK_NARROW_PAIR = 128 };

static inline int64_t ck_form_size(ck_form form) { return form == CK_WORDS ? 2 : 1; }
static inline int64_t ck_form_unit(ck_form form) { return CK_UNIT_BYTES / ck_form_size(form); }

/* What becomes of a sum, for the columns of one panel; the arrays have as many elements as the kernel has columns. */
typedef struct {
    ck_type out;             /* CK_I32: the sum, nothing else; CK_I8, CK_U8, CK_F32 */
    ck_type side;            /* CK_I8, CK_U8 or CK_F32; CK_TYPES where there is none */
    const float *scale;
    const float *bias;       /* -0.0 where there is none, which added to anything leaves it as it is */
    float side_scale;
    float low, high;         /* of an integer result, less its zero point; whole numbers within 255 */
    int32_t zero_point;
    bool relu;               /* of a float32 result */
} ck_int8_epilogue;

/* Products of some rows of pixels with one panel of the filter.  The sum of row i and column j is
 *   (start ? start[j] : c[i][j]) + sum over the steps s of the unit at a + i * a_step + at[s] times filter unit (s, j).
 * It goes to c[i][j] or, where there is an epilogue, through that to out, as `finish` says. */
typedef struct {
    const void *a; /* a_step and at are in bytes */
    int64_t a_step;
    const int64_t *at;
    int64_t steps;
    const void *b; /* dense, [step][columns] */
    uint8_t flip;  /* of bytes, 0x80 or 0: what is added to them, modulo 256; 0 where pairs saturate, and of words */
    const int32_t *start;
    int32_t *c; /* dense, [row][columns]; may be NULL if there are `start` and an epilogue */
    const ck_int8_epilogue *epilogue; /* of results of one byte, or NULL */
    const char *side;
    int64_t side_step;
    char *out;
    int64_t out_step;
} ck_int8_products;

/* The caller guarantees 1 <= rows <= the form's rows; no alignment is needed; what is written overlaps nothing read but
 * c, and the side input where its elements are those of the result. */
typedef void (*ck_int8_dot_fn)(int64_t rows, const ck_int8_products *products);

/* Stores `count` channels, at most the kernel's columns, of each row; rows of sums are dense, of the others `step` bytes
 * apart.  Elements are neighbours and native; not a byte beyond `count` elements of side is read, or of out written. */
typedef void (*ck_int8_finish_fn)(int64_t rows, int64_t count, const int32_t *sums, const ck_int8_epilogue *epilogue,
                                  const void *side, int64_t side_step, void *out, int64_t out_step);

/* Lays n pixels' channels down as the form wants them: bytes with `flip` added modulo 256, words widened from signed or
 * unsigned bytes. */
typedef void (*ck_int8_spread_fn)(ck_form form, bool is_signed, uint8_t flip, void *to, const void *from, int64_t n);

/* The same for `lines` x `n` bytes, line i's byte j coming from from + i * from_line + j and going to element
 * j * to_step + i. */
typedef void (*ck_int8_weave_fn)(ck_form form, bool is_signed, uint8_t flip, void *to, int64_t to_step,
                                 const void *from, int64_t from_line, int64_t lines, int64_t n);

/* Lays down units for n pixels, `to_step` bytes apart, each of as many channels as the kernel has columns: term u of
 * unit j and channel c comes from the byte at from + j * from_step + u * tap_step + c, as `ck_int8_spread_fn` has it.
 * Terms beyond the `taps` first ones come from the first. */
typedef void (*ck_int8_gather_fn)(ck_form form, bool is_signed, uint8_t flip, void *to, int64_t to_step,
                                  const void *from, int64_t from_step, int64_t tap_step, int64_t taps, int64_t n);

typedef struct {
    const char *name; /* int8_<rows of bytes>x<rows of words>x<vectors of columns>v_<isa> */
    ck_isa isa;
    int64_t columns;
    bool pairs_saturate; /* dot[CK_BYTES] is right only where no pair of products leaves 16 bits */
    int64_t rows[CK_FORMS];
    ck_int8_dot_fn dot[CK_FORMS]; /* NULL for words where bytes are always right */
    ck_int8_dot_fn depthwise[CK_FORMS]; /* of up to CK_DEPTHWISE_ROWS rows; `flip` is 0 */
    ck_int8_finish_fn finish;
    ck_int8_spread_fn spread;
    ck_int8_gather_fn gather;
    ck_int8_weave_fn weave;
} ck_int8_kernel;

/* All that are built in, NULL at the end. */
extern const ck_int8_kernel *const ck_int8_kernels[];

/* The best of those that level `isa` has. */
const ck_int8_kernel *ck_int8_kernel_for(ck_isa isa);

#endif
