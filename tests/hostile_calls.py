"""Calls every public function with arguments that no one should pass, and prints what should not have happened.

``HOSTILE_SEED=3 python hostile_calls.py`` repeats a run to the last call; the number in front of a fault is its call.
With ``HOSTILE_TRACE=1`` every call is printed before it is made, to find one that never ends.
"""

import faulthandler
import itertools
import os
import random
import resource
import sys
import time
import warnings
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np

import convkit

SECONDS_PER_CALL = 2.0
SECONDS_TO_HANG = 20
GROWTH = 200 << 20
OPTIONS = ("num_threads", "workspace_limit", "precision", "deterministic", "autotune")
OPERATIONS = ("conv2d", "conv2d_backprop_filter", "conv2d_backprop_input", "fused_conv2d")
SIZES = (2**31, 2**31 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), -(10**30), 10**5000)


class Raises:
    """Every way of looking at it raises."""

    def _raise(self, *_, **__):
        raise RuntimeError("I never do what I am asked")

    __index__ = __int__ = __float__ = __len__ = __iter__ = __getitem__ = __array__ = __bool__ = __eq__ = _raise
    __hash__ = __repr__ = __str__ = __dlpack__ = __dlpack_device__ = __contains__ = __lt__ = __gt__ = _raise


class RaisesOnArray:
    def __array__(self, dtype=None, copy=None):
        raise ValueError("no array today")


class RaisesOnIndex:
    def __index__(self):
        raise OverflowError("no index today")


class WrongIndex:
    def __index__(self):
        return "three"


class WrongArray:
    def __array__(self, dtype=None, copy=None):
        return "no array"


class LyingSequence:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise IndexError(index)


class EndlessSequence(list):
    """A list by type, without an end."""

    __repr__ = object.__repr__

    def __len__(self):
        return 2

    def __iter__(self):
        return itertools.repeat(1)


class RaisingAttributes:
    def __getattr__(self, name):
        raise ZeroDivisionError(name)


class RaisingProxy:
    """Has not even a class to tell, as proxies of what is not there."""

    def __getattribute__(self, name):
        raise ZeroDivisionError(name)


class WrongDLPack:
    def __dlpack__(self, **keywords):
        return object()

    def __dlpack_device__(self):
        return (1, 0)


class RaisingList(list):
    __repr__ = object.__repr__

    def __iter__(self):
        raise KeyError("no items today")


def nested(depth):
    value = 1.0
    for _ in range(depth):
        value = [value]
    return value


def self_containing():
    items = [1]
    items.append(items)
    return items


def scalars():
    """Values of no use anywhere."""
    return [
        None, True, False, -1, 0, 1, 2, 1.5, -0.0, 1e300, float("nan"), float("inf"), -float("inf"), 1j, *SIZES,
        "", "SAME", "same ", "VALID\0", "NHWC", "NCHW_VECT_C", "x" * 100_000, "\ud800", b"SAME", bytearray(b"ab"),
        memoryview(b"abcd"), Fraction(1, 3), Decimal("NaN"), np.float32("nan"), np.int64(2), np.bool(True),
        np.datetime64("2020-01-01"), np.uint64(2**64 - 1), np.str_("SAME"), np.float16(2), object(), type, int, len,
        ..., NotImplemented, Raises(), RaisesOnArray(), RaisesOnIndex(), WrongIndex(), WrongArray(), LyingSequence(),
        RaisingAttributes(), RaisingProxy(), WrongDLPack(), lambda: 1, np, sys, ValueError("value"), Path("/"),
        slice(1, 2),
    ]  # fmt: skip


