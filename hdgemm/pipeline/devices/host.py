"""The host as a device: staging is device memory, and mult1 is the host's BLAS."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.pipeline.devices.dense import first_byte, view
from hdgemm.pipeline.devices.host_blas import Routine, find_routines
from hdgemm.pipeline.devices.protocol import DONE
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Block, Buffer, Completion, HostBuffer
    from hdgemm.pipeline.plan import Operand

_HUGE_PAGE: Final = 2 << 20


class PageBuffer:
    """Anonymous memory, page-aligned, in huge pages where the system gives them.

    Huge pages take the first touch of a slot from hundreds of thousands of page faults to
    hundreds.
    """

    def __init__(self, nbytes: int) -> None:
        try:
            self._map = mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise DoesNotFitError(
                f"the system refused {nbytes:,} bytes of memory; lower host_memory",
                requested=nbytes,
            ) from error
        if nbytes >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes that were asked for."""
        return self.array.nbytes

    def free(self) -> None:
        """Give the memory back, unless a view of it is still held; then with that view."""
        self.array = np.empty(0, np.uint8)
        try:
            self._map.close()
        except BufferError:
            return


class HostDevice:
    """The CPU behind the device protocol; every method has finished when it returns."""

    def __init__(self, memory_bytes: int = 1 << 62) -> None:
        self.spec = DeviceSpec("host", unified=True, memory_bytes=memory_bytes)

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

    def upload(
        self, source: NDArray[Any], target: Block, after: Sequence[Completion]
    ) -> Completion:
        """Copy rows into a tile."""
        for completion in after:
            completion.wait()
        np.copyto(view(target), source)
        return DONE

    def download(
        self, source: Block, target: NDArray[Any], after: Sequence[Completion]
    ) -> Completion:
        """Copy rows out of a tile."""
        for completion in after:
            completion.wait()
        np.copyto(target, view(source))
        return DONE

    def gemm(
        self,
        alpha: complex,
        a: Block,
        b: Block,
        beta: complex,
        c: Block,
        after: Sequence[Completion],
    ) -> Completion:
        """Call BLAS on row-major blocks: in its column-major eyes C' = B'·A'."""
        for completion in after:
            completion.wait()
        dtype = c.tile.dtype
        m, n = c.rows, c.cols
        k = a.rows if a.tile.trans else a.cols
        scalar = np.array([alpha, beta]).astype(dtype)
        routine = _ROUTINES[dtype.char]
        _check_extents(routine, m, n, k, a.tile.ld, b.tile.ld, c.tile.ld)
        routine.call(
            _flag(b),
            _flag(a),
            _int(n),
            _int(m),
            _int(k),
            scalar.ctypes.data,
            _address(b),
            _int(b.tile.ld),
            _address(a),
            _int(a.tile.ld),
            scalar.ctypes.data + dtype.itemsize,
            _address(c),
            _int(c.tile.ld),
        )
        return DONE

    def synchronize(self) -> None:
        """Return at once: nothing is ever enqueued."""

    def close(self) -> None:
        """Return at once: nothing is held."""


def _flag(block: Block) -> bytes:
    return b"T" if block.tile.trans else b"N"


def _check_extents(routine: Routine, *extents: int) -> None:
    if max(extents) > routine.most:
        raise InputError(
            f"an extent of {max(extents):,} is more than this BLAS takes ({routine.most:,}); "
            "force a smaller tile with Options(tile=...)"
        )


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int64(value))


def _address(block: Block) -> int:
    buffer = block.tile.buffer  # the caller's own array where the operand is resident
    array: NDArray[Any] = getattr(buffer, "array", buffer)
    return int(array.ctypes.data) + first_byte(block)


_ROUTINES: Final = find_routines()
