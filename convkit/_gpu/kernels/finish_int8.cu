// What becomes of an int32 sum of int8 products, exactly as csrc/int8_finish.inc and the NumPy epilogue have it:
//   t = float(sum + int32 bias) * scale;  t = fma(side, side_scale, t);  t = t + bias;
//   result = clip(round half to even(t)) + zero_point, a NaN giving the zero point.
// An `out_code` of I32 asks for the sum itself.  Arrays may hold their channels in vectors of four: channel c lies at
// (c / 4) blocks and (c % 4) lanes; strides are in elements.

#define INT8_FINISH_PARAMETERS                                                                                         \
    const float *scale, i64 scale_step, const void *bias, i32 bias_code, const void *side, i32 side_code, i64 side_n,  \
        i64 side_h, i64 side_w, i64 side_block, i64 side_lane, float side_scale, i32 relu, float low, float high,      \
        i32 zero_point, void *out, i32 out_code, i64 out_n, i64 out_h, i64 out_w, i64 out_block, i64 out_lane

#define INT8_FINISH_ARGUMENTS                                                                                          \
    scale, scale_step, bias, bias_code, side, side_code, side_n, side_h, side_w, side_block, side_lane, side_scale,    \
        relu, low, high, zero_point, out, out_code, out_n, out_h, out_w, out_block, out_lane

__device__ __forceinline__ i64 channel_at(i64 channel, i64 block, i64 lane)
{
    return (channel >> 2) * block + (channel & 3) * lane;
}

__device__ __forceinline__ void finish_int8(u32 sum, place p, INT8_FINISH_PARAMETERS)
{
    const i64 at = p.n * out_n + p.i * out_h + p.j * out_w + channel_at(p.c, out_block, out_lane);
    if (out_code == I32) {
        ((i32 *)out)[at] = (i32)sum;
        return;
    }
    if (bias && bias_code == I32)
        sum += (u32)((const i32 *)bias)[p.c];
    float t = __fmul_rn((float)(i32)sum, scale[p.c * scale_step]);
    if (side) {
        const i64 beside = p.n * side_n + p.i * side_h + p.j * side_w + channel_at(p.c, side_block, side_lane);
        t = fmaf(load_as<float>(side_code, side, beside), side_scale, t);
    }
    if (bias && bias_code == F32)
        t = __fadd_rn(t, ((const float *)bias)[p.c]);
    if (out_code == F32) {
        ((float *)out)[at] = relu && t <= 0 ? 0 : t;
        return;
    }
    float rounded = rintf(t);
    rounded = rounded < low ? low : rounded > high ? high : rounded;
    const i32 result = (rounded == rounded ? (i32)rounded : 0) + zero_point;
    // The same byte in int8 and uint8.
    ((u8 *)out)[at] = (u8)result;
}
