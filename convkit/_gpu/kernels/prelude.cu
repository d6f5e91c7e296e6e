// What every source begins with: types, conversions, and indices taken apart.  No source includes anything.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

// As CODES in launch.py: types that are known only when a kernel runs.  All threads take the same branch.
enum { F32, F64, F16, BF16, I8, U8, I16, U16, I32, U32, I64, U64 };

// As ACTIVATIONS in _epilogue.py.
enum { NO_ACTIVATION, RELU, RELU6, ELU, LEAKY_RELU };

// No float32 accumulator takes more terms than this before it is added to a second one.
enum { SUM_BLOCK = 512 };

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }

__device__ __forceinline__ float widen(bf16 value) { return __uint_as_float((u32)value.bits << 16); }

// The exponent is moved by a product with 2^112, which makes subnormal numbers normal on the way.
__device__ __forceinline__ float widen(f16 value)
{
    const u32 magnitude = (u32)(value.bits & 0x7fff) << 13, sign = (u32)(value.bits & 0x8000) << 16;
    const u32 bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u
                                              : __float_as_uint(__uint_as_float(magnitude) * __uint_as_float(0x77800000u));
    return __uint_as_float(bits | sign);
}

// To the nearest number, the even one of two.
__device__ __forceinline__ void narrow(float value, float *to) { *to = value; }
__device__ __forceinline__ void narrow(double value, double *to) { *to = value; }

__device__ __forceinline__ void narrow(float value, bf16 *to)
{
    const u32 bits = __float_as_uint(value), sign = bits & 0x80000000u, magnitude = bits & 0x7fffffffu;
    const u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to->bits = (u16)(magnitude > 0x7f800000u ? 0x7fc0 | sign >> 16 : rounded);
}

// Below 2^-14 the sum with 1/2 is rounded where a subnormal half has its last bit.
__device__ __forceinline__ void narrow(float value, f16 *to)
{
    const u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
    u32 rounded = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    if (magnitude >= 0x47800000u)
        rounded = magnitude > 0x7f800000u ? 0x7e00 : 0x7c00;
    else if (magnitude < 0x38800000u)
        rounded = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    to->bits = (u16)(rounded | (bits >> 16 & 0x8000));
}

// To float32, but to the odd one of two neighbours: whoever rounds that to fewer bits rounds the double itself.
__device__ __forceinline__ float to_odd(double value)
{
    const float near = (float)value;
    const u32 bits = __float_as_uint(near);
    if ((double)near == value || value != value || bits & 1)
        return near;
    const bool below = (double)near < value, negative = bits >> 31 != 0;
    return __uint_as_float(below != negative ? bits + 1 : bits - 1);
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

template <class Number> __device__ __forceinline__ Number load_as(i32 code, const void *from, i64 at)
{
    switch (code) {
    case F32: return (Number)((const float *)from)[at];
    case F64: return (Number)((const double *)from)[at];
    case F16: return (Number)widen(((const f16 *)from)[at]);
    case BF16: return (Number)widen(((const bf16 *)from)[at]);
    case I8: return (Number)((const i8 *)from)[at];
    case U8: return (Number)((const u8 *)from)[at];
    case I16: return (Number)((const i16 *)from)[at];
    case U16: return (Number)((const u16 *)from)[at];
    case I32: return (Number)((const i32 *)from)[at];
    case U32: return (Number)((const u32 *)from)[at];
    case I64: return (Number)((const i64 *)from)[at];
    default: return (Number)((const u64 *)from)[at];
    }
}

__device__ __forceinline__ void store_as(i32 code, void *to, i64 at, float value)
{
    switch (code) {
    case F32: ((float *)to)[at] = value; break;
    case F16: narrow(value, (f16 *)to + at); break;
    default: narrow(value, (bf16 *)to + at); break;
    }
}

__device__ __forceinline__ void store_as(i32 code, void *to, i64 at, double value)
{
    switch (code) {
    case F64: ((double *)to)[at] = value; break;
    case F32: ((float *)to)[at] = (float)value; break;
    case F16: narrow(to_odd(value), (f16 *)to + at); break;
    default: narrow(to_odd(value), (bf16 *)to + at); break;
    }
}

// Takes the last of several indices off one number.  Most sizes fit 32 bits, whose division is several times faster.
__device__ __forceinline__ i64 take(i64 *rest, i64 size)
{
    if (size == 1)
        return 0;
    if (((u64)*rest | (u64)size) >> 32 == 0) {
        const u32 all = (u32)*rest, by = (u32)size, whole = all / by;
        *rest = whole;
        return all - whole * by;
    }
    const i64 whole = *rest / size, last = *rest - whole * size;
    *rest = whole;
    return last;
}

// Four axes in the order N, H, W, C from one number: the channels are the fastest ones, or the pixels of a row are.
struct place {
    i64 n, i, j, c;
};

__device__ __forceinline__ place take_place(i64 index, i32 pixels_fastest, i64 rows, i64 columns, i64 channels)
{
    place p;
    if (pixels_fastest) {
        p.j = take(&index, columns);
        p.i = take(&index, rows);
        p.c = take(&index, channels);
    } else {
        p.c = take(&index, channels);
        p.j = take(&index, columns);
        p.i = take(&index, rows);
    }
    p.n = index;
    return p;
}

// Every thread takes each so-many-th item, so that any number of blocks does all the work.
#define EACH_ITEM(index, count)                                                                                        \
    for (i64 index = (i64)blockIdx.x * blockDim.x + threadIdx.x; index < (count); index += (i64)gridDim.x * blockDim.x)
