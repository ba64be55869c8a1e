"""Functions that sleep at random, one in each case: every result stays right.

python -m bench.campaigns.slow_threads [--cases 500] [--seed 0] [--routine product ...]

Tiles, slabs and memory are small, so that operations follow one another closely and buffers are
used again at once. In each case the threads of hdgemm sleep for 30 ms at some calls of one
function. An operation that begins before its operands are complete, or that overwrites memory which
another one still reads, then gives a wrong result: all are compared with NumPy's. A run that hangs
ends with the stacks of all threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import hdgemm
from bench.campaigns.tally import Tally, add_save
from hdgemm import Options, fortran, linalg
from hdgemm.pipeline.devices import host, host_blas
from hdgemm.pipeline.devices.interchanges import permutation_of
from hdgemm.tasks import measured_rates

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

    from numpy.typing import NDArray

    from hdgemm.tasks.machine import TaskMachine

    Array = NDArray[Any]

#: Share of the slow function's calls that sleep, how many in one case at most, and for how long.
CHANCE: Final = 0.1
MOST_SLEEPS: Final = 60
SECONDS: Final = 0.03
#: Least mean seconds of the calls of a function that may be slow, without the functions it calls.
WORKS: Final = 2e-5
#: Seconds of a case after which it counts as hanging; it takes one or two.
HANGS_AFTER: Final = 120
PACKAGE: Final = str(Path(hdgemm.__file__).parent)
#: Modules that call BLAS and LAPACK.
KERNELS: Final = (fortran.__file__, host_blas.__file__)


class Sleeper:
    """Profile function of all threads that start while it is set: one function is slow.

    It is drawn from those that took `WORKS` seconds a call in earlier cases: requests, copies,
    waits, and ten times as often kernels.
    """

    def __init__(self) -> None:
        #: Calls and seconds of functions of hdgemm, by routine.
        self._busy: dict[str, dict[CodeType, tuple[int, float]]] = {}
        self._routine = ""
        self._slow: CodeType | None = None
        self._sleeps = 0
        self._thread = threading.local()

    def choose(self, routine: str, rng: random.Random) -> str:
        """Draw the slow function of the next case, which runs a routine; return its name."""
        busy = self._busy.setdefault(routine, {}).copy()
        working = [code for code, (calls, seconds) in busy.items() if seconds > WORKS * calls]
        self._routine = routine
        weights = [10 if code.co_filename in KERNELS else 1 for code in working]
        self._slow = rng.choices(working, weights)[0] if working else None
        self._sleeps = MOST_SLEEPS
        return "none" if self._slow is None else self._slow.co_qualname

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Sleep now and then, where the slow function is entered."""
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if event == "call":
            if code is self._slow and self._sleeps and random.random() < CHANCE:
                self._sleeps -= 1
                time.sleep(SECONDS)
            if frame.f_back is None:
                self._thread.since = time.perf_counter()
                return
            code = frame.f_back.f_code
        now = time.perf_counter()
        if code.co_filename.startswith(PACKAGE):
            busy = self._busy[self._routine]
            calls, seconds = busy.get(code, (0, 0.0))
            calls += event == "return"
            busy[code] = calls, seconds + now - getattr(self._thread, "since", now)
        self._thread.since = now


@dataclass
class Case:
    """Random numbers, a new folder and memory of one case."""

    rng: np.random.Generator
    folder: Path
    memory: float

    def options(self, devices: Sequence[str], tile: tuple[int, int, int] | None) -> Options:
        """Return options with small tiles or slabs."""
        threads = int(self.rng.integers(1, 5))
        return Options(devices=devices, tile=tile, threads=threads, host_memory=self.memory)

    def devices(self, *more: tuple[str, ...]) -> tuple[str, ...]:
        """Return the host, the OpenCL device, or one of `more`."""
        choices = [("host",), ("opencl:0",), *more]
        return choices[self.rng.integers(len(choices))]

    def sizes(self, least: int, most: int, count: int) -> list[int]:
        """Return random extents."""
        return [int(x) for x in self.rng.integers(least, most, count)]

    def matrix(self, rows: int, cols: int, dtype: str = "float64") -> Array:
        """Return a normal random matrix."""
        values = self.rng.standard_normal((rows, cols))
        if dtype.startswith("complex"):
            values = values + 1j * self.rng.standard_normal((rows, cols))
        return values.astype(dtype)

    def positive_definite(self, n: int) -> Array:
        """Return a well-conditioned symmetric matrix."""
        x = self.matrix(n, n)
        return x @ x.T / n + np.eye(n)

    def stored(self, name: str, x: Array) -> str:
        """Store a matrix in a format drawn at random; return its location."""
        form = self.rng.choice(["C", "F", "zarr", "hdf5", "blosc"])
        if form in ("C", "F"):
            np.save(self.folder / f"{name}.npy", np.asarray(x, order=form))
            return f"{self.folder}/{name}.npy"
        chunks = tuple(min(side, *self.sizes(17, 90, 1)) for side in x.shape)
        if form == "hdf5":
            import h5py

            with h5py.File(self.folder / f"{name}.h5", "w") as file:
                file.create_dataset("x", data=x, chunks=chunks)
            return f"{self.folder}/{name}.h5::x"
        import zarr

        packed: dict[str, Any] = {} if form == "blosc" else {"compressors": None}
        zarr.create_array(store=self.folder / f"{name}.zarr", data=x, chunks=chunks, **packed)
        return f"{self.folder}/{name}.zarr"

    def new(self, name: str) -> str:
        """Return the location of a result in a format drawn at random."""
        return f"{self.folder}/{name}{self.rng.choice(['.npy', '.zarr', '.h5::x'])}"


