// What becomes of a floating-point sum: t = sum * scale; t += side * side_scale; t += bias; t = activation(t), each step
// rounded, as in csrc/float_epilogue.h.  ACC is the arithmetic's type.  A scale or a bias of NULL is left out, and so is
// a side input of NULL; a scale has one number, with a step of 0, or one per channel.

#define FINISH_PARAMETERS                                                                                              \
    const ACC *scale, i64 scale_step, const ACC *bias, const void *side, i32 side_code, i64 side_n, i64 side_h,        \
        i64 side_w, i64 side_c, double side_scale, i32 activation, double alpha, void *out, i32 out_code, i64 out_n,   \
        i64 out_h, i64 out_w, i64 out_c

#define FINISH_ARGUMENTS                                                                                               \
    scale, scale_step, bias, side, side_code, side_n, side_h, side_w, side_c, side_scale, activation, alpha, out,      \
        out_code, out_n, out_h, out_w, out_c

__device__ __forceinline__ float exponential_less_one(float t) { return expm1f(t); }
__device__ __forceinline__ double exponential_less_one(double t) { return expm1(t); }

// A NaN passes each of them.
__device__ __forceinline__ ACC activate(ACC t, i32 activation, ACC alpha)
{
    switch (activation) {
    case RELU: return t <= 0 ? 0 : t;
    case RELU6: return t <= 0 ? 0 : t >= 6 ? 6 : t;
    case ELU: return t > 0 ? t : exponential_less_one(t);
    case LEAKY_RELU: return t > 0 ? t : t * alpha;
    default: return t;
    }
}

__device__ __forceinline__ void finish(ACC t, place p, FINISH_PARAMETERS)
{
    if (scale)
        t *= scale[p.c * scale_step];
    if (side) {
        const ACC beside = load_as<ACC>(side_code, side, p.n * side_n + p.i * side_h + p.j * side_w + p.c * side_c);
        t += beside * (ACC)side_scale;
    }
    if (bias)
        t += bias[p.c];
    store_as(out_code, out, p.n * out_n + p.i * out_h + p.j * out_w + p.c * out_c, activate(t, activation, (ACC)alpha));
}
