// The patch matrix of a piece of the result (im2col).  A thread copies one channel of one window, tap by tap; what is in
// the padding is 0.  ELEMENT is any type of an element's size, or of several channels as one.  With NUMBER in its place,
// numbers are converted by way of that.

#ifdef NUMBER
#define FROM const void *
#define TO void *
#define MOVE(at) store_as(patch_code, patches, target, met ? load_as<NUMBER>(image_code, image, at) : (NUMBER)0)
#else
#define FROM const ELEMENT *
#define TO ELEMENT *
#define MOVE(at)                                                                                                       \
    {                                                                                                                  \
        ELEMENT value = {};                                                                                                  \
        if (met)                                                                                                       \
            value = image[at];                                                                                         \
        patches[target] = value;                                                                                       \
    }
#endif

extern "C" __global__ void __launch_bounds__(256)
    gather(FROM image, TO patches,
#ifdef NUMBER
           i32 image_code, i32 patch_code,
#endif
           i64 count, i32 pixels_fastest, i64 channels, i64 group_channels, i64 in_rows, i64 in_columns, WINDOWS,
           IMAGE_STRIDES, PATCH_STRIDES)
{
    EACH_ITEM(index, count)
    {
        const place p = take_place(index, pixels_fastest, rows, columns, channels);
        i64 group = p.c;
        const i64 channel = take(&group, group_channels), pixel = (p.n * rows + p.i) * columns + p.j;
        const i64 h = p.i * row_step + row_at, w = p.j * column_step + column_at;
        const i64 source = p.n * image_n + p.c * image_c;
        i64 target = group * patch_group + pixel * patch_pixel + channel * patch_channel;
        for (i64 a = 0; a < filter_rows; a++) {
            const i64 y = h + a * row_dilation;
            const bool inside = y >= 0 && y < in_rows;
            for (i64 b = 0; b < filter_columns; b++, target += patch_tap) {
                const i64 x = w + b * column_dilation;
                const bool met = inside && x >= 0 && x < in_columns;
                MOVE(source + y * image_h + x * image_w);
            }
        }
    }
}
