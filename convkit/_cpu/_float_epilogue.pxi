# The door to csrc/float_epilogue.h, a part of _engine.pyx.

cdef extern from "float_epilogue.h" nogil:
    ctypedef enum ck_activation:
        CK_NO_ACTIVATION

    ctypedef struct ck_float_epilogue:
        ck_array sums, side, out
        int64_t size[4]
        ck_type arithmetic
        const void *scale
        const void *bias
        flag scale_per_channel
        double side_scale, alpha
        ck_activation activation

    int ck_float_epilogue_run(const ck_float_epilogue *, const ck_job *)


cdef int take_array(ck_array *array, cnp.ndarray values) except -1:
    """Take an array of four axes as it lies in memory, or that there is none."""
    if values is None:
        return 0
    for axis in range(4):
        array.stride[axis] = cnp.PyArray_STRIDE(values, axis)
    array.type = TYPES[values.dtype.name]
    array.swapped = not values.dtype.isnative
    array.data = <char *>cnp.PyArray_DATA(values)
    return 0


cdef class FloatEpilogue(Run):
    """What comes after a floating-point convolution, with the activation of a number in `ck_activation`."""

    cdef ck_activation activation
    cdef double alpha
    cdef bint per_channel

    def __init__(self, int activation, double alpha, bint per_channel):
        self.activation, self.alpha, self.per_channel = <ck_activation>activation, alpha, per_channel

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_float_epilogue_run(<ck_float_epilogue *>run, job)

    def run(
        self, cnp.ndarray sums, cnp.ndarray side, cnp.ndarray out, cnp.ndarray scale, double side_scale,
        cnp.ndarray bias, int threads,
    ):
        """Change sums in place, or write what becomes of them to ``out``; scale and bias are of the sums' dtype."""
        cdef ck_float_epilogue e
        cdef char *unused = NULL
        memset(&e, 0, sizeof(e))
        take_array(&e.sums, sums)
        take_array(&e.side, side)
        take_array(&e.out, out)
        for axis in range(4):
            e.size[axis] = cnp.PyArray_DIM(sums, axis)
        e.arithmetic = e.sums.type
        if scale is not None:
            e.scale = cnp.PyArray_DATA(scale)
        if bias is not None:
            e.bias = cnp.PyArray_DATA(bias)
        e.scale_per_channel = self.per_channel
        e.side_scale, e.alpha, e.activation = side_scale, self.alpha, self.activation
        self.start(<void *>&e, &unused, NULL, threads, threads)
