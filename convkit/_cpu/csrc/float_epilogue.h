/* What a fused convolution of floating-point numbers does with its sums, in the order
 *   t = sum * scale;  t = t + side * side_scale;  t = t + bias;  t = activation(t)
 * each step rounded.  A NaN passes every activation. */
#ifndef CK_FLOAT_EPILOGUE_H
#define CK_FLOAT_EPILOGUE_H

#include "array.h"
#include "pool.h"

typedef enum { CK_NO_ACTIVATION, CK_RELU, CK_RELU6, CK_ELU, CK_LEAKY_RELU } ck_activation;

/* Arrays are N, H, W, C.  Sums, factors and biases are of the arithmetic, CK_F32 or CK_F64; factors and biases are dense,
 * native and aligned.  Where out.data is NULL, results take the place of the sums; else the sums may be changed, too.
 * `out` overlaps no input but `side`, and that only element by element. */
typedef struct {
    ck_array sums, side, out; /* data is NULL where there is none */
    int64_t size[4];
    ck_type arithmetic;
    const void *scale, *bias; /* per channel, scale also one for all; or NULL */
    bool scale_per_channel;
    double side_scale, alpha;
    ck_activation activation;
} ck_float_epilogue;

/* Chunks are cut by the sizes alone.  Participants take no scratch. */
int ck_float_epilogue_run(const ck_float_epilogue *epilogue, const ck_job *limits);

#endif