def read(location: str) -> Array:
    """Return a stored result as an array."""
    with hdgemm.open(location) as matrix:
        return np.asarray(matrix[:])


def error(found: Array, expected: Array, units: int) -> float:
    """Return the largest difference in units of `units` eps of the largest element."""
    eps = np.finfo(expected.dtype).eps * units
    return float(np.max(np.abs(found - expected)) / (eps * max(np.max(np.abs(expected)), 1)))


def product(case: Case) -> tuple[str, float]:
    """Compute C = alpha·op(A)·op(B) + beta·C of files, by any devices."""
    rng = case.rng
    (m, n, k), tile = case.sizes(60, 700, 3), tuple(case.sizes(30, 260, 3))
    dtype = str(rng.choice(["float64", "float32", "complex128"]))
    devices = case.devices(("host", "opencl:0"))
    a, b, c = case.matrix(m, k, dtype), case.matrix(k, n, dtype), case.matrix(m, n, dtype)
    trans_a, trans_b = case.sizes(0, 2, 2)
    beta = float(rng.choice([0, 0.5]))
    where = case.new("out")
    hdgemm.multiply(
        case.stored("A", a.T.copy() if trans_a else a),
        case.stored("B", b.T.copy() if trans_b else b),
        trans_a=trans_a, trans_b=trans_b, alpha=1.25, beta=beta,
        c=case.stored("C", c) if beta else None, out=where,
        options=case.options(devices, tile), checkpoint=bool(rng.random() < 0.2),
    )  # fmt: skip
    what = f"product {m}×{n}×{k} {dtype} op={trans_a}{trans_b} {tile=} {devices} {beta=}"
    return what, error(read(where), 1.25 * (a @ b) + beta * c, 40)


def rank_k(case: Case) -> tuple[str, float]:
    """Compute one triangle of C = A·A^T."""
    (n, k), tile = case.sizes(60, 700, 2), tuple(case.sizes(30, 200, 3))
    devices = case.devices(("host", "opencl:0"))
    a, where = case.matrix(n, k), case.new("out")
    options = case.options(devices, tile)
    hdgemm.syrk(1.0, case.stored("A", a), lower=1, out=where, options=options)
    return f"syrk {n}×{k} {tile=} {devices}", error(np.tril(read(where)), np.tril(a @ a.T), 40)


