"""An NVIDIA GPU behind the device protocol: three streams ordered by events, one cuBLAS handle.

Tiles are dense and row-major. Uploads, products and downloads each have their own stream. An
operation waits on the GPU for the events of the operations it comes after; enqueueing never
blocks the host. No stream waits for the legacy default stream.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hdgemm.errors import DeviceError, InputError
from hdgemm.matrices.device_arrays import UNKNOWN_STREAM
from hdgemm.pipeline.devices.cuda._calls import Rows, copy_calls, gemm_call
from hdgemm.pipeline.devices.cuda._driver import DEVICE_TO_HOST, HOST_TO_DEVICE, Driver
from hdgemm.pipeline.devices.cuda._events import Clock, EventPool, Lane
from hdgemm.pipeline.devices.cuda._memory import DeviceBuffer, PinnedBuffer
from hdgemm.pipeline.devices.protocol import Block, Tile, first_byte
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.matrices.device_arrays import DeviceArray
    from hdgemm.pipeline.devices.protocol import After, Buffer, Completion, HostBuffer
    from hdgemm.pipeline.plan import Operand

#: Extents that fill cuBLAS's thread blocks of every dtype on Volta to Blackwell.
GRANULARITY: Final = (128, 128, 32)
#: Left free for the kernels that cuBLAS loads at the first product of another dtype or shape.
_HEADROOM: Final = 128 << 20
#: Bytes of the pieces in which the driver hands out device memory.
ALLOCATION_BYTES: Final = 2 << 20
#: Extent of the product that warms cuBLAS up.
_WARM_UP: Final = 128


class CudaDevice:
    """One GPU. Every method may be called from any thread, and leaves its current GPU as it was.

    It holds at most `memory_bytes` of device memory; None for all that is free.
    """

    host_cores = 0
    packs = False
    locks_pages = True

    def __init__(self, driver: Driver, memory_bytes: int | None = None) -> None:
        self.driver = driver
        self.facts = driver.facts()
        self._taken: set[DeviceBuffer | PinnedBuffer] = set()
        self._lock = threading.Lock()
        with contextlib.ExitStack() as resources:
            self._starts = EventPool(driver, blocking=False)
            resources.callback(self._starts.close)
            self._ends = EventPool(driver, blocking=True)
            resources.callback(self._ends.close)
            clock = Clock(driver, self._starts, driver.stream_within(resources))
            self._up, self._compute, self._down = (
                Lane(driver, clock, self._starts, self._ends, driver.stream_within(resources))
                for _ in range(3)
            )
            self._blas = driver.blas_within(resources)
            self._warm_up()
            free, _ = driver.memory()
            self._resources = resources.pop_all()
        room = max(0, free - _HEADROOM)
        if memory_bytes is not None:
            room = min(room, memory_bytes)
        self.spec = DeviceSpec(
            f"cuda:{driver.index}",
            False,
            room,
            room,
            GRANULARITY,
            ALLOCATION_BYTES,
            self.facts.fp64_ratio,
        )

    def _warm_up(self) -> None:
        """Multiply once: cuBLAS takes its workspace and loads its kernels at the first product."""
        n, dtype = _WARM_UP, np.dtype(np.float64)
        memory = DeviceBuffer(self.driver, 2 * n * n * dtype.itemsize)
        try:
            tiles = [
                Tile("C", memory, n, n, n, dtype, origin=part * n * n * dtype.itemsize)
                for part in range(2)
            ]
            a, c = (Block(tile, 0, 0, n, n) for tile in tiles)
            self.gemm(1.0, a, a, 0.0, c, ()).wait()
        finally:
            memory.release()

    def slot_bytes(self, _operand: Operand, rows: int, cols: int, dtype: np.dtype[Any]) -> int:
        """Return the bytes of a dense tile in whole pieces of the driver's memory."""
        nbytes = rows * cols * dtype.itemsize
        return -(-nbytes // ALLOCATION_BYTES) * ALLOCATION_BYTES

    def allocate(self, nbytes: int) -> Buffer:
        """Take device memory in one allocation."""
        buffer = DeviceBuffer(self.driver, nbytes)
        with self._lock:
            self._taken.add(buffer)
        return buffer

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Take page-locked host memory, which kernels reach as well."""
        buffer = PinnedBuffer(self.driver, nbytes)
        with self._lock:
            self._taken.add(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give memory back; all work on the GPU that uses it must be done."""
        with self._lock:
            own = buffer if isinstance(buffer, DeviceBuffer | PinnedBuffer) else None
            if own is None or own not in self._taken:
                raise DeviceError(f"{self.spec.name}: this memory is not held, or was freed before")
            self._taken.remove(own)
        own.release()

    def upload(self, source: NDArray[Any], target: Block, after: After) -> Completion:
        """Enqueue a copy into a tile, from staging or from page-locked application memory."""
        return self._copy(self._up, target, source, HOST_TO_DEVICE, after)

    def download(self, source: Block, target: NDArray[Any], after: After) -> Completion:
        """Enqueue a copy of part of a tile into staging or page-locked application memory."""
        return self._copy(self._down, source, target, DEVICE_TO_HOST, after)

    def _copy(
        self, lane: Lane, block: Block, array: NDArray[Any], direction: int, after: After
    ) -> Completion:
        itemsize = block.tile.dtype.itemsize
        if array.shape != (block.rows, block.cols) or array.dtype != block.tile.dtype:
            raise InputError(
                f"cannot copy between {array.shape} {array.dtype} in host memory and "
                f"{(block.rows, block.cols)} {block.tile.dtype} on {self.spec.name}"
            )
        on_device = self._rows(block)
        on_host = Rows(array.ctypes.data, array.strides[0])
        ends = (on_device, on_host) if direction == HOST_TO_DEVICE else (on_host, on_device)
        calls = copy_calls(*ends, block.cols * itemsize, block.rows)

        return lane.enqueue(
            lambda stream: self.driver.copy_all(calls, direction, stream), after, keep=array
        )

    def gemm(
        self, alpha: complex, a: Block, b: Block, beta: complex, c: Block, after: After
    ) -> Completion:
        """Enqueue a product; a C in staging is written by the kernel over the link."""
        scalars = np.array([alpha, beta]).astype(c.tile.dtype)
        pointer = scalars.ctypes.data
        addresses = self._address(a), self._address(b), self._address(c)
        call = gemm_call((pointer, pointer + scalars.itemsize), a, b, c, addresses)
        return self._compute.enqueue(
            lambda stream: self.driver.blas_call(call.routine, self._blas, call[1:], stream),
            after,
            keep=scalars,
        )

    def _address(self, block: Block) -> int:
        buffer = block.tile.buffer
        if isinstance(buffer, np.ndarray):
            if not self.reaches(buffer):
                raise InputError(f"{self.spec.name} cannot reach an array that is not page-locked")
            return int(buffer.ctypes.data) + first_byte(block)
        return int(buffer.pointer) + first_byte(block)

    def _rows(self, block: Block) -> Rows:
        return Rows(self._address(block), block.tile.ld * block.tile.dtype.itemsize)

    def accept(self, array: DeviceArray) -> None:
        """Take an array in device memory as a resident operand of the products to come.

        Waits for the work that its producer enqueued before: on the array's stream where the
        producer names one, else on every stream of the GPU. Raises `InputError` where it lies on
        another GPU, or is not device memory.
        """
        kind, index = self.driver.memory_kind(array.pointer)
        if kind not in ("device", "managed") or index != self.driver.index:
            raise InputError(
                f"the array is {kind} memory of cuda:{index}, the product runs on "
                f"{self.spec.name}; copy it there, or choose devices='cuda:{index}'"
            )
        if array.stream == UNKNOWN_STREAM:
            self.driver.synchronize()
        elif array.stream is not None:
            self.driver.synchronize_stream(array.stream)

    def reaches(self, array: NDArray[Any]) -> bool:
        """Say whether all of an application array is page-locked, so that DMA reaches it.

        Both ends must be page-locked and, where the driver tells the extent of the allocation
        that holds the first byte, the last byte must lie in the same one.
        """
        low, high = byte_bounds(array)
        ends = (low, high - 1)
        if low == high or any(self.driver.memory_kind(end)[0] != "pinned" for end in ends):
            return False
        allocation = self.driver.api.address_range(low)
        return allocation is None or high <= sum(allocation)

    def synchronize(self) -> None:
        """Wait for everything enqueued, failed or not, so that memory can be freed."""
        for lane in (self._up, self._compute, self._down):
            with contextlib.suppress(DeviceError):
                lane.synchronize()

    def close(self) -> None:
        """Give back everything held, memory that was not freed included; then raise an error that
        the driver returned for any of it.
        """
        self.synchronize()
        while self._taken:
            self._resources.callback(self._taken.pop().release)
        self._resources.close()
