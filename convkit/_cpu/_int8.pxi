# The door to csrc/int8.h, a part of _engine.pyx.

cdef extern from "int8_kernels.h" nogil:
    int CK_TYPES

    ctypedef enum ck_form:
        CK_BYTES
        CK_WORDS

    ctypedef struct ck_int8_kernel:
        const char *name
        ck_isa isa
        int64_t columns
        flag pairs_saturate
        int64_t rows[2]

    const ck_int8_kernel *const ck_int8_kernels[]
    const ck_int8_kernel *ck_int8_kernel_for(ck_isa)


cdef extern from "int8.h" nogil:
    ctypedef struct ck_int8_image:
        char *data
        int64_t stride[3]
        int64_t block, lane
        ck_type type
        flag swapped

    ctypedef struct ck_int8_run:
        int64_t row_tap, col_tap, count

    ctypedef struct ck_int8_form:
        const int64_t *at
        int64_t steps, block_steps, packed_at

    ctypedef struct ck_int8:
        const ck_int8_kernel *kernel
        ck_window window
        ck_int8_image image, side, out
        const char *filter
        int64_t filter_stride[2]
        int64_t filter_block, filter_lane, filter_out
        int64_t images, groups, in_channels, out_channels
        int64_t units, image_block, row_block, col_block, panel_block
        flag depthwise
        int64_t multiplier
        int64_t pitch, row_pitch
        const ck_int8_run *runs
        int64_t run_count
        ck_int8_form form[2]
        int64_t sums_at, peaks_at
        char *packed
        int64_t stage_bytes, sums_bytes, side_bytes, out_bytes, factor_bytes
        int64_t input_zero_point
        int output_zero_point
        float low, high, side_scale
        flag relu, scale_per_channel
        const float *scale
        const float *bias
        const int *integer_bias

    int64_t ck_int8_units(const ck_int8 *)
    void ck_int8_place_steps(const ck_int8 *, ck_form, int64_t *)
    int ck_int8_pack(const ck_int8 *, const ck_job *)
    int ck_int8_run_packed(const ck_int8 *, const ck_job *)
    int ck_int8_run_all(const ck_int8 *, const ck_job *)


def int8_kernels():
    """Return (name, ISA level, rows of each form, columns, whether pairs saturate) of every int8 kernel built in."""
    found = []
    cdef int i = 0
    while ck_int8_kernels[i] != NULL:
        kernel = ck_int8_kernels[i]
        isa = ck_isa_name(kernel.isa).decode()
        rows = (kernel.rows[0], kernel.rows[1])
        found.append((kernel.name.decode(), isa, rows, kernel.columns, bool(kernel.pairs_saturate)))
        i += 1
    return found


cdef int fill_channels(ck_int8_image *image, channels) except -1:
    """Take the layout of an image from a `Channels`, or that there is none."""
    memset(image, 0, sizeof(ck_int8_image))
    if channels is None:
        image.type = <ck_type>CK_TYPES
        return 0
    for axis in range(3):
        image.stride[axis] = channels.strides[axis]
    image.block, image.lane = channels.block, channels.lane
    image.type = TYPES[channels.dtype]
    image.swapped = not channels.native
    return 0


