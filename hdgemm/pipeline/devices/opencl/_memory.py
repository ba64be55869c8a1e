"""Memory of an OpenCL device, and host memory that it reaches in place or by DMA."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.opencl._driver import driver_errors
from hdgemm.pipeline.devices.page_buffer import PageBuffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.opencl._driver import OwnerProcess

_PAGE = mmap.PAGESIZE


class DeviceBuffer:
    """Device memory; freed once."""

    def __init__(self, nbytes: int, memory: cl.Buffer) -> None:
        self.nbytes = nbytes
        self.memory = memory


class StagingBuffer(DeviceBuffer):
    """Host memory that the device reaches; `array` has at least `nbytes`, page-aligned."""

    def __init__(self, nbytes: int, memory: cl.Buffer, array: NDArray[np.uint8], skip: int) -> None:
        super().__init__(nbytes, memory)
        self.array = array
        #: Bytes from the start of `memory` to `array`.
        self.skip = skip
        self.address = array.ctypes.data


class MappedStaging(StagingBuffer):
    """Pinned staging that the driver allocated, mapped while the host may use it."""

    def __init__(self, context: cl.Context, queue: cl.CommandQueue, nbytes: int) -> None:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        memory = cl.Buffer(context, flags, nbytes + _PAGE)
        self._whole, _ = self._map(queue, memory)
        skip = -self._whole.ctypes.data % _PAGE
        super().__init__(nbytes, memory, self._whole[skip : skip + nbytes], skip)

    @staticmethod
    def _map(
        queue: cl.CommandQueue, memory: cl.Buffer, *, blocking: bool = True
    ) -> tuple[NDArray[np.uint8], cl.Event]:
        flags: Any = cl.map_flags.READ | cl.map_flags.WRITE
        mapped: Any = cl.enqueue_map_buffer(
            queue, memory, flags, 0, (memory.size,), np.dtype(np.uint8), is_blocking=blocking
        )
        array, event = mapped
        return array, event

    def unmap(self, queue: cl.CommandQueue, wait_for: list[cl.Event]) -> cl.Event:
        """Hand the memory to the device; the host must not touch it until `remap` is done."""
        mapping: Any = self._whole.base
        event: cl.Event = mapping.release(queue, wait_for=wait_for)
        return event

    def remap(self, queue: cl.CommandQueue) -> cl.Event:
        """Map the memory again, at the same address, so that the host sees the device's writes."""
        before = self._whole.ctypes.data
        self._whole, event = self._map(queue, self.memory, blocking=False)
        if self._whole.ctypes.data != before:
            raise DeviceError("the OpenCL driver moved mapped staging memory; use data-placement")
        return event


class Memory:
    """The buffers of one device: at most `limit` bytes in all, and `max_buffer` in one."""

    def __init__(
        self,
        context: cl.Context,
        owner: OwnerProcess,
        limit: int,
        max_buffer: int,
        *,
        zero_copy: bool,
    ) -> None:
        self._context, self._owner = context, owner
        self._limit = limit
        self._max_buffer = max_buffer
        self._zero_copy = zero_copy
        self._lock = threading.Lock()
        self._held = 0
        self._buffers: set[DeviceBuffer] = set()
        #: Staging by address.
        self._staging: list[StagingBuffer] = []

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Take device memory; see `Device.allocate`."""
        self._owner.check()
        with self._lock:
            available = min(self._max_buffer, self._limit - self._held)
            if nbytes > available:
                raise DoesNotFitError(
                    f"{nbytes:,} bytes asked of the OpenCL device, {self._held:,} of "
                    f"{self._limit:,} held, {self._max_buffer:,} at most in one buffer",
                    requested=nbytes,
                    available=available,
                    missing=nbytes - available,
                )
            with driver_errors("allocating device memory", requested=nbytes):
                memory = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, max(1, nbytes))
            buffer = DeviceBuffer(nbytes, memory)
            self._held += nbytes
            self._buffers.add(buffer)
        return buffer

    def allocate_staging(self, nbytes: int, queue: cl.CommandQueue) -> StagingBuffer:
        """Take host memory; see `Device.allocate_staging`."""
        self._owner.check()
        with driver_errors("allocating staging memory", requested=nbytes):
            staging = (
                self._page_staging(nbytes)
                if self._zero_copy
                else MappedStaging(self._context, queue, max(1, nbytes))
            )
        with self._lock:
            bisect.insort(self._staging, staging, key=lambda each: each.address)
            self._buffers.add(staging)
        return staging

    def _page_staging(self, nbytes: int) -> StagingBuffer:
        array = PageBuffer(-(-max(1, nbytes) // _PAGE) * _PAGE).array
        return StagingBuffer(nbytes, self._wrap(array), array[: max(1, nbytes)], 0)

    def _wrap(self, array: NDArray[np.uint8]) -> cl.Buffer:
        """Return a buffer whose memory is host memory that the device uses in place."""
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=array)

    def constant(self, array: NDArray[Any]) -> cl.Buffer:
        """Return a small buffer that holds a copy of an array, and lives as long as its handle."""
        self._owner.check()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        with driver_errors("allocating device memory", requested=array.nbytes):
            return cl.Buffer(self._context, flags, hostbuf=array)

    def buffer_over(self, array: NDArray[Any]) -> tuple[cl.Buffer, int]:
        """Return a buffer whose memory is `array`'s, and the bytes to its first element.

        Only for a device with zero copy. Memory outside staging is wrapped in whole pages for
        this one use.
        """
        self._owner.check()
        address, nbytes = array.ctypes.data, span_bytes(array)
        with self._lock:
            at = bisect.bisect_right(self._staging, address, key=lambda each: each.address) - 1
            if at >= 0:
                staging = self._staging[at]
                if address + nbytes <= staging.address + staging.array.nbytes:
                    return staging.memory, staging.skip + address - staging.address
        begin = address // _PAGE * _PAGE
        end = -(-(address + nbytes) // _PAGE) * _PAGE
        return self._wrap(bytes_at(begin, end - begin)), address - begin

    def free(self, buffer: object) -> None:
        """Give memory back; see `Device.free`."""
        self._owner.check()
        with self._lock:
            if not isinstance(buffer, DeviceBuffer) or buffer not in self._buffers:
                raise DeviceError("this memory is not held by the OpenCL device: freed before?")
            self._buffers.remove(buffer)
            if isinstance(buffer, StagingBuffer):
                self._staging.remove(buffer)
            else:
                self._held -= buffer.nbytes
        with driver_errors("freeing memory"):
            buffer.memory.release()


def span_bytes(array: NDArray[Any]) -> int:
    """Return the bytes from the first element of a 2-D array to the end of its last."""
    rows, cols = array.shape
    return int((rows - 1) * array.strides[0] + cols * array.itemsize)


def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory at an address as an array; the caller keeps the memory alive."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
