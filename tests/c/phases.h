/* The pixels of a result that see the same taps: all of them in a forward convolution, those with one remainder by each
 * stride in an input gradient. */
#ifndef PHASES_H
#define PHASES_H

#include "problem.h"

enum { MOST_STRIDE = 3, MOST_PHASES = MOST_STRIDE * MOST_STRIDE };

/* Along one axis: the pixels of the result with one remainder by the stride. */
typedef struct {
    offsets o;
    int64_t first, size;
} phase_axis;

typedef struct {
    phase_axis axes[2][MOST_STRIDE];
    int count[2];
} phase_set;

static inline int forward_axis(const problem *q, int axis, phase_axis *out)
{
    *out = (phase_axis){forward_offsets(q, axis), 0, q->grid[axis]};
    return 1;
}

/* Input pixel h = first + i * stride meets output pixel i + at at a tap where h + before - tap * dilation is
 * stride * (i + at); remainders that no tap reaches have no phase. */
static inline int backward_axis(const problem *q, int axis, phase_axis *out)
{
    int64_t stride = q->stride[axis];
    int count = 0;
    for (int64_t first = 0; first < ck_min(stride, q->size[axis]); first++) {
        phase_axis *phase = &out[count];
        *phase = (phase_axis){.first = first, .size = ck_ceil_div(q->size[axis] - first, stride)};
        for (int64_t tap = q->filter[axis] - 1; tap >= 0; tap--) {
            int64_t distance = first + q->before[axis] - tap * q->dilation[axis];
            if (distance % stride)
                continue;
            phase->o.tap[phase->o.taps] = tap;
            phase->o.at[phase->o.taps++] = distance / stride;
        }
        count += phase->o.taps > 0;
    }
    return count;
}

static inline void find_phases(const problem *q, bool backward, phase_set *phases)
{
    for (int axis = 0; axis < 2; axis++)
        phases->count[axis] = (backward ? backward_axis : forward_axis)(q, axis, phases->axes[axis]);
}

static inline ck_window phase_window(const problem *q, bool backward, const phase_axis *row, const phase_axis *col)
{
    ck_window w = forward_window(q, &row->o, &col->o);
    if (!backward)
        return w;
    w.height = q->grid[0];
    w.width = q->grid[1];
    w.out_height = row->size;
    w.out_width = col->size;
    w.row_step = w.col_step = 1;
    return w;
}

static inline bool is_reached(const phase_set *phases, int axis, int64_t stride, int64_t at)
{
    bool found = false;
    for (int i = 0; i < phases->count[axis]; i++)
        found = found || phases->axes[axis][i].first == at % stride;
    return found;
}

/* NaN where no phase of an input gradient comes: those pixels are not the engine's to write. */
static inline void drop_unreached(const problem *q, const phase_set *phases, double *values)
{
    for (int64_t n = 0; n < q->images; n++)
        for (int64_t h = 0; h < q->size[0]; h++)
            for (int64_t w = 0; w < q->size[1]; w++)
                for (int64_t c = 0; c < q->groups * q->in; c++, values++)
                    if (!is_reached(phases, 0, q->stride[0], h) || !is_reached(phases, 1, q->stride[1], w))
                        *values = NAN;
}

#endif
