#include "convert.h"

#include "bfloat.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Elements may lie at any address: memcpy compiles to plain unaligned loads and stores. */

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double double_of_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of_double(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The half's exponent and fraction, moved to where a float has them, are a float 2^112 times too small; the product is
 * exact, subnormal halves included.  Infinities and NaNs get the float's largest exponent. */
static inline float float_of_half(uint16_t half)
{
    uint32_t magnitude = half & 0x7fffu;
    uint32_t bits = bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f);
    bits |= magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    return float_of_bits(bits | (uint32_t)(half & 0x8000u) << 16);
}

/* Rounds half to even. */
static inline uint16_t half_of_float(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x477ff000u) /* 65520, halfway from the largest half to the next power of two */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) /* below the least normal half: 0.5f has the half's least unit as its own */
        return (uint16_t)(sign | (bits_of_float(float_of_bits(bits) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (bits + 0xfffu + (bits >> 13 & 1u) - 0x38000000u) >> 13);
}

#define SAME(v) (v)
#define SIGNED8(v) ((int8_t)(v))
#define SIGNED16(v) ((int16_t)(v))
#define SIGNED32(v) ((int32_t)(v))
#define SIGNED64(v) ((int64_t)(v))
#define TRUTH(v) ((v) != 0)

/* RAW is the unsigned integer of the element's width, ORDER brings its bytes into native order, DECODE gives the value. */
#define LOADER(NAME, RAW, ORDER, DECODE, OUT)                                                                          \
    static void NAME(void *to, int64_t to_step, const char *from, int64_t from_step, int64_t n)                        \
    {                                                                                                                  \
        OUT *restrict out = to;                                                                                        \
        if (to_step == 1 && from_step == (int64_t)sizeof(RAW)) {                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                RAW raw;                                                                                               \
                memcpy(&raw, from + i * (int64_t)sizeof raw, sizeof raw);                                              \
                out[i] = (OUT)DECODE(ORDER(raw));                                                                      \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                RAW raw;                                                                                               \
                memcpy(&raw, from + i * from_step, sizeof raw);                                                        \
                out[i * to_step] = (OUT)DECODE(ORDER(raw));                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

#define STORER(NAME, RAW, ORDER, DECODE, ENCODE, IN)                                                                   \
    static void NAME(char *to, int64_t to_step, const void *from, int64_t from_step, int64_t n, bool add)              \
    {                                                                                                                  \
        const IN *in = from;                                                                                           \
        RAW raw;                                                                                                       \
        if (add) {                                                                                                     \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                memcpy(&raw, to + i * to_step, sizeof raw);                                                            \
                raw = ORDER(ENCODE((IN)(DECODE(ORDER(raw)) + in[i * from_step])));                                     \
                memcpy(to + i * to_step, &raw, sizeof raw);                                                            \
            }                                                                                                          \
        } else if (from_step == 1 && to_step == (int64_t)sizeof raw) {                                                 \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                raw = ORDER(ENCODE(in[i]));                                                                            \
                memcpy(to + i * (int64_t)sizeof raw, &raw, sizeof raw);                                                \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                raw = ORDER(ENCODE(in[i * from_step]));                                                                \
                memcpy(to + i * to_step, &raw, sizeof raw);                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }

#define LOADERS(NAME, RAW, SWAP, DECODE, OUT)                                                                          \
    LOADER(load_##NAME, RAW, SAME, DECODE, OUT)                                                                        \
    LOADER(load_swapped_##NAME, RAW, SWAP, DECODE, OUT)

LOADERS(f32, uint32_t, __builtin_bswap32, float_of_bits, float)
LOADERS(f16, uint16_t, __builtin_bswap16, float_of_half, float)
LOADER(load_bf16, uint16_t, SAME, ck_float_of_bfloat, float)
LOADER(load_bool_f32, uint8_t, SAME, TRUTH, float)
LOADER(load_i8_f32, uint8_t, SAME, SIGNED8, float)
LOADER(load_u8_f32, uint8_t, SAME, SAME, float)
LOADERS(i16_f32, uint16_t, __builtin_bswap16, SIGNED16, float)
LOADERS(u16_f32, uint16_t, __builtin_bswap16, SAME, float)
LOADERS(f64, uint64_t, __builtin_bswap64, double_of_bits, double)
LOADER(load_bool_f64, uint8_t, SAME, TRUTH, double)
LOADER(load_i8_f64, uint8_t, SAME, SIGNED8, double)
LOADER(load_u8_f64, uint8_t, SAME, SAME, double)
LOADERS(i16_f64, uint16_t, __builtin_bswap16, SIGNED16, double)
LOADERS(u16_f64, uint16_t, __builtin_bswap16, SAME, double)
LOADERS(i32_f64, uint32_t, __builtin_bswap32, SIGNED32, double)
LOADERS(u32_f64, uint32_t, __builtin_bswap32, SAME, double)
LOADERS(i64_f64, uint64_t, __builtin_bswap64, SIGNED64, double)
LOADERS(u64_f64, uint64_t, __builtin_bswap64, SAME, double)

STORER(store_f32, uint32_t, SAME, float_of_bits, bits_of_float, float)
STORER(store_swapped_f32, uint32_t, __builtin_bswap32, float_of_bits, bits_of_float, float)
STORER(store_f16, uint16_t, SAME, float_of_half, half_of_float, float)
STORER(store_swapped_f16, uint16_t, __builtin_bswap16, float_of_half, half_of_float, float)
STORER(store_bf16, uint16_t, SAME, ck_float_of_bfloat, ck_bfloat_of_float, float)
STORER(store_f64, uint64_t, SAME, double_of_bits, bits_of_double, double)
STORER(store_swapped_f64, uint64_t, __builtin_bswap64, double_of_bits, bits_of_double, double)

/* [arithmetic is double][swapped][dtype] */
static const ck_load_fn LOAD[2][2][CK_TYPES] = {
    {
        {[CK_F32] = load_f32,
         [CK_F16] = load_f16,
         [CK_BF16] = load_bf16,
         [CK_BOOL] = load_bool_f32,
         [CK_I8] = load_i8_f32,
         [CK_U8] = load_u8_f32,
         [CK_I16] = load_i16_f32,
         [CK_U16] = load_u16_f32},
        {[CK_F32] = load_swapped_f32,
         [CK_F16] = load_swapped_f16,
         [CK_I16] = load_swapped_i16_f32,
         [CK_U16] = load_swapped_u16_f32},
    },
    {
        {[CK_F64] = load_f64,
         [CK_BOOL] = load_bool_f64,
         [CK_I8] = load_i8_f64,
         [CK_U8] = load_u8_f64,
         [CK_I16] = load_i16_f64,
         [CK_U16] = load_u16_f64,
         [CK_I32] = load_i32_f64,
         [CK_U32] = load_u32_f64,
         [CK_I64] = load_i64_f64,
         [CK_U64] = load_u64_f64},
        {[CK_F64] = load_swapped_f64,
         [CK_I16] = load_swapped_i16_f64,
         [CK_U16] = load_swapped_u16_f64,
         [CK_I32] = load_swapped_i32_f64,
         [CK_U32] = load_swapped_u32_f64,
         [CK_I64] = load_swapped_i64_f64,
         [CK_U64] = load_swapped_u64_f64},
    },
};

static const ck_store_fn STORE[2][2][CK_TYPES] = {
    {{[CK_F32] = store_f32, [CK_F16] = store_f16, [CK_BF16] = store_bf16},
     {[CK_F32] = store_swapped_f32, [CK_F16] = store_swapped_f16}},
    {{[CK_F64] = store_f64}, {[CK_F64] = store_swapped_f64}},
};

ck_load_fn ck_loader(const ck_array *array, ck_type arithmetic)
{
    return LOAD[arithmetic == CK_F64][array->swapped][array->type];
}

ck_store_fn ck_storer(const ck_array *array, ck_type arithmetic)
{
    return STORE[arithmetic == CK_F64][array->swapped][array->type];
}

/* A transposition runs along the array's dense dimension in pieces of this length, so that the lines it touches on the
 * other side stay in the first-level cache from one piece to the next; on the way back, so many rows at once, which are a
 * line of float32 numbers. */
enum { PIECE = 64, TURNED = 16 };

/* Four rows of n dense numbers become n rows of four. */
static void turn_f32(const char *from, int64_t from_step, float *to, int64_t to_step, int64_t n)
{
    int64_t i = 0;
#ifdef __SSE2__
    for (; i + 4 <= n; i += 4) {
        __m128 rows[4];
        for (int j = 0; j < 4; j++)
            rows[j] = _mm_loadu_ps((const float *)(from + j * from_step) + i);
        _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
        for (int j = 0; j < 4; j++)
            _mm_storeu_ps(to + (i + j) * to_step, rows[j]);
    }
#endif
    for (; i < n; i++)
        for (int j = 0; j < 4; j++)
            memcpy(to + i * to_step + j, from + j * from_step + i * (int64_t)sizeof(float), sizeof(float));
}

static void turn_f64(const char *from, int64_t from_step, double *to, int64_t to_step, int64_t n)
{
    int64_t i = 0;
#ifdef __SSE2__
    for (; i + 2 <= n; i += 2)
        for (int j = 0; j < 4; j += 2) {
            __m128d above = _mm_loadu_pd((const double *)(from + j * from_step) + i);
            __m128d below = _mm_loadu_pd((const double *)(from + (j + 1) * from_step) + i);
            _mm_storeu_pd(to + i * to_step + j, _mm_unpacklo_pd(above, below));
            _mm_storeu_pd(to + (i + 1) * to_step + j, _mm_unpackhi_pd(above, below));
        }
#endif
    for (; i < n; i++)
        for (int j = 0; j < 4; j++)
            memcpy(to + i * to_step + j, from + j * from_step + i * (int64_t)sizeof(double), sizeof(double));
}

/* Four rows of at most PIECE elements, transposed; each is first made dense numbers of the arithmetic, if it is not. */
static void load_turned(ck_load_fn load, int64_t size, char *to, int64_t to_step, const char *from, int64_t f0,
                        int64_t f1, int64_t n)
{
    double rows[4 * PIECE];
    if ((load != load_f32 && load != load_f64) || f1 != size) {
        for (int i = 0; i < 4; i++)
            load((char *)rows + i * PIECE * size, 1, from + i * f0, f1, n);
        from = (const char *)rows;
        f0 = PIECE * size;
    }
    if (size == (int64_t)sizeof(float))
        turn_f32(from, f0, (float *)(void *)to, to_step, n);
    else
        turn_f64(from, f0, (double *)(void *)to, to_step, n);
}

void ck_load_block(ck_load_fn load, int64_t size, char *to, int64_t t0, int64_t t1, const char *from, int64_t f0,
                   int64_t f1, int64_t n0, int64_t n1)
{
    if (n1 == 1 || (ck_distance(f1) > ck_distance(f0) && n0 > 1)) { /* let dimension 1 be the array's denser one */
        int64_t swap = t0;
        t0 = t1, t1 = swap;
        swap = f0, f0 = f1, f1 = swap;
        swap = n0, n0 = n1, n1 = swap;
    }
    int64_t piece = t1 == 1 ? n1 : PIECE;
    for (int64_t start = 0; start < n1; start += piece) {
        int64_t i = 0;
        for (; t0 == 1 && t1 != 1 && i + 4 <= n0; i += 4)
            load_turned(load, size, to + (i + start * t1) * size, t1, from + i * f0 + start * f1, f0, f1,
                        ck_min(piece, n1 - start));
        for (; i < n0; i++)
            load(to + (i * t0 + start * t1) * size, t1, from + i * f0 + start * f1, f1, ck_min(piece, n1 - start));
    }
}

/* TURNED rows of the array, of at most PIECE elements, whose numbers lie f1 apart and those of the rows side by side; each
 * is first made a dense row. */
static void store_turned(ck_store_fn store, int64_t size, char *to, int64_t t0, int64_t t1, const char *from, int64_t f1,
                         int64_t n, bool add)
{
    double rows[TURNED * PIECE];
    char *dense = (char *)rows;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4)
        if (size == (int64_t)sizeof(float))
            turn_f32(from + j * f1 * size, f1 * size, (float *)(void *)dense + j, PIECE, TURNED);
        else
            turn_f64(from + j * f1 * size, f1 * size, rows + j, PIECE, TURNED);
    for (; j < n; j++)
        for (int i = 0; i < TURNED; i++)
            memcpy(dense + (i * PIECE + j) * size, from + (j * f1 + i) * size, (size_t)size);
    for (int i = 0; i < TURNED; i++)
        store(to + i * t0, t1, dense + i * PIECE * size, 1, n, add);
}

void ck_store_block(ck_store_fn store, int64_t size, char *to, int64_t t0, int64_t t1, const char *from, int64_t f0,
                    int64_t f1, int64_t n0, int64_t n1, bool add)
{
    if (n1 == 1 || (ck_distance(t1) > ck_distance(t0) && n0 > 1)) {
        int64_t swap = t0;
        t0 = t1, t1 = swap;
        swap = f0, f0 = f1, f1 = swap;
        swap = n0, n0 = n1, n1 = swap;
    }
    int64_t piece = f1 == 1 ? n1 : PIECE;
    for (int64_t start = 0; start < n1; start += piece) {
        int64_t i = 0, n = ck_min(piece, n1 - start);
        for (; f0 == 1 && f1 != 1 && i + TURNED <= n0; i += TURNED)
            store_turned(store, size, to + i * t0 + start * t1, t0, t1, from + (i + start * f1) * size, f1, n, add);
        for (; i < n0; i++)
            store(to + i * t0 + start * t1, t1, from + (i * f0 + start * f1) * size, f1, n, add);
    }
}
