"""Repeated calls: found again by their raw arguments, checked and started in C.

Everything that `_calls.prepare` looks at is in the key, so that equal calls differ in the values of their arrays only.
A key holds nothing of an array but how it lies in memory, and comparing keys runs no code of the user's: arguments of
types that could are not looked up.
"""

cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memset

import numpy as np

from ._cpu.threads import resolve
from ._epilogue import Terms
from ._options import MAX_THREADS, current
from ._packed import PackedFilter

cnp.import_array()

FUSED = "fused_conv2d"


cdef extern from "numpy/arrayobject.h":
    object PyArray_Empty(int, cnp.npy_intp *, cnp.dtype, int)


cdef enum:
    AXES = 4
    FORM_WORDS = 2 + 2 * AXES
    RAW_WORDS = 4 * FORM_WORDS + 7
    # Of the longest argument that is looked up.
    MOST_ITEMS = 8
    # A padding holds pairs of numbers.
    MOST_DEPTH = 2


cdef struct Form:
    # How an array lies in memory; all zeros where there is none.
    int64_t type
    int64_t aligned
    int64_t shape[AXES]
    int64_t strides[AXES]


cdef struct Raw:
    Form first, second, out
    int64_t accumulate
    int64_t packed_at  # 1 or 2 where the first or second operand is a packed filter, else 0
    # Of fused convolutions, else zeros.
    Form side
    int64_t reads_side, onto_side
    int64_t scales  # how many there are; 0 where it is a plain number
    int64_t bias_type, biases  # as `Form.type` without a byte order, and how many


cdef bint describe(Form *form, object value) noexcept:
    """Take the form of a plain array; others are not looked up, nor are dtypes that NumPy gives no number."""
    cdef int axis
    if not cnp.PyArray_CheckExact(value):
        return False
    array = <cnp.ndarray>value
    dtype = array.descr
    if cnp.PyArray_NDIM(array) != AXES or dtype.type_num < 0:
        return False
    form.type = (<int64_t>dtype.type_num + 1) << 8 | <unsigned char>dtype.byteorder
    form.aligned = cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_ALIGNED)
    for axis in range(AXES):
        form.shape[axis] = cnp.PyArray_DIM(array, axis)
        form.strides[axis] = cnp.PyArray_STRIDE(array, axis)
    return True


cdef bint read_form(Form *form, tuple value) except -1:
    """The same from what `_arrays.form_of` returned."""
    cdef int axis
    cdef cnp.dtype dtype
    shape, strides, dtype, aligned = value
    if len(shape) != AXES or dtype.type_num < 0:
        return False
    form.type = (<int64_t>dtype.type_num + 1) << 8 | <unsigned char>dtype.byteorder
    form.aligned = aligned
    for axis in range(AXES):
        form.shape[axis], form.strides[axis] = shape[axis], strides[axis]
    return True


cdef bint describe_all(Raw *raw, object first, object second, object out, object accumulate, int packed_at) noexcept:
    memset(raw, 0, sizeof(Raw))
    raw.accumulate = accumulate is True
    raw.packed_at = packed_at
    return (
        (accumulate is False or accumulate is True)
        and describe(&raw.first, first)
        and describe(&raw.second, second)
        and (out is None or describe(&raw.out, out))
    )


cdef bint describe_numbers(int64_t *count, object value) noexcept:
    """Take the length of a plain vector that the engine can read as it is."""
    if not cnp.PyArray_CheckExact(value):
        return False
    array = <cnp.ndarray>value
    if cnp.PyArray_NDIM(array) != 1 or not cnp.PyArray_ISCARRAY_RO(array):
        return False
    count[0] = cnp.PyArray_DIM(array, 0)
    return True


cdef inline uint64_t mix(uint64_t hashed, uint64_t value) noexcept nogil:
    hashed = (hashed ^ value) * <uint64_t>0x9E3779B97F4A7C15
    return hashed ^ (hashed >> 32)


cdef bint hash_item(uint64_t *hashed, object value, int depth) except -1:
    """Hash an argument and return whether it can be looked up: whether its type's equality is known and for good."""
    kind = type(value)
    if value is None:
        hashed[0] = mix(hashed[0], 1)
    elif kind is int or kind is str:
        hashed[0] = mix(hashed[0], <uint64_t><Py_ssize_t>hash(value))
    elif kind is tuple or kind is list:
        if depth == 0 or len(value) > MOST_ITEMS:
            return False
        hashed[0] = mix(hashed[0], <uint64_t>len(value) + 2)
        for item in (<tuple>value if kind is tuple else <list>value):
            if not hash_item(hashed, item, depth - 1):
                return False
    elif cnp.PyArray_DescrCheck(value) or value is float or (kind is type and issubclass(value, np.generic)):
        hashed[0] = mix(hashed[0], <uint64_t><uintptr_t><void *>value)
    else:
        return False
    return True


