"""Systems over MPI against ScaLAPACK and against LINPACK: the same matrix, grid and threads.

    python -m bench.scalapack [--n 8000] [--grid 1x2 2x1] [--blocks 64 192] [--turns 3]
        [--parts scalapack linpack disk]

`scalapack`: `hdgemm solve --mpi` against `pdgetrf` and `pdgetrs` of Debian's ScaLAPACK with
Debian's OpenBLAS (bench/scalapack.c, which needs `cc`; root installs the packages with apt-get), by
turns, one thread a process; reading and writing are not counted. Both solutions are judged by HPL's
ratio. `linpack`: the same against `hdgemm linpack` with the same N, NB and grid. `disk`: reading
and redistribution of a file that is in no cache, against one process that reads it from the disk
in direct requests of 64 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import ROOT, drop_cached, environment, save, spread, warm_memory
from bench.linpack import hdgemm as linpack
from hdgemm.matrices.transfer import aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PARTS = ("scalapack", "linpack", "disk")
#: What the peer is compiled with, and the BLAS that Debian's ScaLAPACK then uses.
PACKAGES = ("libscalapack-mpich-dev", "libmpich-dev", "mpich", "libopenblas0-pthread")
_BLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-pthread")
_COMPILER = "mpicc.mpich"
#: Right-hand sides of a system.
_COLUMNS = 1
#: Bytes of a request to the disk.
_REQUEST = 64 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """One solution: seconds without reading and writing, seconds of reading, and HPL's ratio."""

    seconds: float
    read: float
    ratio: float


