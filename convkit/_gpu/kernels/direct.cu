// Convolutions without a matrix: depthwise ones and those of narrow groups, in ELEMENT with sums in ACC.  Strides are in
// elements.  `given` channels of a group are summed over, `taken` ones are results of it; the filter's strides say how
// it is indexed by the one, the other and the group, so that the input gradient at stride 1 is the same kernel with a
// turned filter.

// Neighbouring results of a row that one thread sums; at dilation 1 it reads each pixel they share once.
enum { RUN = 4, TAP_BLOCK = 256 };

#define DIRECT_PARAMETERS                                                                                              \
    const ELEMENT *image, i64 image_n, i64 image_h, i64 image_w, i64 image_c, const ELEMENT *filter, i64 filter_h, i64 filter_w,   \
        i64 filter_given, i64 filter_taken, i64 filter_group, i64 count, i32 pixels_fastest, i64 in_rows,              \
        i64 in_columns, i64 rows, i64 columns, i64 channels, i64 given, i64 taken, i64 filter_rows,                    \
        i64 filter_columns, i64 row_step, i64 column_step, i64 row_dilation, i64 column_dilation, i64 row_padding,     \
        i64 column_padding, FINISH_PARAMETERS

// `count` is the number of runs of all rows.
extern "C" __global__ void __launch_bounds__(256) direct_forward(DIRECT_PARAMETERS)
{
    const i64 runs = (columns + RUN - 1) / RUN;
    const bool shared = column_dilation == 1 && column_step < filter_columns;
    EACH_ITEM(index, count)
    {
        place p = take_place(index, pixels_fastest, rows, runs, channels);
        p.j *= RUN;
        i64 group = p.c;
        const i64 lane = take(&group, taken);
        ACC total[RUN] = {}, part[RUN] = {};
        i64 terms = 0;
        for (i64 c = 0; c < given; c++) {
            const ELEMENT *pixels = image + p.n * image_n + (group * given + c) * image_c;
            const ELEMENT *weights = filter + lane * filter_taken + c * filter_given + group * filter_group;
            for (i64 a = 0; a < filter_rows; a++) {
                const i64 h = p.i * row_step + a * row_dilation - row_padding;
                if (h < 0 || h >= in_rows)
                    continue;
                const ELEMENT *row = pixels + h * image_h, *taps = weights + a * filter_h;
                for (i64 first = 0; first < filter_columns; first += TAP_BLOCK) {
                    const i64 left = filter_columns - first;
                    const i32 block = left < TAP_BLOCK ? (i32)left : (i32)TAP_BLOCK;
                    terms += block;
                    if (terms > SUM_BLOCK) {
#pragma unroll
                        for (i32 r = 0; r < RUN; r++)
                            total[r] += part[r], part[r] = 0;
                        terms = block;
                    }
                    const i64 w = p.j * column_step - column_padding + first * column_dilation;
                    const ELEMENT *tap = taps + first * filter_w;
                    if (shared) {
                        const i32 step = (i32)column_step, span = block + (RUN - 1) * step;
                        for (i32 q = 0; q < span; q++) {
                            if (w + q < 0 || w + q >= in_columns)
                                continue;
                            const ACC value = widen(row[(w + q) * image_w]);
#pragma unroll
                            for (i32 r = 0; r < RUN; r++) {
                                const i32 b = q - r * step;
                                if (b >= 0 && b < block)
                                    part[r] = multiply_add(value, widen(tap[b * filter_w]), part[r]);
                            }
                        }
                    } else {
                        for (i32 b = 0; b < block; b++) {
                            const ACC weight = widen(tap[b * filter_w]);
#pragma unroll
                            for (i32 r = 0; r < RUN; r++) {
                                const i64 x = w + r * column_step + b * column_dilation;
                                if (x >= 0 && x < in_columns)
                                    part[r] = multiply_add((ACC)widen(row[x * image_w]), weight, part[r]);
                            }
                        }
                    }
                }
            }
        }
#pragma unroll
        for (i32 r = 0; r < RUN; r++)
            total[r] += part[r];
        // Four copies of the epilogue would take NVRTC minutes: the results move up one after the other.
#pragma unroll 1
        for (i64 end = p.j + RUN < columns ? p.j + RUN : columns; p.j < end; p.j++) {
            finish(total[0], p, FINISH_ARGUMENTS);
#pragma unroll
            for (i32 r = 0; r + 1 < RUN; r++)
                total[r] = total[r + 1];
        }
    }
}

// The input gradient at other strides: `image` is the gradient of the result, and each pixel sums over the windows that
// hold it.  `rows` and `columns` are those of the gradient written, `in_rows` and `in_columns` those of `image`.
extern "C" __global__ void __launch_bounds__(256) direct_backward(DIRECT_PARAMETERS)
{
    EACH_ITEM(index, count)
    {
        const place p = take_place(index, pixels_fastest, rows, columns, channels);
        i64 group = p.c;
        const i64 lane = take(&group, taken);
        ACC total = 0, part = 0;
        i64 terms = 0;
        for (i64 a = 0; a < filter_rows; a++) {
            i64 i = p.i + row_padding - a * row_dilation;
            if (i < 0 || take(&i, row_step) != 0 || i >= in_rows)
                continue;
            for (i64 b = 0; b < filter_columns; b++) {
                i64 j = p.j + column_padding - b * column_dilation;
                if (j < 0 || take(&j, column_step) != 0 || j >= in_columns)
                    continue;
                const ELEMENT *pixel = image + p.n * image_n + i * image_h + j * image_w + group * given * image_c;
                const ELEMENT *weight = filter + a * filter_h + b * filter_w + lane * filter_taken + group * filter_group;
                for (i64 c = 0; c < given; c++) {
                    part = multiply_add((ACC)widen(pixel[c * image_c]), (ACC)widen(weight[c * filter_given]), part);
                    if (++terms == SUM_BLOCK)
                        total += part, part = 0, terms = 0;
                }
            }
        }
        finish(total + part, p, FINISH_ARGUMENTS);
    }
}
