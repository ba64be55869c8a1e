"""One product and one worker as small values that client and workers exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.blas.blockwise import block_of
from hdgemm.call.compute import compute
from hdgemm.call.keywords import Call
from hdgemm.cluster._block_writer import BlockWriter, TriangleWriter
from hdgemm.cluster.receipts import Receipt
from hdgemm.matrices.base import Operand
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.product.product import Product

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from hdgemm.cluster._marks import BlockTask
    from hdgemm.cluster.references import Reference
    from hdgemm.matrices.base import Matrix
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec
    from hdgemm.pipeline.tiles import Rect
    from hdgemm.progress import Callbacks
    from hdgemm.run.session import Session

#: Part of a worker's host memory that a block of C may take.
_C_PART: Final = 0.5


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


class Process(NamedTuple):
    """The part of a worker's process in a block: `stack` closes its operands, `may_write` returns
    before each write to C, or raises.
    """

    session: Session
    callbacks: Callbacks
    stack: ExitStack
    may_write: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One product as all its workers know it; C is row-major.

    Parameters
    ----------
    run
        The run's name, in the first record of the journal.
    topic
        Topic of the scheduler under which receipts are sent.
    a, b, c, old
        References to op(A), op(B), C as it is written (None for a plan), and the old C that beta
        multiplies.
    lower
        The triangle of C that is computed; None for all of C.
    """

    run: str
    topic: str
    a: Reference
    b: Reference
    c: Reference | None
    old: Reference | None
    alpha: complex
    beta: complex
    dtype: Any
    c_dtype: Any
    options: Options
    lower: bool | None = None

    def writer(self, c: Matrix, may_write: Callable[[], None]) -> BlockWriter:
        """Return C as a worker writes it."""
        if self.lower is None:
            return BlockWriter(c, may_write)
        return TriangleWriter(c, may_write, lower=self.lower)

    def described(self, stack: ExitStack) -> Described:
        """Open all operands, and describe the product to the planner."""
        product = self.open(stack)
        return Described(product.flops, product.dtype.name, product.problem, product.folder)

    @property
    def inputs(self) -> tuple[Reference, ...]:
        """References to the operands that are read."""
        return (self.a, self.b) if self.old is None else (self.a, self.b, self.old)

    @property
    def output(self) -> Reference | None:
        """The reference to C as it is written."""
        return self.c

    def stored(self, block: Rect) -> Rect:
        """Return a block in stored rows and columns."""
        return block

    def compute(self, task: BlockTask, process: Process) -> tuple[Receipt, BlockWriter]:
        """Compute and store one block of C; return C to make durable."""
        product, block = self.open(process.stack), task.block
        task.check_mark(product.destination.matrix)
        writer = self.writer(product.destination.matrix, process.may_write)
        part = block_of(
            replace(product, c=Operand(writer)),
            slice(block.row, block.row + block.rows),
            slice(block.col, block.col + block.cols),
        )
        session = process.session
        report = compute(part, Call(session=session, callbacks=process.callbacks))
        receipt = Receipt.of(
            task.number, block, writer, report.timeline, report.stages, report.peak_memory_bytes
        )
        return receipt, writer

    def open(self, stack: ExitStack) -> Product:
        """Open all operands, which `stack` closes; raise `InputError` when one cannot be opened.

        A product of integers is checked to be exact while a block's rows and columns are read.
        """
        product = Product(
            self.a.open(stack),
            self.b.open(stack),
            None if self.c is None else self.c.open(stack, writable=True),
            None if self.old is None else self.old.open(stack),
            self.alpha,
            self.beta,
            self.dtype,
            self.c_dtype,
        )
        return product.watched()


@dataclass(frozen=True, slots=True)
class Extents:
    """A product in files of which only the extents are known; `run` is a name of its own."""

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
