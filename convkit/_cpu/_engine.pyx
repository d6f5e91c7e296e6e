"""Thin door to csrc/: plans as C structs, buffers as addresses, and the way back to Python for signals."""

import os
import threading

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cnp.import_array()


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    unsigned long PyThread_get_thread_ident()


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint flag "bool"


cdef extern from "array.h" nogil:
    ctypedef enum ck_type:
        CK_F32
        CK_F64
        CK_F16
        CK_BF16
        CK_BOOL
        CK_I8
        CK_U8
        CK_I16
        CK_U16
        CK_I32
        CK_U32
        CK_I64
        CK_U64

    ctypedef struct ck_array:
        char *data
        int64_t stride[4]
        ck_type type
        flag swapped


cdef extern from "convert.h" nogil:
    ctypedef void (*ck_load_fn)(void *, int64_t, const char *, int64_t, int64_t) noexcept nogil
    ctypedef void (*ck_store_fn)(char *, int64_t, const void *, int64_t, int64_t, flag) noexcept nogil
    ck_load_fn ck_loader(const ck_array *, ck_type)
    ck_store_fn ck_storer(const ck_array *, ck_type)


cdef extern from "multiply.h" nogil:
    int CK_SUM_BLOCK
    ctypedef void (*ck_gemm_fn)(
        void *, ck_type, flag, flag, int64_t, int64_t, int64_t, const void *, int64_t, const void *, int64_t, flag,
        void *, int64_t,
    ) noexcept nogil

    ctypedef struct ck_gemm:
        ck_gemm_fn fn
        void *ctx
        ck_type arithmetic

    ctypedef enum ck_matrix_kind:
        CK_COPY
        CK_ROWS
        CK_COLUMNS

    ctypedef struct ck_layout:
        ck_matrix_kind kind
        int64_t ld


cdef extern from "patches.h" nogil:
    ctypedef struct ck_pairing "struct ck_pairing":
        pass

    ctypedef struct ck_window:
        int64_t height, width, out_height, out_width, row_step, col_step, rows, cols
        const int64_t *row_at
        const int64_t *col_at

    ctypedef struct ck_pixels:
        ck_array array
        int64_t image0, row0, col0
        ck_load_fn load
        flag plain
        int64_t pitch
        int64_t paired
        const ck_pairing *pairing


cdef extern from "pool.h" nogil:
    int CK_OK
    int CK_STOPPED
    int CK_NO_MEMORY
    ctypedef int (*ck_poll_fn)(void *) noexcept nogil

    ctypedef struct ck_job:
        int threads
        int max_workers
        ck_poll_fn poll
        void *poll_ctx

    int ck_pool_helpers()


cdef extern from "scratch.h" nogil:
    void *ck_scratch_get(size_t)
    void ck_scratch_put(void *)
    void ck_scratch_clear()
    size_t ck_scratch_retained()


cdef extern from "product.h" nogil:
    ctypedef struct ck_phase:
        ck_window window
        ck_array out
        int64_t out_at
        const int64_t *row_tap
        const int64_t *col_tap
        ck_layout image_layout, filter_layout, out_layout
        int64_t first_unit, first_pack, packed_at

    ctypedef enum ck_run:
        CK_RUN_ALL
        CK_RUN_IMAGE
        CK_RUN_ROW

    ctypedef struct ck_product:
        ck_gemm gemm
        ck_pixels pixels
        ck_array filter
        char *out_data
        int64_t image_group, filter_group, out_group
        ck_load_fn load_filter
        ck_store_fn store
        int64_t images, groups, in_channels, out_channels, phase_count
        const ck_phase *phases
        flag strips_first
        int64_t units, packs, pixel_block, channel_block
        ck_run run
        flag within_image
        char *packed
        int64_t patch_bytes, filter_bytes, tile_bytes, stage_bytes

    int ck_product_run(const ck_product *, const ck_job *)
    int64_t ck_product_units(const ck_product *, const ck_phase *)


cdef extern from "filter_gradient.h" nogil:
    ctypedef struct ck_filter_gradient:
        ck_gemm gemm
        ck_window window
        ck_pixels pixels
        ck_array gradients
        ck_array out
        int64_t image_group, gradient_group, out_group
        ck_load_fn load_gradient
        ck_store_fn store
        flag accumulate
        int64_t images, groups, in_channels, out_channels
        ck_layout image_layout, gradient_layout, out_layout
        int64_t patch_block, channel_block, slices, slice_pixels, pixel_block
        flag within_image
        int64_t tiles_at_once
        char *partials
        int64_t patch_bytes, gradient_bytes, tile_bytes, stage_bytes

    int ck_filter_gradient_run(const ck_filter_gradient *, const ck_job *)


cdef extern from "scatter.h" nogil:
    ctypedef struct ck_scatter:
        ck_gemm gemm
        ck_window window
        ck_array gradients
        ck_array filter
        ck_array out
        int64_t gradient_group, filter_group, out_group
        ck_load_fn load_gradient
        ck_load_fn load_filter
        ck_store_fn store
        int64_t images, groups, in_channels, out_channels
        int64_t image_block, channel_block, pixel_block, tap_block
        int64_t gradient_bytes, filter_bytes, column_bytes, tile_bytes, total_bytes

    int ck_scatter_run(const ck_scatter *, const ck_job *)


cdef extern from "isa.h" nogil:
    ctypedef enum ck_isa:
        CK_ISAS

    const char *ck_isa_name(ck_isa)
    flag ck_isa_has(ck_isa, ck_isa)
    flag ck_isa_is_built(ck_isa)
    flag ck_isa_runs(ck_isa)
    ck_isa ck_best_isa()


cdef extern from "kernels.h" nogil:
    ctypedef struct ck_dot_kernel:
        const char *name
        ck_isa isa
        ck_type arithmetic
        int64_t rows, columns
        const ck_pairing *pairing

    const ck_dot_kernel *const ck_dot_kernels[]
    const ck_dot_kernel *ck_dot_kernel_for(ck_type, ck_isa)
    ck_load_fn ck_loader_for(const ck_array *, const ck_dot_kernel *)
    ck_store_fn ck_storer_for(const ck_array *, const ck_dot_kernel *)