def slabs(case: Case, n: int) -> tuple[int, int, int]:
    """Return a tile of a factorisation: slabs and blocks much smaller than the matrix."""
    return 1, *case.sizes(20, max(n // 2, 21), 1), *case.sizes(5, 80, 1)


def cholesky(case: Case) -> tuple[str, float]:
    """Factor A = L·L^T by slabs: into a new file, durably or in place."""
    (n,), devices = case.sizes(60, 700, 1), case.devices()
    a, tile = case.positive_definite(n), slabs(case, n)
    lower, in_place, durable = (bool(x) for x in case.sizes(0, 2, 3))
    source = case.stored("A", a)
    durable &= not in_place or source.endswith(".npy")
    where = source if in_place else case.new("L")
    linalg.cholesky(
        source, lower=lower, overwrite_a=in_place, out=None if in_place else where,
        options=case.options(devices, tile), checkpoint=durable,
    )  # fmt: skip
    expected = np.linalg.cholesky(a)
    what = f"cholesky {n} {tile=} {devices} {lower=} {in_place=} {durable=}"
    return what, error(read(where), expected if lower else expected.T, 100)


def solution(case: Case) -> tuple[str, float]:
    """Solve A·X = B by stored factors, durably or in place; judge the backward error."""
    (n, p), devices = case.sizes(60, 700, 2), case.devices()
    a, b, tile = case.matrix(n, n), case.matrix(n, p), slabs(case, n)
    in_place, durable = (bool(x) for x in case.sizes(0, 2, 2))
    source, where = case.stored("A", a), case.new("X")
    durable &= not in_place or source.endswith(".npy")
    options = case.options(devices, tile)
    factors = linalg.lu_factor(
        source, overwrite_a=in_place, out=None if in_place else case.new("LU"),
        options=options, checkpoint=durable,
    )  # fmt: skip
    linalg.lu_solve(factors, case.stored("B", b), out=where, options=replace(options, tile=None))
    x = read(where)
    bound = 1e-13 * np.linalg.norm(a) * np.linalg.norm(x)
    what = f"lu {n} {p} {tile=} {devices} {in_place=} {durable=}"
    return what, float(np.linalg.norm(a @ x - b) / bound)


def qr(case: Case) -> tuple[str, float]:
    """Factor A = Q·R by slabs."""
    (m,), (n,), devices = case.sizes(300, 1200, 1), case.sizes(60, 300, 1), case.devices()
    a, q, r, tile = case.matrix(m, n), case.new("Q"), case.new("R"), slabs(case, n)
    linalg.qr(case.stored("A", a), out=(q, r), options=case.options(devices, tile))
    return f"qr {m}×{n} {tile=} {devices}", error(read(q) @ read(r), a, 200)


def inverse(case: Case) -> tuple[str, float]:
    """Solve A·X = 1."""
    (n,) = case.sizes(60, 500, 1)
    a, where, tile = case.matrix(n, n) + 3 * n**0.5 * np.eye(n), case.new("X"), slabs(case, n)
    linalg.inv(case.stored("A", a), out=where, options=case.options(("host",), tile))
    return f"inv {n} {tile=}", error(read(where) @ a, np.eye(n), 1000)


def tall(case: Case) -> tuple[str, float]:
    """Factor a tall A = U·S·Vh by passes over rows."""
    (m,), (n,) = case.sizes(400, 3000, 1), case.sizes(20, 100, 1)
    devices = case.devices(("host", "opencl:0"))
    a, u = case.matrix(m, n), case.new("U")
    options = case.options(devices, None)
    _, s, vh = linalg.svd(case.stored("A", a), out=(u, None, None), options=options)
    return f"svd {m}×{n} {devices}", error(read(u) * s @ vh, a, 500)


def tasks(case: Case) -> tuple[str, float]:
    """Factor an array by tasks on the host and a device, or natively on the device."""
    rng = case.rng
    (n, width), name = case.sizes(30, 300, 2), str(rng.choice(["lu", "calu", "cholesky", "qr"]))
    native = bool(rng.random() < 0.2) and name != "calu"
    devices = ("opencl:0",) if native else ("host", "opencl:0")
    given: dict[str, Any] = {
        "options": Options(devices=devices, tile=(n, 5 + width // 6, n)),
        "strategy": "native" if native else "hybrid",
    }
    what = f"tasks {name} {n} {given['options'].tile} {native=}"
    if name == "cholesky":
        a = case.positive_definite(n)
        return what, error(linalg.cholesky(a, lower=True, **given), np.linalg.cholesky(a), 100)
    a = case.matrix(n, n)
    if name == "qr":
        q, r = linalg.qr(a, **given)
        return what, error(q @ r, a, 200)
    pivoting = "tournament" if name == "calu" else "partial"
    lu, pivots = linalg.lu_factor(a, pivoting=pivoting, **given)
    permuted = a[permutation_of(pivots, n)]
    return what, error((np.tril(lu, -1) + np.eye(n)) @ np.triu(lu), permuted, 1000)


def dealt(machine: TaskMachine, *_: object) -> TaskMachine:
    """Return the machine with columns dealt at random, in place of measured rates."""
    dealing: Any = random.choice(["proportional", "devices"])
    return replace(machine, dealing=dealing, leaf=10)


ROUTINES: Final = {
    f.__name__: f for f in (product, rank_k, cholesky, solution, qr, inverse, tall, tasks)
}


def judge(name: str, seed: int) -> tuple[str, float]:
    """Run one case in the least memory that fits, by doubling."""
    rng = np.random.default_rng(seed)
    memory = 2.0 ** rng.uniform(19, 21)
    while True:
        with tempfile.TemporaryDirectory() as folder:
            try:
                return ROUTINES[name](Case(np.random.default_rng(seed), Path(folder), memory))
            except hdgemm.DoesNotFitError:
                memory *= 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 where a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routine", choices=ROUTINES, action="append")
    add_save(parser)
    asked = parser.parse_args(argv)
    measured_rates.__dict__.update(measured=dealt)
    # Small products are drawn, too.
    host.__dict__.update(_WORTH_DRAWING=0, draws_blocks=lambda _threads: True)
    tally, names = Tally(), asked.routine or list(ROUTINES)
    sleeper = Sleeper()
    threading.setprofile(sleeper)
    for seed in range(asked.seed, asked.seed + asked.cases):
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        name = names[seed % len(names)]
        slow = sleeper.choose(name, random.Random(seed))
        what, units = judge(name, seed)
        tally.counts[name] += 1
        tally.check(units < 1, f"seed {seed}: {what}, slow {slow}: {units:.3g} times the bound")
    faulthandler.cancel_dump_traceback_later()
    threading.setprofile(None)
    return tally.end("slow_threads", asked)


if __name__ == "__main__":
    sys.exit(main())
