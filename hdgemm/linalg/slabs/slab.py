"""Columns of a matrix in memory, and the operations on them that run in threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hdgemm.errors import InputError
from hdgemm.linalg.planning.slab import Columns
from hdgemm.matrices.read_ahead import BLOCK_BYTES
from hdgemm.matrices.transfer import ALIGNMENT, copy_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.matrices.transfer import Bounce
    from hdgemm.threads import Call

#: Bytes that a thread checks for NaN and Inf at a time.
_CHECKED_BYTES: Final = 1 << 20
#: Operations, each with the columns that it loads, changes or stores.
Operations: TypeAlias = "list[tuple[Columns, Call[None]]]"


def operations_on(columns: Columns, found: Operations) -> tuple[Call[None], ...]:
    """Return the operations on some columns."""
    first, last, _ = columns
    return tuple(done for x, done in found if x.first < last and first < x.last)


def wait_for(operations: Iterable[Call[None]]) -> None:
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

    def part(self, place: Columns) -> FactoredColumns:
        """Return some factored columns, which update the next slab."""
        first, _, top = self.place
        array = self.array[place.top - top :, place.first - first : place.last - first]
        # The last task on a span follows all others on it.
        last = {x: done for x, done in self.tasks if x.first < place.last and place.first < x.last}
        return FactoredColumns(self.number, place, array, tuple(last.values()))

    def wait_loaded(self) -> None:
        """Return when all columns are loaded."""
        wait_for(load for _, load in self.loads)

    def strips(self, stored: StoredMatrix | None, columns: int = 0) -> list[Slab]:
        """Cut the slab into strips that are contiguous in a matrix; where it has none, into strips
        of `columns`, or into one.
        """
        (first, last, top), (rows, width) = self.place, self.array.shape
        itemsize, width = self.array.itemsize, columns or width
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
class FactoredColumns:
    """Earlier columns in memory, a part of slab `slab`; `array` has the rows from ``place.top`` on.

    They are factored when the operations `after` have ended. Their memory is used again when their
    `tasks` are done.
    """

    slab: int
    place: Columns
    array: NDArray[Any]
    after: tuple[Call[None], ...] = ()
    tasks: list[Call[None]] = field(default_factory=list)


def both(
    first: Callable[[Slab], None] | None, second: Callable[[Slab], None] | None
) -> Callable[[Slab], None] | None:
    """Return a function that calls two in turn; None stands for a function that does nothing."""
    if first is None or second is None:
        return first or second

    def call(slab: Slab) -> None:
        first(slab)
        second(slab)

    return call


def check_finite_slab(
    slab: Slab, *, triangle: bool = False, transposed: bool = False, name: str = "a"
) -> None:
    """Raise `InputError` with the position of the first NaN or Inf of a slab of matrix `name`.

    With `triangle`, of its lower triangle; `transposed`, the matrix is the slab's transpose.
    """
    above = slab.place.first - slab.place.top

    def column(index: int) -> NDArray[Any]:
        return slab.array[above + index if triangle else 0 :, index]

    def look(block: range, _bounce: Bounce) -> None:
        # The columns of a row-major block are short: a call for each would take longest.
        if not triangle and np.isfinite(slab.array[:, block.start : block.stop]).all():
            return
        for index in block:
            if not np.isfinite(column(index)).all():
                found.append(index)
                return

    found: list[int] = []
    width = max(1, _CHECKED_BYTES // max(1, len(slab.array) * slab.array.itemsize))
    columns = range(slab.place.width)
    copy_pool().run([partial(look, columns[first : first + width]) for first in columns[::width]])
    if found:
        index = min(found)
        offset = int(np.argmin(np.isfinite(column(index))))
        value, offset = column(index)[offset], offset + (above + index if triangle else 0)
        row, col = slab.place.top + offset, slab.place.first + index
        row, col = (col, row) if transposed else (row, col)
        raise InputError(
            f"{name} has {value} at row {row}, column {col}: it must not contain infs or NaNs",
            row=row,
            col=col,
        )
