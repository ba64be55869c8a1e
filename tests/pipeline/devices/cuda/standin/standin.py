"""The stand-in itself: recorded calls, injected faults, contexts, current GPU and stream."""

from __future__ import annotations

import functools
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from hdgemm.pipeline.devices.cuda._context import CudaApi
from tests.pipeline.devices.cuda.standin.blas import Blas
from tests.pipeline.devices.cuda.standin.kernels import Kernel
from tests.pipeline.devices.cuda.standin.memory import Memory
from tests.pipeline.devices.cuda.standin.runtime import Runtime
from tests.pipeline.devices.cuda.standin.solver import Solver
from tests.pipeline.devices.cuda.standin.streams import (
    CUBLASError,
    CUDADriverError,
    CUDARuntimeError,
    CUSOLVERError,
    Streams,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Calls that need no context beforehand, and answer when it is lost.
_WITHOUT_CONTEXT: Final = frozenset(
    {
        "getDevice", "getDeviceCount", "driverGetVersion", "runtimeGetVersion", "setDevice",
        "getDeviceProperties", "deviceGetAttribute", "deviceGetPCIBusId", "cuCtxPushCurrent",
    }
)  # fmt: skip
#: Calls that answer in a forked child, and the status of all others there.
_AFTER_FORK: Final = frozenset({"getDeviceCount", "driverGetVersion", "runtimeGetVersion"})
_NOT_INITIALIZED: Final = 3
#: EXECUTION_FAILED: what cuBLAS and cuSOLVER return on a lost context.
_LIBRARY_FAILED: Final[dict[type[Any], int]] = {CUBLASError: 13, CUSOLVERError: 6}
#: Device memory that a context takes.
CONTEXT_BYTES: Final = 32 << 20


class Call(NamedTuple):
    """One call as it was made: CuPy's name of it, and its positional arguments."""

    name: str
    args: tuple[Any, ...]


class Fault(NamedTuple):
    """Fail the `number`-th call (from 0) of a name with a status.

    `late`: the call succeeds, and the work that it enqueued fails. `persistent`: all later calls
    fail, too.
    """

    name: str
    number: int
    status: int
    late: bool = False
    persistent: bool = False

    def hits(self, number: int) -> bool:
        """Say whether a call is to fail."""
        return number == self.number or (self.persistent and number > self.number)


class Properties(NamedTuple):
    """Properties of all GPUs, and the version of CUDA as the driver writes it."""

    compute_capability: tuple[int, int] = (9, 0)
    fp64_ratio: int = 2
    version: int = 13000
    registers_host_memory: bool = True


_HOPPER: Final = Properties()


class Current(threading.local):
    """The GPU, the pushed contexts and the stream that are current in this thread."""

    def __init__(self) -> None:
        self.device = 0
        self.contexts: list[int] = []
        self.streams = [0]

    @property
    def index(self) -> int:
        """The GPU on which calls of this thread operate."""
        return self.contexts[-1] if self.contexts else self.device


class StandIn:
    """A machine with a number of equal GPUs that are host memory.

    `order` and `seed` choose the order in which streams run, see `Streams`. `device_bytes` is the
    memory of each GPU, `host_bytes` the host memory that can be page-locked; `faults` are calls
    that fail. With `pageable`, asynchronous copies take host memory that is not page-locked, as
    CUDA's do; the library never relies on it.
    """

    def __init__(
        self,
        *,
        order: str = "lazy",
        seed: int = 0,
        devices: int = 1,
        device_bytes: int = 1 << 30,
        host_bytes: int = 1 << 30,
        properties: Properties = _HOPPER,
        faults: Sequence[Fault] = (),
        pageable: bool = False,
    ) -> None:
        self._process = os.getpid()
        self.calls: list[Call] = []
        self.memory = Memory(devices, device_bytes, host_bytes)
        self.properties = properties
        #: GPUs that have a context.
        self.contexts: set[int] = set()
        self.streams = Streams(order, seed)
        self.current = Current()
        self.pageable = pageable
        self._faults = tuple(faults)
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()
        self._late: Exception | None = None
        self._runtime = Runtime(self, devices)
        self._blas = Blas(self)
        self._solver = Solver(self)

    def api(self) -> CudaApi:
        """Return the names that the CUDA device uses, driven by this stand-in."""
        runtime = self._named(self._runtime.names(), CUDARuntimeError)
        blas = self._named(self._blas.names(), CUBLASError)
        contexts = SimpleNamespace(
            push=self._recorded("cuCtxPushCurrent", self._push, CUDADriverError),
            pop=self._pop,
        )
        stream = self._recorded(
            "Stream", lambda: StandInStream(self, runtime.streamDestroy), CUDARuntimeError
        )
        solver = self._named(self._solver.names(), CUSOLVERError)
        return CudaApi(
            "a stand-in", runtime, blas, lambda: solver, stream, contexts,
            self.memory.address_range, self._kernel,
        )  # fmt: skip

    def _kernel(self, _source: str, name: str) -> StandInKernel:
        return StandInKernel(self._named(Kernel(self, name).names(), CUDADriverError))

    def _pop(self) -> None:
        self.current.contexts.pop()

    def _push(self, index: int) -> None:
        self.current.contexts.append(index)
        try:
            self.use_context()
        except BaseException:
            self.current.contexts.pop()
            raise

    def use_context(self) -> None:
        """Make the current GPU's context, at every call that needs one until there is memory."""
        index = self.current.index
        if index not in self.contexts:
            self.memory.reserve(CONTEXT_BYTES, index)
            self.contexts.add(index)

    def inject(self, *faults: Fault) -> None:
        """Let these calls fail, counted from now."""
        self._faults = faults
        self._counts.clear()

    def count(self, name: str) -> int:
        """Return how often a name was called."""
        return sum(call.name == name for call in self.calls)

    def leaks(self) -> dict[str, int]:
        """Return what was taken and not given back; empty when all was."""
        streams, events = self.streams.unused()
        held = {
            "memory": self.memory.held(),
            "streams": streams,
            "events": events,
            "handles": self._blas.held() + self._solver.held(),
        }
        return {kind: number for kind, number in held.items() if number}

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        """Put work on a stream of the current GPU, or the failure that a fault asks for."""
        error, self._late = self._late, None

        def fail() -> None:
            raise error  # type: ignore[misc]

        handle = self.streams.handle_of(stream, self.current.index)
        self.streams.check_device(handle, self.current.index)
        self.streams.enqueue(handle, work if error is None else fail)

    def _named(
        self, names: dict[str, Callable[..., Any]], error: type[Exception]
    ) -> SimpleNamespace:
        return SimpleNamespace(
            **{name: self._recorded(name, call, error) for name, call in names.items()}
        )

    def _recorded(
        self, name: str, function: Callable[..., Any], error: type[Any]
    ) -> Callable[..., Any]:
        # Like CuPy's stream, the functions have no `__name__`.
        call = functools.partial(self._call, name, function, error)
        call.__wrapped__ = function  # type: ignore[attr-defined]
        return call

    def _call(self, name: str, function: Callable[..., Any], error: type[Any], *args: Any) -> Any:
        if os.getpid() != self._process and name not in _AFTER_FORK:
            raise error(_NOT_INITIALIZED, "initialization error")
        with self._lock:
            number = self._counts[name] = self._counts.get(name, -1) + 1
            self.calls.append(Call(name, args))
            if name not in _WITHOUT_CONTEXT:
                self._raise_if_lost(error)
                self.use_context()
            for fault in self._faults:
                if fault.name == name and fault.hits(number):
                    words = f"asked to fail at call {number}"
                    if not fault.late:
                        raise error(fault.status, words)
                    self._late = CUDARuntimeError(fault.status, words)
            result = function(*args)
            if name not in _WITHOUT_CONTEXT:
                self._raise_if_lost(error)
            return result

    def _raise_if_lost(self, error: type[Any]) -> None:
        failed = self.streams.failed.get(self.current.index)
        if failed is not None:
            status = _LIBRARY_FAILED.get(error)
            if isinstance(failed, CUDARuntimeError):  # raised twice, it would be its own context
                failed = CUDARuntimeError(failed.status, str(failed))
            raise failed if status is None else error(status, "execution failed")


class StandInKernel:
    """As `cupy.RawKernel`."""

    def __init__(self, names: SimpleNamespace) -> None:
        self.compile, self._launch = names.compile, names.launchKernel

    def __call__(
        self, grid: tuple[int, int], block: tuple[int, int], args: tuple[int, ...]
    ) -> None:
        """Enqueue the kernel on the thread's current stream."""
        self._launch(grid, block, args)


class StandInStream:
    """As `cupy.cuda.Stream`: current within a ``with`` block.

    It is destroyed when the object is collected, by a call in the context that is current then.
    """

    def __init__(self, standin: StandIn, destroy: Callable[[int], None]) -> None:
        self._standin = standin
        self._destroy = destroy
        self.ptr = standin.streams.new_stream(standin.current.index)

    def __enter__(self) -> Self:
        self._standin.streams.check_device(self.ptr, self._standin.current.index)
        self._standin.current.streams.append(self.ptr)
        return self

    def __exit__(self, *_: object) -> None:
        self._standin.current.streams.pop()

    def __del__(self) -> None:
        if self.ptr != 0:
            self._destroy(self.ptr)
