"""A matrix in the memory of one device that runs every operation of its factorisation.

It lies row-major, where rows are permuted by copies of contiguous memory.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.matrices.transfer import copy_transposed
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.workspace import Workspace, free_all
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.pipeline.devices.protocol import Completion, NativeDevice
    from hdgemm.pipeline.plan import Stage

#: Bytes of a piece of staging through which the matrix passes to and from the device. There are
#: two: the host copies one while the other is transferred.
_STAGING: Final = 16 << 20
#: Rows of a piece: strips of few rows are copied in less time than Python takes to start a copy.
_ROWS: Final = 1024


class NativeMatrix:
    """A matrix on a device; a context that frees its memory."""

    def __init__(
        self, device: NativeDevice, array: NDArray[Any], recorder: Recorder, panel: int
    ) -> None:
        self.device, self.array, self._recorder, self.width = device, array, recorder, panel
        self.work = Workspace(device)
        self._buffers: list[Any] = []

    def __enter__(self) -> Self:
        (m, n), dtype, device = self.array.shape, self.array.dtype, self.device
        nbytes = device.slot_bytes("C", m, n, dtype)
        limit = device.spec.limit()
        # Two operands of an update, and what solves and permutations take.
        needed = nbytes + 4 * min(self.width, max(m, n)) * (m + n) * dtype.itemsize
        if limit is not None and needed > limit:
            raise DoesNotFitError(
                f"{device.spec.name} holds {format_size(limit)}; a {m}×{n} {dtype.name} matrix and "
                f"its workspace take {format_size(needed)}: choose strategy='hybrid'",
                requested=needed,
                available=limit,
                missing=needed - limit,
            )
        rows = min(m, _ROWS)
        self._piece = rows, min(n, max(1, _STAGING // (rows * dtype.itemsize)))
        try:
            self._buffers.append(device.allocate(nbytes))
            staged = max(math.prod(self._piece), min(self.width, m, n) ** 2)
            for _ in range(2):
                self._buffers.append(device.allocate_staging(staged * dtype.itemsize))
        except BaseException:
            self.__exit__()
            raise
        self._tile = Tile("C", self._buffers[0], m, n, n, dtype)
        return self

    def __exit__(self, *_: object) -> None:
        self.device.synchronize()
        buffers, self._buffers = self._buffers, []
        with ExitStack() as memory:
            memory.callback(free_all, self.device, buffers)
            memory.callback(self.work.free)

    def block(self, rows: tuple[int, int], cols: tuple[int, int]) -> Block:
        """Return a rectangle of the matrix."""
        return Block(self._tile, rows[0], cols[0], rows[1] - rows[0], cols[1] - cols[0])

    def staged(self, shape: tuple[int, int], piece: int = 0) -> NDArray[Any]:
        """Return an array in a piece of staging, which the next one there overwrites."""
        return np.ndarray(shape, self.array.dtype, self._buffers[1 + piece % 2].array)

    def _pieces(self, stage: Stage, *, lower: bool) -> list[tuple[Block, NDArray[Any]]]:
        """Cut the matrix into pieces that alternate in staging; of a triangle none right of it."""
        (m, n), (height, width) = self.array.shape, self._piece
        pieces: list[tuple[Block, NDArray[Any]]] = []
        for row, col in product(range(0, m, height), range(0, n, width)):
            block = self.block((row, min(row + height, m)), (col, min(col + width, n)))
            if not lower or col < row + block.rows:
                pieces.append((block, self.staged((block.rows, block.cols), len(pieces))))
        self._recorder.expect(stage, sum(staged.nbytes for _, staged in pieces))
        return pieces

    def upload(self, *, lower: bool) -> None:
        """Copy the array to the device; of a lower triangle no piece that is right of it."""
        sent: list[Completion] = []
        for block, staged in self._pieces("load2", lower=lower):
            with self._operation("load2", nbytes=staged.nbytes):
                if len(sent) > 1:
                    sent[-2].wait()
                copy_transposed(staged, self._part(block))
                sent.append(self.device.upload(staged, block, ()))
        for completion in sent[-2:]:
            completion.wait()

    def download(self, *, lower: bool) -> None:
        """Copy the factors to the array; of a lower triangle nothing above the diagonal."""
        pieces = self._pieces("store1", lower=lower)
        coming = self.device.download(*pieces[0], ())
        for number, (block, staged) in enumerate(pieces, start=1):
            with self._operation("store1", nbytes=staged.nbytes):
                coming.wait()
                if number < len(pieces):
                    coming = self.device.download(*pieces[number], ())
                copy_transposed(self._part(block), staged, block.row - block.col if lower else None)

    def _part(self, block: Block) -> NDArray[Any]:
        """Return the part of the array that a block holds."""
        rows = self.array[block.row : block.row + block.rows]
        return rows[:, block.col : block.col + block.cols]

    def panels(self, count: int) -> list[tuple[int, int]]:
        """Cut columns into panels."""
        return [(first, min(first + self.width, count)) for first in range(0, count, self.width)]

    def middle(self, first: int, last: int) -> int:
        """Halve a panel at a multiple of the columns that the device's kernels take."""
        narrow = self.device.panel_columns
        return first + max(narrow, (last - first) // 2 // narrow * narrow)

    @contextmanager
    def step(self, number: int, pairs: float) -> Iterator[None]:
        """Record a step with its multiply-adds, until all its operations are done."""
        flops = int(flops_per_multiply_add(self.array.dtype.name) * pairs)
        with self._operation("mult1", number, flops=flops):
            yield
            self.finish()

    def _operation(self, stage: Stage, number: int = 0, **numbers: int) -> Any:
        return self._recorder.operation(stage, number, device=self.device.spec.name, **numbers)

    def done(self, completion: Completion) -> None:
        """Keep the completion of an operation until `finish`."""
        self.work.completions.append(completion)

    def finish(self) -> None:
        """Wait for all operations, and raise the error of the first that failed."""
        for completion in self.work.take():
            completion.wait()
