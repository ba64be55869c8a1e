"""TSQR: the R of a tall matrix in one pass over its rows, and Q^H·B beside it.

Each core reduces its own blocks of rows, one after the other, to one triangle (a flat tree); the
triangles of all cores are combined at the end.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from hdgemm.errors import DoesNotFitError
from hdgemm.fortran import tpmqrt, tpqrt
from hdgemm.linalg.planning import STREAM_BUFFERS
from hdgemm.linalg.read_ahead import ReadAhead
from hdgemm.linalg.recorder import Recorder
from hdgemm.linalg.run import check_finite_slab
from hdgemm.linalg.slab_plan import Columns
from hdgemm.linalg.slabs import Slab
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.row_checkpoint import RowCheckpoint
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.plan import Stage
    from hdgemm.progress import Watch

#: Bytes of a block at most: larger requests to a disk are not faster.
_BLOCK_BYTES: Final = 32 << 20
#: Bytes of the rows that LAPACK reduces at once: they stay in a core's cache.
_STRIP_BYTES: Final = 2 << 20
#: Columns of a block of reflectors at most.
_REFLECTORS: Final = 64


class RowPlan(NamedTuple):
    """How the rows of an m×(n + p) matrix pass through memory: `rows` of a block, `cores`.

    `bytes_held` is the memory that this takes, `host_limit` what it was planned for.
    """

    m: int
    n: int
    p: int
    dtype: str
    rows: int
    cores: int
    bytes_held: int
    host_limit: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations by LAPACK's count for Householder's R and Q^H·B."""
        k = min(self.m, self.n)
        pairs = self.n * k * (self.m - k / 3) + 2 * self.p * k * (self.m - k / 2)
        return int(flops_per_multiply_add(self.dtype) * pairs)

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves: A and B are read once."""
        return {"load1": self.m * (self.n + self.p) * np.dtype(self.dtype).itemsize}

    def summary(self) -> dict[str, Any]:
        """Return shape, blocks and memory as plain values, for reports."""
        return self._asdict() | {
            "kind": "tsqr",
            "flops": self.flops,
            "host_bytes": self.bytes_held,
            "read_bytes": self.planned_bytes["load1"],
            "write_bytes": 0,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.summary()

    def __str__(self) -> str:
        from hdgemm.linalg.plan_text import row_plan_text

        return row_plan_text(self)

    def blocks(self, core: int) -> list[tuple[int, int]]:
        """Return the first row, and the one behind the last row, of each block of a core."""
        starts = range(0, self.m, max(1, self.rows))[core :: self.cores]
        return [(first, min(first + self.rows, self.m)) for first in starts]


def plan_rows(
    shape: tuple[int, int], p: int, dtype: str, memory: int, cores: int, *, rows: int | None = None
) -> RowPlan:
    """Return the blocks of rows of A (m×n) and B (m×p) that fit `memory` bytes.

    Parameters
    ----------
    cores
        Blocks that are reduced at once, at most.
    rows
        Force the rows of a block.

    Raises
    ------
    DoesNotFitError
        When R and one row of each block do not fit: `requested`, `available` and `missing`.
    """
    m, n = shape
    itemsize = np.dtype(dtype).itemsize
    width = max(1, n + p)
    row_bytes = width * itemsize
    held = 0
    # Each core holds a triangle, and reduces a row at least.
    most_cores = min(cores, m, memory // (itemsize * max(1, n) * width))
    for workers in range(max(1, most_cores), 0, -1):
        # R and Q^H·B, T and the workspace, and the mask of the check for NaNs.
        fixed = workers * itemsize * (n * width + 2 * _REFLECTORS * width) + BOUNCE_BYTES
        per_row = workers * (STREAM_BUFFERS * row_bytes + 1)
        most = max(1, min(m, _BLOCK_BYTES // row_bytes)) if rows is None else rows
        fitting = min(most, (memory - fixed) // per_row)
        least = most if rows is not None else min(most, n // 4 + 1 if workers > 1 else 1)
        held = fixed + per_row * max(fitting, least)
        if fitting >= least:
            return RowPlan(m, n, p, dtype, fitting, workers, held, memory)
    what = f"TSQR of a {m}×{n} {dtype} matrix, with R and a block of rows in memory,"
    raise DoesNotFitError.within(what, held, memory)


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

    def absorb(self, a: NDArray[Any], b: NDArray[Any], *, triangle: bool = False) -> None:
        """Reduce more rows, which are overwritten; `triangle` says that A is upper triangular."""
        n, p = self.c.shape
        # Of n columns, n/32 were fastest for n = 500 (16) and n = 2000 (64).
        block = min(_REFLECTORS, max(16, n // 32), max(1, n))
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
            done, found = self._checkpoint.load(core, found)
            self._kept[core] = done
        try:
            with ReadAhead() as reads:
                for number, (a, b) in enumerate(self._blocks(core, done, reads), done):
                    pairs = plan.n * len(a) * (plan.n + 2 * plan.p)
                    flops = flops_per_multiply_add(plan.dtype) * pairs
                    with self._recorder.operation("mult1", core, flops=flops, block=number):
                        found.absorb(a, b)
                    if self._checkpoint is not None:
                        self._checkpoint.note(core, number + 1, found)
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
