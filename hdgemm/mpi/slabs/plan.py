"""Slabs of a matrix that is larger than the memory of all ranks, by formulas.

A slab of W columns is dealt to all ranks, updated by the panels of all slabs left of it, which are
read from storage once more, and factored by the engine of matrices in memory. With M bytes of each
of P ranks, W is about P·M/(8n), and n³/(3W) elements are read beside A; n³/(6W) by Cholesky, which
needs the rows from the slab's first one on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING

from hdgemm.errors import DoesNotFitError
from hdgemm.mpi import _strips as strips
from hdgemm.mpi._redistribution import BUFFERS
from hdgemm.mpi.machine import held_bytes

if TYPE_CHECKING:
    from hdgemm.mpi.variant import Variant


class BySlabs(Enum):
    """When a matrix in storage is factored by slabs: `ALWAYS` where an earlier run did so."""

    NEVER = auto()
    WHERE_LARGER = auto()
    ALWAYS = auto()


@dataclass(frozen=True, slots=True)
class Slabs:
    """The slabs of a matrix of order n.

    Parameters
    ----------
    n
        Order of the matrix.
    width
        Columns of a slab, a multiple of the block size; of the last one, the rest.
    """

    n: int
    width: int

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first column of each slab, and the column after its last one."""
        return list(pairwise([*range(0, self.n, self.width), self.n]))

    @property
    def streamed(self) -> int:
        """Elements of L that are read once more: about n³/(3W)."""
        return sum(first * (2 * self.n - first) // 2 for first, _ in self.spans)

    @property
    def streamed_below(self) -> int:
        """Elements of a Cholesky factor that are read once more: about n³/(6W)."""
        return sum(first * (self.n - first) for first, _ in self.spans)


def fitting(variant: Variant, itemsize: int, limit: int) -> Slabs:
    """Return the fewest slabs that fit `limit` bytes of each rank, all about as wide.

    Raises
    ------
    DoesNotFitError
        When a slab of one block of columns for each column of the grid does not fit.
    """
    n, least = variant.n, variant.nb * variant.grid[1]
    need = slab_bytes(variant, least, itemsize)
    if need > limit:
        what = f"each rank for a slab of {min(least, n)} columns of n = {n}"
        raise DoesNotFitError.within(what, need, limit)
    count = 1
    while slab_bytes(variant, _width(variant, count), itemsize) > limit:
        count += 1
    return Slabs(n, _width(variant, count))


def _width(variant: Variant, count: int) -> int:
    """Return the columns of so many slabs of about the same width: whole blocks on all ranks."""
    unit = variant.nb * variant.grid[1]
    return max(1, -(-variant.n // (unit * count))) * unit


def slab_bytes(variant: Variant, width: int, itemsize: int) -> int:
    """Return the bytes of one rank: its part of a slab and of a stream block, panels, strips."""
    (p, q), n = variant.grid, variant.n
    width = min(width, n)
    rows = -(-n // (variant.nb * p)) * variant.nb + 32
    cols = -(-stream_columns(variant, itemsize) // (variant.nb * q)) * variant.nb
    strip = strip_bytes(n, width, p * q, itemsize)
    return held_bytes(variant, width, itemsize) + itemsize * rows * cols + BUFFERS * strip


def stream_columns(variant: Variant, itemsize: int) -> int:
    """Return the columns of L that are read at a time: whole panels, about a strip a rank."""
    p, q = variant.grid
    panels = p * q * strips.STRIP_BYTES // (variant.n * itemsize * variant.nb)
    return max(1, min(panels, variant.panels)) * variant.nb


def strip_bytes(n: int, width: int, ranks: int, itemsize: int) -> int:
    """Return the bytes of the largest strip of so many columns: one column or row at least."""
    own = -(-width // ranks) * n * itemsize
    return max(n * itemsize, min(strips.STRIP_BYTES, own))
