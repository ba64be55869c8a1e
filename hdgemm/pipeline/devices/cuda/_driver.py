"""The CUDA, cuBLAS and cuSOLVER calls that the device makes.

CuPy's bindings release the interpreter's lock in every call made here that can take long: copies,
kernel launches, waits, allocations (read in `cupy_backends/cuda/api/runtime.pyx` and
`cupy_backends/cuda/libs/cublas.pyx`, release 14.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from hdgemm.errors import DeviceUnavailableError
from hdgemm.pipeline.devices.cuda._context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from hdgemm.pipeline.devices.cuda._calls import CopyCall

HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
DEVICE_TO_DEVICE: Final = 3
#: `cudaHostRegisterPortable` and `cudaHostRegisterMapped`, which CuPy does not name.
_PORTABLE_MAPPED: Final = 1 | 2
_BLOCKING_SYNC: Final = 1
_POINTER_MODE_HOST: Final = 0
#: `cudaDevAttrSingleToDoublePrecisionPerfRatio` and `cudaDevAttrHostRegisterSupported`.
_FP64_RATIO: Final = 87
_REGISTERS_HOST_MEMORY: Final = 99

MemoryKind = Literal["pageable", "pinned", "device", "managed"]
_KINDS: Final[dict[int, MemoryKind]] = {0: "pageable", 1: "pinned", 2: "device", 3: "managed"}


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of one GPU, from the driver; memory in bytes.

    `bus_id` is the address in ``/sys/bus/pci``. `fp64_ratio` is the rate of single-precision
    arithmetic divided by the double-precision rate. `registers_host_memory`:
    `cudaHostRegister` can page-lock memory for it.
    """

    index: int
    name: str
    bus_id: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    copy_engines: int
    total: int
    fp64_ratio: int
    registers_host_memory: bool


