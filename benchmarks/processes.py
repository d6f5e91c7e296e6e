"""The parent's side of a contestant: its process, questions with a time limit, and waiting until it is asleep."""

import contextlib
import json
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import peers

HERE = Path(__file__).resolve().parent
# Settings with which a contestant would not be what its users get.
UNSET = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_", "KMP_", "GOMP_", "MKL_", "DNNL_", "ONEDNN_", "CONVKIT_", "TF_",
    "XLA_", "JAX_",
)  # fmt: skip
START_SECONDS = 120.0
# A process is asleep when its threads used less than a fiftieth of a processor over this time.
QUIET_SECONDS, QUIET_SHARE = 0.01, 0.02
# Where the kernel does not tell: longer than any runtime spins (LLVM's OpenMP: 0.2 s).
BLIND_PAUSE = 0.25
LONGEST_WAIT = 2.0


class RefusedError(Exception):
    """A contestant cannot do a case."""


class FailedError(Exception):
    """A contestant ended, failed, took too long, or was wrong."""


def environment(threads: int, extra: dict[str, str]) -> dict[str, str]:
    """Return this environment without the settings that would change a contestant, for that many threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    return {**kept, **quiet, "OMP_NUM_THREADS": str(threads), **extra}


def installed(python: str, names: Iterable[str]) -> set[str]:
    """Return those of the modules that an interpreter can find."""
    program = (  # without the directory that it runs in, which is not on a contestant's path
        "import importlib.util, json, sys; sys.path = [path for path in sys.path if path]; "
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is not None]))"
    )
    done = subprocess.run([python, "-c", program, *names], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def cpu_seconds(pid: int) -> float | None:
    """Return what all threads of a process ran so far; None where the kernel does not say."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9
    except (OSError, ValueError, IndexError):
        return None


def settle(pid: int) -> None:
    """Wait until a process sleeps: its threads may spin for a while after a call, and would slow the next one's."""
    limit = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < limit:
        before = cpu_seconds(pid)
        time.sleep(QUIET_SECONDS)
        after = cpu_seconds(pid)
        if before is None or after is None:
            time.sleep(BLIND_PAUSE)
            return
        if after - before < QUIET_SHARE * QUIET_SECONDS:
            return


class Process:
    """A contestant that runs, or ran."""

    def __init__(self, name: str, python: str, threads: int, log: Path):
        self.name, self.python, self.threads, self.log = name, python, threads, log
        self.version = ""
        self.start()

    def start(self) -> None:
        """Start the process; it loads its library while others do."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, str(HERE / "contestant.py"), self.name, str(self.threads)],
                env=environment(self.threads, peers.TABLE[self.name].environment),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
            )  # fmt: skip
        self.waiting = False

    def ready(self) -> None:
        """Wait until the library is loaded."""
        if not self.waiting:
            self.version = self._answer(START_SECONDS)
            self.waiting = True

    def ask(self, request: str, *arguments: object, limit: float = START_SECONDS) -> object:
        """Return the answer to a request, once the process has gone back to sleep."""
        self.ready()
        with contextlib.suppress(OSError):  # the process is gone: reading says so
            self.process.stdin.write(pickle.dumps((request, *arguments)))
        answer = self._answer(limit)
        settle(self.process.pid)
        return answer

    def _answer(self, limit: float) -> object:
        readable, _, _ = select.select([self.process.stdout], [], [], limit)
        if not readable:
            self.restart()
            raise FailedError(f"no answer within {limit:.0f} s")
        try:
            kind, value = pickle.load(self.process.stdout)
        except EOFError:
            self.restart()
            raise FailedError("the process ended") from None
        if kind in ("unsupported", "error"):
            raise (RefusedError if kind == "unsupported" else FailedError)(value)
        return value

    def restart(self) -> None:
        """End the process, whatever it does, and start it again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def find(names: Iterable[str], pythons: dict[str, str]) -> dict[str, str]:
    """Return the interpreter of each of these contestants whose packages are installed there.

    ``pythons`` gives interpreters by contestant or by module to import, and under the empty name that of all others.
    """
    chosen = {}
    for name in names:
        default = sys.executable if name == peers.OURS else pythons.get("", sys.executable)
        chosen[name] = pythons.get(name) or pythons.get(peers.TABLE[name].requires[0]) or default
    modules = {module for name in chosen for module in peers.TABLE[name].requires}
    have = {python: installed(python, modules) for python in set(chosen.values())}
    return {name: python for name, python in chosen.items() if have[python].issuperset(peers.TABLE[name].requires)}
