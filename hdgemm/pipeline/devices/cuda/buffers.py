"""Device memory and page-locked host memory, as the buffers of the device protocol."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.driver import Driver

_PAGE: Final = 4096


class DeviceBuffer:
    """Device memory from one allocation; `pointer` is its device address."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.nbytes = nbytes
        self._driver = driver
        # The driver refuses to allocate nothing.
        self.pointer = driver.malloc(max(1, nbytes))

    def release(self) -> None:
        """Give the memory back."""
        self._driver.free(self.pointer)


class PinnedBuffer:
    """Page-locked, mapped host memory: DMA reaches it, and so does a kernel at `pointer`."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self._driver = driver
        self._base = driver.host_alloc(max(1, nbytes))
        if self._base % _PAGE:
            # Small allocations may share a page; direct reads from disk need a page boundary.
            driver.host_free(self._base)
            self._base = driver.host_alloc(nbytes + _PAGE)
        self.pointer = -(-self._base // _PAGE) * _PAGE
        self._array: NDArray[np.uint8] | None = np.ctypeslib.as_array(
            (ctypes.c_uint8 * nbytes).from_address(self.pointer)
        )

    @property
    def array(self) -> NDArray[np.uint8]:
        """All its bytes, 4096-byte aligned."""
        if self._array is None:
            raise ValueError("this staging memory was freed")
        return self._array

    @property
    def nbytes(self) -> int:
        """Bytes that were asked for."""
        return self.array.nbytes

    def release(self) -> None:
        """Give the memory back; no view of `array` may be used any more."""
        self._array = None
        self._driver.host_free(self._base)
