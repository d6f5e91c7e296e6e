// The gradient of an image from that of its patches (col2im).  A thread sums one value of the image, over the taps in order, a filter row at a time, and rounds it once.  The piece
// holds the patches of `rows` by `columns` windows, all that meet the `image_rows` by `image_columns` pixels written;
// the first of these has the coordinates `first_row` and `first_column`.
extern "C" __global__ void __launch_bounds__(256)
    scatter_back(const SUM *patches, void *image, i32 image_code, i64 count, i32 pixels_fastest, i64 image_rows,
                 i64 image_columns, i64 first_row, i64 first_column, i64 channels, i64 group_channels, WINDOWS,
                 IMAGE_STRIDES, PATCH_STRIDES)
{
    EACH_ITEM(index, count)
    {
        const place p = take_place(index, pixels_fastest, image_rows, image_columns, channels);
        i64 group = p.c;
        const i64 channel = take(&group, group_channels);
        const SUM *from = patches + group * patch_group + channel * patch_channel;
        const i64 h = p.i + first_row - row_at, w = p.j + first_column - column_at;
        SUM total = 0;
        for (i64 a = 0; a < filter_rows; a++) {
            i64 i = h - a * row_dilation;
            if (i < 0 || take(&i, row_step) != 0 || i >= rows)
                continue;
            SUM part = 0;
            i64 terms = 0;
            for (i64 b = 0; b < filter_columns; b++) {
                i64 j = w - b * column_dilation;
                if (j < 0 || take(&j, column_step) != 0 || j >= columns)
                    continue;
                part += from[((p.n * rows + i) * columns + j) * patch_pixel + (a * filter_columns + b) * patch_tap];
                if (++terms == SUM_BLOCK)
                    total += part, part = 0, terms = 0;
            }
            total += part;
        }
        store_as(image_code, image, p.n * image_n + p.i * image_h + p.j * image_w + p.c * image_c, total);
    }
}
