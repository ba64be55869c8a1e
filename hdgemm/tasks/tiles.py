"""Tiles that tasks access, and their blocks in the memory of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdgemm.pipeline.devices.protocol import Block, Triangle
from hdgemm.pipeline.devices.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import Completion, FactorDevice


@dataclass(eq=False, slots=True)
class TaskTile:
    """A piece of data that tasks read and write as a whole; it is known by its identity.

    `name` is for messages, such as ``"A[3]"``; `nbytes` is 0 for a tile that only orders tasks.
    `array` is its place in host memory, 2-D and column-major; None in virtual time. `home` names
    the device that the tile is dealt to; None for no device.
    """

    name: str
    nbytes: int
    array: NDArray[Any] | None = None
    home: str | None = None

    def data(self) -> NDArray[Any]:
        """Return the array in host memory."""
        assert self.array is not None, self.name  # noqa: S101  (virtual time runs no kernel)
        return self.array

    def __repr__(self) -> str:
        return self.name


class TileWorkspace(Workspace):
    """Blocks of the tiles that a device holds, and operations of kernels on such blocks.

    `held` returns a whole tile in the memory of the device.
    """

    def __init__(self, device: FactorDevice, held: Callable[[TaskTile], Block]) -> None:
        super().__init__(device)
        self._held = held

    def block(self, tile: TaskTile, rows: slice, cols: slice) -> Block:
        """Return a rectangle of a tile, in rows and columns of the transposed tile."""
        held = self._held(tile).tile
        first, last, _ = rows.indices(held.rows)
        left, right, _ = cols.indices(held.cols)
        return Block(held, first, left, last - first, right - left)

    def solve(self, a: Block, b: Block, after: Sequence[Completion]) -> None:
        """B := B·A^-1 with the unit upper triangle of A."""
        form = Triangle("R", lower=False, unit=True)
        self.completions.append(self.device.trsm(a, b, form, after))

    def permute(self, block: Block, moves: Moves, after: Sequence[Completion]) -> None:
        """Permute the columns of a block."""
        self.completions.append(self.device.permute(block, moves, after, axis=1))
