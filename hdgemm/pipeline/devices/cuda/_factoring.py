"""Operations of factorisations on one GPU: solves by cuBLAS, copies, and panels by cuSOLVER."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.pipeline.devices.cuda._calls import (
    INT32_MAX,
    copy_calls,
    routine,
    trsm_call,
)
from hdgemm.pipeline.devices.cuda._driver import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE
from hdgemm.pipeline.devices.cuda._kernels import NAMES, SOURCE, THREADS, grid_of
from hdgemm.pipeline.devices.cuda.device import CudaDevice
from hdgemm.pipeline.devices.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import After, Block, Completion, HostBuffer, Triangle

#: Most columns of a panel: wider ones are halved, so that products do most of the work.
COLUMNS: Final = 256
#: Offset of pivots and tau in page-locked memory, behind the routine's info.
_RESULTS: Final = 16
#: Permutations of which the lists wait in page-locked memory, and the least bytes of one.
_LISTS: Final = 16
_LIST_BYTES: Final = 1 << 14
_INT32: Final = np.dtype(np.int32)
#: cuBLAS's and cuSOLVER's constants.
_NO_TRANSPOSE, _TRANSPOSE, _UPPER = 0, 1, 1


class CudaNativeDevice(CudaDevice):
    """A GPU that solves, permutes, copies, conjugates and factors panels; see `NativeDevice`.

    Panels are factored in a column-major copy, made and brought back by cuBLAS's geam.
    """

    panel_columns = COLUMNS

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
        """Enqueue a gather of rows or columns into workspace, and the way back: two kernels."""
        dtype, count = block.tile.dtype, len(moves.places)
        across = block.cols if axis == 0 else block.rows
        if count * across == 0:
            return self._compute.enqueue(lambda _: None, after)
        kernel, listed = self._movers[dtype.itemsize], np.concatenate([moves.sources, moves.places])
        held = self._space("lines", count * across, dtype)
        lines = self._space("moves", len(listed), listed.dtype)
        staged = self._staged_list(listed)
        width, height = (count, across) if axis else (across, count)
        address, ld = self._address(block), block.tile.ld

        def work(stream: Any) -> None:
            self.driver.copy(lines, staged.ctypes.data, listed.nbytes, HOST_TO_DEVICE, stream)
            for back, at in enumerate((lines, lines + listed.nbytes // 2)):
                arguments = (address, held, at, ld, width, height, axis, back)
                self.driver.launch(kernel, grid_of(width, height), THREADS, arguments, stream)

        done = self._compute.enqueue(work, after)
        self._lists[-1] = (self._lists[-1][0], done)
        return done

    def _staged_list(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Copy a list to page-locked memory, once the permutation that used it last is done."""
        buffer, used = self._lists.popleft() if len(self._lists) == _LISTS else (None, None)
        if used is not None:
            used.wait()
        if buffer is not None and buffer.nbytes < values.nbytes:
            self.free(buffer)
            buffer = None
        if buffer is None:
            buffer = self.allocate_staging(max(values.nbytes, _LIST_BYTES))
        self._lists.append((buffer, None))
        staged: NDArray[np.int64] = np.ndarray(values.shape, values.dtype, buffer.array)
        staged[...] = values
        return staged

    @cached_property
    def _lists(self) -> deque[tuple[HostBuffer, Completion | None]]:
        """The page-locked lists of the last permutations."""
        return deque()

    @cached_property
    def _movers(self) -> dict[int, Any]:
        return {size: self.driver.kernel(SOURCE, name) for size, name in NAMES.items()}

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

    @cached_property
    def _solver(self) -> int:
        handle = self.driver.solver()
        self._resources.callback(self.driver.release, "destroy", handle, self.driver.api.solver())
        return handle

    @cached_property
    def _results(self) -> HostBuffer:
        return self.allocate_staging(_RESULTS + 16 * COLUMNS)

    def getrf(self, panel: Block, after: After) -> tuple[NDArray[np.int64], int]:
        """Factor a panel; wait for the pivots."""
        if not panel.cols:
            return np.empty(0, np.int64), 0
        width = panel.cols
        found = self._factor("getrf", panel, after, width, _INT32)
        return found[:width].astype(np.int64) - 1, max(0, self._info())

    def geqrf(self, panel: Block, after: After) -> NDArray[Any]:
        """Factor a panel; wait for tau."""
        if not panel.cols:
            return np.empty(0, panel.tile.dtype)
        return self._factor("geqrf", panel, after, panel.cols, panel.tile.dtype)

    def potrf(self, block: Block, after: After) -> int:
        """Factor a diagonal block; wait for the result.

        The lower triangle is, column-major, the upper one of the transpose: A' = U^H·U with U = L'.
        """
        n, dtype = block.rows, block.tile.dtype
        if not n:
            return 0
        name, address, ld = routine(dtype, "potrf"), self._address(block), block.tile.ld
        size = self._solve_size(name, (_UPPER, n, address, ld))
        work, info = self._space("work", size, dtype), self._space("info", 1, _INT32)

        def enqueue(stream: Any) -> None:
            self._call(name, (_UPPER, n, address, ld, work, size, info), stream)
            self._fetch(info, 0, 4, stream)

        self._compute.enqueue(enqueue, after).wait()
        return max(0, self._info())

    def _factor(
        self, kind: str, panel: Block, after: After, count: int, results: np.dtype[Any]
    ) -> NDArray[Any]:
        """Factor a copy, bring it back, and return `count` numbers that cuSOLVER wrote."""
        rows, cols, ld, dtype = panel.rows, panel.cols, panel.tile.ld, panel.tile.dtype
        address = self._address(panel)
        name = routine(dtype, kind)
        dense = self._space("dense", rows * cols, dtype)
        size = self._solve_size(name, (rows, cols, dense, rows))
        work = self._space("work", size, dtype)
        written, info = self._space("results", count, results), self._space("info", 1, _INT32)
        scalars = np.array([1, 0], dtype)
        # LU takes its workspace before the pivots, and not its size; QR after tau.
        rest = (work, written, info) if kind == "getrf" else (written, work, size, info)

        def enqueue(stream: Any) -> None:
            self._transpose(scalars, (rows, cols), (address, ld), (dense, rows), stream)
            self._call(name, (rows, cols, dense, rows, *rest), stream)
            self._transpose(scalars, (cols, rows), (dense, rows), (address, ld), stream)
            self._fetch(info, 0, 4, stream)
            self._fetch(written, _RESULTS, count * results.itemsize, stream)

        self._compute.enqueue(enqueue, after, keep=scalars).wait()
        return np.frombuffer(self._results.array, results, count, _RESULTS).copy()

    def _transpose(
        self,
        scalars: NDArray[Any],
        shape: tuple[int, int],
        source: tuple[int, int],
        target: tuple[int, int],
        stream: Any,
    ) -> None:
        """Enqueue a transposition, column-major, into a target of m×n; both are (address, ld)."""
        one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
        arguments = (_TRANSPOSE, _NO_TRANSPOSE, *shape, one, *source, zero, *target, *target)
        self.driver.blas_call(routine(scalars.dtype, "geam"), self._blas, arguments, stream)

    def _call(self, name: str, arguments: Sequence[int], stream: Any) -> Any:
        return self.driver.solver_call(name, self._solver, arguments, stream)

    def _solve_size(self, name: str, arguments: Sequence[int]) -> int:
        """Return the elements of workspace that a routine takes."""
        with self.driver.current():
            return int(self._call(f"{name}_bufferSize", arguments, self._compute.stream))

    def _fetch(self, source: int, offset: int, nbytes: int, stream: Any) -> None:
        """Enqueue a copy of a few results to page-locked memory."""
        target = self._results.array.ctypes.data + offset
        self.driver.copy(target, source, nbytes, DEVICE_TO_HOST, stream)

    def _info(self) -> int:
        return int(np.frombuffer(self._results.array, np.int32, 1)[0])