cdef class Int8(Run):
    """A convolution of bytes with its epilogue; built from an `Int8Spec`."""

    cdef ck_int8 d
    cdef int64_t image_at

    def __init__(self, spec, *, per_channel, relu, zero_points, limits):
        cdef ck_int8 *d = &self.d
        cdef ck_int8_form *form
        memset(d, 0, sizeof(ck_int8))
        d.kernel = ck_int8_kernel_for(<ck_isa><int>ISA_LEVELS.index(spec.isa))
        self.reserve(
            len(spec.window.row_at) + len(spec.window.col_at) + 3 * len(spec.runs)
            + sum(f.steps for f in spec.forms))
        fill_window(self, &d.window, spec.window)
        fill_channels(&d.image, spec.image)
        fill_channels(&d.side, spec.side)
        fill_channels(&d.out, spec.out)
        self.image_at = spec.image_at
        d.filter_stride[0], d.filter_stride[1] = spec.filter_strides
        d.filter_block, d.filter_lane, d.filter_out = spec.filter_block, spec.filter_lane, spec.filter_out
        d.images, d.groups = spec.images, spec.groups
        d.in_channels, d.out_channels = spec.in_channels, spec.out_channels
        d.image_block, d.row_block, d.col_block, d.panel_block = spec.tile
        d.pitch, d.row_pitch, d.depthwise = spec.pitch, spec.row_pitch, spec.depthwise
        d.multiplier = spec.multiplier
        d.runs = <const ck_int8_run *>(self.numbers + self.used)
        for run in spec.runs:
            self.keep(run)
        d.run_count = len(spec.runs)
        for number, f in enumerate(spec.forms):
            form = &d.form[<int>number]
            form.steps, form.block_steps, form.packed_at = f.steps, f.block_steps, f.packed_at
            form.at = self.numbers + self.used
            ck_int8_place_steps(d, <ck_form><int>number, self.numbers + self.used)
            self.used += f.steps
        d.sums_at, d.peaks_at = spec.sums_at, spec.peaks_at
        d.stage_bytes, d.sums_bytes, d.side_bytes, d.out_bytes, d.factor_bytes = spec.scratch
        d.input_zero_point, d.output_zero_point = zero_points
        d.low, d.high = limits
        d.relu, d.scale_per_channel = relu, per_channel
        d.units = ck_int8_units(d)
        self.shared_bytes = spec.shared_bytes

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        cdef ck_int8 *d = <ck_int8 *>run
        if d.image.data == NULL:
            return ck_int8_pack(d, job)
        return ck_int8_run_packed(d, job) if d.filter == NULL else ck_int8_run_all(d, job)

    cdef int aim(self, ck_int8 *d, cnp.ndarray image, object side, object terms, cnp.ndarray out) except -1:
        """Set the addresses of one call; the caller keeps the arrays alive."""
        cdef cnp.ndarray scale, bias
        d.image.data = <char *>cnp.PyArray_DATA(image) + self.image_at
        d.out.data = <char *>cnp.PyArray_DATA(out)
        if side is not None:
            d.side.data = <char *>cnp.PyArray_DATA(<cnp.ndarray>side)
        if terms is None:
            return 0
        scale = terms.conv_scale
        d.scale = <const float *>cnp.PyArray_DATA(scale)
        d.side_scale = terms.side_scale
        if terms.bias is not None:
            bias = terms.bias
            if cnp.PyArray_TYPE(bias) == cnp.NPY_INT32:
                d.integer_bias = <const int *>cnp.PyArray_DATA(bias)
            else:
                d.bias = <const float *>cnp.PyArray_DATA(bias)
        return 0

    def run(self, cnp.ndarray image, cnp.ndarray filter, side, terms, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says, and ``terms`` be those of the epilogue, or None."""
        cdef ck_int8 d = self.d
        self.aim(&d, image, side, terms, out)
        d.filter = <const char *>cnp.PyArray_DATA(filter)
        self.start(<void *>&d, &d.packed, NULL, threads, workers)


cdef class Int8Packer(Int8):
    """An int8 convolution whose filter is packed into memory of its own, once for many runs."""

    def __init__(self, spec, **epilogue):
        Int8.__init__(self, spec, **epilogue)
        self.shared_bytes = 0

    cdef int start_with(self, ck_int8 *d, cnp.ndarray memory, int threads, int workers) except -1:
        cdef char *unused = NULL
        d.packed = <char *>cnp.PyArray_DATA(memory)
        return self.start(<void *>d, &unused, NULL, threads, workers)

    def pack(self, cnp.ndarray filter, cnp.ndarray memory, int threads):
        """Pack the filter into ``memory``, a writeable array of as many bytes as the specification shares."""
        cdef ck_int8 d = self.d
        d.filter = <const char *>cnp.PyArray_DATA(filter)
        self.start_with(&d, memory, threads, threads)

    def run_packed(self, cnp.ndarray image, cnp.ndarray memory, side, terms, cnp.ndarray out, int threads, int workers):
        """Compute with a filter that `pack` has packed."""
        cdef ck_int8 d = self.d
        self.aim(&d, image, side, terms, out)
        self.start_with(&d, memory, threads, workers)
