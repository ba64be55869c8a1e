"""One product and one worker as small values that client and workers exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from hdgemm.cluster.receipts import Receipt
from hdgemm.cluster.recorder import Recorder, TriangleRecorder
from hdgemm.matrices.base import Operand
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.product.product import Product
from hdgemm.run.compute import compute

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from hdgemm.cluster.references import Reference
    from hdgemm.matrices.base import Matrix
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Rect
    from hdgemm.progress import Watch
    from hdgemm.run.session import Session

#: Part of a worker's host memory that a block of C may take.
_C_PART: Final = 0.5


class AnyJob(Protocol):
    """What the workers are asked to compute."""

    @property
    def run(self) -> str:
        """Name of the run, in the first record of the journal."""

    @property
    def topic(self) -> str:
        """Topic of the scheduler under which receipts are sent."""

    @property
    def journal(self) -> Path | None:
        """Path of the journal where it lies in the storage of C; None where only the client
        sees it.
        """

    @property
    def options(self) -> Options:
        """Options of each worker."""

    def described(self, stack: ExitStack, /) -> Described:
        """Open all operands, and describe the work to the planner."""

    def compute(
        self, number: int, block: Rect, session: Session, watch: Watch, stack: ExitStack
    ) -> tuple[Receipt, Recorder]:
        """Compute and store one block of C; return C to make durable, which `stack` closes."""


class Described(NamedTuple):
    """What the rates of a worker depend on; `problem` is the product on a device."""

    flops: int
    dtype: str
    problem: Callable[[DeviceSpec], Problem]
    folder: Path | None


def describe(extents: tuple[int, int, int], dtype: str, folder: Path | None) -> Described:
    """Describe a product of files from its extents m, n and k."""
    spec = OperandSpec(False, "file", "staged", np.dtype(dtype).itemsize)
    problem = Problem(*extents, dtype, spec, spec, spec)
    return Described(problem.flops, dtype, lambda _: problem, folder)


@dataclass(frozen=True, slots=True)
class Job:
    """One product as all its workers know it; C is row-major.

    Parameters
    ----------
    run
        The run's name, in the first record of the journal.
    topic
        Topic of the scheduler under which receipts are sent.
    journal
        The journal's path where it lies in the storage of C; None where only the client sees it.
    a, b, c, old
        References to op(A), op(B), C as it is written (None for a plan), and the old C that beta
        multiplies.
    lower
        The triangle of C that is computed; None for all of C.
    """

    run: str
    topic: str
    journal: Path | None
    a: Reference
    b: Reference
    c: Reference | None
    old: Reference | None
    alpha: complex
    beta: complex
    dtype: Any
    options: Options
    lower: bool | None = None

    def recorder(self, c: Matrix) -> Recorder:
        """Return C as a worker writes it."""
        return Recorder(c) if self.lower is None else TriangleRecorder(c, lower=self.lower)

    def described(self, stack: ExitStack) -> Described:
        """Open all operands, and describe the product to the planner."""
        product = self.open(stack)
        return Described(product.flops, product.dtype.name, product.problem, product.folder)

    def compute(
        self, number: int, block: Rect, session: Session, watch: Watch, stack: ExitStack
    ) -> tuple[Receipt, Recorder]:
        """Compute and store one block of C; return C to make durable, which `stack` closes."""
        product = self.open(stack)
        recorder = self.recorder(product.destination.matrix)
        part = _block_of(product, block, recorder)
        report = compute(part, session.options, watch, session=session)
        return Receipt.of(number, block, recorder.pieces(block), report), recorder

    def open(self, stack: ExitStack) -> Product:
        """Open all operands; `stack` closes them.

        Raises
        ------
        InputError
            When one cannot be opened here.
        """
        opened = []
        for reference in (self.a, self.b, self.c, self.old):
            operand = None
            if reference is not None:
                operand = reference.open(writable=reference is self.c)
                stack.callback(operand.matrix.close)
            opened.append(operand)
        a, b, c, old = opened
        return Product(_opened(a), _opened(b), c, old, self.alpha, self.beta, self.dtype)


def _opened(operand: Operand | None) -> Operand:
    assert operand is not None  # noqa: S101  (only the old C may be missing)
    return operand


@dataclass(frozen=True, slots=True)
class Extents:
    """A product of which only the extents are known: C (m×n) := A (m×k) · B (k×n) in files.

    Parameters
    ----------
    run
        A name of its own.
    """

    run: str
    m: int
    n: int
    k: int
    dtype: str
    options: Options

    def described(self, _stack: ExitStack) -> Described:
        """Describe the product to the planner."""
        return describe((self.m, self.n, self.k), self.dtype, None)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it describes itself.

    Parameters
    ----------
    host, name
        Its machine, and the name that Dask has for it.
    threads, memory
        Threads and bytes of host memory that a block may use.
    flop_rate
        Expected flop/s of all its devices: measured where the product is worth it.
    disk_read
        Bytes/s that it reads from its disks when nothing else does.
    clock
        Its `time.time` when it answered.
    """

    host: str
    name: str
    threads: int
    memory: int
    flop_rate: float
    disk_read: float
    clock: float

    def most_elements(self, itemsize: int) -> float:
        """Return the elements of the largest block of C that its memory holds."""
        return _C_PART * self.memory / itemsize


def _block_of(product: Product, block: Rect, recorder: Recorder) -> Product:
    """Return the product of a block's rows of op(A) and columns of op(B)."""
    k = product.k
    old = product.old
    return replace(
        product,
        a=_part(product.a, block.row, 0, (block.rows, k)),
        b=_part(product.b, 0, block.col, (k, block.cols)),
        c=Operand(recorder.part(block.row, block.col, (block.rows, block.cols))),
        old=None if old is None else _part(old, *block[:2], (block.rows, block.cols)),
    )


def _part(operand: Operand, row: int, col: int, shape: tuple[int, int]) -> Operand:
    """Return a rectangle of op(X)."""
    if operand.trans:
        row, col, shape = col, row, shape[::-1]
    return replace(operand, matrix=operand.matrix.part(row, col, shape))
