// Adds up slices of a filter gradient in their order; what is in the result already is added last.
extern "C" __global__ void __launch_bounds__(256)
    sum_slices(const ACC *sums, i64 slices, i64 count, void *out, i32 out_code, i32 accumulate, i64 filter_columns,
               i64 group_in, i64 channels, i64 out_h, i64 out_w, i64 out_i, i64 out_o)
{
    EACH_ITEM(index, count)
    {
        ACC total = 0;
#pragma unroll 8
        for (i64 slice = 0; slice < slices; slice++)
            total += sums[slice * count + index];
        i64 rest = index;
        const i64 k = take(&rest, channels), c = take(&rest, group_in);
        i64 a = rest;
        const i64 b = take(&a, filter_columns);
        const i64 at = a * out_h + b * out_w + c * out_i + k * out_o;
        if (accumulate)
            total += load_as<ACC>(out_code, out, at);
        store_as(out_code, out, at, total);
    }
}