def collections():
    """Things that look like sequences, or are."""
    return [
        (), [], {}, set(), frozenset({1, 2}), {1: 2, 3: 4}, {1, 2}, (1,), (2, 2), [2, 2], (1, 2, 2, 1), (1, 1, 2, 2),
        (0, 0), (-1, -1), (1, 2, 3), (1,) * 5, (1,) * 100, (1.5, 2), ("1", "2"), (None, None), (2, None), ((1, 2), 3),
        ((1, 1), (1, 1)), ((0, 1), (1, 0)), ((0, 0), (1, 1), (1, 1), (0, 0)), ((1, 1), (0, 0), (0, 0), (0, 0)),
        [[1, 2], [3]], [[], []], ((), ()), range(2), range(2, 4), range(10**18), iter([1, 2]), (n for n in (1, 2)),
        itertools.count(), itertools.repeat((1, 1)), map(int, "12"), deque([1, 2]), {1: 1}.keys(), Counter("ab"),
        EndlessSequence(), RaisingList([1, 2]), nested(5), nested(70), nested(500), self_containing(), [Raises()] * 2,
        (RaisesOnIndex(), 1), [WrongIndex()] * 4, ["ab", "cd"], [b"ab"] * 4, "22", b"\x02\x02", [Fraction(2)] * 2,
        (2**63, 1), (1, 2**62), (10**30, 10**30), (2**33, 2**33), ((2**62, 2**62), (0, 0)), ((2**40, 0), (0, 2**40)),
        (float("nan"), 1), (True, True), (np.int8(1), np.uint64(1)), np.array([2, 2]), np.array([1.0, 2.0]),
        np.array(2), np.array([[1, 1], [0, 0]]), np.ones((2, 2, 2), int), np.array([2**63], np.uint64),
    ]  # fmt: skip


def strided(shape, strides, dtype=np.float32):
    return np.lib.stride_tricks.as_strided(np.zeros(64, dtype), shape, strides)


def full_of(item):
    array = np.empty((1, 5, 4, 2), object)
    for index in np.ndindex(array.shape):
        array[index] = item
    return array


def arrays():
    """Arrays of wrong ranks, types and forms. The vast ones fit no geometry of the others' but for striding."""
    rec = np.zeros((1, 5, 4, 2), [("a", "f4")])
    plain = np.ones((1, 5, 4, 2), np.float32)
    return [
        np.float32(1), np.array(1.0), np.ones(3), np.ones((2, 3)), np.ones((1, 2, 3)), np.ones((1, 1, 1, 1, 1)),
        np.ones((1,) * 32), np.zeros((0,)), np.zeros((0, 0, 0, 0)), np.zeros((0, 5, 4, 2), np.float32),
        np.zeros((1, 0, 4, 2), np.float32), np.zeros((1, 5, 4, 0), np.float32), np.zeros((3, 0, 2, 3), np.float32),
        np.zeros((0, 2**30, 2**20, 2), np.float32), np.zeros((2**31, 0, 2**20, 2), np.float32),
        rec, rec.view(np.recarray), np.rec.array(rec), plain.astype("M8[s]"), plain.astype("U3"), plain.astype("S3"),
        plain.astype(object), np.full((1, 5, 4, 2), None), full_of(Raises()), plain.astype("c8"),
        plain.astype("g"), plain.astype("i8"), plain.astype("?"), plain.astype("V4"), plain.astype(np.int8),
        plain.astype("f2"), plain.astype(">f4"), plain.astype("f8"), np.ma.masked_array(plain, plain > 0),
        np.ma.masked_all((3, 2, 2, 3)), np.matrix([[1.0]]), plain.T, plain[:, ::-1, ::-2], plain * np.nan,
        plain * np.inf, plain.tolist(), [plain, plain], [[[[1.0, 2.0]], [[3.0]]]], [[[["a"]]]], [[[[None]]]],
        [[[[1j]]]], [[[[2**70]]]],
        np.broadcast_to(np.float32(1), (1, 2**20, 2**20, 4)), np.broadcast_to(np.float32(1), (2**40, 1, 1, 2)),
        np.broadcast_to(np.float32(1), (1, 2**21 + 3, 2**20 + 7, 5)),
        np.broadcast_to(np.float32(1), (2**20, 2**20, 2, 3)),
        np.broadcast_to(np.float32(1), (3, 2, 2, 2**40)), np.broadcast_to(np.float16(1), (1, 5, 4, 2**33)),
        strided((1, 5, 4, 2), (4, 4, 4, 4)), strided((1, 5, 4, 2), (0, 0, 0, 0)), strided((1, 5, 4, 2), (1, 3, 1, 5)),
    ]  # fmt: skip


