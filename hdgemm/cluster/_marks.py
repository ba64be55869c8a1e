"""Marks: random elements of C by which a worker proves that it writes to the client's C.

The client stores a mark in a block before it sends the block to a worker that has not proven itself
yet, and the worker reads the mark before it computes: another file under the name of C does not
have it. The block is that worker's alone, so that nothing else is stored over the mark, and it
replaces the mark with the rest of the block. Any storage can keep a mark; inodes differ between
machines, and a journal may lie elsewhere than C.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.tiles import Rect


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that the client has stored in an element of C, in stored rows and columns."""

    row: int
    col: int
    value: float


@dataclass(frozen=True, slots=True)
class BlockTask:
    """A block of C that a worker computes, by number; with a mark where it must prove itself.

    `share` are the bytes/s of the storage that the worker may count on while all workers read: its
    plans then read little more than once what the disk would serve to it alone.
    """

    number: int
    block: Rect
    share: float
    mark: Mark | None = None

    def check_mark(self, c: Matrix) -> None:
        """Read the mark from C as this machine has it.

        Raises
        ------
        WrongOutputError
            When it is not there.
        """
        if self.mark is None:
            return
        found = _element(c)
        c.read(self.mark.row, self.mark.col, found)
        if found[0, 0] != self.mark.value:
            raise WrongOutputError(
                f"{c.name} is another file on {gethostname()} than for the client: mount the "
                "same storage there under the same name",
                path=c.name,
            )


class WrongOutputError(InputError):
    """A worker sees another C than the client; it has written nothing there."""


class StoredJob(Protocol):
    """What marks need of a job: where its blocks lie in C as it is stored."""

    @property
    def lower(self) -> bool | None:
        """The triangle of C that is computed; None for all of C."""

    def stored(self, block: Rect) -> Rect:
        """Return a block in stored rows and columns."""


class Marks:
    """The workers that have read a mark in C, and new marks for the others."""

    def __init__(self, c: Matrix, job: StoredJob) -> None:
        self._c, self._job = c, job
        self._proven: set[str] = set()

    def place(self, worker: str, blocks: Sequence[Rect]) -> list[Mark | None]:
        """Mark the blocks that are sent to a worker which has not proven itself yet."""
        if worker in self._proven:
            return [None] * len(blocks)
        job = self._job
        return [place_mark(self._c, job.stored(block), lower=job.lower) for block in blocks]

    def read_by(self, worker: str) -> None:
        """Note that a worker has read a mark."""
        self._proven.add(worker)

    def forget(self, worker: str) -> None:
        """Let a worker prove itself again: another process may have its address."""
        self._proven.discard(worker)


def place_mark(c: Matrix, block: Rect, *, lower: bool | None) -> Mark | None:
    """Store a mark in a block of C, in stored rows and columns.

    Return None where one triangle of C is computed, the `lower` or the upper one, and the block has
    no element of it: the elements of the other one stay.
    """
    row, col = block.row, block.col
    if lower is False:
        col += block.cols - 1
    else:
        row += block.rows - 1
    if lower is not None and row != col and (row > col) != lower:
        return None
    element = _element(c)
    # From 1 to 2, so that it is not the zero of a new file and is exact in every precision.
    element[0, 0] = 1 + secrets.randbits(23) / 2**23
    c.write(row, col, element)
    c.flush()
    return Mark(row, col, float(element[0, 0].real))


def _element(c: Matrix) -> np.ndarray[Any, np.dtype[Any]]:
    return np.zeros((1, 1), c.dtype.newbyteorder("="))
