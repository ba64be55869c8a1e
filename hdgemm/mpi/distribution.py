"""Block-cyclic distribution of one dimension of a matrix over the processes of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Axis:
    """The rows, or the columns, that one process holds of so many that a matrix has.

    Block b (of NB) of the dimension belongs to process ``b % processes``; a process holds its
    blocks one after the other.
    """

    extent: int
    block: int
    processes: int
    process: int

    @property
    def count(self) -> int:
        """How many positions this process holds."""
        return self.below(self.extent)

    def owner(self, position: int) -> int:
        """Return the process that holds a position."""
        return position // self.block % self.processes

    def below(self, position: int, process: int | None = None) -> int:
        """Return how many positions below this one a process holds; None for this process."""
        process = self.process if process is None else process
        whole, rest = divmod(min(position, self.extent), self.block)
        cycles, turn = divmod(whole, self.processes)
        last = self.block if process < turn else rest if process == turn else 0
        return cycles * self.block + last

    def positions(self) -> NDArray[np.int64]:
        """Return the positions that this process holds, in ascending order."""
        blocks = np.arange(self.process, -(-self.extent // self.block), self.processes)
        within = np.arange(min(self.block, self.extent))
        found = (blocks[:, np.newaxis] * self.block + within).reshape(-1)
        return found[found < self.extent].astype(np.int64)

    def pieces(self, process: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the intervals between two positions that a process holds, in ascending order."""
        stop = min(stop, self.extent)
        cycle = self.block * self.processes
        for first in range(start // cycle * cycle + process * self.block, stop, cycle):
            low, high = max(first, start), min(first + self.block, stop)
            if low < high:
                yield low, high