cdef extern from "direct.h" nogil:
    ctypedef struct ck_direct_phase:
        ck_window window
        ck_array out
        int64_t out_at
        const int64_t *row_tap
        const int64_t *col_tap
        flag in_place, clipped, out_in_place, rounded
        int64_t first_unit, first_pack, packed_at

    ctypedef struct ck_direct:
        const ck_dot_kernel *kernel
        ck_pixels pixels
        ck_array filter
        char *out_data
        int64_t image_group, filter_group, out_group
        ck_load_fn load_filter
        ck_store_fn store
        int64_t images, groups, in_channels, out_channels, phase_count
        const ck_direct_phase *phases
        flag strips_first, filter_in_place
        int64_t units, packs, pixel_block, image_block, row_block, col_block, panel_block, term_block
        char *packed
        int64_t stage_bytes, filter_bytes, tile_bytes

    int64_t ck_direct_units(const ck_direct *, const ck_direct_phase *)
    int64_t ck_direct_packs(const ck_direct *, const ck_direct_phase *)
    int ck_direct_pack(const ck_direct *, const ck_job *)
    int ck_direct_compute(const ck_direct *, const ck_job *)
    int ck_direct_run(const ck_direct *, const ck_job *)


cdef extern from "direct_gradient.h" nogil:
    ctypedef struct ck_direct_gradient:
        const ck_dot_kernel *kernel
        ck_window window
        ck_pixels pixels
        ck_pixels gradients
        ck_array out
        int64_t image_group, gradient_group, out_group
        ck_store_fn store
        flag accumulate
        int64_t images, groups, in_channels, out_channels
        flag image_in_place, gradient_in_place, out_in_place
        int64_t image_block, row_block, col_block, strip, tap_block, strip_block, panel_block, strips_at_once
        int64_t slices, slice_blocks
        char *partials
        int64_t stage_bytes, gradient_bytes

    int ck_direct_gradient_run(const ck_direct_gradient *, const ck_job *)


cdef extern from "depthwise_kernels.h" nogil:
    ctypedef struct ck_depthwise_kernel:
        const char *name
        ck_isa isa
        ck_type arithmetic
        int64_t lanes

    const ck_depthwise_kernel *const ck_depthwise_kernels[]
    const ck_depthwise_kernel *ck_depthwise_kernel_for(ck_type, ck_isa)


cdef extern from "depthwise.h" nogil:
    ctypedef struct ck_depthwise_phase:
        ck_window window
        ck_array out
        int64_t out_at
        const int64_t *row_tap
        const int64_t *col_tap
        flag out_in_place, pairs, head, tail, unpadded, flat
        int64_t packed_at

    ctypedef struct ck_depthwise:
        const ck_depthwise_kernel *kernel
        flag planes, gathers, filter_in_place, streams
        ck_pixels pixels
        ck_array filter
        char *out_data
        ck_load_fn load_filter
        ck_store_fn store
        int64_t images, groups, multiplier, phase_count
        const ck_depthwise_phase *phases
        int64_t grid_rows, grid_cols, row_block, col_block, group_block
        char *packed
        int64_t stage_bytes, tile_bytes

    int ck_depthwise_run(const ck_depthwise *, const ck_job *)


cdef extern from "depthwise_gradient.h" nogil:
    ctypedef struct ck_depthwise_gradient:
        const ck_depthwise_kernel *kernel
        flag planes, unpadded
        ck_window window
        ck_pixels pixels, gradients
        ck_array out
        ck_store_fn store
        flag accumulate, streams
        int64_t images, channels, multiplier, row_block, col_block, channel_block, slices, slice_blocks
        char *partials
        int64_t stage_bytes, gradient_bytes

    int ck_depthwise_gradient_run(const ck_depthwise_gradient *, const ck_job *)


cdef extern from "planar_kernels.h" nogil:
    ctypedef struct ck_planar_kernel:
        const char *name
        ck_isa isa
        ck_type arithmetic
        int64_t lanes

    const ck_planar_kernel *const ck_planar_kernels[]
    const ck_planar_kernel *ck_planar_kernel_for(ck_type, ck_isa)


cdef extern from "planar.h" nogil:
    ctypedef struct ck_planar_phase:
        ck_window window
        ck_array out
        int64_t out_at
        const int64_t *row_tap
        const int64_t *col_tap
        flag out_in_place
        int64_t channel_block, tap_rows, tap_cols, first_unit, packed_at

    ctypedef struct ck_planar:
        const ck_planar_kernel *kernel
        flag interleaved
        ck_pixels pixels
        ck_array filter
        char *out_data
        ck_load_fn load_filter
        ck_store_fn store
        flag out_plain
        int64_t images, channels, filters, filter_block, phase_count
        const ck_planar_phase *phases
        int64_t units, row_block, col_block
        char *packed
        int64_t stage_bytes, tile_bytes

    int64_t ck_planar_packed(const ck_planar *, const ck_planar_phase *, int64_t)
    int64_t ck_planar_units(const ck_planar *, const ck_planar_phase *)
    int ck_planar_run(const ck_planar *, const ck_job *)


cdef extern from "planar_gradient.h" nogil:
    ctypedef struct ck_planar_gradient:
        const ck_planar_kernel *kernel
        ck_window window
        ck_pixels pixels, gradients
        ck_array out
        ck_store_fn store
        flag accumulate
        int64_t images, channels, filters, row_block, col_block, filter_block, slices, slice_blocks
        char *partials
        int64_t stage_bytes, gradient_bytes

    int ck_planar_gradient_run(const ck_planar_gradient *, const ck_job *)


SUM_BLOCK = CK_SUM_BLOCK

# Names of the ISA levels, none before one it builds on; those that this CPU can run; the levels that each has; the last
# of those that run.
ISA_LEVELS = tuple(ck_isa_name(<ck_isa>level).decode() for level in range(CK_ISAS))
ISA_BUILT = tuple(name for level, name in enumerate(ISA_LEVELS) if ck_isa_is_built(<ck_isa><int>level))
ISA_RUNS = tuple(name for level, name in enumerate(ISA_LEVELS) if ck_isa_runs(<ck_isa><int>level))
ISA_PARTS = {
    name: tuple(part for p, part in enumerate(ISA_LEVELS) if ck_isa_has(<ck_isa><int>level, <ck_isa><int>p))
    for level, name in enumerate(ISA_LEVELS)
}
BEST_ISA = ck_isa_name(ck_best_isa()).decode()

