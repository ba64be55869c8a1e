"""Block columns of a matrix: the tiles of a factorisation, and the devices that update them.

Columns are dealt by weight, or the host has the d block columns to the right of the panel: at each
step one more moves from its device to the host, in place of the panel ("Dynamically balanced
synchronization-avoiding LU factorization with multicore and GPUs", sections III and IV). When no
more than d columns are left, the devices have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hdgemm.errors import InputError
from hdgemm.tasks.capability import HOST
from hdgemm.tasks.tiles import TaskTile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.tasks.capability import Capability
    from hdgemm.tasks.task import Kernel

#: Names the device of a panel's update of a block column; None leaves it to the scheduler.
Owner: TypeAlias = "Callable[[BlockColumn, BlockColumn], str | None]"


class BlockColumn(NamedTuple):
    """One block column: columns `first` to `last`, rows `top` to `bottom`, and its tile."""

    number: int
    first: int
    last: int
    top: int
    bottom: int
    tile: TaskTile

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.last - self.first

    def below(self, row: int) -> int:
        """Return the number of rows from one on."""
        return self.bottom - row

    def part(self, first: int, last: int | None = None) -> NDArray[Any]:
        """Return some rows of the matrix in host memory, all from `first` on without `last`."""
        return self.tile.data()[self.rows(first, last)]

    def rows(self, first: int, last: int | None = None) -> slice:
        """Return where these rows of the matrix are in the tile."""
        return slice(first - self.top, None if last is None else last - self.top)


def even_widths(columns: int, width: int) -> list[int]:
    """Cut some columns into block columns of one width; the last one may be narrower."""
    return [min(width, columns - first) for first in range(0, columns, width)]


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """A matrix as block columns.

    Parameters
    ----------
    shape
        Rows and columns of the matrix.
    dtype
        Of its elements.
    columns
        From left to right.
    array
        The matrix in host memory, column-major; None in virtual time.
    owner
        Names the device of a panel's update of a column; None: the column's own.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    columns: tuple[BlockColumn, ...]
    array: NDArray[Any] | None = None
    owner: Owner | None = None

    @classmethod
    def cut(
        cls,
        shape: tuple[int, int],
        widths: Sequence[int],
        *,
        array: NDArray[Any] | None = None,
        dtype: Any = np.float64,
        lower: bool = False,
        weights: Mapping[str, float] | None = None,
        owner: Owner | None = None,
    ) -> BlockColumns:
        """Cut a matrix into block columns of given widths; with `lower` they begin at the diagonal.

        `weights` name the devices to deal the columns to, in proportion; None leaves each task to
        the scheduler.
        """
        if sum(widths) != shape[1] or min(widths, default=1) < 1:
            raise InputError(f"widths {tuple(widths)} do not cut {shape[1]} columns")
        kind = np.dtype(dtype) if array is None else array.dtype
        homes = [None] * len(widths) if not weights else deal(len(widths), weights)
        edges = np.cumsum([0, *widths]).tolist()
        columns = []
        for number, (first, last) in enumerate(pairwise(edges)):
            top = min(first, shape[0]) if lower else 0
            part = None if array is None else array[top:, first:last]
            nbytes = (shape[0] - top) * (last - first) * kind.itemsize
            tile = TaskTile(f"A[{number}]", nbytes, part, homes[number])
            columns.append(BlockColumn(number, first, last, top, shape[0], tile))
        return cls(shape, kind, tuple(columns), array, owner)

    def panels(self) -> tuple[BlockColumn, ...]:
        """Return the block columns that are factored: all that begin above the last row."""
        return tuple(column for column in self.columns if column.first < self.shape[0])

    def after(self, panel: BlockColumn) -> tuple[BlockColumn, ...]:
        """Return the block columns to the right of one."""
        return self.columns[panel.number + 1 :]

    def where(self, panel: BlockColumn, column: BlockColumn) -> str | None:
        """Return the device of a panel's update of a column; None leaves it to the scheduler."""
        return column.tile.home if self.owner is None else self.owner(panel, column)

    def priority(self, column: BlockColumn) -> int:
        """Return the priority of tasks that write a block column: the left ones come first.

        Its tasks unlock the panel of that column, so that panels are factored as early as their
        updates allow (Dongarra et al., section 6.4).
        """
        return len(self.columns) - column.number


def deal(columns: int, weights: Mapping[str, float]) -> list[str]:
    """Deal block columns in proportion to weights (HGDD; Dongarra et al., section 6.6).

    Each column goes to the device with the largest remaining weight, so that devices alternate.
    Equal weights give the uniform block-cyclic distribution.
    """
    total = sum(weights.values())
    remaining = dict.fromkeys(weights, 0.0)
    owners = []
    for _ in range(columns):
        for name, weight in weights.items():
            remaining[name] += weight / total
        # Rounding must not decide between equal weights.
        owner = max(remaining, key=lambda name: (round(remaining[name], 9), weights[name]))
        remaining[owner] -= 1
        owners.append(owner)
    return owners


def update_weights(
    capabilities: Sequence[Capability], update: Kernel, panel_share: float, panel_kind: str
) -> dict[str, float]:
    """Return the share of the updates that each device takes; the host factors the panels, too.

    `update` is a typical one; `panel_share` is the ratio of all panels' flops to all updates'
    flops, and `panel_kind` is the kind of the tasks that factor a panel.
    """
    rates = {
        each.name: each.lanes * update.flops / each.seconds(update)
        for each in capabilities
        if each.runs(update.kind)
    }
    host = next((each for each in capabilities if each.name == HOST), None)
    if host is None or HOST not in rates or len(rates) == 1:
        return rates
    panel_seconds = panel_share / host.rates[panel_kind]
    seconds = (1 + rates[HOST] * panel_seconds) / sum(rates.values())
    rates[HOST] *= max(0.0, 1 - panel_seconds / seconds)
    return {name: rate for name, rate in rates.items() if rate > 0}


def split_columns(count: int, owners: Sequence[str]) -> Owner:
    """Return a function that names the device of a panel's update of a block column.

    The host has `count` (d) block columns; `owners` has the device of each column for the others.
    """

    def owner(panel: BlockColumn, column: BlockColumn) -> str:
        return HOST if column.number - panel.number <= count else owners[column.number]

    return owner
