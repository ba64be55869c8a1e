"""One product and one worker as small values that client and workers exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.product.product import Product

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from hdgemm.cluster.references import Reference
    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options

#: Part of a worker's host memory that a block of C may take.
_C_PART: Final = 0.5


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
