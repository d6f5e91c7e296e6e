# The door to csrc/winograd_gradient.h, a part of _engine.pyx.

cdef extern from "winograd_gradient.h" nogil:
    ctypedef struct ck_winograd_gradient:
        const ck_dot_kernel *product
        const ck_winograd_kernel *kernel
        ck_tile_source image, gradient
        ck_array out
        int64_t image_group, gradient_group, out_group
        ck_store_fn store
        flag accumulate
        int64_t images, groups, in_channels, out_channels
        int64_t channel_block, panel_block, piece_block, image_block, row_block, col_block, slices, slice_blocks
        const ck_direct_gradient *again[2][2]
        char *shared
        int64_t piece_bytes, stage_bytes, image_bytes, gradient_bytes, sums_bytes

    int ck_winograd_gradient_run(const ck_winograd_gradient *, const ck_job *)


cdef class WinogradGradient(Run):
    """The filter gradient of transformed tiles; built from a `WinogradGradientSpec`."""

    cdef ck_winograd_gradient g
    cdef list kept  # what computes pieces again

    def __init__(self, spec):
        cdef ck_winograd_gradient *g = &self.g
        cdef DirectGradient again
        cdef int64_t tile, reach
        self.arithmetic = TYPES[spec.arithmetic]
        memset(g, 0, sizeof(ck_winograd_gradient))
        g.product = kernel_of(self.arithmetic, spec.isa)
        g.kernel = ck_winograd_kernel_for(self.arithmetic, <ck_isa><int>ISA_LEVELS.index(spec.isa), spec.tile)
        tile, reach = g.kernel.tile, g.kernel.reach
        fill_tiles(&g.image, spec.image, spec.image_plain, spec.size, tile, reach, spec.pads, g.product)
        fill_tiles(&g.gradient, spec.gradient, spec.gradient_plain, spec.out_size, tile, tile, (0, 0), g.product)
        fill_array(&g.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        g.store = ck_storer_for(&g.out, g.product)
        g.accumulate = spec.accumulate
        g.image_group, g.gradient_group, g.out_group = spec.group_bytes
        g.images, g.groups = spec.images, spec.groups
        g.in_channels, g.out_channels = spec.in_channels, spec.out_channels
        g.channel_block, g.panel_block, g.piece_block = spec.channel_block, spec.panel_block, spec.piece_block
        g.image_block, g.row_block, g.col_block = spec.block
        g.slices, g.slice_blocks = spec.slices, spec.slice_blocks
        g.piece_bytes = spec.piece_bytes
        g.stage_bytes, g.image_bytes, g.gradient_bytes, g.sums_bytes = spec.scratch[:4]
        self.shared_bytes = spec.shared_bytes
        self.kept = []
        for few, line in enumerate(spec.again):
            for narrow, each in enumerate(line):
                if each is not None:
                    again = DirectGradient(each)
                    self.kept.append(again)
                    g.again[few][narrow] = &again.g

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_winograd_gradient_run(<ck_winograd_gradient *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray gradient, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_winograd_gradient g = self.g
        g.image.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        g.gradient.pixels.array.data = <char *>cnp.PyArray_DATA(gradient)
        g.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&g, &g.shared, NULL, threads, workers)
