"""The machine's own speed, from peak.c: built here, and asked between the contestants."""

import shutil
import subprocess
from pathlib import Path

from processes import settle

SOURCE = Path(__file__).resolve().parent / "peak.c"
FMA_SECONDS, COPY_SECONDS = 0.004, 0.01


class Yardstick:
    """The running program; ``None`` comes back for all that cannot be measured."""

    def __init__(self, folder: Path):
        self.process, self.objection = None, ""
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            self.objection = "no C compiler"
            return
        program = folder / "peak"
        command = [compiler, "-O2", "-pthread", str(SOURCE), "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            self.objection = f"peak.c does not build here: {built.stderr.strip()[:200]}"
            return
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.fma("float32", 1) is None:
            self.objection = "peak.c does not run on this CPU"

    def _ask(self, request: str) -> float | None:
        if self.process is None:
            return None
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
            rate = float(self.process.stdout.readline())
        except (OSError, ValueError):
            self.process = None
            return None
        settle(self.process.pid)
        return rate

    def fma(self, dtype: str, threads: int) -> float | None:
        """Return GFLOP/s of multiply-adds in registers; halves are summed in float32."""
        return self._ask(f"fma {'float64' if dtype == 'float64' else 'float32'} {threads} {FMA_SECONDS}")

    def copy(self, footprint: int, threads: int) -> float | None:
        """Return GB/s, read and written, of copying within so many bytes."""
        return self._ask(f"copy {footprint} {threads} {COPY_SECONDS}")

    def stop(self) -> None:
        """End the program."""
        if self.process is not None:
            self.process.communicate()
