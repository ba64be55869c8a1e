"""Columns of a matrix in memory, and the operations on them that run in threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hdgemm.linalg.planning import BLOCK_BYTES
from hdgemm.linalg.slab_plan import Columns
from hdgemm.matrices.transfer import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix

#: Operations, each with the columns that it loads, changes or stores.
Operations: TypeAlias = "list[tuple[Columns, Future[None]]]"


def operations_on(columns: Columns, found: Operations) -> tuple[Future[None], ...]:
    """Return the operations on some columns."""
    first, last, _ = columns
    return tuple(done for x, done in found if x.first < last and first < x.last)


def wait_for(operations: Iterable[Future[None]]) -> None:
    """Return when operations have ended; raise the error of the first that failed."""
    for operation in operations:
        operation.result()


@dataclass(frozen=True, slots=True)
class Slab:
    """A slab in memory: `array` has the rows from ``place.top`` on, column-major.

    What the factorisation puts in `notes` (pivots, tau) a checkpoint records with the slab.
    `tasks` on columns begin when the `loads` of these have ended; the columns are stored when
    their tasks have ended.
    """

    number: int
    place: Columns
    array: NDArray[Any]
    notes: dict[str, NDArray[Any]] = field(default_factory=dict)
    loads: Operations = field(default_factory=list)
    tasks: Operations = field(default_factory=list)

    def wait_loaded(self) -> None:
        """Return when all columns are loaded."""
        wait_for(load for _, load in self.loads)

    def strips(self, stored: StoredMatrix | None) -> list[Slab]:
        """Cut the slab into strips that are contiguous in a matrix; where it has none, into one."""
        (first, last, top), (rows, width) = self.place, self.array.shape
        itemsize = self.array.itemsize
        if stored is not None and stored.order == "F" and stored.chunks is None:
            width = max(1, BLOCK_BYTES // max(1, rows * itemsize))
            aligned = max(1, ALIGNMENT // itemsize)
            width -= width % aligned if width > aligned else 0
        return [
            Slab(
                self.number,
                Columns(start, min(start + width, last), top),
                self.array[:, start - first : start - first + width],
                self.notes,
            )
            for start in range(first, last, max(1, width))
        ]


@dataclass(frozen=True, slots=True)
class Block:
    """Earlier columns in memory, a part of slab `slab`; `array` has the rows from ``place.top`` on.

    Its memory is used again when its `tasks` are done.
    """

    slab: int
    place: Columns
    array: NDArray[Any]
    tasks: list[Future[None]] = field(default_factory=list)
