"""TSQR: the R of a tall matrix in one pass over its rows, and Q^H·B beside it.

Each core reduces its own blocks of rows, one after the other, to one triangle (a flat tree); the
triangles of all cores are combined at the end.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from hdgemm.call.recorder import Recorder
from hdgemm.fortran import tpmqrt, tpqrt
from hdgemm.linalg.planning.rows import REFLECTORS
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.slabs.slab import Slab, check_finite_slab
from hdgemm.matrices.read_ahead import STREAM_BUFFERS, ReadAhead
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from hdgemm.linalg.planning.rows import RowPlan
    from hdgemm.linalg.rows.checkpoint import RowCheckpoint
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.plan import Stage
    from hdgemm.progress import Watch

#: Bytes of the rows that LAPACK reduces at once: they stay in a core's cache.
_STRIP_BYTES: Final = 2 << 20


@dataclass(slots=True)
class Triangle:
    """R (n×n), Q^H·B (n×p), and the sums of squares of the rest of each column of Q^H·B."""

    r: NDArray[Any]
    c: NDArray[Any]
    residues: NDArray[Any]

    @classmethod
    def zeros(cls, n: int, p: int, dtype: np.dtype[Any]) -> Triangle:
        """Return the triangle of a matrix without rows."""
        real = np.zeros(0, dtype).real.dtype
        return cls(np.zeros((n, n), dtype, "F"), np.zeros((n, p), dtype, "F"), np.zeros(p, real))

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Triangle:
        """Return the triangle that `arrays` recorded."""
        r, c = (np.asfortranarray(arrays[name]) for name in "rc")
        return cls(r, c, arrays["residues"])

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a checkpoint."""
        return {"r": self.r, "c": self.c, "residues": self.residues}

    def absorb(self, a: NDArray[Any], b: NDArray[Any], *, triangle: bool = False) -> None:
        """Reduce more rows, which are overwritten; `triangle` says that A is upper triangular."""
        n, p = self.c.shape
        # Of n columns, n/32 were fastest for n = 500 (16) and n = 2000 (64).
        block = min(REFLECTORS, max(16, n // 32), max(1, n))
        t = np.zeros((block, n), a.dtype, "F")
        work = np.empty(len(t) * max(n, p, 1), a.dtype)
        strip = len(a) if triangle else max(n // 2, _STRIP_BYTES // (max(1, n) * a.itemsize), 64)
        for first in range(0, len(a), max(1, strip)):
            rows = slice(first, min(first + strip, len(a)))
            tpqrt(self.r, a[rows], t, work, triangle=triangle)
            if p:
                tpmqrt(a[rows], t, self.c, b[rows], work, triangle=triangle)
                self.residues += (np.abs(b[rows]) ** 2).sum(axis=0)

    def combine(self, other: Triangle) -> None:
        """Reduce the triangle of other rows, which is overwritten."""
        self.absorb(other.r, other.c, triangle=True)
        self.residues += other.residues


class RowReduction:
    """Reduces the rows of A, and of B beside it, to a `Triangle`.

    Parameters
    ----------
    a, b
        Matrices with as many rows; B may have no columns.
    check_finite
        Raise `InputError` at the first NaN or Inf of a block.
    checkpoint
        The durable run that this is; None without one.
    """

    def __init__(
        self,
        a: StoredMatrix,
        b: StoredMatrix,
        plan: RowPlan,
        watch: Watch,
        *,
        check_finite: bool,
        checkpoint: RowCheckpoint | None = None,
    ) -> None:
        self._sources, self._plan, self._check = (a, b), plan, check_finite
        self._recorder = Recorder(watch, plan.flops)
        self._dtype = np.dtype(plan.dtype)
        self._checkpoint = checkpoint
        self._kept: dict[int, int] = {}
        self._stop = threading.Event()

    def run(self) -> Triangle:
        """Read all rows once, and return their triangle."""
        cores = self._plan.cores
        # Each core calls BLAS for its own rows.
        with (
            self._recorder.measuring_memory(),
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(cores, "hdgemm-rows") as workers,
        ):
            parts = [workers.submit(self._reduce, core) for core in range(cores)]
            try:
                first, *others = [part.result() for part in parts]
            finally:
                self._stop.set()
            for other in others:
                first.combine(other)
        blocks = sum(len(self._plan.blocks(core)) for core in range(cores))
        done = None if self._checkpoint is None else self._checkpoint.resumption(blocks)
        self._recorder.finish(self._plan, self._read_bytes(), done)
        return first

    def _read_bytes(self) -> dict[Stage, int]:
        """Return the bytes of the blocks that an earlier run had not reduced."""
        left = sum(
            last - first
            for core in range(self._plan.cores)
            for first, last in self._plan.blocks(core)[self._kept.get(core, 0) :]
        )
        return {"load1": left * (self._plan.n + self._plan.p) * self._dtype.itemsize}

    def _reduce(self, core: int) -> Triangle:
        plan = self._plan
        found, done = Triangle.zeros(plan.n, plan.p, self._dtype), 0
        if self._checkpoint is not None:
            done, arrays = self._checkpoint.load(core)
            self._kept[core] = done
            found = Triangle.of(arrays) if done else found
        try:
            with ReadAhead() as reads:
                for number, (a, b) in enumerate(self._blocks(core, done, reads), done):
                    pairs = plan.n * len(a) * (plan.n + 2 * plan.p)
                    flops = flops_per_multiply_add(plan.dtype) * pairs
                    with self._recorder.operation("mult1", core, flops=flops, block=number):
                        found.absorb(a, b)
                    if self._checkpoint is not None:
                        self._checkpoint.note(core, number + 1, found.arrays)
        except BaseException:
            self._stop.set()  # the other cores need not go on
            raise
        return found

    def _blocks(
        self, core: int, done: int, reads: ReadAhead
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield the rows of A and B of each block of a core but the first `done`, until a core
        fails.
        """
        plan = self._plan
        places = list(enumerate(plan.blocks(core)))[done:]
        size = (plan.n + plan.p) * min(plan.rows, plan.m)
        buffers = [np.empty(size, self._dtype) for _ in places[:STREAM_BUFFERS]]
        for block in reads.blocks(
            places, lambda place, buffer: self._read(core, *place, buffers[buffer])
        ):
            if self._stop.is_set():
                return
            yield block

    def _read(
        self, core: int, number: int, place: tuple[int, int], buffer: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read rows of A and B into column-major parts of a buffer."""
        first, last = place
        arrays = []
        for name, source in zip("ab", self._sources, strict=True):
            cols = source.shape[1]
            array = buffer[: (last - first) * cols].reshape((last - first, cols), order="F")
            buffer = buffer[array.size :]
            with self._recorder.operation("load1", core, nbytes=array.nbytes, block=number):
                source[first:last, :].read(array)
            if self._check:
                check_finite_slab(Slab(core, Columns(0, cols, first), array), name=name)
            arrays.append(array)
        return arrays[0], arrays[1]
