"""Products of row-major blocks on one device, and the workspace that they take."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from hdgemm.pipeline.devices.protocol import After, Buffer, Completion, Device, FactorDevice
    from hdgemm.pipeline.plan import Operand


def free_all(device: Device, buffers: Iterable[Buffer]) -> None:
    """Free buffers, the last one first, all of them also where the device refuses to free one."""
    with ExitStack() as memory:
        for buffer in buffers:
            memory.callback(device.free, buffer)


class Workspace:
    """Multiplies blocks of tiles of C.

    Where a device multiplies A and B in layouts of its own, their blocks are copied into workspace,
    which is kept and grows on demand. All operations run in the queue of `gemm`, in order. A queue
    goes on after a failed operation: the completion of each one is kept until `take`.
    """

    def __init__(self, device: FactorDevice) -> None:
        self.device = device
        self.completions: list[Completion] = []
        self._buffers: dict[str, Buffer] = {}

    def scratch(self, name: str, rows: int, cols: int, dtype: np.dtype[np.generic]) -> Block:
        """Return a block of row-major workspace; the same name is the same memory."""
        return self._block(name, "C", rows, cols, dtype)

    def multiply(
        self,
        alpha: float,
        a: Block,
        b: Block,
        c: Block,
        after: After = (),
        *,
        beta: float = 1.0,
        trans_a: str = "N",
        trans_b: str = "N",
    ) -> None:
        """C := alpha·op(A)·op(B) + beta·C on row-major blocks; op is N, T or C, as in BLAS."""
        packed_a = self.packed("A", a, after, trans_a)
        packed_b = self.packed("B", b, after, trans_b)
        self.completions.append(self.device.gemm(alpha, packed_a, packed_b, beta, c, after))

    def conjugate(self, block: Block) -> None:
        """Conjugate a block of C in place; a real one is its own conjugate."""
        if block.tile.dtype.kind == "c":
            self.completions.append(self.device.conjugate(block, ()))

    def take(self) -> list[Completion]:
        """Return the completions of all operations since the last call, in order."""
        taken, self.completions = self.completions, []
        return taken

    def free(self) -> None:
        """Free the workspace."""
        buffers, self._buffers = self._buffers, {}
        free_all(self.device, buffers.values())

    def packed(self, operand: Operand, block: Block, after: After, trans: str = "N") -> Block:
        """Return op(block) as `gemm` takes A or B: a copy in workspace, or the block itself.

        The next packed A or B overwrites a copy. C of a product must not overlap A or B.
        """
        dtype = block.tile.dtype
        if trans == "C" and dtype.kind == "c":
            conjugated = self.scratch(f"conjugate of {operand}", block.rows, block.cols, dtype)
            self.completions.append(self.device.copy(block, conjugated, after))
            self.conjugate(conjugated)
            block = conjugated
        if not self.device.packs:
            return block._replace(tile=block.tile._replace(operand=operand, trans=trans != "N"))
        copied = self._block(operand, operand, block.rows, block.cols, dtype, trans=trans != "N")
        self.completions.append(self.device.copy(block, copied, after))
        return copied

    def _block(
        self,
        name: str,
        operand: Operand,
        rows: int,
        cols: int,
        dtype: np.dtype[np.generic],
        *,
        trans: bool = False,
    ) -> Block:
        needed = self.device.slot_bytes(operand, rows, cols, dtype)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < needed:
            if buffer is not None:
                self.device.synchronize()
                self.device.free(self._buffers.pop(name))
            buffer = self._buffers[name] = self.device.allocate(needed)
        return Block(Tile(operand, buffer, rows, cols, cols, dtype, trans), 0, 0, rows, cols)
