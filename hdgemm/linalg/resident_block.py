"""Factored columns on a device, and the operations by which they update columns of a slab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdgemm.pipeline.devices.protocol import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.linalg.resident import ResidentColumns
    from hdgemm.linalg.slab import Block as FactoredColumns
    from hdgemm.linalg.slab_plan import Columns
    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import Tile, Triangle


@dataclass(frozen=True, slots=True)
class ResidentBlock:
    """Factored columns on a device, and the columns `cols` of the slab that they update.

    Parameters
    ----------
    held
        The columns of the slab that the device holds.
    columns
        The factored columns in the host's memory.
    tiles
        Their transpose on the device and, for QR, T as it is multiplied.
    """

    held: ResidentColumns
    columns: FactoredColumns
    tiles: list[Tile]
    cols: tuple[int, int] = (0, 0)

    @property
    def width(self) -> int:
        """How many of the columns that are updated this device holds."""
        first, last = self.held.rows(*self.cols)
        return last - first

    def parts(self) -> Iterator[Columns]:
        """Yield the columns that are updated and that this device holds, strip by strip."""
        return self.held.parts(*self.cols)

    def target(self, row: int, last: int | None = None, cols: Columns | None = None) -> Block:
        """Return the columns that are updated, or some of them, between two rows of the matrix."""
        span = self.cols if cols is None else (cols.first, cols.last)
        return self.held.target(span, row, self.held.plan.m if last is None else last)

    def source(self, row: int, last: int | None = None) -> Block:
        """Return the transpose of the factored columns, from one row of the matrix to another."""
        tile, top = self.tiles[0], self.columns.place.top
        stop = self.held.plan.m if last is None else last
        return Block(tile, 0, row - top, tile.rows, stop - row)

    @property
    def triangle(self) -> Block:
        """T of reflectors as it is multiplied."""
        tile = self.tiles[1]
        return Block(tile, 0, 0, tile.rows, tile.cols)

    def scratch(self, name: str, rows: int, cols: int) -> Block:
        """Return workspace of this name."""
        return self.held.work.scratch(name, rows, cols, self.tiles[0].dtype)

    def permute(self, moves: Moves) -> None:
        """Permute the rows of the columns that are updated: columns of their transpose."""
        if len(moves.places):
            done = self.held.device.permute(self.target(0), moves, self.held.order(), axis=1)
            self.held.work.completions.append(done)

    def solve(self, a: Block, b: Block, form: Triangle) -> None:
        """Solve with a triangle, see `FactorDevice.trsm`."""
        done = self.held.device.trsm(a, b, form, self.held.order())
        self.held.work.completions.append(done)

    def multiply(
        self, alpha: float, a: Block, b: Block, c: Block, *,
        beta: float = 1.0, trans_a: str = "N", trans_b: str = "N",
    ) -> None:  # fmt: skip
        """Compute C := alpha·op(A)·op(B) + beta·C, see `Workspace.multiply`."""
        self.held.work.multiply(
            alpha, a, b, c, self.held.order(), beta=beta, trans_a=trans_a, trans_b=trans_b
        )
