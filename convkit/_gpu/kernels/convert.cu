// Numbers, converted by way of the type NUMBER: double where one side is, else float.
extern "C" __global__ void __launch_bounds__(256)
    copy_values(const void *from, void *to, i32 from_code, i32 to_code, i64 count, AXES)
{
    EACH_ITEM(index, count)
    {
        i64 rest = index, source = 0, target = 0;
        TAKE_AXIS(5)
        TAKE_AXIS(4)
        TAKE_AXIS(3)
        TAKE_AXIS(2)
        TAKE_AXIS(1)
        TAKE_AXIS(0)
        store_as(to_code, to, target, load_as<NUMBER>(from_code, from, source));
    }
}
