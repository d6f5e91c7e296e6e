#include "float_epilogue.h"
#include "convert.h"

#include <math.h>
#include <string.h>

/* Numbers that pass all steps while they are in the first-level cache; and those of a chunk, some 50 microseconds. */
enum { LINE = 1024, CHUNK = 1 << 15 };

/* Numbers one after the other along one axis, and the factors that go with them. */
typedef struct {
    char *sums;
    const char *side;
    char *out;
    int64_t sums_step, side_step, out_step, count;
    const void *scale, *bias; /* `count` of them, or one */
    bool one_scale, one_bias;
} line;

#define NUMBER float
#define EXPM1 expm1f
#define NAME(what) what##_f32
#include "float_epilogue.inc"

#define NUMBER double
#define EXPM1 expm1
#define NAME(what) what##_f64
#include "float_epilogue.inc"

static void finish_line(const ck_float_epilogue *e, const line *l)
{
    if (e->arithmetic == CK_F64)
        finish_line_f64(e, l);
    else
        finish_line_f32(e, l);
}

/* Numbers of all channels, repeated for as many pixels as a line has; NULL stays. */
static const void *repeated(const void *from, int64_t bytes, int64_t pixels, char *to)
{
    for (int64_t i = 0; from && i < pixels; i++)
        memcpy(to + i * bytes, from, (size_t)bytes);
    return from ? to : NULL;
}

static int64_t rows_of_chunk(const ck_float_epilogue *e)
{
    return ck_max(1, CHUNK / ck_max(1, e->size[2] * e->size[3]));
}

/* Whether pixels of a row lie one after the other. */
static bool dense(const ck_array *array, int64_t channels)
{
    return array->data == NULL || array->stride[2] == channels * array->stride[3];
}

static void run_chunk(void *ctx, int64_t chunk, ck_worker *worker)
{
    const ck_float_epilogue *e = ctx;
    const int64_t *size = e->size, bytes = ck_size(e->arithmetic), channels = size[3];
    const int64_t rows = rows_of_chunk(e), end = ck_min(size[0] * size[1], (chunk + 1) * rows);
    /* Lines go along the channels, or along a row where its pixels of one channel are the neighbours. */
    const bool planes = e->sums.stride[3] != bytes && e->sums.stride[2] == bytes;
    const bool whole = dense(&e->sums, channels) && dense(&e->side, channels) && dense(&e->out, channels);
    const int64_t pixels = planes || !whole ? 1 : ck_max(1, ck_min(size[2], LINE / channels));
    const int64_t outer = planes ? channels : ck_ceil_div(size[2], pixels);
    const int along = planes ? 2 : 3, across = planes ? 3 : 2;
    char scales[LINE * 8], biases[LINE * 8];
    const void *scale = e->scale, *bias = e->bias;
    if (pixels > 1) {
        scale = e->scale_per_channel ? repeated(scale, channels * bytes, pixels, scales) : scale;
        bias = repeated(bias, channels * bytes, pixels, biases);
    }
    for (int64_t row = chunk * rows; row < end; row++) {
        if (ck_worker_stop(worker))
            return;
        const int64_t n = row / size[1], i = row % size[1];
        for (int64_t o = 0; o < outer; o++) {
            const int64_t first = o * (planes ? 1 : pixels);
            const int64_t total = planes ? size[2] : ck_min(pixels, size[2] - first) * channels;
            for (int64_t at = 0; at < total; at += LINE) {
                line l = {.count = ck_min(LINE, total - at), .one_bias = planes,
                          .one_scale = planes || !e->scale_per_channel};
                const ck_array *arrays[3] = {&e->sums, &e->side, &e->out};
                char *data[3];
                for (int a = 0; a < 3; a++)
                    data[a] = arrays[a]->data == NULL
                                  ? NULL
                                  : arrays[a]->data + n * arrays[a]->stride[0] + i * arrays[a]->stride[1] +
                                        first * arrays[a]->stride[across] + at * arrays[a]->stride[along];
                l.sums = data[0], l.side = data[1], l.out = data[2];
                l.sums_step = e->sums.stride[along], l.side_step = e->side.stride[along];
                l.out_step = e->out.stride[along];
                const int64_t factor = planes ? o : at;
                l.bias = bias ? (const char *)bias + factor * bytes : NULL;
                l.scale = scale ? (const char *)scale + (e->scale_per_channel ? factor : 0) * bytes : NULL;
                finish_line(e, &l);
            }
        }
    }
}

int ck_float_epilogue_run(const ck_float_epilogue *epilogue, const ck_job *limits)
{
    ck_job job = *limits;
    job.ctx = (void *)epilogue;
    job.fn = run_chunk;
    job.chunks = ck_ceil_div(epilogue->size[0] * epilogue->size[1], rows_of_chunk(epilogue));
    job.scratch_bytes = 0;
    return ck_pool_run(&job);
}
