"""TSLU as tasks: a panel of LU factored by tournament pivoting on blocks of its rows.

The tasks of the leaves and of the last step run on several cores at once (Donfack et al.,
"Dynamically balanced synchronization-avoiding LU factorization with multicore and GPUs", II.B).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import laswp
from hdgemm.pipeline.devices.interchanges import pivots_of
from hdgemm.tasks.capability import HOST
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.tiles import TaskTile
from hdgemm.tasks.tournament import Chosen, divide, merge, propose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.tasks.block_columns import BlockColumn
    from hdgemm.tasks.task import Insert
    from hdgemm.tasks.tournament import Proposal


class TournamentTasks:
    """The tasks that factor one panel, on the host, inserted with its priority.

    Each leaf, of `leaf` rows or as many as the panel has columns, proposes the rows that partial
    pivoting takes from it. Of two proposals, one more factorisation takes the better rows. The last
    proposal gives the pivots and U, and each block of rows is divided by U. The panel is one tile:
    tasks on blocks of its rows read it, and are ordered by tiles without data.
    """

    def __init__(self, panel: BlockColumn, leaf: int, insert: Insert) -> None:
        self._panel, self._insert = panel, insert
        self._leaf = max(leaf, panel.width)
        self._proposals: dict[TaskTile, Proposal] = {}

    def insert(
        self,
        pivots: NDArray[np.int64],
        zeros: list[int],
        results: Sequence[TaskTile],
        order: Sequence[TaskTile],
    ) -> None:
        """Insert all tasks; `pivots` and `zeros` are filled as by `getrf_panel`.

        `results` are the tiles of the panel from its diagonal on, and of its pivots. All tasks of
        the panel write the tiles of `order`, in runs without lookahead.
        """
        panel, (lower, found) = self._panel, results
        top, width = panel.first, panel.width
        depth = min(width, panel.below(top))
        candidates = []
        for first, last in self._blocks(top):
            tile = TaskTile(f"candidates[{panel.number}, {first}]", 0)
            candidates.append(tile)
            self._task(
                "getrf",
                (last - first) * width**2,
                self._propose(first, last, tile),
                [panel.tile],
                [tile, *order],
            )
        while len(candidates) > 1:
            for left, right in zip(candidates[::2], candidates[1::2], strict=False):
                self._task("getrf", 2 * width**3, self._merge(left, right), [left, right], [left])
            candidates = candidates[::2]
        self._task(
            "getrf",
            width**3,
            self._choose(candidates[0], pivots, zeros),
            [panel.tile, *candidates],
            [panel.tile, found, *order],
        )
        parts = []
        for first, last in self._blocks(top + depth):
            parts.append(TaskTile(f"L[{panel.number}, {first}]", 0))
            self._task(
                "panel trsm",
                (last - first) * width**2,
                self._divide(first, last),
                [panel.tile],
                parts[-1:],
            )
        self._task("panel trsm", 0, lambda: None, [panel.tile, *parts], [panel.tile, lower, *order])

    def _blocks(self, top: int) -> list[tuple[int, int]]:
        """Return the first row of each block, and the row behind it."""
        bottom = self._panel.bottom
        return [
            (first, min(first + self._leaf, bottom)) for first in range(top, bottom, self._leaf)
        ]

    def _task(
        self,
        kind: str,
        flops: int,
        host: Callable[[], Any],
        reads: Sequence[TaskTile],
        writes: Sequence[TaskTile],
    ) -> None:
        number = self._panel.number
        kernel = Kernel(kind, flops, self._panel.width, host=host, unit=number, step=number)
        self._insert(kernel, reads=reads, writes=writes, where=HOST)

    def _propose(self, first: int, last: int, tile: TaskTile) -> Callable[[], None]:
        def host() -> None:
            rows = np.arange(first, last) - self._panel.first
            self._proposals[tile] = propose(0, rows, self._panel.part(first, last))[0]

        return host

    def _merge(self, left: TaskTile, right: TaskTile) -> Callable[[], None]:
        def host() -> None:
            above, below = self._proposals[left], self._proposals.pop(right)
            self._proposals[left] = merge(above, below)

        return host

    def _choose(
        self, last: TaskTile, pivots: NDArray[np.int64], zeros: list[int]
    ) -> Callable[[], None]:
        def host() -> None:
            panel = self._panel
            self._chosen = chosen = Chosen.of(self._proposals.pop(last))
            pivots[: len(chosen.rows)] = found = pivots_of(chosen.rows)
            if chosen.zero:
                zeros.append(chosen.zero + panel.first)
            rest = panel.part(panel.first)
            laswp(rest, found)
            rest[: len(found)] = chosen.factors

        return host

    def _divide(self, first: int, last: int) -> Callable[[], None]:
        return lambda: divide(self._panel.part(first, last), self._chosen.factors)
