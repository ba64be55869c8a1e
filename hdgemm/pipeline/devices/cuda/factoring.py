"""Operations of factorisations on one GPU: solves by cuBLAS, copies of rows and of blocks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import InputError
from hdgemm.pipeline.devices.cuda.calls import (
    INT32_MAX,
    Rows,
    copy_calls,
    routine,
    runs,
    trsm_call,
)
from hdgemm.pipeline.devices.cuda.device import CudaDevice
from hdgemm.pipeline.devices.cuda.driver import DEVICE_TO_DEVICE
from hdgemm.pipeline.devices.workspace import Workspace

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import After, Block, Completion, Triangle


class CudaFactorDevice(CudaDevice):
    """A GPU that solves, permutes, copies and conjugates; see `FactorDevice`."""

    @cached_property
    def _workspace(self) -> Workspace:
        return Workspace(self)

    def _space(self, name: str, count: int, dtype: np.dtype[Any]) -> int:
        """Return the address of workspace, which the stream uses in order."""
        return self._address(self._workspace.scratch(name, count, 1, dtype))

    def trsm(self, a: Block, b: Block, form: Triangle, after: After) -> Completion:
        """Enqueue a triangular solve."""
        one = np.ones(1, b.tile.dtype)
        call = trsm_call(one.ctypes.data, a, b, form, (self._address(a), self._address(b)))
        return self._compute.enqueue(
            lambda stream: self.driver.blas_call(call.routine, self._blas, call[1:], stream),
            after,
            keep=one,
        )

    def copy(self, source: Block, target: Block, after: After) -> Completion:
        """Enqueue a copy from tile to tile."""
        if (source.rows, source.cols) != (target.rows, target.cols):
            raise InputError(
                f"cannot copy a block of {source.rows}×{source.cols} to one of "
                f"{target.rows}×{target.cols}"
            )
        width = source.cols * source.tile.dtype.itemsize
        calls = copy_calls(self._rows(target), self._rows(source), width, source.rows)
        return self._compute.enqueue(
            lambda stream: self.driver.copy_all(calls, DEVICE_TO_DEVICE, stream), after
        )

    def permute(self, block: Block, moves: Moves, after: After, axis: int = 0) -> Completion:
        """Enqueue a gather of rows or columns into workspace, and the way back.

        Consecutive rows are one copy: those of a panel's own block mostly are.
        """
        rows, dtype, count = self._rows(block), block.tile.dtype, len(moves.places)
        across = block.cols if axis == 0 else block.rows
        if count * across == 0:
            return self._compute.enqueue(lambda _: None, after)
        pitch = (across if axis == 0 else count) * dtype.itemsize
        held = Rows(self._space("lines", count * across, dtype), pitch)

        def move(target: Rows, source: Rows, lines: tuple[int, int], count: int, to: Any) -> None:
            steps = [dtype.itemsize if axis else each.pitch for each in (target, source)]
            ends = [
                Rows(each.address + line * step, each.pitch)
                for each, line, step in zip((target, source), lines, steps, strict=True)
            ]
            shape = (count, block.rows) if axis else (block.cols, count)
            calls = copy_calls(ends[0], ends[1], shape[0] * dtype.itemsize, shape[1])
            self.driver.copy_all(calls, DEVICE_TO_DEVICE, to)

        def work(stream: Any) -> None:
            for index, line, count in runs(moves.sources.tolist()):
                move(held, rows, (index, line), count, stream)
            for index, line, count in runs(moves.places.tolist()):
                move(rows, held, (line, index), count, stream)

        return self._compute.enqueue(work, after)

    def conjugate(self, block: Block, after: After) -> Completion:
        """Enqueue a scaling of each row's imaginary parts by -1; of a dense block in one call."""
        dtype = block.tile.dtype
        minus_one = -np.ones(1, dtype.type(0).real.dtype)
        address, pitch = self._rows(block)
        imaginary = address + dtype.itemsize // 2
        calls = [(imaginary + row * pitch, block.cols) for row in range(block.rows)]
        count = block.rows * block.cols
        if block.cols == block.tile.ld and count <= INT32_MAX:
            calls = [(imaginary, count)]
        name = routine(minus_one.dtype, "scal")

        def work(stream: Any) -> None:
            for pointer, elements in calls:
                arguments = (elements, minus_one.ctypes.data, pointer, 2)
                self.driver.blas_call(name, self._blas, arguments, stream)

        return self._compute.enqueue(work, after, keep=minus_one)
