"""Debian's `hpcc` (HPL 2.0) as a peer: installed where apt may, stopped between its HPL runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import psutil

from hdgemm.mpi.distribution import Axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: OpenBLAS, which replaces Debian's reference BLAS for `hpcc` alone.
_BLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread")
_PACKAGES = ("hpcc", "libopenblas0-pthread")
_RESULT = re.compile(
    r"^W[RC]\d\d\w+\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\S+)\s+(\S+)$", re.MULTILINE
)
#: Seconds between two looks at the output; HPL generates the next matrix, which it does not time,
#: for longer than that.
_POLL = 0.02

INPUT = """HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
{turns}      # of problems sizes (N)
{orders}     Ns
{count}      # of NBs
{blocks}     NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
{p}          Ps
{q}          Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
##### This line (no. 32) is ignored (it serves as a separator). ######
0                      		Number of additional problem sizes for PTRANS
1200 10000 30000        	values of N
0                       	number of additional blocking sizes for PTRANS
40 9 8 13 13 20 16 32 64       	values of NB
"""


#: Refuses the arrays of hpcc's other benchmarks, which take half an hour for large N; each then
#: ends at once. They are smaller than HPL's matrix, and larger than its panels for small NB.
_MALLOC = """#include <stddef.h>
extern void *__libc_malloc(size_t);
void *malloc(size_t size) { return size > LEAST && size < MOST ? 0 : __libc_malloc(size); }
"""


class HpccResult(NamedTuple):
    """One of HPL's lines."""

    n: int
    nb: int
    seconds: float
    gflops: float


def missing() -> str | None:
    """Return why `hpcc` cannot be measured here, after trying to install it; None where it can."""
    if shutil.which("hpcc") and _BLAS.is_dir():
        return None
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"{' and '.join(_PACKAGES)} are missing, and only root can install them with apt-get"
    command = ["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}"
    return None


def blas_version() -> str:
    """Return the name of OpenBLAS's file, which has its version."""
    return next((path.stem for path in _BLAS.glob("libopenblasp-*.so")), "unknown")


class Hpcc:
    """`hpcc` with several HPL runs, stopped by a signal after each until the next is asked for.

    Its other benchmarks come first; with a C compiler they get no memory, else they take minutes.

    Parameters
    ----------
    folder
        Where it runs.
    n, blocks, turns
        Each turn runs HPL once for each block size.
    grid, threads
        Processes, and BLAS threads of each.
    """

    def __init__(
        self, folder: Path, n: int, blocks: Sequence[int], turns: int, grid: tuple[int, int],
        threads: int,
    ) -> None:  # fmt: skip
        self._folder = folder
        text = INPUT.format(
            turns=turns, orders=" ".join([str(n)] * turns), count=len(blocks),
            blocks=" ".join(map(str, blocks)), p=grid[0], q=grid[1],
        )  # fmt: skip
        (folder / "hpccinf.txt").write_text(text)
        self._command = ["hpcc"]
        if grid != (1, 1):
            count = str(grid[0] * grid[1])
            self._command = ["mpirun.openmpi", "--oversubscribe", "-n", count, "hpcc"]
        self._environment = os.environ | {
            "LD_LIBRARY_PATH": str(_BLAS), "OPENBLAS_NUM_THREADS": str(threads),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
        }  # fmt: skip
        if (compiler := shutil.which("cc")) and 16 * max(blocks) <= n:
            rows, cols = (
                min(Axis(extent, max(blocks), count, place).count for place in range(count))
                for extent, count in ((n, grid[0]), (n + 1, grid[1]))
            )
            library, matrix = folder / "malloc.so", 8 * rows * cols
            command = [
                compiler,
                "-shared",
                "-fPIC",
                f"-DLEAST={matrix * 3 // 10}",
                f"-DMOST={matrix}",
            ]
            command += ["-x", "c", "-", "-o", str(library)]
            subprocess.run(command, input=_MALLOC, text=True, check=True)
            self._environment["LD_PRELOAD"] = str(library)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=self._folder, env=self._environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def results(self) -> Iterator[HpccResult]:
        """Yield each result; `hpcc` stands still while the caller uses it."""
        seen = 0
        while True:
            found = _RESULT.findall(self._output())
            if len(found) > seen:
                self._signal(signal.SIGSTOP)
                for n, nb, _, _, seconds, gflops in found[seen:]:
                    yield HpccResult(int(n), int(nb), float(seconds), float(gflops))
                seen = len(found)
                self._signal(signal.SIGCONT)
            elif self._process.poll() is not None:
                return
            time.sleep(_POLL)

    def _output(self) -> str:
        path = self._folder / "hpccoutf.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def _all(self) -> list[psutil.Process]:
        try:
            first = psutil.Process(self._process.pid)
            return [*first.children(recursive=True), first]
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: int) -> None:
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
