"""The stand-in's CUDA runtime: the functions of `cupy.cuda.runtime` that the device calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.pipeline.devices.cuda.standin.memory import DEVICE, INVALID_VALUE, PINNED, matrix
from tests.pipeline.devices.cuda.standin.streams import CUDARuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pipeline.devices.cuda.standin.standin import StandIn

#: Memory of the target and of the source, by the kind of a copy.
_SIDES: Final = {1: (DEVICE, PINNED), 2: (PINNED, DEVICE), 3: (DEVICE, DEVICE)}
#: `cudaDevAttrSingleToDoublePrecisionPerfRatio` and `cudaDevAttrHostRegisterSupported`.
_FP64_RATIO: Final = 87
_REGISTERS_HOST_MEMORY: Final = 99
#: cudaErrorNotSupported.
_NOT_SUPPORTED: Final = 801
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
            "driverGetVersion": lambda: self._standin.properties.version,
            "runtimeGetVersion": lambda: self._standin.properties.version,
            "getDeviceCount": lambda: self._devices,
            "getDevice": lambda: self._index,
            "setDevice": self._set_device,
            "getDeviceProperties": self._device_properties,
            "deviceGetAttribute": self._device_get_attribute,
            "deviceGetPCIBusId": lambda device: f"0000:0{device}:00.0",
            "deviceSynchronize": lambda: streams.drain(self._index),
            "memGetInfo": lambda: memory.info(self._index),
            "malloc": lambda size: memory.allocate(size, self._index),
            "free": self._free,
            "hostRegister": self._host_register,
            "hostUnregister": self._host_unregister,
            "pointerGetAttributes": memory.attributes,
            "streamSynchronize": lambda stream: streams.synchronize(self._handle(stream)),
            "streamWaitEvent": self._stream_wait_event,
            "streamDestroy": streams.drop_stream,
            "eventCreateWithFlags": self._event_create_with_flags,
            "eventDestroy": streams.drop_event,
            "eventRecord": lambda event, stream: streams.record(event, self._handle(stream)),
            "eventSynchronize": streams.synchronize_event,
            "eventElapsedTime": streams.elapsed,
            "memcpyAsync": self._memcpy_async,
            "memcpy2DAsync": self._memcpy_2d_async,
        }

    @property
    def _index(self) -> int:
        """The GPU whose context is current."""
        return self._standin.current.index

    def _handle(self, stream: int) -> int:
        return self._standin.streams.handle_of(stream, self._index)

    def _set_device(self, device: int) -> None:
        self._check_device(device)
        self._standin.current.device = device
        self._standin.use_context()

    def _check_device(self, device: int) -> None:
        if not 0 <= device < self._devices:
            raise CUDARuntimeError(_INVALID_DEVICE, "invalid device ordinal")

    def _device_properties(self, device: int) -> dict[str, Any]:
        self._check_device(device)
        return {
            "name": b"stand-in",
            "major": self._standin.properties.compute_capability[0],
            "minor": self._standin.properties.compute_capability[1],
            "multiProcessorCount": 1,
            "asyncEngineCount": 2,
            "totalGlobalMem": self._standin.memory.info(device)[1],
        }

    def _device_get_attribute(self, attrib: int, device: int) -> int:
        self._check_device(device)
        properties = self._standin.properties
        values = {
            _FP64_RATIO: properties.fp64_ratio,
            _REGISTERS_HOST_MEMORY: int(properties.registers_host_memory),
        }
        if attrib not in values:
            raise CUDARuntimeError(INVALID_VALUE, f"attribute {attrib}")
        return values[attrib]

    def _free(self, ptr: int) -> None:
        self._standin.streams.drain(self._index)
        self._standin.memory.release(ptr)

    def _host_register(self, ptr: int, size: int, flags: int) -> None:
        _check_flags(flags, _HOST_FLAGS)
        if not self._standin.properties.registers_host_memory:
            raise CUDARuntimeError(_NOT_SUPPORTED, "operation not supported")
        self._standin.memory.register(ptr, size, self._index)

    def _host_unregister(self, ptr: int) -> None:
        self._standin.streams.drain(self._index)
        self._standin.memory.unregister(ptr)

    def _stream_wait_event(self, stream: int, event: int, flags: int = 0) -> None:
        _check_flags(flags, 0)
        self._standin.streams.wait_event(self._handle(stream), event)

    def _event_create_with_flags(self, flags: int) -> int:
        # "Blocking" is the only flag with which an event keeps its time.
        _check_flags(flags, _BLOCKING)
        return self._standin.streams.new_event(self._index)

    def _memcpy_async(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        self._memcpy_2d_async(dst, size, src, size, size, 1, kind, stream)

    def _memcpy_2d_async(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int,
        stream: int,
    ) -> None:  # fmt: skip
        if not width <= min(dpitch, spitch):
            raise CUDARuntimeError(INVALID_VALUE, f"rows of {width} overlap")
        sides = _SIDES[kind]
        for address, pitch, side in ((dst, dpitch, sides[0]), (src, spitch, sides[1])):
            extent = (height - 1) * pitch + width
            if side == PINNED and self._standin.pageable:
                continue
            if not self._standin.memory.check(address, extent, (side,), self._index):
                raise CUDARuntimeError(INVALID_VALUE, f"{address:#x} is not memory of kind {side}")
        shape = (height, width)

        def work() -> None:
            np.copyto(matrix(dst, dpitch, shape, np.uint8), matrix(src, spitch, shape, np.uint8))

        self._standin.enqueue(stream, work)


def _check_flags(flags: int, allowed: int) -> None:
    if flags & ~allowed:
        raise CUDARuntimeError(INVALID_VALUE, f"flags {flags:#x}")
