"""Tiles on one device, as kernels see them: blocks of resident tiles, and workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.pipeline.devices.protocol import Block
from hdgemm.pipeline.devices.protocol import Tile as DeviceTile

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import Buffer, Completion, FactorDevice
    from hdgemm.pipeline.plan import Operand
    from hdgemm.tasks.task import Tile
    from hdgemm.tasks.transfers import Transfers


class DeviceTiles:
    """Blocks of the tiles that a device holds, and products of such blocks.

    A device multiplies A and B in layouts of its own: their blocks are copied into workspace,
    which is kept and grows on demand. All operations run in the queue of `gemm`, in order. A queue
    goes on after a failed operation: the completion of each one is kept until `take`.
    """

    def __init__(self, name: str, device: FactorDevice, transfers: Transfers) -> None:
        self._device = device
        self._completions: list[Completion] = []
        self._name, self._transfers = name, transfers
        self._workspace: dict[str, Buffer] = {}

    def block(self, tile: Tile, rows: slice, cols: slice) -> Block:
        """Return a rectangle of a tile, in rows and columns of the transposed tile."""
        held = self._transfers.block(tile, self._name).tile
        first, last, _ = rows.indices(held.rows)
        left, right, _ = cols.indices(held.cols)
        return Block(held, first, left, last - first, right - left)

    def scratch(self, name: str, rows: int, cols: int, dtype: np.dtype[Any]) -> Block:
        """Return a block of row-major workspace; the same name is the same memory."""
        return self._workspace_block(name, "C", rows, cols, dtype)

    def multiply(
        self,
        alpha: float,
        a: Block,
        b: Block,
        c: Block,
        after: Sequence[Completion] = (),
        *,
        beta: float = 1.0,
        trans_a: bool = False,
        trans_b: bool = False,
    ) -> None:
        """C := alpha·op(A)·op(B) + beta·C on row-major blocks."""
        packed_a = self._packed("A", a, after, trans=trans_a)
        packed_b = self._packed("B", b, after, trans=trans_b)
        self._completions.append(self._device.gemm(alpha, packed_a, packed_b, beta, c, after))

    def solve(self, a: Block, b: Block, after: Sequence[Completion]) -> None:
        """B := B·A^-1 with the unit upper triangle of A."""
        self._completions.append(self._device.trsm(a, b, after, side="R", lower=False, unit=True))

    def permute(self, block: Block, moves: Moves, after: Sequence[Completion]) -> None:
        """Permute the columns of a block."""
        self._completions.append(self._device.permute(block, *moves, after, axis=1))

    def take(self) -> list[Completion]:
        """Return the completions of all operations since the last call, in order."""
        taken, self._completions = self._completions, []
        return taken

    def free(self) -> None:
        """Free the workspace."""
        while self._workspace:
            self._device.free(self._workspace.popitem()[1])

    def _packed(
        self, operand: Operand, block: Block, after: Sequence[Completion], *, trans: bool
    ) -> Block:
        copied = self._workspace_block(
            operand, operand, block.rows, block.cols, block.tile.dtype, trans=trans
        )
        self._completions.append(self._device.copy(block, copied, after))
        return copied

    def _workspace_block(
        self, name: str, operand: Operand, rows: int, cols: int, dtype: np.dtype[Any],
        *, trans: bool = False,
    ) -> Block:  # fmt: skip
        needed = self._device.slot_bytes(operand, rows, cols, dtype)
        buffer = self._workspace.get(name)
        if buffer is None or buffer.nbytes < needed:
            if buffer is not None:
                self._device.synchronize()
                self._device.free(self._workspace.pop(name))
            buffer = self._workspace[name] = self._device.allocate(needed)
        tile = DeviceTile(operand, buffer, rows, cols, cols, dtype, trans)
        return Block(tile, 0, 0, rows, cols)
