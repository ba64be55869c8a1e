"""The stand-in's CUDA runtime: the functions of `cupy.cuda.runtime` that the device calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.pipeline.devices.cuda.standin.memory import (
    DEVICE,
    INVALID_VALUE,
    PINNED,
    PointerAttributes,
    matrix,
)
from hdgemm.pipeline.devices.cuda.standin.streams import CUDARuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.pipeline.devices.cuda.standin.standin import StandIn

_HOST_TO_DEVICE: Final = 1
#: The version of CUDA that the stand-in claims, as the driver writes it.
_VERSION: Final = 13000
#: cudaErrorInvalidDevice.
_INVALID_DEVICE: Final = 101
#: Portable and mapped.
_HOST_FLAGS: Final = 1 | 2
_BLOCKING: Final = 1


class Runtime:
    """Methods take their arguments in the order, and by the names, of CuPy's functions."""

    def __init__(self, standin: StandIn, devices: int) -> None:
        self._standin = standin
        self._devices = devices

    def names(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by CuPy's names."""
        streams, memory = self._standin.streams, self._standin.memory
        return {
            "driverGetVersion": lambda: _VERSION,
            "runtimeGetVersion": lambda: _VERSION,
            "getDeviceCount": lambda: self._devices,
            "getDevice": lambda: self._standin.current.device,
            "setDevice": self._set_device,
            "getDeviceProperties": self._device_properties,
            "deviceGetPCIBusId": lambda device: f"0000:0{device}:00.0",
            "memGetInfo": memory.info,
            "malloc": self._malloc,
            "free": self._free,
            "hostAlloc": self._host_alloc,
            "freeHost": self._free_host,
            "hostRegister": self._host_register,
            "hostUnregister": self._host_unregister,
            "pointerGetAttributes": self._pointer_attributes,
            "streamSynchronize": self._stream_synchronize,
            "streamWaitEvent": self._stream_wait_event,
            "eventCreateWithFlags": self._event_create_with_flags,
            "eventDestroy": self._event_destroy,
            "eventRecord": self._event_record,
            "eventSynchronize": self._event_synchronize,
            "eventElapsedTime": streams.elapsed,
            "memcpyAsync": self._memcpy_async,
            "memcpy2DAsync": self._memcpy_2d_async,
        }

    def _set_device(self, device: int) -> None:
        self._check_device(device)
        self._standin.current.device = device

    def _check_device(self, device: int) -> None:
        if not 0 <= device < self._devices:
            raise CUDARuntimeError(_INVALID_DEVICE, "invalid device ordinal")

    def _device_properties(self, device: int) -> dict[str, Any]:
        self._check_device(device)
        return {
            "name": b"stand-in",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 1,
            "asyncEngineCount": 2,
            "totalGlobalMem": self._standin.memory.info()[1],
        }

    def _malloc(self, size: int) -> int:
        return self._standin.memory.allocate(size, DEVICE, self._standin.current.device)

    def _free(self, ptr: int) -> None:
        self._standin.streams.drain()
        self._standin.memory.release(ptr, DEVICE)

    def _host_alloc(self, size: int, flags: int) -> int:
        _check_flags(flags, _HOST_FLAGS)
        return self._standin.memory.allocate(size, PINNED, self._standin.current.device)

    def _free_host(self, ptr: int) -> None:
        self._standin.streams.drain()
        self._standin.memory.release(ptr, PINNED)

    def _host_register(self, ptr: int, size: int, flags: int) -> None:
        _check_flags(flags, _HOST_FLAGS)
        self._standin.memory.register(ptr, size, self._standin.current.device)

    def _host_unregister(self, ptr: int) -> None:
        self._standin.streams.drain()
        self._standin.memory.unregister(ptr)

    def _pointer_attributes(self, ptr: int) -> PointerAttributes:
        return self._standin.memory.attributes(ptr)

    def _stream_synchronize(self, stream: int) -> None:
        # Handle 1 is the legacy default stream, which is 0 here.
        self._standin.streams.synchronize(0 if stream == 1 else stream)

    def _stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        _check_flags(flags, 0)
        self._standin.streams.wait_event(stream, event)

    def _event_create_with_flags(self, flags: int) -> int:
        # Of these flags only "blocking" leaves an event its time.
        _check_flags(flags, _BLOCKING)
        return self._standin.streams.new_event()

    def _event_destroy(self, event: int) -> None:
        self._standin.streams.drop_event(event)

    def _event_record(self, event: int, stream: int) -> None:
        self._standin.streams.record(event, stream)

    def _event_synchronize(self, event: int) -> None:
        self._standin.streams.synchronize_event(event)

    def _memcpy_async(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        self._memcpy_2d_async(dst, size, src, size, size, 1, kind, stream)

    def _memcpy_2d_async(
        self,
        dst: int,
        dpitch: int,
        src: int,
        spitch: int,
        width: int,
        height: int,
        kind: int,
        stream: int,
    ) -> None:
        if not width <= min(dpitch, spitch):
            raise CUDARuntimeError(INVALID_VALUE, f"rows of {width} overlap")
        sides = (DEVICE, PINNED) if kind == _HOST_TO_DEVICE else (PINNED, DEVICE)
        for address, pitch, side in ((dst, dpitch, sides[0]), (src, spitch, sides[1])):
            extent = (height - 1) * pitch + width
            if side == PINNED and self._standin.pageable:
                continue
            if not self._standin.memory.check(address, extent, (side,)):
                raise CUDARuntimeError(INVALID_VALUE, f"{address:#x} is not memory of kind {side}")
        shape = (height, width)

        def work() -> None:
            np.copyto(matrix(dst, dpitch, shape, np.uint8), matrix(src, spitch, shape, np.uint8))

        self._standin.enqueue(stream, work)


def _check_flags(flags: int, allowed: int) -> None:
    if flags & ~allowed:
        raise CUDARuntimeError(INVALID_VALUE, f"flags {flags:#x}")
