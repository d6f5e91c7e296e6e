# The door to csrc/winograd.h, a part of _engine.pyx.

cdef extern from "winograd_kernels.h" nogil:
    ctypedef struct ck_winograd_kernel:
        const char *name
        ck_isa isa
        ck_type arithmetic
        int64_t lanes, tile, reach

    const ck_winograd_kernel *const ck_winograd_kernels[]
    const ck_winograd_kernel *ck_winograd_kernel_for(ck_type, ck_isa, int64_t)


cdef extern from "winograd_tiles.h" nogil:
    ctypedef struct ck_tile_source:
        ck_pixels pixels
        int64_t height, width, tile, reach, row_at, col_at
        flag in_place


cdef extern from "winograd.h" nogil:
    ctypedef struct ck_winograd:
        const ck_dot_kernel *product
        const ck_winograd_kernel *kernel
        ck_tile_source image
        ck_array filter
        ck_array out
        int64_t image_group, filter_group, out_group
        ck_load_fn load_filter
        ck_store_fn store
        int64_t images, groups, in_channels, out_channels
        int64_t out_height, out_width
        flag out_in_place
        int64_t image_block, row_block, col_block, panel_block, channel_block, panels_at_once
        char *packed
        int64_t stage_bytes, image_bytes, sums_bytes, filter_bytes, out_bytes, again_bytes

    int ck_winograd_pack(const ck_winograd *, const ck_job *)
    int ck_winograd_compute(const ck_winograd *, const ck_job *)
    int ck_winograd_run(const ck_winograd *, const ck_job *)


cdef int fill_tiles(
    ck_tile_source *source, operand, flag plain, size, int64_t tile, int64_t reach, pads, const ck_dot_kernel *kernel,
) except -1:
    """Take the pixels of tiles from an `Operand`."""
    fill_array(&source.pixels.array, operand.strides, operand.dtype, not operand.native)
    source.pixels.load = ck_loader_for(&source.pixels.array, kernel)
    source.pixels.plain = plain
    source.in_place = plain
    source.height, source.width = size
    source.tile = tile
    source.reach = reach
    source.row_at, source.col_at = -pads[0], -pads[1]
    return 0


def winograd_kernels():
    """Return (name, ISA level, dtype, lanes, tile) of every set of Winograd transforms that is built in."""
    found = []
    cdef int i = 0
    cdef const ck_winograd_kernel *kernel
    while ck_winograd_kernels[i] != NULL:
        kernel = ck_winograd_kernels[i]
        dtype = "float64" if kernel.arithmetic == CK_F64 else "float32"
        found.append((kernel.name.decode(), ISA_LEVELS[<int>kernel.isa], dtype, kernel.lanes, kernel.tile))
        i += 1
    return found


cdef class Winograd(Run):
    """The forward convolution, or the input gradient, of transformed tiles; built from a `WinogradSpec`."""

    cdef ck_winograd w
    cdef bint turned

    def __init__(self, spec):
        cdef ck_winograd *w = &self.w
        self.arithmetic = TYPES[spec.arithmetic]
        memset(w, 0, sizeof(ck_winograd))
        w.product = kernel_of(self.arithmetic, spec.isa)
        w.kernel = ck_winograd_kernel_for(self.arithmetic, <ck_isa><int>ISA_LEVELS.index(spec.isa), spec.tile)
        fill_tiles(
            &w.image, spec.image, spec.image_plain, spec.size, w.kernel.tile, w.kernel.reach, spec.pads, w.product)
        fill_array(&w.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        w.store = ck_storer_for(&w.out, w.product)
        self.turned = spec.turned
        self.fill_filter(spec.filter.strides, spec.filter.dtype, not spec.filter.native)
        w.image_group, w.filter_group, w.out_group = spec.group_bytes
        w.images, w.groups = spec.images, spec.groups
        w.in_channels, w.out_channels = spec.in_channels, spec.out_channels
        w.out_height, w.out_width = spec.out_size
        w.out_in_place = spec.out_plain
        w.image_block, w.row_block, w.col_block, w.panel_block = spec.block
        w.channel_block, w.panels_at_once = spec.channel_block, spec.panels_at_once
        w.stage_bytes, w.image_bytes, w.sums_bytes, w.filter_bytes, w.out_bytes, w.again_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes

    cdef int fill_filter(self, strides, dtype, swapped) except -1:
        rows, columns, channels, filters = strides
        if self.turned:
            rows, columns, channels, filters = -rows, -columns, filters, channels
        fill_array(&self.w.filter, (rows, columns, channels, filters), dtype, swapped)
        self.w.load_filter = ck_loader_for(&self.w.filter, self.w.product)
        return 0

    cdef void aim_filter(self, ck_winograd *w, char *data) noexcept:
        """Take the filter at an address; where it is turned around, its last tap comes first."""
        w.filter.data = data
        if self.turned:
            w.filter.data -= 2 * (w.filter.stride[0] + w.filter.stride[1])

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        cdef ck_winograd *w = <ck_winograd *>run
        return ck_winograd_run(w, job)

    def run(self, cnp.ndarray image, cnp.ndarray filter, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_winograd w = self.w
        w.image.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        self.aim_filter(&w, <char *>cnp.PyArray_DATA(filter))
        w.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&w, &w.packed, NULL, threads, workers)


cdef class WinogradPacker(Winograd):
    """A Winograd convolution whose filter is transformed into memory of its own, once for many runs.

    The filter itself follows there, for tiles that are computed again.
    """

    cdef int64_t taps_at
    cdef int64_t taps_group
    cdef Winograd again  # with the filter that is kept

    def __init__(self, spec):
        Winograd.__init__(self, spec)
        self.shared_bytes = 0
        self.taps_at = spec.transformed_bytes
        self.again = Winograd(spec)
        self.again.shared_bytes = 0
        size = 8 if self.arithmetic == CK_F64 else 4
        inner, outer = spec.filter.shape[2:]
        self.again.fill_filter(
            (3 * inner * outer * size, inner * outer * size, outer * size, size), spec.arithmetic, False)
        self.again.w.filter_group = outer // spec.groups * size

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        cdef ck_winograd *w = <ck_winograd *>run
        return ck_winograd_pack(w, job) if w.out.data == NULL else ck_winograd_compute(w, job)

    cdef int start_with(self, ck_winograd *w, cnp.ndarray memory, int threads, int workers) except -1:
        cdef char *unused = NULL
        w.packed = <char *>cnp.PyArray_DATA(memory)
        return self.start(<void *>w, &unused, NULL, threads, workers)

    def pack(self, cnp.ndarray filter, cnp.ndarray memory, int threads):
        """Transform the filter into ``memory``, a writeable array of as many bytes as a packed filter takes."""
        cdef ck_winograd w = self.w
        self.aim_filter(&w, <char *>cnp.PyArray_DATA(filter))
        w.out.data = NULL
        self.start_with(&w, memory, threads, threads)
        shape = tuple(filter.shape[axis] for axis in range(4))
        memory[self.taps_at:].view("f8" if self.arithmetic == CK_F64 else "f4").reshape(shape)[...] = filter

    def run_packed(self, cnp.ndarray image, cnp.ndarray memory, cnp.ndarray out, int threads, int workers):
        """Compute with a filter that `pack` has transformed."""
        cdef ck_winograd w = self.again.w
        w.image.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        self.again.aim_filter(&w, <char *>cnp.PyArray_DATA(memory) + self.taps_at)
        w.out.data = <char *>cnp.PyArray_DATA(out)
        self.start_with(&w, memory, threads, workers)