TYPES = {
    "float32": CK_F32, "float64": CK_F64, "float16": CK_F16, "bfloat16": CK_BF16, "bool": CK_BOOL, "int8": CK_I8,
    "uint8": CK_U8, "int16": CK_I16, "uint16": CK_U16, "int32": CK_I32, "uint32": CK_U32, "int64": CK_I64,
    "uint64": CK_U64,
}


# BLAS, by one of three ways.  The row-major CBLAS functions come as addresses, with 32-bit or 64-bit integers.

cdef enum:
    ROW_MAJOR = 101
    NO_TRANSPOSE = 111
    TRANSPOSE = 112

ctypedef void (*sgemm32)(
    int, int, int, int, int, int, float, const void *, int, const void *, int, float, void *, int) noexcept nogil
ctypedef void (*dgemm32)(
    int, int, int, int, int, int, double, const void *, int, const void *, int, double, void *, int) noexcept nogil
ctypedef void (*sgemm64)(
    int, int, int, int64_t, int64_t, int64_t, float, const void *, int64_t, const void *, int64_t, float, void *,
    int64_t) noexcept nogil
ctypedef void (*dgemm64)(
    int, int, int, int64_t, int64_t, int64_t, double, const void *, int64_t, const void *, int64_t, double, void *,
    int64_t) noexcept nogil

cdef struct Cblas:
    uintptr_t sgemm
    uintptr_t dgemm
    void (*limit)(int) noexcept nogil  # sets the number of BLAS threads; NULL where products need not look
    int (*count)() noexcept nogil      # tells that number


cdef void hold_to_one(Cblas *cblas) noexcept nogil:
    """Before a product: another thread of the application may have set BLAS's threads meanwhile.

    Only where they are not one already: after a fork, OpenBLAS starts its threads in the function that sets them.
    """
    if cblas.limit != NULL and cblas.count() != 1:
        cblas.limit(1)


cdef void gemm_cblas32(
    void *ctx, ck_type arithmetic, flag transpose_a, flag transpose_b, int64_t m, int64_t n, int64_t k, const void *a,
    int64_t lda, const void *b, int64_t ldb, flag add, void *c, int64_t ldc,
) noexcept nogil:
    cdef Cblas *cblas = <Cblas *>ctx
    cdef int ta = TRANSPOSE if transpose_a else NO_TRANSPOSE
    cdef int tb = TRANSPOSE if transpose_b else NO_TRANSPOSE
    hold_to_one(cblas)
    if arithmetic == CK_F64:
        (<dgemm32>cblas.dgemm)(
            ROW_MAJOR, ta, tb, <int>m, <int>n, <int>k, 1.0, a, <int>lda, b, <int>ldb, 1.0 if add else 0.0, c, <int>ldc)
    else:
        (<sgemm32>cblas.sgemm)(
            ROW_MAJOR, ta, tb, <int>m, <int>n, <int>k, 1.0, a, <int>lda, b, <int>ldb, 1.0 if add else 0.0, c, <int>ldc)


cdef void gemm_cblas64(
    void *ctx, ck_type arithmetic, flag transpose_a, flag transpose_b, int64_t m, int64_t n, int64_t k, const void *a,
    int64_t lda, const void *b, int64_t ldb, flag add, void *c, int64_t ldc,
) noexcept nogil:
    cdef Cblas *cblas = <Cblas *>ctx
    cdef int ta = TRANSPOSE if transpose_a else NO_TRANSPOSE
    cdef int tb = TRANSPOSE if transpose_b else NO_TRANSPOSE
    hold_to_one(cblas)
    if arithmetic == CK_F64:
        (<dgemm64>cblas.dgemm)(ROW_MAJOR, ta, tb, m, n, k, 1.0, a, lda, b, ldb, 1.0 if add else 0.0, c, ldc)
    else:
        (<sgemm64>cblas.sgemm)(ROW_MAJOR, ta, tb, m, n, k, 1.0, a, lda, b, ldb, 1.0 if add else 0.0, c, ldc)


cdef object matrix(ck_type arithmetic, flag transpose, int64_t rows, int64_t columns, const void *data, int64_t ld):
    """Return a writeable view of memory as a matrix; it owns nothing."""
    cdef cnp.npy_intp size = 8 if arithmetic == CK_F64 else 4
    cdef cnp.npy_intp[2] shape = [rows, columns]
    cdef cnp.npy_intp[2] strides = [size if transpose else ld * size, ld * size if transpose else size]
    return cnp.PyArray_New(
        cnp.ndarray, 2, shape, cnp.NPY_FLOAT64 if arithmetic == CK_F64 else cnp.NPY_FLOAT32, strides, <void *>data, 0,
        cnp.NPY_ARRAY_WRITEABLE, None)


cdef void gemm_numpy(
    void *ctx, ck_type arithmetic, flag transpose_a, flag transpose_b, int64_t m, int64_t n, int64_t k, const void *a,
    int64_t lda, const void *b, int64_t ldb, flag add, void *c, int64_t ldc,
) noexcept nogil:
    """np.matmul under the GIL; an exception goes into the list that is the context."""
    with gil:
        errors = <list>ctx
        if errors:
            return
        try:
            left = matrix(arithmetic, transpose_a, m, k, a, lda)
            right = matrix(arithmetic, transpose_b, k, n, b, ldb)
            out = matrix(arithmetic, False, m, n, c, ldc)
            with np.errstate(all="ignore"):
                if add:
                    out += np.matmul(left, right)
                else:
                    np.matmul(left, right, out=out)
        except BaseException as error:
            errors.append(error)