cdef bint same(object kept, object given) except -1:
    """Tell whether an argument that passed `hash_item` is equal to a kept one; lists are kept as tuples."""
    if kept is given:
        return True
    kind = type(given)
    if type(kept) is not (tuple if kind is list else kind):
        return False
    if kind is int or kind is str:
        return kept == given
    if kind is tuple:
        return same_items(<tuple>kept, <tuple>given)
    return kind is list and same_items(<tuple>kept, tuple(<list>given))


cdef bint same_items(tuple kept, tuple given) except -1:
    cdef Py_ssize_t i
    if len(kept) != len(given):
        return False
    for i in range(len(kept)):
        if not same(kept[i], given[i]):
            return False
    return True


def frozen(value, int depth=MOST_DEPTH + 1):
    """Return a tuple of arguments with the lists among them as tuples, which nobody can change."""
    if depth and (type(value) is list or type(value) is tuple) and len(value) <= MOST_ITEMS + 8:
        return tuple([frozen(item, depth - 1) for item in value])
    return value


# Unlike a chain of mixing steps, a sum of weighted words keeps the multiplier busy.
cdef uint64_t[RAW_WORDS] weights


def _draw_weights():
    cdef uint64_t state = 0
    cdef int i
    assert sizeof(Raw) == RAW_WORDS * sizeof(uint64_t)
    for i in range(RAW_WORDS):
        state = mix(state, i + 1)
        weights[i] = mix(state, i) | 1


_draw_weights()


cdef bint hash_all(uint64_t *hashed, const Raw *raw, tuple given) except -1:
    cdef const uint64_t *words = <const uint64_t *>raw
    cdef uint64_t total = 0
    cdef int i
    for i in range(RAW_WORDS):
        total += weights[i] * words[i]
    hashed[0] = total
    for value in given:
        if not hash_item(hashed, value, MOST_DEPTH):
            return False
    return True


cdef bint find_extent(cnp.ndarray array, uintptr_t *low, uintptr_t *high) noexcept:
    """Find the first and the last byte of an array; return False if it has none."""
    cdef int axis
    cdef int64_t reach
    low[0] = high[0] = <uintptr_t>cnp.PyArray_DATA(array)
    high[0] += cnp.PyArray_ITEMSIZE(array) - 1
    for axis in range(cnp.PyArray_NDIM(array)):
        if cnp.PyArray_DIM(array, axis) == 0:
            return False
        reach = (cnp.PyArray_DIM(array, axis) - 1) * cnp.PyArray_STRIDE(array, axis)
        if reach < 0:
            low[0] += reach
        else:
            high[0] += reach
    return True


cdef bint are_apart(cnp.ndarray a, cnp.ndarray b) noexcept:
    """Tell whether two arrays lie in ranges of memory that do not meet."""
    cdef uintptr_t low_a, high_a, low_b, high_b
    if not find_extent(a, &low_a, &high_a) or not find_extent(b, &low_b, &high_b):
        return True
    return high_a < low_b or high_b < low_a


cdef bint are_same_place(cnp.ndarray a, const Form *form_a, cnp.ndarray b, const Form *form_b) noexcept:
    """Tell whether two arrays are the same elements of memory."""
    return cnp.PyArray_DATA(a) == cnp.PyArray_DATA(b) and memcmp(form_a, form_b, sizeof(Form)) == 0


cdef object vector_of(double value):
    """Return one float32 in an array."""
    cdef cnp.npy_intp one = 1
    array = cnp.PyArray_SimpleNew(1, &one, cnp.NPY_FLOAT32)
    (<float *>cnp.PyArray_DATA(<cnp.ndarray>array))[0] = <float>value
    return array


cdef class Entry:
    """A prepared call under its key, and what is needed to start it."""

    cdef Raw raw
    cdef tuple given
    cdef object call
    cdef uint64_t used
    # None where the plan cannot start from addresses.
    cdef object run, run_packed
    cdef object pack_for, pack_key
    cdef int most_workers
    cdef bint pixels_second
    cdef cnp.dtype dtype
    cdef bint allocates
    cdef cnp.npy_intp shape[AXES]

    cdef bint limit(self, op, num_threads, options, int *threads, int *workers) except -1:
        """Find how many threads and workers a call may have; return False if its argument is for others to judge."""
        if self.most_workers > 1:
            threads[0] = resolve(op, num_threads, options)
            workers[0] = min(threads[0], self.most_workers)
            return True
        return num_threads is None or (type(num_threads) is int and 1 <= num_threads <= MAX_THREADS)

    cdef object packed_by(self, packed):
        """Return what this plan has packed of a filter, or None."""
        found = packed._packs.get(self.pack_key)
        return None if found is None or found[0] is not self.pack_for else found[1]

    cdef object new_result(self):
        """Return an array for the result, or None where that is for others to make."""
        if not self.allocates:
            return None
        Py_INCREF(self.dtype)  # which the next function takes for itself
        try:
            return PyArray_Empty(AXES, self.shape, self.dtype, 0)
        except MemoryError:
            return None


