// Windows over an image, as im2col and col2im see them: a piece of the result has `rows` by `columns` of them.  Strides
// are in elements.  `row_at` and `column_at` are where the first window begins, which may be in the padding.

#define WINDOWS                                                                                                        \
    i64 rows, i64 columns, i64 filter_rows, i64 filter_columns, i64 row_step,             \
        i64 column_step, i64 row_dilation, i64 column_dilation, i64 row_at, i64 column_at

#define IMAGE_STRIDES i64 image_n, i64 image_h, i64 image_w, i64 image_c
#define PATCH_STRIDES i64 patch_group, i64 patch_pixel, i64 patch_tap, i64 patch_channel