@dataclass(frozen=True, slots=True)
class System:
    """A random system in files: ``A.npy`` and ``B.npy``, ``A.bin`` and ``B.bin`` for the peer."""

    folder: Path
    n: int

    @classmethod
    def create(cls, folder: Path, n: int) -> System:
        """Write the files."""
        rng = np.random.default_rng(n)
        for name, columns in (("A", n), ("B", _COLUMNS)):
            matrix = np.asfortranarray(rng.random((n, columns)) - 0.5)
            np.save(folder / f"{name}.npy", matrix)
            matrix.T.tofile(folder / f"{name}.bin")
        return cls(folder, n)

    def ratio(self, x: NDArray[np.float64]) -> float:
        """Return HPL's ratio of a solution."""
        a, b = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in "AB")
        size = np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
        return float(np.abs(a @ x - b).max() / (np.finfo(float).eps / 2 * size * self.n))

    def ours(self, grid: tuple[int, int], nb: int) -> Run:
        """Solve by `hdgemm solve --mpi`."""
        mpiexec = shutil.which(
            "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        )
        command = [
            mpiexec or "mpiexec", "-n", str(grid[0] * grid[1]), sys.executable, "-m", "hdgemm",
            "solve", "A.npy", "B.npy", "--out", "X.npy", "--mpi", "--json", "--threads", "1",
            "--grid", f"{grid[0]}x{grid[1]}", "--nb", str(nb),
        ]  # fmt: skip
        found = json.loads(_output(command, self.folder, {"PYTHONPATH": str(ROOT)}))
        read, written = found["phases"]["read"], found["phases"]["write"]
        x = np.load(self.folder / "X.npy")
        return Run(found["seconds"] - read - written, read, self.ratio(x))

    def peers(self, program: Path, grid: tuple[int, int], nb: int) -> Run:
        """Solve by ScaLAPACK."""
        p, q = grid
        numbers = map(str, (self.n, _COLUMNS, nb, p, q))
        command = ["mpiexec.mpich", "-n", str(p * q), str(program)]
        blas = {"LD_LIBRARY_PATH": str(_BLAS), "OPENBLAS_NUM_THREADS": "1"}
        printed = _output([*command, "A.bin", "B.bin", "X.bin", *numbers], self.folder, blas)
        found = json.loads(printed)
        x = np.fromfile(self.folder / "X.bin").reshape(_COLUMNS, self.n).T
        return Run(found["factor"] + found["solve"], found["read"], self.ratio(x))


def _output(command: Sequence[str], folder: Path, more: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=os.environ | more, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
    return done.stdout


def missing() -> str | None:
    """Return why ScaLAPACK cannot be compiled here, after trying to install it."""
    if shutil.which(_COMPILER) and _BLAS.is_dir() and shutil.which("cc"):
        return None
    subprocess.run([str(ROOT / ".ci" / "debian"), *PACKAGES], check=False)
    if shutil.which(_COMPILER) and _BLAS.is_dir():
        return None
    return f"{', '.join(PACKAGES)} are missing"


def compiled(folder: Path) -> Path:
    """Return the peer's program."""
    program = folder / "scalapack"
    source = ROOT / "bench" / "scalapack.c"
    command = [_COMPILER, "-O2", str(source), "-o", str(program), "-lscalapack-mpich"]
    subprocess.run(command, check=True)
    return program


def against_scalapack(
    system: System, program: Path, grid: tuple[int, int], blocks: Sequence[int], turns: int
) -> dict[str, Any]:
    """Measure both by turns; return the seconds by block size, and the ratio of the best ones."""
    runs: dict[int, list[tuple[Run, Run]]] = {nb: [] for nb in blocks}
    for _ in range(turns):
        for nb, found in runs.items():
            found.append((system.ours(grid, nb), system.peers(program, grid, nb)))
            own, other = found[-1]
            print(f"{grid} NB {nb}: {own.seconds:.2f} s, ScaLAPACK {other.seconds:.2f} s")
    by_block = {
        nb: {
            "hdgemm": spread([own.seconds for own, _ in found]),
            "scalapack": spread([other.seconds for _, other in found]),
            "ratio": spread([other.seconds / own.seconds for own, other in found]),
            "hpl_ratio": max(own.ratio for own, _ in found),
            "scalapack_hpl_ratio": max(other.ratio for _, other in found),
        }
        for nb, found in runs.items()
    }
    best = {
        who: min(each[who]["median"] for each in by_block.values())
        for who in ("hdgemm", "scalapack")
    }
    return {
        "n": system.n, "grid": grid, "threads": 1, "blocks": by_block, "best": best,
        "best_ratio": best["scalapack"] / best["hdgemm"],
    }  # fmt: skip


def against_linpack(system: System, grid: tuple[int, int], nb: int, turns: int) -> dict[str, Any]:
    """Measure a system from a file and LINPACK by turns: the ratio of their seconds."""
    options = ("--grid", f"{grid[0]}x{grid[1]}", "--threads", "1")
    pairs = []
    for _ in range(turns):
        own = system.ours(grid, nb).seconds
        other = linpack(system.n, nb, *options, ranks=grid[0] * grid[1])["seconds"]
        pairs.append((own, other))
        print(f"{grid} NB {nb}: {own:.2f} s, LINPACK {other:.2f} s")
    ratios = [other / own for own, other in pairs]
    return {
        "n": system.n, "grid": grid, "nb": nb, "ratio": spread(ratios),
        "seconds": median(own for own, _ in pairs),
        "linpack_seconds": median(other for _, other in pairs),
    }  # fmt: skip


def against_disk(system: System, grid: tuple[int, int], nb: int, turns: int) -> dict[str, Any]:
    """Read a file that is in no cache, by one process and as an operand, by turns."""
    path = system.folder / "A.npy"
    rates: dict[str, list[float]] = {"disk": [], "operand": []}
    for _ in range(turns):
        drop_cached([path])
        rates["disk"].append(_disk_rate(path))
        warm_memory(4 * path.stat().st_size)
        drop_cached([path])
        rates["operand"].append(path.stat().st_size / system.ours(grid, nb).read)
        print(f"disk {rates['disk'][-1] / 1e6:.0f} MB/s, operand {rates['operand'][-1] / 1e6:.0f}")
    ratios = [own / disk for own, disk in zip(rates["operand"], rates["disk"], strict=True)]
    found = {f"{name}_rate": spread(each) for name, each in rates.items()}
    return {"n": system.n, "grid": grid, **found, "ratio": spread(ratios)}


def _disk_rate(path: Path) -> float:
    """Return the bytes/s of one process that reads a file in large direct requests."""
    memory, size = aligned_bytes(_REQUEST), path.stat().st_size
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    begin = time.perf_counter()
    try:
        for at in range(0, size, _REQUEST):
            os.preadv(file, [memory.data], at)
    finally:
        os.close(file)
    return size / (time.perf_counter() - begin)


def main() -> None:
    """Measure the chosen parts and save them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=8000)
    parser.add_argument("--grid", nargs="+", default=["1x2", "2x1"])
    parser.add_argument("--blocks", type=int, nargs="+", default=[64, 192])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--data", type=Path, help="where matrices go; a temporary folder if omitted"
    )
    parser.add_argument("--save", default="scalapack", help="name of the result; none: not saved")
    chosen = parser.parse_args()
    where, found = environment(), dict[str, Any]()
    with TemporaryDirectory(prefix="hdgemm-scalapack-", dir=chosen.data) as name:
        system = System.create(Path(name), chosen.n)
        for text in chosen.grid:
            p, q = (int(part) for part in text.split("x"))
            if "scalapack" in chosen.parts:
                reason = missing()
                found[text] = {"skipped": reason} if reason else against_scalapack(
                    system, compiled(Path(name)), (p, q), chosen.blocks, chosen.turns
                )  # fmt: skip
            if "linpack" in chosen.parts:
                nb = max(chosen.blocks)
                found[f"linpack {text}"] = against_linpack(system, (p, q), nb, chosen.turns)
            if "disk" in chosen.parts:
                nb = max(chosen.blocks)
                found[f"disk {text}"] = against_disk(system, (p, q), nb, chosen.turns)
    if chosen.save != "none":
        save(chosen.save, found, where)
    else:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
