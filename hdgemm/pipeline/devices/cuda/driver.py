"""The few driver calls the CUDA device makes, and the one place where their errors are translated.

CuPy's bindings release the interpreter's lock in every call made here that can take long: copies,
kernel launches, waits, allocations (read in `cupy_backends/cuda/api/runtime.pyx` and
`cupy_backends/cuda/libs/cublas.pyx`, release 14.2).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import psutil

from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.cuda.api import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hdgemm.pipeline.devices.cuda.api import CudaApi, GemmCall

#: cudaErrorMemoryAllocation and CUBLAS_STATUS_ALLOC_FAILED.
_OUT_OF_MEMORY: Final = {"CUDARuntimeError": 2, "CUBLASError": 3}
#: Errors of `cudaError_t` after which every call fails until the process ends: ECC, illegal
#: address, launch timeout, assertion, hardware stack, illegal instruction, misaligned address,
#: address space, program counter, launch failure, unknown.
_CONTEXT_LOST: Final = frozenset({214, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999})

HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
_PORTABLE_MAPPED: Final = 1 | 2
_BLOCKING_SYNC: Final = 1
_POINTER_MODE_HOST: Final = 0

MemoryKind = Literal["pageable", "pinned", "device", "managed"]
_KINDS: Final[dict[int, MemoryKind]] = {0: "pageable", 1: "pinned", 2: "device", 3: "managed"}


class Driver:
    """One GPU, as the driver offers it: every method is one or two calls of CuPy's bindings.

    Raises
    ------
    DeviceError
        From every method: the call, the driver's words and its `status`.
    DoesNotFitError
        Where memory ran out: `requested`, `available`, `missing`, `free`, `total` in bytes.
    """

    def __init__(self, api: CudaApi, index: int = 0) -> None:
        self.api = api
        self.index = index
        #: The error after which the context is of no use, None while all is well.
        self.lost: DeviceError | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the thread's current one, and the caller's again afterwards."""
        runtime = self.api.runtime
        before = self._call(runtime.getDevice)
        if before != self.index:
            self._call(runtime.setDevice, self.index)
        try:
            yield
        finally:
            if before != self.index:
                self._call(runtime.setDevice, before)

    def facts(self) -> DeviceFacts:
        """Describe the GPU; makes no context on it."""
        runtime = self.api.runtime
        properties = self._call(runtime.getDeviceProperties, self.index)
        return DeviceFacts(
            self.index,
            properties["name"].decode(),
            self._call(runtime.deviceGetPCIBusId, self.index).lower(),
            (properties["major"], properties["minor"]),
            properties["multiProcessorCount"],
            properties["asyncEngineCount"],
            int(properties["totalGlobalMem"]),
        )

    def memory(self) -> tuple[int, int]:
        """Return the bytes of device memory that are free now, and all there are."""
        with self.current():
            free, total = self._call(self.api.runtime.memGetInfo)
        return int(free), int(total)

    def malloc(self, nbytes: int) -> int:
        """Take device memory, aligned to 256 bytes at least."""
        with self.current():
            return int(self._call(self.api.runtime.malloc, nbytes, requested=nbytes))

    def free(self, pointer: int) -> None:
        """Give device memory back; waits for all work on the GPU."""
        self._release(self.api.runtime.free, pointer)

    def host_alloc(self, nbytes: int) -> int:
        """Take page-locked host memory that every GPU can reach, kernels included."""
        with self.current():
            return int(
                self._call(self.api.runtime.hostAlloc, nbytes, _PORTABLE_MAPPED, requested=nbytes)
            )

    def host_free(self, pointer: int) -> None:
        """Give page-locked memory back."""
        self._release(self.api.runtime.freeHost, pointer)

    def memory_kind(self, pointer: int) -> tuple[MemoryKind, int]:
        """Say what an address is to the driver, and the GPU it belongs to."""
        with self.current():
            attributes = self._call(self.api.runtime.pointerGetAttributes, pointer)
        return _KINDS[attributes.type], int(attributes.device)

    def stream(self) -> Any:
        """Make a stream that does not wait for the legacy default stream."""
        with self.current():
            return self._call(self.api.stream)

    def synchronize_stream(self, pointer: int) -> None:
        """Wait for everything enqueued on a stream."""
        with self.current():
            self._call(self.api.runtime.streamSynchronize, pointer)

    def event(self, *, blocking: bool) -> int:
        """Make a timing event; waiting for it sleeps if `blocking`, else spins."""
        with self.current():
            flags = _BLOCKING_SYNC if blocking else 0
            return int(self._call(self.api.runtime.eventCreateWithFlags, flags))

    def destroy_event(self, event: int) -> None:
        """Give an event back."""
        self._release(self.api.runtime.eventDestroy, event)

    def record(self, event: int, stream: Any) -> None:
        """Let the event fire when the stream gets here."""
        with self.current():
            self._call(self.api.runtime.eventRecord, event, stream.ptr)

    def wait_event(self, stream: Any, event: int) -> None:
        """Let the stream go on only after the event, as it was last recorded."""
        with self.current():
            self._call(self.api.runtime.streamWaitEvent, stream.ptr, event)

    def synchronize_event(self, event: int) -> None:
        """Block until the event has fired."""
        with self.current():
            self._call(self.api.runtime.eventSynchronize, event)

    def elapsed(self, start: int, end: int) -> float:
        """Return the seconds between two events that have fired."""
        with self.current():
            return float(self._call(self.api.runtime.eventElapsedTime, start, end)) * 1e-3

    def copy(self, target: int, source: int, nbytes: int, direction: int, stream: Any) -> None:
        """Enqueue a copy of consecutive bytes."""
        with self.current():
            self._call(self.api.runtime.memcpyAsync, target, source, nbytes, direction, stream.ptr)

    def copy_rows(self, target: tuple[int, int], source: tuple[int, int], extent: tuple[int, int],
                  direction: int, stream: Any) -> None:  # fmt: skip
        """Enqueue a copy of `extent` = (bytes a row, rows) between (address, pitch) pairs."""
        with self.current():
            self._call(
                self.api.runtime.memcpy2DAsync, *target, *source, *extent, direction, stream.ptr
            )

    def blas(self) -> int:
        """Make a cuBLAS handle that reads its scalars from host memory."""
        with self.current():
            handle = int(self._call(self.api.blas.create))
            self._call(self.api.blas.setPointerMode, handle, _POINTER_MODE_HOST)
            return handle

    def destroy_blas(self, handle: int) -> None:
        """Give a cuBLAS handle and its workspace back."""
        self._release(self.api.blas.destroy, handle)

    def gemm(self, handle: int, call: GemmCall, stream: Any) -> None:
        """Enqueue a product.

        CuPy's wrappers set the handle's stream to the thread's current one at every call, and
        cuBLAS answers by resetting the workspace to the handle's own (32 MiB on Hopper, 4 MiB
        before): so the stream is made current here, and no other workspace is set.
        """
        with self.current(), stream:
            self._call(getattr(self.api.blas, call.routine), handle, *call[1:])

    def _release(self, function: Callable[..., Any], handle: int) -> None:
        """Give something back; a lost context took it already."""
        if self.lost is None:
            with self.current():
                self._call(function, handle)

    def _call(self, function: Callable[..., Any], *arguments: Any, requested: int = 0) -> Any:
        try:
            return function(*arguments)
        except RuntimeError as error:
            if not hasattr(error, "status"):
                raise
            raise self._translate(function.__name__, error, requested) from error

    def _translate(self, call: str, error: RuntimeError, requested: int) -> Exception:
        status = int(getattr(error, "status"))  # noqa: B009  (CuPy's errors are untyped)
        if _OUT_OF_MEMORY.get(type(error).__name__) == status:
            return self._out_of_memory(call, requested)
        message = f"cuda:{self.index}: {call} failed: {error} (status {status})"
        if type(error).__name__ == "CUDARuntimeError" and status in _CONTEXT_LOST:
            message += "; this process cannot use the GPU any more, start it again"
            self.lost = DeviceError(message, call=call, status=status)
            return self.lost
        return DeviceError(message, call=call, status=status)

    def _out_of_memory(self, call: str, requested: int) -> DoesNotFitError:
        if call == "hostAlloc":
            machine = psutil.virtual_memory()
            free, total, where = machine.available, machine.total, "host memory to page-lock"
        else:
            free, total = self.memory()
            where = "device memory"
        asked = f"{requested:,} bytes of {where}" if requested else f"{where} for {call}"
        return DoesNotFitError(
            f"cuda:{self.index} has no room for {asked}: {free:,} of {total:,} bytes are free; "
            "lower device_memory or host_memory, or free what else is held",
            requested=requested,
            available=free,
            missing=max(0, requested - free),
            free=free,
            total=total,
        )
