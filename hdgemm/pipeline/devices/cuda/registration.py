"""Page-locking arrays that the application allocated, so that DMA moves them without staging."""

from __future__ import annotations

import mmap
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.cuda.driver import Driver

_SAMPLE_BYTES: Final = 64 << 20


class PinSeconds(NamedTuple):
    """What page-locking costs, in seconds per byte."""

    register: float
    unregister: float


class _Pin:
    """One range that this process locked, and how many runs use it; the array keeps it alive."""

    def __init__(self, driver: Driver, array: NDArray[Any], bounds: tuple[int, int]) -> None:
        self.driver = driver
        self.array = array
        self.bounds = bounds
        self.users = 0


class Lease:
    """One run's use of page-locked memory; released once, by `release` or a ``with`` block.

    `seconds` is what locking took, `nbytes` what was locked: both 0 where it was locked already.
    """

    def __init__(self, pins: Pins, pin: _Pin | None, nbytes: int = 0, seconds: float = 0.0) -> None:
        self._pins = pins
        self._pin = pin
        self.nbytes = nbytes
        self.seconds = seconds

    def release(self) -> None:
        """Unlock the memory if nobody else uses it."""
        pin, self._pin = self._pin, None
        if pin is not None:
            self._pins.drop(pin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class Pins:
    """All ranges that this process locked, counted, so that no run unlocks another's array."""

    def __init__(self) -> None:
        # Held while the driver locks pages: a second run that asks for the same range has to
        # wait for them anyway.
        self._lock = threading.Lock()
        self._pins: list[_Pin] = []
        self._cost: PinSeconds | None = None
        self._links: dict[int, float] = {}

    def link_rate(self, gpu: int, measure: Callable[[], float]) -> float:
        """Return the bytes per second of a GPU's link; measured at the first question."""
        with self._lock:
            if gpu not in self._links:
                self._links[gpu] = measure()
            return self._links[gpu]

    def cost(self, driver: Driver) -> PinSeconds:
        """Return what locking costs on this machine; measured at the first question."""
        with self._lock:
            if self._cost is None:
                self._cost = measure_pinning(driver)
            return self._cost

    def register(self, driver: Driver, array: NDArray[Any]) -> Lease:
        """Lock the memory of an array, or join those who have.

        Raises
        ------
        InputError
            When the array lies in a mapped file, whose pages are not the application's to lock.
        DeviceError
            When the driver refuses: pages shared with another locked array, a system limit. The
            array can still travel through staging.
        """
        if in_mapped_file(array):
            raise InputError(
                "a memory-mapped file cannot be page-locked; let it go through staging"
            )
        low, high = byte_bounds(array)
        with self._lock:
            pin = next((p for p in self._pins if p.bounds[0] <= low and high <= p.bounds[1]), None)
            if pin is None and (low == high or is_pinned(driver, array)):
                return Lease(self, None)
            nbytes, began = 0, time.perf_counter()
            if pin is None:
                driver.host_register(low, high - low)
                pin, nbytes = _Pin(driver, array, (low, high)), high - low
                self._pins.append(pin)
            pin.users += 1
            seconds = time.perf_counter() - began if nbytes else 0.0
            return Lease(self, pin, nbytes, seconds)

    def drop(self, pin: _Pin) -> None:
        """Count one user less; the last one unlocks."""
        with self._lock:
            pin.users -= 1
            if pin.users == 0:
                self._pins.remove(pin)
                pin.driver.host_unregister(pin.bounds[0])


def is_pinned(driver: Driver, array: NDArray[Any]) -> bool:
    """Say whether the driver can reach all of an array by DMA.

    Both ends must be page-locked and, where the driver tells the extent of the allocation that
    holds the first byte, the last byte must lie in the same one.
    """
    low, high = byte_bounds(array)
    if low == high or any(driver.memory_kind(end)[0] != "pinned" for end in (low, high - 1)):
        return False
    allocation = driver.api.address_range(low)
    return allocation is None or high <= sum(allocation)


def in_mapped_file(array: NDArray[Any]) -> bool:
    """Say whether an array is a view of a memory-mapped file."""
    owner: Any = array
    while owner is not None:
        if isinstance(owner, mmap.mmap | np.memmap):
            return True
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return False


def measure_pinning(driver: Driver, nbytes: int = _SAMPLE_BYTES) -> PinSeconds:
    """Time the locking and unlocking of `nbytes` of touched memory."""
    array = np.ones(nbytes, np.uint8)
    began = time.perf_counter()
    driver.host_register(array.ctypes.data, nbytes)
    locked = time.perf_counter()
    driver.host_unregister(array.ctypes.data)
    unlocked = time.perf_counter()
    return PinSeconds((locked - began) / nbytes, (unlocked - locked) / nbytes)
