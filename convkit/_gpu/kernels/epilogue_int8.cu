// The epilogue over int32 sums that are in memory.
extern "C" __global__ void __launch_bounds__(256)
    int8_epilogue(const i32 *sums, i64 sums_n, i64 sums_h, i64 sums_w, i64 sums_block, i64 sums_lane, i64 count,
                  i32 pixels_fastest, i64 rows, i64 columns, i64 channels, INT8_FINISH_PARAMETERS)
{
    EACH_ITEM(index, count)
    {
        const place p = take_place(index, pixels_fastest, rows, columns, channels);
        const i64 at = p.n * sums_n + p.i * sums_h + p.j * sums_w + channel_at(p.c, sums_block, sums_lane);
        finish_int8((u32)sums[at], p, INT8_FINISH_ARGUMENTS);
    }
}