cdef class Repeats:
    """Prepared calls, the least recently used of them forgotten when there are more than ``capacity``."""

    cdef dict entries
    cdef uint64_t clock
    cdef readonly Py_ssize_t capacity

    def __init__(self, Py_ssize_t capacity):
        self.entries = {}
        self.clock = 0
        self.capacity = capacity

    def __len__(self):
        return len(self.entries)

    def clear(self):
        """Forget every call."""
        self.entries = {}

    cdef Entry look_up(self, const Raw *raw, tuple given):
        cdef uint64_t hashed
        cdef Entry entry
        if not hash_all(&hashed, raw, given):
            return None
        entry = self.entries.get(hashed)
        if entry is None or memcmp(&entry.raw, raw, sizeof(Raw)) or not same_items(entry.given, given):
            return None
        self.clock += 1
        entry.used = self.clock
        return entry

    def find(self, tuple given, first, second, out, accumulate, int packed_at):
        """Return the prepared call of equal arguments, or None; ``packed_at`` is 1 or 2 for a packed filter, else 0."""
        cdef Raw raw
        if not describe_all(&raw, first, second, out, accumulate, packed_at):
            return None
        cdef Entry entry = self.look_up(&raw, given)
        return None if entry is None else entry.call

    def keep(
        self, tuple given, tuple first, tuple second, out, bint accumulate, int packed_at, call, start, bint allocates,
    ):
        """Keep what was prepared for frozen arguments and forms, if calls like it can be looked up.

        ``start`` is the plan's `_registry.Start` or None; where ``allocates`` is true, `serve` makes the result.
        """
        cdef Entry entry = Entry()
        cdef uint64_t hashed
        cdef int axis
        entry.raw.accumulate, entry.raw.packed_at = accumulate, packed_at
        if not (read_form(&entry.raw.first, first) and read_form(&entry.raw.second, second)):
            return
        if out is not None and not read_form(&entry.raw.out, out):
            return
        if not hash_all(&hashed, &entry.raw, given):
            return
        entry.given = given
        entry.call = call
        entry.allocates = allocates
        entry.dtype = call.dtype
        for axis in range(AXES):
            entry.shape[axis] = call.shape[axis]
        if start is not None:
            entry.pixels_second = start.pixels_second
        self.add(entry, hashed, start)

    cdef int add(self, Entry entry, uint64_t hashed, start) except -1:
        if start is not None:
            entry.run, entry.most_workers = start.run, start.most_workers
            entry.run_packed, entry.pack_for = start.run_packed, start.pack_for
            entry.pack_key = (id(start.pack_for), None)
        if hashed not in self.entries and len(self.entries) >= self.capacity:
            self.forget_oldest()
        self.clock += 1
        entry.used = self.clock
        self.entries[hashed] = entry
        return 0

    def keep_fused(self, tuple given, tuple first, tuple second, out, static, bint packed, call, start, bint allocates):
        """Keep what was prepared for a fused call: the same with its `_fused.Static`."""
        cdef Entry entry = Entry()
        cdef Raw *raw = &entry.raw
        cdef uint64_t hashed
        cdef int axis
        raw.packed_at = 2 if packed else 0
        raw.reads_side, raw.onto_side = static.reads_side, static.onto_side
        if len(static.scale_shape) > 1 or (static.bias is not None and len(static.bias[0]) != 1):
            return
        raw.scales = static.scale_shape[0] if static.scale_shape else 0
        if static.bias is not None:
            raw.biases, raw.bias_type = static.bias[0][0], static.bias[1].num
        if not (read_form(&raw.first, first) and read_form(&raw.second, second)):
            return
        if not (out is None or read_form(&raw.out, out)):
            return
        if not (static.side is None or read_form(&raw.side, static.side)):
            return
        if not hash_all(&hashed, raw, given):
            return
        entry.given, entry.call, entry.dtype, entry.allocates = given, call, call.dtype, allocates
        for axis in range(AXES):
            entry.shape[axis] = call.shape[axis]
        self.add(entry, hashed, start)

    cdef int forget_oldest(self) except -1:
        cdef Entry entry
        cdef uint64_t oldest = self.clock + 1
        found = None
        for hashed, value in self.entries.items():
            entry = <Entry>value
            if entry.used < oldest:
                found, oldest = hashed, entry.used
        self.entries.pop(found, None)
        return 0

    def serve(
        self, op, first, second, shape_argument, strides, padding, dilations, groups, data_format, filter_format,
        out_dtype, algorithm, out, num_threads, accumulate, /,
    ):
        """Carry out a call that came before and needs nothing but to be started; return None for all others.

        What is not in the key is checked here: the number of threads, and that `out` may be written to.
        """
        cdef Raw raw
        cdef Entry entry
        cdef int packed_at = 0, threads = 1, workers = 1
        packed = kind = memory = None
        if type(second) is PackedFilter:
            packed, second, packed_at = second, second.filter, 2
        elif type(first) is PackedFilter:
            packed, first, packed_at = first, first.filter, 1
        if packed is not None:
            kind = packed.kind
        options = current()
        if not describe_all(&raw, first, second, out, accumulate, packed_at):
            return None
        given = (
            op, shape_argument, strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm,
            kind, options.workspace_limit, options.precision,
        )
        entry = self.look_up(&raw, given)
        if entry is None or entry.run is None or not entry.limit(op, num_threads, options, &threads, &workers):
            return None
        run = entry.run
        if packed is not None and entry.run_packed is not None:
            memory = entry.packed_by(packed)
            if memory is None:
                return None
            run = entry.run_packed
        if out is not None and not (cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out) and are_apart(out, first)
                                    and are_apart(out, second)):
            return None
        result = entry.new_result() if out is None else out
        if result is None:
            return None
        if entry.pixels_second:
            first, second = second, first
        try:
            run(first, second if memory is None else memory, result, 1 if workers == 1 else threads, workers)
        except (MemoryError, RuntimeError) as error:
            raise entry.call.plan.failure(error, workers) from error
        return result

    def serve_fused(
        self, image, weights, bias, side, conv_scale, side_scale, activation, alpha, input_zero_point,
        output_zero_point, strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm, out,
        num_threads, /,
    ):
        """The same for a fused convolution of int8; its scales and its bias must be such as the engine reads them."""
        cdef Raw raw
        cdef Entry entry
        cdef int threads = 1, workers = 1
        cdef float factor = 0
        packed = memory = kind = None
        if type(weights) is PackedFilter:
            packed, weights = weights, weights.filter
            kind = packed.kind
        if not describe_all(&raw, image, weights, out, False, 0 if packed is None else 2) or type(alpha) is not float:
            return None
        if side_scale is None:
            factor = side is not None
        elif type(side_scale) is float:
            factor = <float><double>side_scale
        else:
            return None
        if side is not None:
            if not describe(&raw.side, side):
                return None
            raw.reads_side = factor != 0
            if out is not None and are_same_place(out, &raw.out, side, &raw.side):
                raw.onto_side = raw.reads_side
            elif out is not None and not are_apart(out, side):
                return None
        elif side_scale is not None and <double>side_scale != 0:
            return None
        if type(conv_scale) is not float and not (
            describe_numbers(&raw.scales, conv_scale) and cnp.PyArray_TYPE(<cnp.ndarray>conv_scale) == cnp.NPY_FLOAT32
        ):
            return None
        if bias is not None:
            if not describe_numbers(&raw.biases, bias):
                return None
            raw.bias_type = cnp.PyArray_TYPE(<cnp.ndarray>bias)
        options = current()
        given = (
            strides, padding, dilations, groups, data_format, filter_format, out_dtype, algorithm, activation,
            input_zero_point, output_zero_point, kind, options.workspace_limit, options.precision,
        )
        entry = self.look_up(&raw, given)
        if entry is None or not entry.limit(FUSED, num_threads, options, &threads, &workers):
            return None
        if packed is not None:
            memory = entry.packed_by(packed)
            if memory is None:
                return None
        if out is not None and not (
            cnp.PyArray_ISWRITEABLE(<cnp.ndarray>out) and are_apart(out, image) and are_apart(out, weights)
            and (bias is None or are_apart(out, bias)) and (type(conv_scale) is float or are_apart(out, conv_scale))
        ):
            return None
        result = entry.new_result() if out is None else out
        if result is None:
            return None
        terms = Terms(vector_of(conv_scale) if type(conv_scale) is float else conv_scale, factor, bias)
        run = entry.run if memory is None else entry.run_packed
        try:
            run(image, weights if memory is None else memory, side if raw.reads_side else None, terms, result,
                1 if workers == 1 else threads, workers)
        except (MemoryError, RuntimeError) as error:
            raise entry.call.plan.failure(error, workers) from error
        return result