def dtypes():
    return ["f4", "f8", "f2", "i4", "c8", "O", "U", "M8", "banana", np.float32, float, int, bool, np.dtype("f4"), "V0"]


class Generator:
    """Draws one call after the other: a small valid one with some of its arguments replaced."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.arrays = arrays()
        self.texts = ["NHWC", "NCHW", "NCHW_VECT_C", "HWIO", "OIHW", "OHWI", "OIHW_VECT_I", "nhwc", "", "SAME", "FULL"]

    def anything(self):
        # Iterators are used up by a call, so these are made afresh.
        pool = self.random.choice((scalars, collections, dtypes, lambda: self.arrays, lambda: self.texts))()
        return self.random.choice(pool)

    def number(self):
        return self.random.choice((0, 1, 1, 2, 2, 3, 5, -1, self.random.choice(SIZES), self.random.choice(SIZES)))

    def shape(self, good):
        draw = self.random.random()
        if draw < 0.5:
            changed = list(good)
            changed[self.random.randrange(len(changed))] = self.number()
            return tuple(changed)
        if draw < 0.7:
            return tuple(self.number() for _ in range(self.random.randrange(7)))
        return self.anything()

    def geometry(self):
        """A likely value for each geometry argument, sometimes vast."""
        pick = self.random.choice
        return {
            "strides": pick((1, 2, (1, 2), self.number(), (self.number(), self.number()), self.anything())),
            "dilations": pick((1, 2, (2, 1), self.number(), (self.number(), self.number()), self.anything())),
            "padding": pick(("SAME", "FULL", 1, (0, 2), ((1, 0), (2, 1)), self.number(), self.anything())),
            "groups": pick((1, 1, 2, self.number(), self.anything())),
            "data_format": pick(("NHWC", "NCHW", self.anything())),
            "filter_format": pick((None, "OIHW", "OHWI", self.anything())),
        }  # fmt: skip

    def keywords(self, common, fused=False):
        """A few keywords, most of them legal by name."""
        pool = self.geometry()
        if common:
            pool |= {
                "out": self.random.choice((np.empty((1, 3, 3, 3), np.float32), self.anything())),
                "out_dtype": self.random.choice(("float32", self.anything())),
                "algorithm": self.random.choice(("auto", "im2col", "gemm", "reference", "winograd", self.anything())),
                "num_threads": self.random.choice((1, 2, self.number(), self.anything())),
                "accumulate": self.random.choice((True, False, self.anything())),
            }
        if fused:
            pool |= {
                "conv_scale": self.random.choice((0.5, [0.5] * 3, np.ones(3), np.nan, self.anything())),
                "side_scale": self.random.choice((None, 0, 2.0, self.anything())),
                "activation": self.random.choice((None, "relu", "elu", self.anything())),
                "alpha": self.random.choice((0.1, self.anything())),
                "input_zero_point": self.random.choice((0, 1, self.number(), self.anything())),
                "output_zero_point": self.random.choice((0, 1, self.number(), self.anything())),
            }
        pool |= {"stride": 1, "weight": 2, "banana": self.random.choice((None, Raises()))}
        names = self.random.sample(sorted(pool), self.random.choice((0, 0, 1, 1, 2, 3, 5)))
        return {name: pool[name] for name in names}

    def replace(self, good):
        """The positional arguments, none to all of them replaced."""
        arguments = []
        for argument in good:
            draw = self.random.random()
            if draw < 0.6:
                arguments.append(argument)
            elif isinstance(argument, tuple):
                arguments.append(self.shape(argument))
            else:
                arguments.append(self.anything() if draw < 0.8 else self.random.choice(self.arrays))
        if self.random.random() < 0.02:
            arguments = arguments[: self.random.randrange(len(arguments))]
        if self.random.random() < 0.02:
            arguments.append(self.anything())
        return arguments

    def operands(self, op, shapes=False):
        image, filter_, result = (1, 5, 4, 2), (3, 2, 2, 3), (1, 3, 3, 3)
        dtypes = [np.float32, np.float32, np.float64, np.float16]
        dtype = self.random.choice(dtypes + [np.int8] * 3 * (op in ("conv2d", "fused_conv2d")))
        x, w, dy = ((s if shapes else np.ones(s, dtype)) for s in (image, filter_, result))
        return {
            "conv2d": [x, w],
            "conv2d_backprop_filter": [x, filter_, dy],
            "conv2d_backprop_input": [image, w, dy],
            "conv2d_output_shape": [image, filter_],
            "fused_conv2d": [x, w, *self.random.choice(((), (None, dy), (np.ones(3, np.float32), dy)))],
        }[op]

    def call(self):
        """Return a public function's name and its arguments."""
        kinds = ("operation", "output_shape", "explain", "options", "plain")
        kind = self.random.choices(kinds, (24, 8, 8, 2, 1))[0]
        if kind == "operation":
            op = self.random.choice(OPERATIONS)
            return op, self.replace(self.operands(op)), self.keywords(True, op == "fused_conv2d")
        if kind == "output_shape":
            return "conv2d_output_shape", self.replace(self.operands("conv2d_output_shape")), self.keywords(False)
        if kind == "explain":
            op = self.random.choice(OPERATIONS)
            arguments = self.replace(self.operands(op, shapes=self.random.random() < 0.5))
            keywords = self.keywords(True, op == "fused_conv2d")
            if self.random.random() < 0.3:
                keywords[self.random.choice(("device", "dtype"))] = self.anything()
            return "explain", [self.anything() if self.random.random() < 0.1 else op, *arguments], keywords
        if kind == "plain":
            return self.random.choice(("cpu_info", "clear_caches", "show_versions")), [self.anything()], {}
        name = self.random.choice((*OPTIONS, "banana"))
        return self.random.choice(("options", "set_options")), [], {name: self.anything()}


