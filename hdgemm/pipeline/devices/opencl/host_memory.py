"""A device that works in host memory: it reaches an application's arrays where they lie."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from hdgemm.pipeline.devices.opencl.device import OpenCLDevice

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray


class _Reached(AbstractContextManager["_Reached"]):
    """A hold on memory that nothing has to be done for."""

    seconds = 0.0

    def __exit__(self, *_: object) -> None:
        return


class SharedMemoryDevice(OpenCLDevice):
    """A CPU: uploads pack straight from the caller's A and B, downloads write into its C.

    All of host memory is to it what page-locked memory is to a GPU, so load1 and store2, which
    would take cores from the kernel, fall away (the paper's Observation 2).
    """

    def is_pinned(self, array: NDArray[Any]) -> bool:
        """Say that an array needs no staging."""
        del array
        return True

    def register(self, array: NDArray[Any]) -> _Reached:
        """Do nothing: there is nothing to lock."""
        del array
        return _Reached()

    def pin_cost(self) -> tuple[float, float]:
        """Return the seconds per byte of locking and of unlocking: none."""
        return 0.0, 0.0
