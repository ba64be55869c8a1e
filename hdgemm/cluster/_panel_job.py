"""One block of a Cholesky factor on a worker: the job that all slabs of a factorisation share."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hdgemm.blas.blockwise import rectangle
from hdgemm.cluster._block_writer import BlockWriter
from hdgemm.cluster._job import Described, Process, describe
from hdgemm.cluster.receipts import Receipt
from hdgemm.errors import NotFiniteError
from hdgemm.fortran import trsm
from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.operands import open_operand
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.pipeline.tiles import Rect
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.product.product import Product
from hdgemm.report import stage_reports
from hdgemm.run.engine import run_product
from hdgemm.tasks.kernels import factor_diagonal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from typing import TypeAlias

    from numpy.typing import NDArray

    from hdgemm.cluster._job import Job
    from hdgemm.cluster._marks import BlockTask
    from hdgemm.cluster.references import Reference
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Stage
    from hdgemm.report import Report

    #: What the workers are asked to compute; both kinds have the methods of `Job`.
    AnyJob: TypeAlias = "Job | PanelJob"


@dataclass(frozen=True, slots=True)
class PanelJob:
    """The blocks of L in A = L·L^H, with A of order n; other parameters as for `Job`.

    A block lies in one slab of columns. A diagonal block is updated by the earlier columns of its
    rows and factored; a block below it is updated too, and solved with the slab's diagonal block.
    `a` and `factor` refer to A and L; for U, to A^T and U^T. `check_finite` raises at NaN and Inf.
    """

    run: str
    topic: str
    n: int
    a: Reference
    factor: Reference
    dtype: np.dtype[Any]
    options: Options
    check_finite: bool

    def described(self, stack: ExitStack) -> Described:
        """Open A and L, and describe the products of the updates to the planner."""
        self._open(stack)
        home = self.factor.stored
        folder = getattr(home, "path", None)
        extents = self.n, max(1, self.n // 16), max(1, self.n // 3)
        return describe(extents, self.dtype.name, None if folder is None else folder.parent)

    lower: ClassVar[bool | None] = None

    @property
    def inputs(self) -> tuple[Reference, ...]:
        """The reference to A; the earlier columns of L are read from the output."""
        return (self.a,)

    @property
    def output(self) -> Reference:
        """The reference to L."""
        return self.factor

    def stored(self, block: Rect) -> Rect:
        """Return a block of L in stored rows and columns, or a stored one as a block of L."""
        if not self.factor.trans:
            return block
        return Rect(block.col, block.row, block.cols, block.rows)

    def compute(self, task: BlockTask, process: Process) -> tuple[Receipt, BlockWriter]:
        """Compute and store one block of L; return L to make durable."""
        work, block = _Work(), task.block
        a, factor = self._open(process.stack)
        task.check_mark(factor.matrix)
        bar = np.empty((block.rows, block.cols), self.dtype, "F")
        diagonal = block.row == block.col
        solver = bar[:0, :0] if diagonal else self._diagonal_block(factor, block, work)
        self._update(a, factor, block, bar, (process, work, solver.nbytes))
        if self.check_finite:
            _check_finite(bar, block)
        with work.doing("mult1", flops=_flops(block, diagonal=diagonal, dtype=self.dtype)):
            if diagonal:
                factor_diagonal(bar, block.row)
                for column in range(1, block.cols):
                    bar[:column, column] = 0
            else:
                trsm(solver, bar, side="R", trans="C")
        return self._store(task, bar, BlockWriter(factor.matrix, process.may_write), work)

    def _open(self, stack: ExitStack) -> tuple[Operand, Operand]:
        return self.a.open(stack), self.factor.open(stack, writable=True)

    def _diagonal_block(self, factor: Operand, block: Rect, work: _Work) -> NDArray[Any]:
        """Read the factored diagonal block of a block's slab."""
        solver = np.empty((block.cols, block.cols), self.dtype, "F")
        slab = slice(block.col, block.col + block.cols)
        with work.doing("load1", nbytes=solver.nbytes):
            _read(rectangle(factor, slab, slab), solver)
        return solver

    def _update(
        self,
        a: Operand,
        factor: Operand,
        block: Rect,
        bar: NDArray[Any],
        how: tuple[Process, _Work, int],
    ) -> None:
        """Fill `bar` with A's block less the product of the earlier columns of L."""
        process, work, held = how
        session = process.session
        rows = slice(block.row, block.row + block.rows)
        slab = slice(block.col, block.col + block.cols)
        old, earlier = rectangle(a, rows, slab), slice(0, block.col)
        if not block.col:
            with work.doing("load1", nbytes=bar.nbytes):
                _read(old, bar)
            return
        other = rectangle(factor, slab, earlier).transposed()
        product = Product(
            rectangle(factor, rows, earlier),
            replace(other, conj=other.conj != (self.dtype.kind == "c")),
            open_operand(bar, what="out", writable=True),
            old,
            -1.0,
            1.0,
            self.dtype,
            self.dtype,
        )
        memory = session.options.host_bytes or default_host_bytes()
        options = replace(session.options, host_memory=max(1, memory - bar.nbytes - held))
        began = work.now()
        with session.running(options):
            report = run_product(product, options, session, process.callbacks)
        work.add(began, report)

    def _store(
        self, task: BlockTask, bar: NDArray[Any], writer: BlockWriter, work: _Work
    ) -> tuple[Receipt, BlockWriter]:
        stored = self.stored(task.block)
        with work.doing("store2", nbytes=bar.nbytes):
            writer.write(stored.row, stored.col, bar.T if self.factor.trans else bar)
        return work.receipt(task.number, stored, writer, bar.nbytes), writer