def attempt(name, arguments, keywords):
    """Call; return what is wrong with the way it failed, or None."""
    try:
        if name == "options":
            with convkit.options(**keywords):
                pass
        else:
            getattr(convkit, name)(*arguments, **keywords)
            if name == "set_options":
                convkit.set_options(**dict.fromkeys(OPTIONS))
    except (convkit.ConvkitError, TypeError) as error:
        message = str(error)
        if len(message) <= 20 or len(message) > 4000:
            return f"no sentence: {type(error).__name__}: {message[:200]!r}"
        if isinstance(error, convkit.ConvkitError):
            starts = OPERATIONS if name == "explain" else ()
            if not message.startswith(tuple(f"{start}: " for start in (name, *starts))):
                return f"does not start with the operation: {message[:200]!r}"
            message.encode()  # a message that cannot be printed is no message
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def describe(value):
    try:
        text = f"<{type(value).__name__} {value.dtype} {value.shape}>" if isinstance(value, np.ndarray) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return " ".join(text.split())[:100]


def describe_call(name, arguments, keywords):
    texts = [*map(describe, arguments), *(f"{key}={describe(value)}" for key, value in keywords.items())]
    return f"{name}({', '.join(texts)})".encode("ascii", "backslashreplace").decode()


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main():
    seed, count = int(os.environ.get("HOSTILE_SEED", "0")), int(os.environ.get("HOSTILE_CALLS", "6000"))
    generator, faults, warm = Generator(seed), 0, count // 10
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, resource.RLIM_INFINITY))
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", convkit.PerformanceWarning)
    at_warm = None
    for number in range(count):
        if number == warm:
            at_warm = memory()
        name, arguments, keywords = generator.call()
        if "HOSTILE_TRACE" in os.environ:
            print(f"{number}: {describe_call(name, arguments, keywords)}")
        faulthandler.dump_traceback_later(SECONDS_TO_HANG, exit=True)
        start = time.monotonic()
        fault = attempt(name, arguments, keywords)
        seconds = time.monotonic() - start
        faulthandler.cancel_dump_traceback_later()
        if fault is None and seconds > SECONDS_PER_CALL:
            fault = f"took {seconds:.1f} s"
        if fault is not None:
            faults += 1
            fault = fault.encode("ascii", "backslashreplace").decode()
            print(f"{number}: {describe_call(name, arguments, keywords)}\n    {fault}")
    if (growth := memory() - at_warm) > GROWTH:
        faults += 1
        print(f"the process grew by {growth >> 20} MiB")
    print(f"{faults} faults")


if __name__ == "__main__":
    main()
