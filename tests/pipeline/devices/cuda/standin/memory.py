"""Memory of a stand-in: all of it is host memory, but every access is checked."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tests.pipeline.devices.cuda.standin.streams import CUDARuntimeError

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
#: The driver hands out device memory in pieces of so many bytes.
PIECE: Final = 2 << 20
#: The key of page-locked host memory among the GPUs' numbers.
_HOST: Final = -1


class PointerAttributes(NamedTuple):
    """The kind of memory, the GPU, and its address there, by CuPy's names."""

    type: int
    device: int
    devicePointer: int  # noqa: N815


class _Range(NamedTuple):
    start: int
    nbytes: int
    kind: int
    device: int
    owner: NDArray[np.uint8] | None


class Memory:
    """Allocated and registered memory.

    The bits of fresh device memory are all ones, NaN in every float dtype: reading it before
    writing it shows in the product.
    """

    def __init__(self, devices: int, device_bytes: int, host_bytes: int) -> None:
        self._room = {**dict.fromkeys(range(devices), device_bytes), _HOST: host_bytes}
        self._held = dict.fromkeys(self._room, 0)
        self._ranges: dict[int, _Range] = {}

    def allocate(self, nbytes: int, device: int) -> int:
        """Take device memory and return its address."""
        _check_size(nbytes)
        self.reserve(nbytes, device)
        memory = np.full(nbytes + _PAGE, 0xFF, np.uint8)
        start = -(-memory.ctypes.data // _PAGE) * _PAGE
        self._ranges[start] = _Range(start, nbytes, DEVICE, device, memory)
        return start

    def release(self, start: int) -> None:
        """Give device memory back."""
        found = self._ranges.get(start)
        if found is None or found.kind != DEVICE:
            raise CUDARuntimeError(INVALID_VALUE, "not the start of an allocation")
        del self._ranges[start]
        self.reserve(-found.nbytes, found.device)

    def reserve(self, nbytes: int, owner: int) -> None:
        """Count bytes as held by a GPU, in whole pieces, or by the host; negative ones as free."""
        if owner != _HOST:
            nbytes = (-(-abs(nbytes) // PIECE)) * PIECE * (1 if nbytes > 0 else -1)
        if self._held[owner] + nbytes > self._room[owner]:
            raise CUDARuntimeError(NO_MEMORY, "out of memory")
        self._held[owner] += nbytes

    def register(self, start: int, nbytes: int, device: int) -> None:
        """Page-lock a range of host memory; pages are locked once only."""
        _check_size(nbytes)
        first, last = start // _PAGE, (start + nbytes - 1) // _PAGE
        for found in self._ranges.values():
            if found.kind == PINNED and not (
                last < found.start // _PAGE or first > (found.start + found.nbytes - 1) // _PAGE
            ):
                raise CUDARuntimeError(REGISTERED, "part or all of the memory is locked already")
        self.reserve(nbytes, _HOST)
        self._ranges[start] = _Range(start, nbytes, PINNED, device, None)

    def unregister(self, start: int) -> None:
        """Unlock a range that was registered."""
        found = self._ranges.get(start)
        if found is None or found.kind != PINNED:
            raise CUDARuntimeError(NOT_REGISTERED, "not the start of a registered range")
        del self._ranges[start]
        self.reserve(-found.nbytes, _HOST)

    def info(self, device: int) -> tuple[int, int]:
        """Return free and total bytes of a GPU's memory."""
        return self._room[device] - self._held[device], self._room[device]

    def find(self, pointer: int) -> _Range | None:
        """Return the range an address lies in."""
        for found in self._ranges.values():
            if found.start <= pointer < found.start + found.nbytes:
                return found
        return None

    def attributes(self, ptr: int) -> PointerAttributes:
        """Say what an address is."""
        found = self.find(ptr)
        if found is None:
            return PointerAttributes(PAGEABLE, 0, 0)
        return PointerAttributes(found.kind, found.device, ptr)

    def address_range(self, pointer: int) -> tuple[int, int] | None:
        """Return the start and the bytes of the range an address lies in."""
        found = self.find(pointer)
        return None if found is None else (found.start, found.nbytes)

    def check(self, pointer: int, nbytes: int, kinds: tuple[int, ...], device: int) -> bool:
        """Say whether a range lies in one allocation of these kinds; device memory on `device`."""
        found = self.find(pointer)
        return (
            found is not None
            and found.kind in kinds
            and (found.kind != DEVICE or found.device == device)
            and pointer + nbytes <= found.start + found.nbytes
        )

    def held(self) -> int:
        """Return how many ranges are allocated or registered."""
        return len(self._ranges)


def _check_size(nbytes: int) -> None:
    if nbytes <= 0:
        raise CUDARuntimeError(INVALID_VALUE, f"{nbytes} bytes")


def matrix(address: int, pitch: int, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """View memory at an address as rows of `dtype` that begin `pitch` bytes apart."""
    item = np.dtype(dtype).itemsize
    extent = (shape[0] - 1) * pitch + shape[1] * item
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * extent).from_address(address))
    return np.ndarray(shape, dtype, raw, 0, (pitch, item))
