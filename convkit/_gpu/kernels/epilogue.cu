// The epilogue over sums that are in memory already; they may be in the result's own place.
extern "C" __global__ void __launch_bounds__(256)
    float_epilogue(const ACC *sums, i64 sums_n, i64 sums_h, i64 sums_w, i64 sums_c, i64 count, i32 pixels_fastest,
                   i64 rows, i64 columns, i64 channels, FINISH_PARAMETERS)
{
    EACH_ITEM(index, count)
    {
        const place p = take_place(index, pixels_fastest, rows, columns, channels);
        finish(sums[p.n * sums_n + p.i * sums_h + p.j * sums_w + p.c * sums_c], p, FINISH_ARGUMENTS);
    }
}
