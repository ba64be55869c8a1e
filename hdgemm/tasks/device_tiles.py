"""Tiles on one device, as kernels see them: blocks of resident tiles, and workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.pipeline.devices.protocol import Block
from hdgemm.pipeline.devices.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import Completion, FactorDevice
    from hdgemm.tasks.task import Tile
    from hdgemm.tasks.transfers import Transfers


class DeviceTiles(Workspace):
    """Blocks of the tiles that a device holds, and what kernels compute of such blocks."""

    def __init__(self, name: str, device: FactorDevice, transfers: Transfers) -> None:
        super().__init__(device)
        self._name, self._transfers = name, transfers

    def block(self, tile: Tile, rows: slice, cols: slice) -> Block:
        """Return a rectangle of a tile, in rows and columns of the transposed tile."""
        held = self._transfers.block(tile, self._name).tile
        first, last, _ = rows.indices(held.rows)
        left, right, _ = cols.indices(held.cols)
        return Block(held, first, left, last - first, right - left)

    def solve(self, a: Block, b: Block, after: Sequence[Completion]) -> None:
        """B := B·A^-1 with the unit upper triangle of A."""
        self.completions.append(self.device.trsm(a, b, after, side="R", lower=False, unit=True))

    def permute(self, block: Block, moves: Moves, after: Sequence[Completion]) -> None:
        """Permute the columns of a block."""
        self.completions.append(self.device.permute(block, *moves, after, axis=1))
