"""The functions of ``libcuda.so.1`` that CuPy does not bind: current contexts, pointers."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

#: `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, `..._RANGE_START_ADDR` and `..._RANGE_SIZE`.
_ORDINAL: Final = 9
_RANGE: Final = (11, 12)


class CUDADriverError(RuntimeError):
    """A `CUresult` that is not success."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} returned {status}")
        self.status = status


class DriverLibrary:
    """The driver's library; `OSError` where it is not installed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._contexts: dict[int, ctypes.c_void_p] = {}

    @staticmethod
    @functools.cache
    def loaded() -> DriverLibrary:
        """Return the library of this process."""
        return DriverLibrary()

    def push(self, index: int) -> None:
        """Make a GPU's primary context current; it is kept until the process ends.

        `cudaSetDevice` would have to be undone by another `cudaSetDevice`, which makes a context
        on the caller's GPU even where the caller never used it.
        """
        context = self._contexts.get(index)
        if context is None:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(device), index)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[index] = context
        self._call("cuCtxPushCurrent_v2", context)

    def pop(self) -> None:
        """Make the context below it current again; errors of earlier work are not reported here."""
        self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def device_of(self, pointer: int) -> int:
        """Return the GPU that an address belongs to."""
        value = ctypes.c_int()
        self._call("cuPointerGetAttribute", ctypes.byref(value), _ORDINAL, ctypes.c_uint64(pointer))
        return value.value

    def address_range(self, pointer: int) -> tuple[int, int] | None:
        """Return the start and bytes of the allocation that holds an address."""
        values = []
        for attribute in _RANGE:
            value = ctypes.c_uint64()
            get = self._library.cuPointerGetAttribute
            if get(ctypes.byref(value), attribute, ctypes.c_uint64(pointer)) != 0:
                return None
            values.append(value.value)
        return values[0], values[1]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise CUDADriverError(name, status)