class Driver(Context):
    """One GPU; every method is one or two driver calls.

    `record`, `wait_event`, `copy`, `copy_all`, `blas_call`, `solver_call` and `launch` enqueue
    work and must be called within `current`; the others make the GPU current themselves.
    """

    def facts(self) -> DeviceFacts:
        """Describe the GPU; makes no context on it."""
        properties = self.call("getDeviceProperties", self.index)
        return DeviceFacts(
            self.index,
            properties["name"].decode(),
            self.call("deviceGetPCIBusId", self.index).lower(),
            (properties["major"], properties["minor"]),
            properties["multiProcessorCount"],
            properties["asyncEngineCount"],
            int(properties["totalGlobalMem"]),
            self._attribute(_FP64_RATIO),
            self._attribute(_REGISTERS_HOST_MEMORY) != 0,
        )

    def _attribute(self, number: int) -> int:
        return int(self.call("deviceGetAttribute", number, self.index))

    def memory(self) -> tuple[int, int]:
        """Return the bytes of device memory that are free now, and all there are."""
        with self.current():
            free, total = self.call("memGetInfo")
        return int(free), int(total)

    def malloc(self, nbytes: int) -> int:
        """Take device memory, aligned to 256 bytes at least."""
        with self.current():
            return int(self.call("malloc", nbytes, requested=nbytes))

    def host_register(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, so that every GPU can reach it, kernels included."""
        with self.current():
            self.call("hostRegister", address, nbytes, _PORTABLE_MAPPED, requested=nbytes)

    def device_pointer(self, address: int) -> int:
        """Return the address at which kernels reach page-locked memory: most often the same."""
        with self.current():
            return int(self.call("pointerGetAttributes", address).devicePointer)

    def memory_kind(self, pointer: int) -> tuple[MemoryKind, int]:
        """Return the kind of memory at an address, and the GPU it belongs to."""
        with self.current():
            attributes = self.call("pointerGetAttributes", pointer)
        return _KINDS[attributes.type], int(attributes.device)

    def stream_within(self, resources: ExitStack) -> Any:
        """Make a stream that does not wait for the legacy default stream, destroyed with others."""
        with self.current():
            stream = self.checked("Stream", self.api.stream)
        resources.callback(self.destroy_stream, stream)
        return stream

    def destroy_stream(self, stream: Any) -> None:
        """Destroy a stream in its own context.

        A `cupy.cuda.Stream` would do so when it is collected: in the context that is current then,
        which it makes on GPU 0 where there is none, and with an error where the context is lost.
        With address 0 it does nothing.
        """
        pointer, stream.ptr = stream.ptr, 0
        self.release("streamDestroy", pointer)

    def synchronize_stream(self, pointer: int) -> None:
        """Wait for everything enqueued on a stream of this GPU; 1 is its legacy default stream."""
        with self.current():
            self.call("streamSynchronize", pointer)

    def synchronize(self) -> None:
        """Wait for everything enqueued on all streams of this GPU, other libraries' included."""
        with self.current():
            self.call("deviceSynchronize")

    def event(self, *, blocking: bool) -> int:
        """Make a timing event; waiting for it sleeps if `blocking`, else spins."""
        with self.current():
            return int(self.call("eventCreateWithFlags", _BLOCKING_SYNC if blocking else 0))

    def synchronize_event(self, event: int) -> None:
        """Block until the event has fired."""
        with self.current():
            self.call("eventSynchronize", event)

    def elapsed(self, start: int, end: int) -> float:
        """Return the seconds between two events that have fired."""
        with self.current():
            return float(self.call("eventElapsedTime", start, end)) * 1e-3

    def record(self, event: int, stream: Any) -> None:
        """Let the event fire when the stream gets here."""
        self.call("eventRecord", event, stream.ptr)

    def wait_event(self, stream: Any, event: int) -> None:
        """Let the stream go on only after the event, as it was last recorded."""
        self.call("streamWaitEvent", stream.ptr, event)

    def copy(self, target: int, source: int, nbytes: int, direction: int, stream: Any) -> None:
        """Enqueue a copy of consecutive bytes."""
        self.call("memcpyAsync", target, source, nbytes, direction, stream.ptr)

    def copy_all(self, calls: Sequence[CopyCall], direction: int, stream: Any) -> None:
        """Enqueue copies of rows."""
        for target, source, width, rows in calls:
            if rows == 1:
                self.copy(target.address, source.address, width, direction, stream)
            else:
                arguments = (*target, *source, width, rows, direction, stream.ptr)
                self.call("memcpy2DAsync", *arguments)

    def blas_within(self, resources: ExitStack) -> int:
        """Make a cuBLAS handle that reads its scalars from host memory, destroyed with others."""
        with self.current():
            handle = int(self.checked("create", self.api.blas.create))
            resources.callback(self.release, "destroy", handle, self.api.blas)
            self.checked("setPointerMode", self.api.blas.setPointerMode, handle, _POINTER_MODE_HOST)
            return handle

    def blas_call(self, name: str, handle: int, arguments: Sequence[int], stream: Any) -> None:
        """Enqueue a routine of cuBLAS.

        CuPy's wrappers set the handle's stream to the thread's current one at every call, and
        cuBLAS answers by resetting the workspace to the handle's own (32 MiB on Hopper, 4 MiB
        before): so the stream is made current here, and no other workspace is set.
        """
        with stream:
            self.checked(name, getattr(self.api.blas, name), handle, *arguments)

    def solver(self) -> int:
        """Make a cuSOLVER handle; raise `DeviceUnavailableError` where it is not installed."""
        try:
            create = self.api.solver().create
        except ImportError as error:
            raise DeviceUnavailableError(
                f"cuSOLVER was not found: {error}; choose strategy='hybrid'"
            ) from error
        with self.current():
            return int(self.checked("create", create))

    def solver_call(self, name: str, handle: int, arguments: Sequence[int], stream: Any) -> Any:
        """Call a routine of cuSOLVER on a stream; see `blas_call`."""
        with stream:
            return self.checked(name, getattr(self.api.solver(), name), handle, *arguments)

    def kernel(self, source: str, name: str) -> Any:
        """Compile a kernel for this GPU; raise `DeviceUnavailableError` where NVRTC cannot."""
        with self.current():
            kernel = self.api.kernel(source, name)
            try:
                kernel.compile()
            except Exception as error:  # a missing NVRTC or headers raise whatever they like
                raise DeviceUnavailableError(
                    f"cuda:{self.index}: NVRTC cannot compile the kernel {name}: {error}; NVRTC "
                    "and CUDA's headers come with hdgemm[cuda13] and hdgemm[cuda12]"
                ) from error
            return kernel

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[int],
        stream: Any,
    ) -> None:
        """Enqueue a kernel; CuPy passes each number as 64 bits, on the thread's current stream."""
        with stream:
            self.checked("launchKernel", kernel, grid, (threads, 1), tuple(arguments))

    def release(self, name: str, handle: int, library: Any = None) -> None:
        """Call a function of the runtime that gives back, or a library's `destroy`, on a handle.

        A lost context holds nothing any more.
        """
        if self.lost is None:
            with self.current():
                self.checked(name, getattr(library or self.api.runtime, name), handle)
