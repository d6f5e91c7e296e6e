"""One contestant: a process that does what its parent asks over a pipe, and sleeps in between.

``python contestant.py NAME THREADS`` reads pickled requests from standard input and answers on standard output; all
that a library prints goes to standard error.
"""

import gc
import importlib
import os
import pickle
import sys
import time

import peers
from peers.job import UnsupportedError


def pin(threads: int) -> None:
    """Keep this process to as many processors as it may have threads, the last ones: interrupts come to the first."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


class Server:
    """Answers the requests of the parent; each method is one of them."""

    def __init__(self, name: str, threads: int):
        entry = peers.TABLE[name]
        self.peer = importlib.import_module(f"peers.{entry.module}").Peer(threads, entry.setting)
        self.job = self.call = None

    def prepare(self, job):
        """Make everything ready; return what is known of the way it is done."""
        self.call = None
        gc.collect()
        self.job, self.call = job, self.peer.prepare(job)
        return getattr(self.peer, "details", {})

    def first(self, path):
        """Call once; write the part of the result that is to be compared; return the seconds it took."""
        import numpy as np

        begin = time.perf_counter()
        value = self.call()
        taken = time.perf_counter() - begin
        array = self.peer.result(value, self.job)
        for axis, indices in self.job.part:
            array = array.take(indices, axis)
        np.save(path, array.astype(np.float64 if self.job.dtype == "float64" else np.float32))
        return taken

    def time(self, calls, warm_up):
        """Return wall and CPU seconds of a call, the mean of some; ``warm_up`` more go before."""
        for _ in range(warm_up):
            self.call()
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(calls):
            self.call()
        return (time.perf_counter() - begin) / calls, (time.process_time() - cpu) / calls


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pin(threads)

    def answer(*values):
        pickle.dump(values, answers)
        answers.flush()

    try:
        server = Server(name, threads)
    except Exception as error:
        return answer("error", f"{type(error).__name__}: {error}")
    answer("ready", str(server.peer.version))  # a plain string: the parent may lack the library
    gc.disable()
    while True:
        try:
            request, *arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return None
        try:
            answer("done", getattr(server, request)(*arguments))
        except UnsupportedError as error:
            answer("unsupported", str(error))
        except Exception as error:  # of a library, whatever it is: the parent reports it
            answer("error", " ".join(f"{type(error).__name__}: {error}".split())[:300])


if __name__ == "__main__":
    main()
