"""Operations of factorisations on one GPU: solves by cuBLAS, copies of rows and of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.pipeline.devices.cuda.buffers import DeviceBuffer
from hdgemm.pipeline.devices.cuda.calls import (
    INT32_MAX,
    Rows,
    Triangle,
    copy_calls,
    routine,
    runs,
    trsm_call,
)
from hdgemm.pipeline.devices.cuda.driver import DEVICE_TO_DEVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.driver import Driver
    from hdgemm.pipeline.devices.cuda.events import Lane
    from hdgemm.pipeline.devices.protocol import Block, Completion


class Factoring:
    """Enqueues solves, permutations and copies on the stream of products.

    Parameters
    ----------
    blas
        A cuBLAS handle.
    compute
        The stream.
    """

    def __init__(self, driver: Driver, blas: int, compute: Lane) -> None:
        self._driver, self._blas, self._compute = driver, blas, compute
        self._scratch: DeviceBuffer | None = None

    def trsm(
        self,
        a: tuple[Block, int],
        b: tuple[Block, int],
        form: Triangle,
        after: Sequence[Completion],
    ) -> Completion:
        """Enqueue a triangular solve of two blocks, each with its device address."""
        one = np.ones(1, b[0].tile.dtype)
        call = trsm_call(one.ctypes.data, a[0], b[0], form, (a[1], b[1]))
        return self._compute.enqueue(
            lambda stream: self._driver.blas_call(call.routine, self._blas, call[1:], stream),
            after,
            keep=one,
        )

    def copy(
        self, source: tuple[Block, int], target: tuple[Block, int], after: Sequence[Completion]
    ) -> Completion:
        """Enqueue a copy between two blocks, each with its device address."""
        block = source[0]
        if (block.rows, block.cols) != (target[0].rows, target[0].cols):
            raise InputError(
                f"cannot copy a block of {block.rows}×{block.cols} to one of "
                f"{target[0].rows}×{target[0].cols}"
            )
        rows_from, rows_to = _rows(*source), _rows(*target)
        width = block.cols * block.tile.dtype.itemsize

        def work(stream: Any) -> None:
            self._copy(rows_to, rows_from, width, block.rows, stream)

        return self._compute.enqueue(work, after)

    def permute(
        self,
        block: tuple[Block, int],
        places: NDArray[np.int64],
        sources: NDArray[np.int64],
        axis: int,
        after: Sequence[Completion],
    ) -> Completion:
        """Enqueue a gather of rows or columns into scratch memory, and the way back.

        Consecutive rows are one copy: those of a panel's own block mostly are.
        """
        part, rows = block[0], _rows(*block)
        extents, itemsize = (part.rows, part.cols), part.tile.dtype.itemsize
        nbytes = len(places) * extents[1 - axis] * itemsize
        if nbytes == 0:
            return self._compute.enqueue(lambda _: None, after)
        pitch = (part.cols if axis == 0 else len(places)) * itemsize
        held = Rows(self._scratch_of(nbytes), pitch)

        def move(target: Rows, source: Rows, lines: tuple[int, int], count: int, to: Any) -> None:
            steps = [itemsize if axis else each.pitch for each in (target, source)]
            ends = [
                Rows(each.address + line * step, each.pitch)
                for each, line, step in zip((target, source), lines, steps, strict=True)
            ]
            shape = (count * itemsize, part.rows) if axis else (part.cols * itemsize, count)
            self._copy(ends[0], ends[1], *shape, to)

        def work(stream: Any) -> None:
            for index, line, count in runs(sources.tolist()):
                move(held, rows, (index, line), count, stream)
            for index, line, count in runs(places.tolist()):
                move(rows, held, (line, index), count, stream)

        return self._compute.enqueue(work, after)

    def conjugate(self, block: Block, address: int, after: Sequence[Completion]) -> Completion:
        """Enqueue a scaling of each row's imaginary parts by -1; of a dense block in one call."""
        dtype = block.tile.dtype
        minus_one = -np.ones(1, dtype.type(0).real.dtype)
        imaginary = address + dtype.itemsize // 2
        pitch = block.tile.ld * dtype.itemsize
        calls = [(imaginary + row * pitch, block.cols) for row in range(block.rows)]
        count = block.rows * block.cols
        if block.cols == block.tile.ld and count <= INT32_MAX:
            calls = [(imaginary, count)]
        name = routine(minus_one.dtype, "scal")

        def work(stream: Any) -> None:
            for pointer, elements in calls:
                arguments = (elements, minus_one.ctypes.data, pointer, 2)
                self._driver.blas_call(name, self._blas, arguments, stream)

        return self._compute.enqueue(work, after, keep=minus_one)

    def _scratch_of(self, nbytes: int) -> int:
        """Return the address of scratch memory, which the stream uses in order."""
        if self._scratch is None or self._scratch.nbytes < nbytes:
            self.close()
            self._scratch = DeviceBuffer(self._driver, nbytes)
        return self._scratch.pointer

    def _copy(self, target: Rows, source: Rows, width: int, rows: int, stream: Any) -> None:
        for to, of, nbytes, count in copy_calls(target, source, width, rows):
            if count == 1:
                self._driver.copy(to.address, of.address, nbytes, DEVICE_TO_DEVICE, stream)
            else:
                self._driver.copy_rows(to, of, (nbytes, count), DEVICE_TO_DEVICE, stream)

    def close(self) -> None:
        """Free scratch memory; the driver waits for the work that uses it."""
        if self._scratch is not None:
            self._scratch.release()
            self._scratch = None


def _rows(block: Block, address: int) -> Rows:
    return Rows(address, block.tile.ld * block.tile.dtype.itemsize)