cdef class Blas:
    """A way to multiply matrices: the addresses of two CBLAS functions, or NumPy itself if they are 0."""

    cdef Cblas cblas
    cdef flag wide

    def __init__(
        self, uintptr_t sgemm=0, uintptr_t dgemm=0, flag wide=False, uintptr_t count=0, uintptr_t limit=0
    ):
        self.cblas.sgemm = sgemm
        self.cblas.count = <int (*)() noexcept nogil>count
        self.cblas.limit = <void (*)(int) noexcept nogil>limit
        self.cblas.dgemm = dgemm
        self.wide = wide

    @property
    def native(self):
        """Whether products run without the GIL."""
        return self.cblas.sgemm != 0

    cdef void fill(self, ck_gemm *gemm, list errors) noexcept:
        if self.cblas.sgemm == 0:
            gemm.fn = gemm_numpy
            gemm.ctx = <void *>errors
        else:
            gemm.fn = gemm_cblas64 if self.wide else gemm_cblas32
            gemm.ctx = <void *>&self.cblas

    def multiply(self, a, b, out, flag add=False):
        """Write the product of two C-contiguous matrices to a third, or add it; for tests of the BLAS found."""
        cdef ck_gemm gemm
        errors = []
        self.fill(&gemm, errors)
        gemm.arithmetic = CK_F64 if a.dtype == np.float64 else CK_F32
        cdef int64_t m = a.shape[0], n = b.shape[1], k = a.shape[1]
        cdef void *pa = cnp.PyArray_DATA(a)
        cdef void *pb = cnp.PyArray_DATA(b)
        cdef void *pc = cnp.PyArray_DATA(out)
        with nogil:
            gemm.fn(gemm.ctx, gemm.arithmetic, False, False, m, n, k, pa, k, pb, n, add, pc, n)
        if errors:
            raise errors[0]


# Signals.  Python handles them on the main thread only, and acquiring the GIL can take milliseconds where other threads
# compete for it, so of the pool's polls, one in so many looks.

cdef int POLLS = 5
cdef unsigned long main_thread


def _find_main_thread():
    """Note the main thread; after a fork it is the one that forked."""
    global main_thread
    main_thread = threading.main_thread().ident


_find_main_thread()
os.register_at_fork(after_in_child=_find_main_thread)

cdef struct Poll:
    int count
    void *errors


cdef int poll(void *ctx) noexcept nogil:
    cdef Poll *state = <Poll *>ctx
    state.count += 1
    if state.count % POLLS:
        return 0
    with gil:
        try:
            PyErr_CheckSignals()
        except BaseException as error:
            (<list>state.errors).append(error)
            return 1
    return 0


cdef class Run:
    """What every plan has: limits, memory shared by the participants, and how a run ends."""

    cdef Blas blas  # None where products are the plan's own
    cdef int64_t shared_bytes
    cdef ck_type arithmetic
    cdef int64_t *numbers
    cdef int64_t used

    def __cinit__(self):
        self.numbers = NULL
        self.used = 0

    def __dealloc__(self):
        free(self.numbers)

    cdef int reserve(self, int64_t count) except -1:
        self.numbers = <int64_t *>calloc(count + 1, sizeof(int64_t))
        if self.numbers == NULL:
            raise MemoryError
        return 0

    cdef const int64_t *keep(self, values) except NULL:
        cdef int64_t *start = self.numbers + self.used
        for value in values:
            self.numbers[self.used] = value
            self.used += 1
        return start

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return CK_OK

    cdef int start(self, void *run, char **shared, ck_gemm *gemm, int threads, int workers) except -1:
        """Run to the end; `shared` is where the plan wants the memory that all participants use."""
        cdef ck_job job
        cdef Poll state
        cdef int code
        errors = []
        memset(&job, 0, sizeof(job))
        job.threads = threads
        job.max_workers = workers
        if PyThread_get_thread_ident() == main_thread:
            state.count = 0
            state.errors = <void *>errors
            job.poll = poll
            job.poll_ctx = <void *>&state
        if self.blas is not None:
            self.blas.fill(gemm, errors)
            gemm.arithmetic = self.arithmetic
        with nogil:
            shared[0] = NULL
            if self.shared_bytes:
                shared[0] = <char *>ck_scratch_get(<size_t>self.shared_bytes)
            if self.shared_bytes and shared[0] == NULL:
                code = CK_NO_MEMORY
            else:
                code = self.execute(run, &job)
                ck_scratch_put(shared[0])
        if errors:
            raise errors[0]
        if code == CK_NO_MEMORY:
            raise MemoryError("scratch memory cannot be allocated")
        if code == CK_STOPPED:
            raise RuntimeError(
                "the process was forked while this call was running on several threads, which the child does not have; "
                "call again")
        if code != CK_OK:
            raise RuntimeError(f"the native engine ended with code {code}")
        return 0


cdef int fill_array(ck_array *array, tuple strides, str dtype, flag swapped) except -1:
    array.data = NULL
    for axis in range(4):
        array.stride[axis] = strides[axis]
    array.type = TYPES[dtype]
    array.swapped = swapped
    return 0


cdef ck_layout layout(pair):
    cdef ck_layout result
    result.kind = <ck_matrix_kind><int>pair[0]
    result.ld = pair[1]
    return result


cdef int fill_window(Run run, ck_window *window, w) except -1:
    """Take a window from an object with the attributes of `plan.Window`."""
    window.height, window.width = w.size
    window.out_height, window.out_width = w.out_size
    window.row_step, window.col_step = w.steps
    window.rows, window.cols = len(w.row_at), len(w.col_at)
    window.row_at = run.keep(w.row_at)
    window.col_at = run.keep(w.col_at)
    return 0


