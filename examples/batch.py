"""Filter a stack of images much larger than the memory used, and sum the filters' gradient over all of it.

The stack is a memory-mapped uint8 file. Every image goes through `conv2d`, its filter responses are used up at once,
and `conv2d_backprop_filter` adds its share to the gradient. The same work is done three ways: one call after the other,
through 8 user threads, and through 2 processes. All three must give the same bits in flat memory; the exit status is 1
if they do not. Reads /proc, so it needs Linux.
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import convkit

MIB = 2**20
USER_THREADS = 8
PROCESSES = 2
IMAGES_PER_PIECE = 4  # a piece is what one thread or process takes at a time
WORKSPACE_LIMIT = 8 * MIB  # of one call; 8 calls at a time then take 64 MiB at most
MEMORY_BOUND = 128 * MIB
GEOMETRY = {"strides": 2, "padding": "SAME"}
FILTER_SHAPE = (5, 5, 3, 8)


class Piece(NamedTuple):
    """What is left of a few images; the filter responses themselves are gone by then."""

    energies: np.ndarray  # per image and filter: the mean square of the positive responses
    gradient: np.ndarray  # of half the sum of those squares over the piece
    digest: bytes  # sha256 of every bit of the responses


def make_filters():
    return np.random.default_rng(1).normal(0, 0.1, FILTER_SHAPE).astype(np.float32)


def make_stack(path, images, size):
    """Write the stack image by image, so that it is never in memory as a whole."""
    rng = np.random.default_rng(2)
    stack = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(images, size, size, 3))
    for image in stack:
        image[:] = rng.integers(0, 256, image.shape, np.uint8)


def process_piece(first, path, num_threads):
    """Filter the images of one piece. It depends on its arguments alone, so any thread or process may do it."""
    filters = make_filters()
    gradient = np.zeros(FILTER_SHAPE, np.float32)
    energies = []
    digest = hashlib.sha256()
    # Mapped anew for each piece: when the map goes, so do its pages.
    stack = np.load(path, mmap_mode="r")[first : first + IMAGES_PER_PIECE]
    # These options hold for this thread alone, so they are set here and not around the loop over the pieces.
    with convkit.options(num_threads=num_threads, workspace_limit=WORKSPACE_LIMIT):
        for index in range(len(stack)):
            image = stack[index : index + 1]
            responses = convkit.conv2d(image, filters, **GEOMETRY)
            digest.update(responses.ravel())
            np.maximum(responses, 0, out=responses)
            energies.append(np.square(responses).mean(axis=(0, 1, 2)))
            # The derivative of half a square is the response itself.
            convkit.conv2d_backprop_filter(image, FILTER_SHAPE, responses, out=gradient, accumulate=True, **GEOMETRY)
    return Piece(np.array(energies), gradient, digest.digest())


class PeakMemory(threading.Thread):
    """Watches the anonymous memory that this process gains, plus all that its child processes have."""

    def __init__(self):
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.before = self.now()
        self.peak = 0

    @staticmethod
    def now():
        total = 0
        for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
            # A child may have ended since it was listed.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = Path(f"/proc/{pid}/status").read_text()
                total += 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
        return total

    def run(self):
        while not self.stopping.wait(0.02):
            self.peak = max(self.peak, self.now() - self.before)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.stopping.set()
        self.join()


def do_stack(name, map_pieces, num_threads, path):
    """Do the whole stack one way, print how it went, and return the hashes of its results and the peak memory."""
    images, size = np.load(path, mmap_mode="r").shape[:2]
    outputs = hashlib.sha256()
    energies = []
    gradient = np.zeros(FILTER_SHAPE, np.float32)
    work = partial(process_piece, path=path, num_threads=num_threads)
    start = time.perf_counter()
    with PeakMemory() as memory:
        # map() hands the pieces back in their order, whoever finished first: the order of the sum is fixed.
        for piece in map_pieces(work, range(0, images, IMAGES_PER_PIECE)):
            outputs.update(piece.digest)
            energies.extend(piece.energies)
            gradient += piece.gradient
            print(f"\r{name}: {len(energies)} of {images} images", end="", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    print(file=sys.stderr)

    hashes = {
        "responses": outputs.hexdigest(),
        "energies": hashlib.sha256(np.array(energies).ravel()).hexdigest(),
        "gradient": hashlib.sha256(gradient.ravel()).hexdigest(),
    }
    rate = images / seconds
    print(f"{name}: {seconds:.1f} s, {rate:.1f} images/s, {rate * size**2 / 1e6:.1f} megapixels/s")
    print(f"  memory grew by {memory.peak / MIB:.0f} MiB at most (allowed: {MEMORY_BOUND // MIB} MiB)")
    print("  sha256: " + ", ".join(f"{what} {value[:12]}" for what, value in hashes.items()))
    return hashes, memory.peak


def parse_arguments():
    def positive(text):
        if int(text) < 1:
            raise ValueError
        return int(text)

    parser = argparse.ArgumentParser(
        description="Filter a memory-mapped stack of colour images and sum the filters' gradient over it: one call "
        f"after the other, then through {USER_THREADS} user threads, then through {PROCESSES} processes. Compares the "
        "bits of the three, watches the memory and prints the throughput.",
        epilog="Exit status: 0 if the bits are the same and the memory stayed flat, otherwise 1.",
    )
    add = parser.add_argument
    add("--images", type=positive, default=340, help="images in the stack (default: %(default)s)")
    add("--size", type=positive, default=512, help="height and width of an image in pixels (default: %(default)s)")
    add("--directory", type=Path, help="where the stack lies meanwhile (default: the system's temporary directory)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)  # results appear as they come, also in a pipe
    with (
        tempfile.TemporaryDirectory(prefix="convkit-batch-", dir=arguments.directory) as directory,
        ThreadPoolExecutor(USER_THREADS) as threads,
        # "spawn" starts clean processes, the only way on some systems; with "fork" convkit works as well.
        ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as processes,
    ):
        path = Path(directory, "stack.npy")
        make_stack(path, arguments.images, arguments.size)
        shape = f"{arguments.images} images of {arguments.size}x{arguments.size}x3 uint8"
        print(f"{shape}: {path.stat().st_size / MIB:.0f} MiB on disk; workspace {WORKSPACE_LIMIT // MIB} MiB a call")
        ways = [
            ("one call after the other", map, None),
            (f"{USER_THREADS} user threads", threads.map, 1),
            (f"{PROCESSES} processes", processes.map, 1),
        ]
        hashes, peaks = zip(*(do_stack(*way, path) for way in ways), strict=True)

    same, flat = hashes[0] == hashes[1] == hashes[2], max(peaks) <= MEMORY_BOUND
    print(f"bits: {'the same three times' if same else 'DIFFERENT'}; memory: {'flat' if flat else 'NOT FLAT'}")
    return int(not (same and flat))


if __name__ == "__main__":
    sys.exit(main())
