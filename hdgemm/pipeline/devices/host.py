"""The host as a device: staging is device memory, and the cores multiply with the host's BLAS."""

from __future__ import annotations

import weakref
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.machine.limits import cores
from hdgemm.pipeline.devices.host_blas import SINGLE_THREADED, Gemm, routine_for
from hdgemm.pipeline.devices.host_queue import GemmQueue, draws_blocks
from hdgemm.pipeline.devices.page_buffer import PageBuffer
from hdgemm.pipeline.devices.protocol import DONE, first_byte, view
from hdgemm.pipeline.devices.widened_gemm import WidenedGemm
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import (
        After,
        Block,
        Buffer,
        Completion,
        HostBuffer,
        Triangle,
    )
    from hdgemm.pipeline.devices.widened_gemm import AnyGemm
    from hdgemm.pipeline.plan import Operand

#: Multiply-adds from which a product is cut into blocks; threaded BLAS takes smaller ones.
_WORTH_DRAWING: Final = 1 << 28
#: Rows or columns of C up to which BLAS multiplies a tile that was loaded in one thread: loading
#: takes longer, and calls in two threads took 10 times as long on busy cores, 50 times for one
#: column.
_FEW: Final = 16


class HostDevice:
    """The CPU behind the device protocol; all methods but large `gemm`s are synchronous.

    It multiplies with `threads`, None for one for each core. With `draws` they draw blocks of C,
    see `host_queue`; without, each product is left to threaded BLAS, which is faster where many
    cores share one packed copy of B. None takes what the machine's calibration found.
    """

    panel_columns = 128
    packs = False
    locks_pages = False

    def __init__(self, *, threads: int | None = None, draws: bool | None = None) -> None:
        self.spec = DeviceSpec("host", unified=True, widens=True)
        self._threads = threads or cores()
        self._draws = draws
        self._queue: GemmQueue | None = None

    def slot_bytes(self, _operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Tiles are dense."""
        return rows * cols * dtype.itemsize

    def allocate(self, nbytes: int) -> Buffer:
        """Take page-aligned memory."""
        return PageBuffer(nbytes)

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Take page-aligned memory."""
        return PageBuffer(nbytes)

    def free(self, buffer: Buffer) -> None:
        """Give memory back."""
        assert isinstance(buffer, PageBuffer)  # noqa: S101  (it came from here)
        buffer.free()

    def upload(self, source: NDArray[Any], target: Block, after: After) -> Completion:
        """Copy rows into a tile."""
        _wait_for(after)
        np.copyto(view(target), source)
        return DONE

    def download(self, source: Block, target: NDArray[Any], after: After) -> Completion:
        """Copy rows out of a tile."""
        _wait_for(after)
        np.copyto(target, view(source))
        return DONE

    def gemm(
        self, alpha: complex, a: Block, b: Block, beta: complex, c: Block, after: After
    ) -> Completion:
        """Queue a large product; call threaded BLAS for a small one."""
        _wait_for(after)
        gemm = _gemm(alpha, a, b, beta, c)
        gemm.check()
        if gemm.scalars[0] == 0:
            self.synchronize()
            _scale(gemm.scalars[1], c)
            return DONE
        return self._multiply(gemm, a, b, c)

    def gemm_exact(
        self, a: Block, b: Block, beta: float, c: Block, terms: int, after: After
    ) -> Completion:
        """Queue a large product, as `gemm`."""
        _wait_for(after)
        factors = _gemm(1.0, a, b, 0.0, c)
        factors.check()
        return self._multiply(WidenedGemm(factors, host_view(c), beta, terms), a, b, c)

    def _multiply(self, gemm: AnyGemm, a: Block, b: Block, c: Block) -> Completion:
        if gemm.m * gemm.n * gemm.k >= _WORTH_DRAWING and self._draws_blocks():
            if self._queue is None or not self._queue.usable:
                self._queue = GemmQueue(self._threads)
                weakref.finalize(self, self._queue.stop).atexit = False
            return self._queue.submit(gemm, (a, b, c))
        self.synchronize()
        with SINGLE_THREADED if _is_streamed(gemm, a, b) else nullcontext():
            gemm.run()
        return DONE

    def trsm(self, a: Block, b: Block, form: Triangle, after: After) -> Completion:
        """Call BLAS, to which a row-major block is its column-major transpose."""
        from hdgemm import fortran  # SciPy's linear algebra takes long to import

        self._wait(after)
        fortran.trsm(host_view(a).T, host_view(b).T, **form.of_transposes()._asdict())
        return DONE

    def permute(self, block: Block, moves: Moves, after: After, axis: int = 0) -> Completion:
        """Gather the rows that change, then put them in their places."""
        self._wait(after)
        rows = host_view(block) if axis == 0 else host_view(block).T
        rows[moves.places] = rows[moves.sources]
        return DONE

    def copy(self, source: Block, target: Block, after: After) -> Completion:
        """Copy from tile to tile."""
        self._wait(after)
        np.copyto(host_view(target), host_view(source))
        return DONE

    def conjugate(self, block: Block, after: After) -> Completion:
        """Conjugate in place."""
        self._wait(after)
        np.conjugate(host_view(block), out=host_view(block))
        return DONE

    def getrf(self, panel: Block, after: After) -> tuple[NDArray[np.int64], int]:
        """Call LAPACK."""
        from hdgemm import fortran

        with self._columns(panel, after) as columns:
            return fortran.getrf(columns)

    def geqrf(self, panel: Block, after: After) -> NDArray[Any]:
        """Call LAPACK."""
        from hdgemm import fortran

        with self._columns(panel, after) as columns:
            t = np.zeros((panel.cols, panel.cols), columns.dtype, "F")
            fortran.geqrt(columns, t)
            return t.diagonal().copy()

    def potrf(self, block: Block, after: After) -> int:
        """Call LAPACK."""
        from hdgemm import fortran

        with self._columns(block, after) as columns:
            return fortran.potrf(columns)

    @contextmanager
    def _columns(self, block: Block, after: After) -> Iterator[NDArray[Any]]:
        """Yield a column-major copy of a block, and copy it back."""
        self._wait(after)
        columns = np.array(host_view(block), order="F")
        yield columns
        host_view(block)[...] = columns

    def _wait(self, after: After) -> None:
        """Wait for earlier operations of other devices and for all that are queued here."""
        _wait_for(after)
        self.synchronize()

    def _draws_blocks(self) -> bool:
        if self._draws is None:
            self._draws = draws_blocks(self._threads)
        return self._draws

    def synchronize(self) -> None:
        """Wait for the queued products."""
        if self._queue is not None and self._queue.usable:
            self._queue.wait()

    def close(self) -> None:
        """Finish the queued products and end the threads."""
        if self._queue is not None and self._queue.usable:
            self._queue.close()
        self._queue = None


def _wait_for(after: After) -> None:
    for completion in after:
        completion.wait()


def _gemm(alpha: complex, a: Block, b: Block, beta: complex, c: Block) -> Gemm:
    dtype = a.tile.dtype
    return Gemm(
        routine_for(dtype),
        np.array([alpha, beta]).astype(dtype),
        a.tile.trans,
        b.tile.trans,
        c.rows,
        c.cols,
        a.rows if a.tile.trans else a.cols,
        _address(a),
        a.tile.ld,
        _address(b),
        b.tile.ld,
        _address(c),
        c.tile.ld,
    )


def _is_streamed(gemm: AnyGemm, a: Block, b: Block) -> bool:
    """Say whether a loaded tile is multiplied by a few rows or columns."""
    larger = a if gemm.m >= gemm.n else b
    return min(gemm.m, gemm.n) <= _FEW and not isinstance(larger.tile.buffer, np.ndarray)


def _address(block: Block) -> int:
    buffer = block.tile.buffer  # the caller's own array where the operand is resident
    array: NDArray[Any] = getattr(buffer, "array", buffer)
    return int(array.ctypes.data) + first_byte(block)


def _scale(beta: Any, c: Block) -> None:
    """C := beta·C: with alpha = 0, A and B are not read, which OpenBLAS 0.3.30 does not hold."""
    found = host_view(c)
    if beta == 0:
        found[...] = 0
    else:
        with np.errstate(all="ignore"):
            found *= beta


def host_view(block: Block) -> NDArray[Any]:
    """Return a block of a tile in host memory, or of the caller's own array."""
    array = block.tile.buffer
    if isinstance(array, np.ndarray):
        part: NDArray[Any] = array[
            block.row : block.row + block.rows, block.col : block.col + block.cols
        ]
        return part
    return view(block)