cdef class Product(Run):
    """The forward convolution, or the input gradient in its gathering form; built from a `plan.ProductSpec`."""

    cdef ck_product p
    cdef ck_phase *phases

    def __cinit__(self, spec, Blas blas):
        self.phases = NULL

    def __dealloc__(self):
        free(self.phases)

    def __init__(self, spec, Blas blas):
        cdef ck_product *p = &self.p
        cdef ck_phase *phase
        self.blas = blas
        self.arithmetic = TYPES[spec.arithmetic]
        memset(p, 0, sizeof(ck_product))
        self.phases = <ck_phase *>calloc(len(spec.phases), sizeof(ck_phase))
        if self.phases == NULL:
            raise MemoryError
        self.reserve(sum(2 * (len(s.window.row_at) + len(s.window.col_at)) for s in spec.phases))
        fill_array(&p.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        p.pixels.load = ck_loader(&p.pixels.array, self.arithmetic)
        p.pixels.plain = spec.image_plain
        fill_array(&p.filter, spec.filter_strides, spec.filter.dtype, not spec.filter.native)
        p.load_filter = ck_loader(&p.filter, self.arithmetic)
        p.image_group, p.filter_group, p.out_group = spec.group_bytes
        p.images, p.groups = spec.images, spec.groups
        p.in_channels, p.out_channels = spec.in_channels, spec.out_channels
        p.pixel_block, p.channel_block = spec.pixel_block, spec.channel_block
        p.run = <ck_run><int>spec.run
        p.within_image = spec.within_image
        p.patch_bytes, p.filter_bytes, p.tile_bytes, p.stage_bytes = spec.scratch
        self.shared_bytes = spec.packed_bytes
        p.phases = self.phases
        p.phase_count = len(spec.phases)
        cdef int64_t packed = 0, size = 8 if self.arithmetic == CK_F64 else 4
        for number, s in enumerate(spec.phases):
            phase = &self.phases[number]
            fill_window(self, &phase.window, s.window)
            phase.row_tap = self.keep(s.row_tap)
            phase.col_tap = self.keep(s.col_tap)
            fill_array(&phase.out, s.out_strides, spec.out.dtype, not spec.out.native)
            phase.out_at = s.out_at
            phase.image_layout = layout(spec.image_layout)
            phase.filter_layout = layout(spec.filter_layout)
            phase.out_layout = layout(s.out_layout)
            phase.first_unit, phase.first_pack, phase.packed_at = p.units, p.packs, packed
            p.units += ck_product_units(p, phase)
            p.packs += p.groups * phase.window.rows * phase.window.cols
            packed += p.groups * phase.window.rows * phase.window.cols * p.in_channels * p.out_channels * size
        p.store = ck_storer(&self.phases[0].out, self.arithmetic)

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_product_run(<ck_product *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray filter, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_product p = self.p
        p.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        p.filter.data = <char *>cnp.PyArray_DATA(filter)
        p.out_data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&p, &p.packed, &p.gemm, threads, workers)


cdef class FilterGradient(Run):
    """The filter gradient; built from a `plan.FilterGradientSpec`."""

    cdef ck_filter_gradient g

    def __init__(self, spec, Blas blas):
        cdef ck_filter_gradient *g = &self.g
        self.blas = blas
        self.arithmetic = TYPES[spec.arithmetic]
        memset(g, 0, sizeof(ck_filter_gradient))
        self.reserve(len(spec.window.row_at) + len(spec.window.col_at))
        fill_window(self, &g.window, spec.window)
        fill_array(&g.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        g.pixels.load = ck_loader(&g.pixels.array, self.arithmetic)
        g.pixels.plain = spec.image_plain
        fill_array(&g.gradients, spec.gradient.strides, spec.gradient.dtype, not spec.gradient.native)
        g.load_gradient = ck_loader(&g.gradients, self.arithmetic)
        fill_array(&g.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        g.store = ck_storer(&g.out, self.arithmetic)
        g.accumulate = spec.accumulate
        g.image_group, g.gradient_group, g.out_group = spec.group_bytes
        g.images, g.groups = spec.images, spec.groups
        g.in_channels, g.out_channels = spec.in_channels, spec.out_channels
        g.image_layout, g.gradient_layout = layout(spec.image_layout), layout(spec.gradient_layout)
        g.out_layout = layout(spec.out_layout)
        g.patch_block, g.channel_block = spec.patch_block, spec.channel_block
        g.slices, g.slice_pixels, g.pixel_block = spec.slices, spec.slice_pixels, spec.pixel_block
        g.within_image = spec.within_image
        g.tiles_at_once = spec.tiles_at_once
        g.patch_bytes, g.gradient_bytes, g.tile_bytes, g.stage_bytes = spec.scratch
        self.shared_bytes = spec.partial_bytes

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_filter_gradient_run(<ck_filter_gradient *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray gradient, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_filter_gradient g = self.g
        g.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        g.gradients.data = <char *>cnp.PyArray_DATA(gradient)
        g.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&g, &g.partials, &g.gemm, threads, workers)


cdef class Scatter(Run):
    """The input gradient in its scattering form; built from a `plan.ScatterSpec`."""

    cdef ck_scatter s

    def __init__(self, spec, Blas blas):
        cdef ck_scatter *s = &self.s
        self.blas = blas
        self.arithmetic = TYPES[spec.arithmetic]
        self.shared_bytes = 0
        memset(s, 0, sizeof(ck_scatter))
        self.reserve(len(spec.window.row_at) + len(spec.window.col_at))
        fill_window(self, &s.window, spec.window)
        fill_array(&s.gradients, spec.gradient.strides, spec.gradient.dtype, not spec.gradient.native)
        s.load_gradient = ck_loader(&s.gradients, self.arithmetic)
        fill_array(&s.filter, spec.filter.strides, spec.filter.dtype, not spec.filter.native)
        s.load_filter = ck_loader(&s.filter, self.arithmetic)
        fill_array(&s.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        s.store = ck_storer(&s.out, self.arithmetic)
        s.gradient_group, s.filter_group, s.out_group = spec.group_bytes
        s.images, s.groups = spec.images, spec.groups
        s.in_channels, s.out_channels = spec.in_channels, spec.out_channels
        s.image_block, s.channel_block = spec.image_block, spec.channel_block
        s.pixel_block, s.tap_block = spec.pixel_block, spec.tap_block
        s.gradient_bytes, s.filter_bytes, s.column_bytes, s.tile_bytes, s.total_bytes = spec.scratch

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_scatter_run(<ck_scatter *>run, job)

    def run(self, cnp.ndarray gradient, cnp.ndarray filter, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_scatter s = self.s
        cdef char *unused = NULL
        s.gradients.data = <char *>cnp.PyArray_DATA(gradient)
        s.filter.data = <char *>cnp.PyArray_DATA(filter)
        s.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&s, &unused, &s.gemm, threads, workers)


cdef const ck_dot_kernel *kernel_of(ck_type arithmetic, str isa) except NULL:
    return ck_dot_kernel_for(arithmetic, <ck_isa><int>ISA_LEVELS.index(isa))


def dot_kernels():
    """Return (name, ISA level, dtype, rows, columns) of every register tile that is built in."""
    found, names = [], {code: name for name, code in TYPES.items()}
    cdef int i = 0
    while ck_dot_kernels[i] != NULL:
        kernel = ck_dot_kernels[i]
        isa = ck_isa_name(kernel.isa).decode()
        found.append((kernel.name.decode(), isa, names[kernel.arithmetic], kernel.rows, kernel.columns))
        i += 1
    return found


cdef class Direct(Run):
    """The forward convolution, or the input gradient, by register tiles; built from a `direct.DirectSpec`."""

    cdef ck_direct d
    cdef ck_direct_phase *phases

    def __cinit__(self, spec):
        self.phases = NULL

    def __dealloc__(self):
        free(self.phases)

    def __init__(self, spec):
        cdef ck_direct *d = &self.d
        cdef ck_direct_phase *phase
        self.arithmetic = TYPES[spec.arithmetic]
        memset(d, 0, sizeof(ck_direct))
        d.kernel = kernel_of(self.arithmetic, spec.isa)
        self.phases = <ck_direct_phase *>calloc(len(spec.phases), sizeof(ck_direct_phase))
        if self.phases == NULL:
            raise MemoryError
        self.reserve(sum(2 * (len(s.window.row_at) + len(s.window.col_at)) for s in spec.phases))
        fill_array(&d.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        d.pixels.load = ck_loader_for(&d.pixels.array, d.kernel)
        d.pixels.plain = spec.image_plain
        d.pixels.pitch = spec.pitch
        d.pixels.paired = spec.paired
        d.pixels.pairing = d.kernel.pairing
        fill_array(&d.filter, spec.filter_strides, spec.filter.dtype, not spec.filter.native)
        d.load_filter = ck_loader_for(&d.filter, d.kernel)
        d.image_group, d.filter_group, d.out_group = spec.group_bytes
        d.images, d.groups = spec.images, spec.groups
        d.in_channels, d.out_channels = spec.in_channels, spec.out_channels
        d.pixel_block, d.image_block, d.row_block, d.col_block, d.panel_block, d.term_block = spec.tile
        d.strips_first, d.filter_in_place = spec.strips_first, spec.filter_in_place
        d.stage_bytes, d.filter_bytes, d.tile_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes
        d.phases = self.phases
        d.phase_count = len(spec.phases)
        cdef int64_t packed = 0, size = 8 if self.arithmetic == CK_F64 else 4
        cdef int64_t panels = (d.out_channels + d.kernel.columns - 1) // d.kernel.columns, taps
        for number, s in enumerate(spec.phases):
            phase = &self.phases[number]
            fill_window(self, &phase.window, s.window)
            phase.row_tap = self.keep(s.row_tap)
            phase.col_tap = self.keep(s.col_tap)
            fill_array(&phase.out, s.out_strides, spec.out.dtype, not spec.out.native)
            phase.out_at = s.out_at
            phase.in_place, phase.out_in_place = s.in_place, s.out_in_place
            phase.clipped, phase.rounded = s.clipped, s.rounded
            phase.first_unit, phase.first_pack, phase.packed_at = d.units, d.packs, packed
            taps = phase.window.rows * phase.window.cols
            d.units += ck_direct_units(d, phase)
            d.packs += ck_direct_packs(d, phase)
            packed += d.groups * panels * taps * d.in_channels * d.kernel.columns * size
        d.store = ck_storer_for(&self.phases[0].out, d.kernel)

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        cdef ck_direct *d = <ck_direct *>run
        return ck_direct_run(d, job)

    def run(self, cnp.ndarray image, cnp.ndarray filter, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_direct d = self.d
        d.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        d.filter.data = <char *>cnp.PyArray_DATA(filter)
        d.out_data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&d, &d.packed, NULL, threads, workers)


cdef class Packer(Direct):
    """A direct convolution whose filter is packed into memory of its own, once for many runs."""

    def __init__(self, spec):
        Direct.__init__(self, spec)
        self.shared_bytes = 0

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        cdef ck_direct *d = <ck_direct *>run
        return ck_direct_pack(d, job) if d.out_data == NULL else ck_direct_compute(d, job)

    cdef int start_with(self, ck_direct *d, cnp.ndarray memory, int threads, int workers) except -1:
        cdef char *unused = NULL
        d.packed = <char *>cnp.PyArray_DATA(memory)
        return self.start(<void *>d, &unused, NULL, threads, workers)

    def pack(self, cnp.ndarray filter, cnp.ndarray memory, int threads):
        """Pack the filter into ``memory``, a writeable array of as many bytes as the specification shares."""
        cdef ck_direct d = self.d
        d.filter.data = <char *>cnp.PyArray_DATA(filter)
        d.out_data = NULL
        self.start_with(&d, memory, threads, threads)

    def run_packed(self, cnp.ndarray image, cnp.ndarray memory, cnp.ndarray out, int threads, int workers):
        """Compute with a filter that `pack` has packed."""
        cdef ck_direct d = self.d
        d.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        d.out_data = <char *>cnp.PyArray_DATA(out)
        self.start_with(&d, memory, threads, workers)


cdef class DirectGradient(Run):
    """The filter gradient by register tiles; built from a `DirectGradientSpec`."""

    cdef ck_direct_gradient g

    def __init__(self, spec):
        cdef ck_direct_gradient *g = &self.g
        self.arithmetic = TYPES[spec.arithmetic]
        memset(g, 0, sizeof(ck_direct_gradient))
        g.kernel = kernel_of(self.arithmetic, spec.isa)
        self.reserve(len(spec.window.row_at) + len(spec.window.col_at))
        fill_window(self, &g.window, spec.window)
        fill_array(&g.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        g.pixels.load = ck_loader_for(&g.pixels.array, g.kernel)
        g.pixels.plain = spec.image_plain
        fill_array(&g.gradients.array, spec.gradient.strides, spec.gradient.dtype, not spec.gradient.native)
        g.gradients.load = ck_loader_for(&g.gradients.array, g.kernel)
        g.gradients.plain = spec.gradient_plain
        fill_array(&g.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        g.store = ck_storer_for(&g.out, g.kernel)
        g.accumulate = spec.accumulate
        g.image_group, g.gradient_group, g.out_group = spec.group_bytes
        g.images, g.groups = spec.images, spec.groups
        g.in_channels, g.out_channels = spec.in_channels, spec.out_channels
        g.image_in_place, g.gradient_in_place = spec.image_in_place, spec.gradient_in_place
        g.out_in_place = spec.out_in_place
        g.image_block, g.row_block, g.col_block = spec.block
        g.strip, g.strips_at_once = spec.strip, spec.strips_at_once
        g.tap_block, g.strip_block, g.panel_block = spec.tile
        g.slices, g.slice_blocks = spec.slices, spec.slice_blocks
        g.stage_bytes, g.gradient_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_direct_gradient_run(<ck_direct_gradient *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray gradient, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_direct_gradient g = self.g
        g.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        g.gradients.array.data = <char *>cnp.PyArray_DATA(gradient)
        g.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&g, &g.partials, NULL, threads, workers)


def depthwise_kernels():
    """Return (name, ISA level, dtype, lanes) of every set of depthwise kernels that is built in."""
    found, names = [], {code: name for name, code in TYPES.items()}
    cdef int i = 0
    while ck_depthwise_kernels[i] != NULL:
        kernel = ck_depthwise_kernels[i]
        found.append((
            kernel.name.decode(), ck_isa_name(kernel.isa).decode(), names[kernel.arithmetic], kernel.lanes))
        i += 1
    return found


cdef class Depthwise(Run):
    """The forward convolution, or the input gradient, channel by channel; built from a `DepthwiseSpec`."""

    cdef ck_depthwise d
    cdef ck_depthwise_phase *phases

    def __cinit__(self, spec):
        self.phases = NULL

    def __dealloc__(self):
        free(self.phases)

    def __init__(self, spec):
        cdef ck_depthwise *d = &self.d
        cdef ck_depthwise_phase *phase
        self.arithmetic = TYPES[spec.arithmetic]
        memset(d, 0, sizeof(ck_depthwise))
        d.kernel = ck_depthwise_kernel_for(self.arithmetic, <ck_isa><int>ISA_LEVELS.index(spec.isa))
        d.planes = spec.planes
        self.phases = <ck_depthwise_phase *>calloc(len(spec.phases), sizeof(ck_depthwise_phase))
        if self.phases == NULL:
            raise MemoryError
        self.reserve(sum(2 * (len(s.window.row_at) + len(s.window.col_at)) for s in spec.phases))
        fill_array(&d.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        d.pixels.load = ck_loader(&d.pixels.array, self.arithmetic)
        d.pixels.plain = spec.image_plain
        fill_array(&d.filter, spec.filter.strides, spec.filter.dtype, not spec.filter.native)
        d.load_filter = ck_loader(&d.filter, self.arithmetic)
        d.gathers, d.filter_in_place, d.streams = spec.gathers, spec.filter_in_place, spec.streams
        d.images, d.groups, d.multiplier = spec.images, spec.groups, spec.multiplier
        d.row_block, d.col_block, d.group_block = spec.tile
        d.stage_bytes, d.tile_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes
        d.phases = self.phases
        d.phase_count = len(spec.phases)
        cdef int64_t packed = 0, size = 8 if self.arithmetic == CK_F64 else 4
        for number, s in enumerate(spec.phases):
            phase = &self.phases[number]
            fill_window(self, &phase.window, s.window)
            phase.row_tap = self.keep(s.row_tap)
            phase.col_tap = self.keep(s.col_tap)
            fill_array(&phase.out, s.out_strides, spec.out.dtype, not spec.out.native)
            phase.out_at, phase.out_in_place, phase.flat = s.out_at, s.out_in_place, s.flat
            phase.pairs, phase.head, phase.tail, phase.unpadded = s.pairs, s.head, s.tail, s.unpadded
            phase.packed_at = packed
            packed += phase.window.rows * (3 if s.pairs else phase.window.cols) * d.groups * d.multiplier * size
            d.grid_rows = max(d.grid_rows, phase.window.out_height)
            d.grid_cols = max(d.grid_cols, phase.window.out_width)
        d.store = ck_storer(&self.phases[0].out, self.arithmetic)

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_depthwise_run(<ck_depthwise *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray filter, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_depthwise d = self.d
        d.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        d.filter.data = <char *>cnp.PyArray_DATA(filter)
        d.out_data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&d, &d.packed, NULL, threads, workers)


cdef class DepthwiseGradient(Run):
    """The filter gradient channel by channel; built from a `DepthwiseGradientSpec`."""

    cdef ck_depthwise_gradient g

    def __init__(self, spec):
        cdef ck_depthwise_gradient *g = &self.g
        self.arithmetic = TYPES[spec.arithmetic]
        memset(g, 0, sizeof(ck_depthwise_gradient))
        g.kernel = ck_depthwise_kernel_for(self.arithmetic, <ck_isa><int>ISA_LEVELS.index(spec.isa))
        g.planes, g.unpadded = spec.planes, spec.unpadded
        self.reserve(len(spec.window.row_at) + len(spec.window.col_at))
        fill_window(self, &g.window, spec.window)
        fill_array(&g.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        g.pixels.load = ck_loader(&g.pixels.array, self.arithmetic)
        g.pixels.plain = spec.image_plain
        fill_array(&g.gradients.array, spec.gradient.strides, spec.gradient.dtype, not spec.gradient.native)
        g.gradients.load = ck_loader(&g.gradients.array, self.arithmetic)
        g.gradients.plain = spec.gradient_plain
        fill_array(&g.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        g.store = ck_storer(&g.out, self.arithmetic)
        g.accumulate, g.streams = spec.accumulate, spec.streams
        g.images, g.channels, g.multiplier = spec.images, spec.channels, spec.multiplier
        g.row_block, g.col_block, g.channel_block = spec.block
        g.slices, g.slice_blocks = spec.slices, spec.slice_blocks
        g.stage_bytes, g.gradient_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_depthwise_gradient_run(<ck_depthwise_gradient *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray gradient, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_depthwise_gradient g = self.g
        g.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        g.gradients.array.data = <char *>cnp.PyArray_DATA(gradient)
        g.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&g, &g.partials, NULL, threads, workers)


def planar_kernels():
    """Return (name, ISA level, dtype, lanes) of every set of planar kernels that is built in."""
    found = []
    cdef int i = 0
    cdef const ck_planar_kernel *kernel
    while ck_planar_kernels[i] != NULL:
        kernel = ck_planar_kernels[i]
        dtype = "float64" if kernel.arithmetic == CK_F64 else "float32"
        found.append((kernel.name.decode(), ISA_LEVELS[<int>kernel.isa], dtype, kernel.lanes))
        i += 1
    return found


cdef class Planar(Run):
    """The forward convolution, or the input gradient, along columns; built from a `PlanarSpec`."""

    cdef ck_planar p
    cdef ck_planar_phase *phases

    def __cinit__(self, spec):
        self.phases = NULL

    def __dealloc__(self):
        free(self.phases)

    def __init__(self, spec):
        cdef ck_planar *p = &self.p
        cdef ck_planar_phase *phase
        self.arithmetic = TYPES[spec.arithmetic]
        memset(p, 0, sizeof(ck_planar))
        p.kernel = ck_planar_kernel_for(self.arithmetic, <ck_isa><int>ISA_LEVELS.index(spec.isa))
        self.phases = <ck_planar_phase *>calloc(len(spec.phases), sizeof(ck_planar_phase))
        if self.phases == NULL:
            raise MemoryError
        self.reserve(sum(2 * (len(s.window.row_at) + len(s.window.col_at)) for s in spec.phases))
        fill_array(&p.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        p.pixels.load = ck_loader(&p.pixels.array, self.arithmetic)
        p.pixels.plain = spec.image_plain
        fill_array(&p.filter, spec.filter_strides, spec.filter.dtype, not spec.filter.native)
        p.load_filter = ck_loader(&p.filter, self.arithmetic)
        p.interleaved, p.out_plain = spec.interleaved, spec.out_plain
        p.images, p.channels, p.filters, p.filter_block = spec.images, spec.channels, spec.filters, spec.filter_block
        p.row_block, p.col_block = spec.tile
        p.stage_bytes, p.tile_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes
        p.phases = self.phases
        p.phase_count = len(spec.phases)
        cdef int64_t packed = 0
        for number, s in enumerate(spec.phases):
            phase = &self.phases[number]
            fill_window(self, &phase.window, s.window)
            phase.row_tap = self.keep(s.row_tap)
            phase.col_tap = self.keep(s.col_tap)
            fill_array(&phase.out, s.out_strides, spec.out.dtype, not spec.out.native)
            phase.out_at, phase.out_in_place = s.out_at, s.out_in_place
            phase.channel_block, phase.tap_rows, phase.tap_cols = s.sum_block
            phase.first_unit, phase.packed_at = p.units, packed
            p.units += ck_planar_units(p, phase)
            packed += ck_planar_packed(p, phase, p.filters)
        p.store = ck_storer(&self.phases[0].out, self.arithmetic)

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_planar_run(<ck_planar *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray filter, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_planar p = self.p
        p.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        p.filter.data = <char *>cnp.PyArray_DATA(filter)
        p.out_data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&p, &p.packed, NULL, threads, workers)


cdef class PlanarGradient(Run):
    """The filter gradient along columns; built from a `PlanarGradientSpec`."""

    cdef ck_planar_gradient g

    def __init__(self, spec):
        cdef ck_planar_gradient *g = &self.g
        self.arithmetic = TYPES[spec.arithmetic]
        memset(g, 0, sizeof(ck_planar_gradient))
        g.kernel = ck_planar_kernel_for(self.arithmetic, <ck_isa><int>ISA_LEVELS.index(spec.isa))
        self.reserve(len(spec.window.row_at) + len(spec.window.col_at))
        fill_window(self, &g.window, spec.window)
        fill_array(&g.pixels.array, spec.image.strides, spec.image.dtype, not spec.image.native)
        g.pixels.load = ck_loader(&g.pixels.array, self.arithmetic)
        g.pixels.plain = spec.image_plain
        fill_array(&g.gradients.array, spec.gradient.strides, spec.gradient.dtype, not spec.gradient.native)
        g.gradients.load = ck_loader(&g.gradients.array, self.arithmetic)
        g.gradients.plain = spec.gradient_plain
        fill_array(&g.out, spec.out.strides, spec.out.dtype, not spec.out.native)
        g.store = ck_storer(&g.out, self.arithmetic)
        g.accumulate = spec.accumulate
        g.images, g.channels, g.filters = spec.images, spec.channels, spec.filters
        g.row_block, g.col_block = spec.block
        g.filter_block, g.slices, g.slice_blocks = spec.filter_block, spec.slices, spec.slice_blocks
        g.stage_bytes, g.gradient_bytes = spec.scratch
        self.shared_bytes = spec.shared_bytes

    cdef int execute(self, void *run, ck_job *job) noexcept nogil:
        return ck_planar_gradient_run(<ck_planar_gradient *>run, job)

    def run(self, cnp.ndarray image, cnp.ndarray gradient, cnp.ndarray out, int threads, int workers):
        """Compute; the arrays must lie as the specification says."""
        cdef ck_planar_gradient g = self.g
        g.pixels.array.data = <char *>cnp.PyArray_DATA(image)
        g.gradients.array.data = <char *>cnp.PyArray_DATA(gradient)
        g.out.data = <char *>cnp.PyArray_DATA(out)
        self.start(<void *>&g, &g.partials, NULL, threads, workers)


include "_int8.pxi"
include "_float_epilogue.pxi"
include "_winograd.pxi"
include "_winograd_gradient.pxi"


def helpers():
    """Return how many helper threads are alive."""
    return ck_pool_helpers()


def clear_scratch():
    """Free the scratch memory that is kept for later calls."""
    ck_scratch_clear()


def retained_scratch():
    """Return the bytes of scratch memory that are kept for later calls."""
    return ck_scratch_retained()
