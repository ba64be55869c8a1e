"""Memory of a stand-in: everything lies in host memory, but who may touch what is checked."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.pipeline.devices.cuda.standin.streams import CUDARuntimeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorIllegalAddress,
#: cudaErrorHostMemoryAlreadyRegistered, cudaErrorHostMemoryNotRegistered.
INVALID_VALUE: Final = 1
NO_MEMORY: Final = 2
ILLEGAL_ADDRESS: Final = 700
REGISTERED: Final = 712
NOT_REGISTERED: Final = 713

PAGEABLE, PINNED, DEVICE = 0, 1, 2
_PAGE: Final = 4096


class PointerAttributes(NamedTuple):
    """As CuPy's: the kind of memory and the GPU; host pointers are device pointers."""

    type: int
    device: int
    devicePointer: int  # noqa: N815  (CuPy's name)
    hostPointer: int  # noqa: N815


class _Range(NamedTuple):
    start: int
    nbytes: int
    kind: int
    device: int
    owner: NDArray[np.uint8] | None


class Memory:
    """What is allocated and registered.

    Fresh device memory is all ones: NaN in every float dtype, so that what is read before it is
    written shows in the product.
    """

    def __init__(self, device_bytes: int, host_bytes: int) -> None:
        self._room = {DEVICE: device_bytes, PINNED: host_bytes}
        self._held = {DEVICE: 0, PINNED: 0}
        self._ranges: dict[int, _Range] = {}

    def allocate(self, nbytes: int, kind: int, device: int) -> int:
        """Take memory and return its address, on a page boundary for host memory."""
        if nbytes <= 0:
            raise CUDARuntimeError(INVALID_VALUE, f"{nbytes} bytes")
        if self._held[kind] + nbytes > self._room[kind]:
            raise CUDARuntimeError(NO_MEMORY, "out of memory")
        memory = np.full(nbytes + _PAGE, 0xFF, np.uint8)
        start = -(-memory.ctypes.data // _PAGE) * _PAGE
        self._held[kind] += nbytes
        self._ranges[start] = _Range(start, nbytes, kind, device, memory)
        return start

    def release(self, start: int, kind: int) -> None:
        """Give memory back."""
        found = self._ranges.get(start)
        if found is None or found.kind != kind or found.owner is None:
            raise CUDARuntimeError(INVALID_VALUE, "not the start of an allocation")
        del self._ranges[start]
        self._held[kind] -= found.nbytes

    def register(self, start: int, nbytes: int, device: int) -> None:
        """Page-lock a range of the application's memory; pages are locked once only."""
        first, last = start // _PAGE, (start + nbytes - 1) // _PAGE
        for found in self._ranges.values():
            if found.kind == PINNED and not (
                last < found.start // _PAGE or first > (found.start + found.nbytes - 1) // _PAGE
            ):
                raise CUDARuntimeError(REGISTERED, "part or all of the memory is locked already")
        self._ranges[start] = _Range(start, nbytes, PINNED, device, None)

    def unregister(self, start: int) -> None:
        """Unlock a range that was registered."""
        found = self._ranges.get(start)
        if found is None or found.owner is not None:
            raise CUDARuntimeError(NOT_REGISTERED, "not the start of a registered range")
        del self._ranges[start]

    def info(self) -> tuple[int, int]:
        """Return free and total bytes of device memory."""
        return self._room[DEVICE] - self._held[DEVICE], self._room[DEVICE]

    def find(self, pointer: int) -> _Range | None:
        """Return the range an address lies in."""
        for found in self._ranges.values():
            if found.start <= pointer < found.start + found.nbytes:
                return found
        return None

    def attributes(self, pointer: int) -> PointerAttributes:
        """Say what an address is."""
        found = self.find(pointer)
        if found is None:
            return PointerAttributes(PAGEABLE, 0, 0, pointer)
        return PointerAttributes(found.kind, found.device, pointer, pointer)

    def address_range(self, pointer: int) -> tuple[int, int] | None:
        """Return the start and the bytes of the range an address lies in."""
        found = self.find(pointer)
        return None if found is None else (found.start, found.nbytes)

    def check(self, pointer: int, nbytes: int, kinds: tuple[int, ...]) -> bool:
        """Say whether all of a range lies in one allocation of one of these kinds."""
        found = self.find(pointer)
        return (
            found is not None
            and found.kind in kinds
            and pointer + nbytes <= found.start + found.nbytes
        )

    def held(self) -> int:
        """Return how many ranges are allocated or registered."""
        return len(self._ranges)


def matrix(address: int, pitch: int, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """View memory at an address as rows of `dtype` that begin `pitch` bytes apart."""
    item = np.dtype(dtype).itemsize
    extent = (shape[0] - 1) * pitch + shape[1] * item
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * extent).from_address(address))
    return np.ndarray(shape, dtype, raw, 0, (pitch, item))