class _Work:
    """Events and the peak of the memory of one block."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._peak = 0
        self._began = time.perf_counter()

    def now(self) -> float:
        """Return the seconds since the block was begun."""
        return time.perf_counter() - self._began

    @contextmanager
    def doing(self, stage: Stage, *, nbytes: int = 0, flops: int = 0) -> Iterator[None]:
        """Record one operation, unless it fails."""
        start = self.now()
        yield
        self._events.append(Event("host", stage, 0, 0, 0, start, self.now(), nbytes, flops))

    def add(self, began: float, report: Report) -> None:
        """Add a product's events; its C stays in memory."""
        self._peak = max(self._peak, report.peak_memory_bytes or 0)
        self._events += [
            event.shifted(began)
            for event in report.timeline.events
            if event.stage in ("load1", "mult1")
        ]

    def receipt(self, number: int, block: Rect, writer: BlockWriter, held: int) -> Receipt:
        """Return the receipt of the block, beside which `held` bytes were in memory."""
        timeline = Timeline(tuple(self._events), self.now())
        moved = {stage: stats.nbytes for stage, stats in timeline.stages().items()}
        stages = stage_reports(timeline, moved)
        return Receipt.of(number, block, writer, timeline, stages, self._peak + held)


def _read(operand: Operand, out: NDArray[Any]) -> None:
    operand.matrix.read(0, 0, out.T if operand.trans else out)
    if operand.conj and out.dtype.kind == "c":
        np.conjugate(out, out=out)


def _check_finite(bar: NDArray[Any], block: Rect) -> None:
    finite = np.isfinite(bar)
    if block.row == block.col:
        finite |= ~np.tri(block.rows, dtype=bool)
    if not finite.all():
        row, col = (int(index[0]) for index in np.nonzero(~finite))
        raise NotFiniteError(
            f"a has a NaN or an Inf at row {block.row + row}, column {block.col + col} (of its "
            "transpose for U): it must not contain infs or NaNs",
            row=block.row + row,
            col=block.col + col,
        )


def _flops(block: Rect, *, diagonal: bool, dtype: np.dtype[Any]) -> int:
    """Count the operations of a factorisation, or of a triangular solve."""
    pairs = block.cols**3 / 6 if diagonal else block.rows * block.cols**2 / 2
    return int(flops_per_multiply_add(dtype.name) * pairs)
