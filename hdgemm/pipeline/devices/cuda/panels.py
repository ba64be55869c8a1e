"""LU, QR and Cholesky factors of panels by cuSOLVER, on the stream of products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.pipeline.devices.cuda.buffers import DeviceBuffer, PinnedBuffer
from hdgemm.pipeline.devices.cuda.calls import routine
from hdgemm.pipeline.devices.cuda.driver import DEVICE_TO_HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.driver import Driver
    from hdgemm.pipeline.devices.cuda.events import Lane
    from hdgemm.pipeline.devices.protocol import Block, Completion

#: Most columns of a panel: wider ones are halved, so that products do most of the work.
COLUMNS: Final = 256
#: Offset of pivots and tau in page-locked memory, behind the routine's info.
_RESULTS: Final = 16
#: cuBLAS's and cuSOLVER's constants.
_NO_TRANSPOSE, _TRANSPOSE, _UPPER = 0, 1, 1


class PanelFactors:
    """Factors panels in a column-major copy, which cuBLAS's geam makes and brings back.

    Parameters
    ----------
    blas
        A cuBLAS handle.
    compute
        The stream.
    """

    def __init__(self, driver: Driver, blas: int, compute: Lane) -> None:
        self._driver, self._blas, self._compute = driver, blas, compute
        self._solver: int | None = None
        self._buffers: dict[str, DeviceBuffer] = {}
        self._results: PinnedBuffer | None = None

    def getrf(
        self, panel: Block, address: int, after: Sequence[Completion]
    ) -> tuple[NDArray[np.int64], int]:
        """Factor a panel; see `NativeDevice.getrf`."""
        if not panel.cols:
            return np.empty(0, np.int64), 0
        width = panel.cols
        found = self._factor("getrf", panel, address, after, width, np.dtype(np.int32))
        return found[:width].astype(np.int64) - 1, max(0, self._info())

    def geqrf(self, panel: Block, address: int, after: Sequence[Completion]) -> NDArray[Any]:
        """Factor a panel; see `NativeDevice.geqrf`."""
        if not panel.cols:
            return np.empty(0, panel.tile.dtype)
        return self._factor("geqrf", panel, address, after, panel.cols, panel.tile.dtype)

    def potrf(self, block: Block, address: int, after: Sequence[Completion]) -> int:
        """Factor a diagonal block; see `NativeDevice.potrf`.

        The lower triangle is, column-major, the upper one of the transpose: A' = U^H·U with U = L'.
        """
        n, dtype = block.rows, block.tile.dtype
        if not n:
            return 0
        name, ld = routine(dtype, "potrf"), block.tile.ld
        size = self._solve_size(name, (_UPPER, n, address, ld))
        work = self._space("work", size * dtype.itemsize)
        info = self._space("info", 4)

        def enqueue(stream: Any) -> None:
            self._call(name, (_UPPER, n, address, ld, work, size, info), stream)
            self._fetch(info, 0, 4, stream)

        self._compute.enqueue(enqueue, after).wait()
        return max(0, self._info())

    def _factor(
        self, kind: str, panel: Block, address: int, after: Sequence[Completion], count: int,
        results: np.dtype[Any],
    ) -> NDArray[Any]:  # fmt: skip
        """Factor a copy, bring it back, and return `count` numbers that cuSOLVER wrote."""
        rows, cols, ld, dtype = panel.rows, panel.cols, panel.tile.ld, panel.tile.dtype
        name = routine(dtype, kind)
        dense = self._space("dense", rows * cols * dtype.itemsize)
        size = self._solve_size(name, (rows, cols, dense, rows))
        work = self._space("work", size * dtype.itemsize)
        written, info = self._space("results", count * results.itemsize), self._space("info", 4)
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
        return np.frombuffer(self._pinned().array, results, count, _RESULTS).copy()

    def _transpose(
        self, scalars: NDArray[Any], shape: tuple[int, int], source: tuple[int, int],
        target: tuple[int, int], stream: Any,
    ) -> None:  # fmt: skip
        """Enqueue a transposition, column-major, into a target of m×n; both are (address, ld)."""
        one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
        arguments = (_TRANSPOSE, _NO_TRANSPOSE, *shape, one, *source, zero, *target, *target)
        self._driver.blas_call(routine(scalars.dtype, "geam"), self._blas, arguments, stream)

    def _call(self, name: str, arguments: Sequence[int], stream: Any) -> Any:
        if self._solver is None:
            self._solver = self._driver.solver()
        return self._driver.solver_call(name, self._solver, arguments, stream)

    def _solve_size(self, name: str, arguments: Sequence[int]) -> int:
        """Return the elements of workspace that a routine takes."""
        with self._driver.current():
            return int(self._call(f"{name}_bufferSize", arguments, self._compute.stream))

    def _space(self, name: str, nbytes: int) -> int:
        """Return the address of workspace, which the stream uses in order."""
        held = self._buffers.get(name)
        if held is None or held.nbytes < nbytes:
            if held is not None:
                self._buffers.pop(name).release()  # the driver waits for the work that uses it
            held = self._buffers[name] = DeviceBuffer(self._driver, nbytes)
        return held.pointer

    def _fetch(self, source: int, offset: int, nbytes: int, stream: Any) -> None:
        """Enqueue a copy of a few results to page-locked memory."""
        target = self._pinned().pointer + offset
        self._driver.copy(target, source, nbytes, DEVICE_TO_HOST, stream)

    def _pinned(self) -> PinnedBuffer:
        if self._results is None:
            self._results = PinnedBuffer(self._driver, _RESULTS + 16 * COLUMNS)
        return self._results

    def _info(self) -> int:
        return int(np.frombuffer(self._pinned().array, np.int32, 1)[0])

    def close(self) -> None:
        """Free all workspace and the handle."""
        while self._buffers:
            self._buffers.popitem()[1].release()
        if self._results is not None:
            self._results.release()
            self._results = None
        if self._solver is not None:
            self._driver.destroy_solver(self._solver)
            self._solver = None
