"""Workers, client and scheduler of a cluster killed at random moments; the same command goes on.

python -m bench.campaigns.cluster_kills [--kills 100] [--workers 2]

SIGKILL goes to a worker, to the client or to the scheduler; what was killed is started again. When
C is complete it is checked against A and B and against its journal, in which each element of C
must be recorded once: no finished block is computed twice. Then a new product begins.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm.durable.audit import audit
from hdgemm.durable.journal import read_journal
from hdgemm.durable.pieces import Entry
from hdgemm.matrices.random import random_matrix
from hdgemm.verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

M, N, K = 1500, 1400, 900
_LONGEST_PRODUCT = 1200.0

_CLIENT = """
import sys
from distributed import Client
from hdgemm.cluster import blocks, multiply
from hdgemm.options import Options

if __name__ == "__main__":
    blocks.LEAST_SECONDS = blocks.MOST_SECONDS = 1e-3
    folder = sys.argv[1]
    with Client(scheduler_file=f"{folder}/scheduler.json", timeout="20s") as client:
        multiply(f"{folder}/A.npy", f"{folder}/B.npy", out=f"{folder}/C.npy", client=client,
                 options=Options(devices="host", host_memory="64MB", tile=(64, 64, 64)))
"""


@dataclass
class Processes:
    """A scheduler, workers and perhaps a client, each started again when it has ended."""

    folder: Path
    count: int
    client: bool = True
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, *command], stdout=log, stderr=log
            )

    def revive(self) -> None:
        """Start what is not running."""
        file = self.folder / "scheduler.json"
        if self._ended("scheduler"):
            self.kill(*(name for name in self.running if name.startswith("worker")))
            file.unlink(missing_ok=True)
            self._start("scheduler", "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1",
                        "--port", "0", "--dashboard-address", "127.0.0.1:0",
                        "--scheduler-file", str(file))  # fmt: skip
        end = time.monotonic() + _LONGEST_PRODUCT
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        for number in range(self.count):
            if self._ended(name := f"worker{number}"):
                self._start(name, "-m", "distributed.cli.dask_worker", "--scheduler-file",
                            str(file), "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1",
                            "--no-dashboard")  # fmt: skip
        if self.client and self._ended("client"):
            self._start("client", "-c", _CLIENT, str(self.folder))

    def _ended(self, name: str) -> bool:
        return name not in self.running or self.running[name].poll() is not None

    def kill(self, *names: str) -> None:
        """Kill processes and wait for their ends."""
        for name in names:
            self.running[name].kill()
            self.running[name].wait()


def check(folder: Path, tally: Tally) -> None:
    """Check a complete C and its journal; remove both."""
    a, b, c = (folder / f"{name}.npy" for name in "ABC")
    journal = folder / ".C.npy.hdgemm-journal"
    tally.check(verify(a, b, c).passed, "C is not the product")
    found = audit(c)
    tally.check(found is not None and found.passed, f"C and its journal differ: {found}")
    times = np.zeros((M, N), np.int64)
    for record in read_journal(journal)[0]:
        for row, col, rows, cols in Entry.of(record).pieces if "done" in record else ():
            times[row : row + rows, col : col + cols] += 1
    tally.check((times == 1).all(), f"elements recorded {times.min()} to {times.max()} times")
    tally.counts["products"] += 1
    journal.unlink()
    c.unlink()


def campaign(folder: Path, kills: int, workers: int, tally: Tally) -> None:
    """Kill until enough kills have landed, then let the last product end."""
    rng = random.Random(0)
    processes = Processes(folder, workers)
    began, wait = time.monotonic(), 5.0
    try:
        while tally.counts["kills"] < kills or not (folder / "C.npy").exists():
            processes.revive()
            until = time.monotonic() + rng.uniform(0.0, wait)
            last = tally.counts["kills"] >= kills
            while (last or time.monotonic() < until) and not (folder / "C.npy").exists():
                processes.revive()
                time.sleep(0.05)
                if time.monotonic() > began + _LONGEST_PRODUCT:
                    tally.check(False, "a product did not end")
                    return
            if (folder / "C.npy").exists() and not last:
                processes.running["client"].wait(_LONGEST_PRODUCT)
                check(folder, tally)
                began, wait = time.monotonic(), 0.8 * wait
                continue
            if not last:
                name = rng.choice(["client", "scheduler", *(f"worker{i}" for i in range(workers))])
                processes.kill(name)
                tally.counts[f"killed {name.rstrip('0123456789')}"] += 1
                tally.counts["kills"] += 1
                wait *= 1.1  # a slow machine needs longer to start what was killed
        processes.running["client"].wait(_LONGEST_PRODUCT)
        check(folder, tally)
    finally:
        processes.kill(*processes.running)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, check and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-kills-") as name:
        folder = Path(name)
        random_matrix(folder / "A.npy", M, K, 0, "float64")
        random_matrix(folder / "B.npy", K, N, 1, "float64")
        campaign(folder, asked.kills, asked.workers, tally)
    return tally.end("cluster_kills", asked)


if __name__ == "__main__":
    sys.exit(main())
