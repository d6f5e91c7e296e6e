// Copies between arrays of up to six axes, each with strides of its own, counted in elements.  The last axis is the one
// whose neighbours lie closest in the target.

#define AXES                                                                                                           \
    i64 size0, i64 size1, i64 size2, i64 size3, i64 size4, i64 size5, i64 from0, i64 from1, i64 from2, i64 from3,      \
        i64 from4, i64 from5, i64 to0, i64 to1, i64 to2, i64 to3, i64 to4, i64 to5

#define TAKE_AXIS(axis)                                                                                                \
    {                                                                                                                  \
        const i64 at = take(&rest, size##axis);                                                                        \
        source += at * from##axis, target += at * to##axis;                                                            \
    }
