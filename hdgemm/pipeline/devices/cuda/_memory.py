"""The memory that a CUDA device takes: its own, and page-locked host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.devices.page_buffer import PageBuffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda._driver import Driver

#: Memory that is page-locked, by address. It stays mapped where a context is lost, or a device is
#: dropped without `close`: else the driver would take later memory at its address for page-locked,
#: and copy the old pages in its place.
_LOCKED: Final[dict[int, NDArray[np.uint8]]] = {}


class DeviceBuffer:
    """Device memory from one allocation; `pointer` is its device address."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        self._driver = driver
        # The driver refuses to allocate nothing.
        self.pointer = driver.malloc(max(1, nbytes))

    def release(self) -> None:
        """Give the memory back."""
        self._driver.release("free", self.pointer)


class PinnedBuffer:
    """Page-locked, mapped host memory: DMA reaches it, and so does a kernel at `pointer`.

    `cudaHostAlloc` takes 0.4 to 0.6 s per GiB on an H100's host. To touch huge pages in several
    threads and to page-lock them then takes 0.07 s, and DMA is as fast.
    """

    def __init__(self, driver: Driver, nbytes: int) -> None:
        driver.check_host_memory(nbytes)
        self._driver = driver
        self._pages = PageBuffer(nbytes)
        self._address = self._pages.array.ctypes.data
        try:
            self._pages.wipe_on_fork()
            self._pages.touch()
            # The driver refuses to page-lock nothing.
            driver.host_register(self._address, max(1, nbytes))
            _LOCKED[self._address] = self._pages.array
            self.pointer = driver.device_pointer(self._address)
        except BaseException:
            self.release()
            raise

    @property
    def array(self) -> NDArray[np.uint8]:
        """All its bytes, page-aligned; none after `release`."""
        return self._pages.array

    @property
    def nbytes(self) -> int:
        """Bytes that were asked for."""
        return self._pages.nbytes

    def release(self) -> None:
        """Give the memory back; views that are left keep it mapped, but not page-locked."""
        if self._address in _LOCKED:
            self._driver.release("hostUnregister", self._address)
            if self._driver.lost is None:
                del _LOCKED[self._address]
        self._pages.free()
