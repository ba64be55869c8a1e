"""A matrix in the memory of one device that runs every operation of its factorisation.

It lies row-major, where rows are permuted by copies of contiguous memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.workspace import Workspace
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.recorder import Recorder
    from hdgemm.pipeline.devices.protocol import Completion, NativeDevice

#: Bytes of staging through which rows pass to and from the device.
_STAGING: Final = 16 << 20


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
                requested=needed, available=limit, missing=needed - limit,
            )  # fmt: skip
        self._rows = max(1, min(m, _STAGING // max(1, n * dtype.itemsize)))
        try:
            self._buffers.append(device.allocate(nbytes))
            staged = max(self._rows * n, min(self.width, m, n) ** 2)
            self._buffers.append(device.allocate_staging(staged * dtype.itemsize))
        except BaseException:
            self.__exit__()
            raise
        self._tile = Tile("C", self._buffers[0], m, n, n, dtype)
        return self

    def __exit__(self, *_: object) -> None:
        self.device.synchronize()
        self.work.free()
        while self._buffers:
            self.device.free(self._buffers.pop())

    def block(self, rows: tuple[int, int], cols: tuple[int, int]) -> Block:
        """Return a rectangle of the matrix."""
        return Block(self._tile, rows[0], cols[0], rows[1] - rows[0], cols[1] - cols[0])

    def _staged(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """Yield the first row of each piece, the row behind it, and its place in staging."""
        m, n = self.array.shape
        for first in range(0, m, self._rows):
            last = min(first + self._rows, m)
            yield first, last, self.staged((last - first, n))

    def staged(self, shape: tuple[int, int]) -> NDArray[Any]:
        """Return an array in staging, which the next one overwrites."""
        return np.ndarray(shape, self.array.dtype, self._buffers[1].array)

    def upload(self) -> None:
        """Copy the array to the device, row by row."""
        for first, last, staged in self._staged():
            with self._recorder.operation("load2", 0, nbytes=staged.nbytes):
                np.copyto(staged, self.array[first:last])
                block = self.block((first, last), (0, staged.shape[1]))
                self.device.upload(staged, block, ()).wait()

    def download(self, *, lower: bool) -> None:
        """Copy the factors to the array; of a lower triangle nothing above the diagonal."""
        for first, last, staged in self._staged():
            with self._recorder.operation("store1", 0, nbytes=staged.nbytes):
                block = self.block((first, last), (0, staged.shape[1]))
                self.device.download(block, staged, ()).wait()
                if not lower:
                    self.array[first:last] = staged
                    continue
                self.array[first:last, :first] = staged[:, :first]
                own = np.tril_indices(last - first)
                self.array[first:last, first:last][own] = staged[:, first:last][own]

    def panels(self, count: int) -> list[tuple[int, int]]:
        """Cut columns into panels."""
        return [(first, min(first + self.width, count)) for first in range(0, count, self.width)]

    def middle(self, first: int, last: int) -> int:
        """Halve a panel at a multiple of the columns that the device's kernels take."""
        narrow = self.device.panel_columns
        return first + max(narrow, (last - first) // 2 // narrow * narrow)

    def step(self, number: int, pairs: float) -> Any:
        """Return the context of one step, which is recorded with its multiply-adds."""
        self.finish()
        flops = int(flops_per_multiply_add(self.array.dtype.name) * pairs)
        return self._recorder.operation("mult1", number, flops=flops)

    def done(self, completion: Completion) -> None:
        """Keep the completion of an operation until `finish`."""
        self.work.completions.append(completion)

    def finish(self) -> None:
        """Wait for all operations, and raise the error of the first that failed."""
        for completion in self.work.take():
            completion.wait()
