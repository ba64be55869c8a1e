"""The stand-in itself: what it records, what it lets fail, and which GPU and stream are current."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from hdgemm.pipeline.devices.cuda.api import CudaApi
from hdgemm.pipeline.devices.cuda.standin.blas import Blas
from hdgemm.pipeline.devices.cuda.standin.memory import Memory
from hdgemm.pipeline.devices.cuda.standin.runtime import Runtime
from hdgemm.pipeline.devices.cuda.standin.streams import CUBLASError, CUDARuntimeError, Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

#: Calls that answer even when the context is lost.
_ALWAYS = frozenset({"getDevice", "getDeviceCount", "driverGetVersion", "runtimeGetVersion"})


class Call(NamedTuple):
    """One call as it was made: CuPy's name of it, and its positional arguments."""

    name: str
    args: tuple[Any, ...]


class Fault(NamedTuple):
    """Fail the `number`-th call (from 0) of a name with a status.

    `late`: the call succeeds, and the work that it enqueued fails.
    """

    name: str
    number: int
    status: int
    late: bool = False


class Current(threading.local):
    """The GPU and the stream that are current in this thread."""

    def __init__(self) -> None:
        self.device = 0
        self.streams = [0]


class StandIn:
    """A machine whose GPUs are host memory.

    Parameters
    ----------
    order, seed
        In which order streams run; see `Streams`.
    devices
        How many GPUs there are.
    device_bytes, host_bytes
        Device memory of all of them together, and host memory that can be page-locked.
    faults
        Calls that fail.
    pageable
        Take host memory that is not page-locked in asynchronous copies, as CUDA does, which then
        copies it before the call returns. The library never relies on it.
    """

    def __init__(
        self,
        *,
        order: str = "lazy",
        seed: int = 0,
        devices: int = 1,
        device_bytes: int = 1 << 30,
        host_bytes: int = 1 << 30,
        faults: Sequence[Fault] = (),
        pageable: bool = False,
    ) -> None:
        self.calls: list[Call] = []
        self.memory = Memory(device_bytes, host_bytes)
        self.streams = Streams(order, seed)
        self.current = Current()
        self.pageable = pageable
        self._faults = tuple(faults)
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()
        self._late: Exception | None = None
        self._runtime = Runtime(self, devices)
        self._blas = Blas(self)

    def api(self) -> CudaApi:
        """Return the names that the CUDA device uses, driven by this stand-in."""
        runtime = self._named(self._runtime.names(), CUDARuntimeError)
        blas = self._named(self._blas.names(), CUBLASError)
        stream = self._recorded("Stream", lambda: StandInStream(self), CUDARuntimeError)
        return CudaApi("a stand-in", runtime, blas, stream, self.memory.address_range)

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
            "handles": self._blas.held(),
        }
        return {kind: number for kind, number in held.items() if number}

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        """Put work on a stream, or the failure that a fault asks for."""
        error, self._late = self._late, None

        def fail() -> None:
            raise error  # type: ignore[misc]

        self.streams.enqueue(stream, work if error is None else fail)

    def drop_stream(self, handle: int) -> None:
        """Forget a stream."""
        with self._lock:
            self.streams.drop_stream(handle)

    def _named(
        self, names: dict[str, Callable[..., Any]], error: type[Exception]
    ) -> SimpleNamespace:
        return SimpleNamespace(
            **{name: self._recorded(name, call, error) for name, call in names.items()}
        )

    def _recorded(
        self, name: str, function: Callable[..., Any], error: type[Any]
    ) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self._lock:
                number = self._counts[name] = self._counts.get(name, -1) + 1
                self.calls.append(Call(name, args))
                if self.streams.failed is not None and name not in _ALWAYS:
                    raise self.streams.failed
                for fault in self._faults:
                    if (fault.name, fault.number) == (name, number):
                        words = f"asked to fail at call {number}"
                        if not fault.late:
                            raise error(fault.status, words)
                        self._late = CUDARuntimeError(fault.status, words)
                result = function(*args)
                if self.streams.failed is not None and name not in _ALWAYS:
                    raise self.streams.failed
                return result

        call.__name__ = name
        call.__wrapped__ = function  # type: ignore[attr-defined]
        return call


class StandInStream:
    """As `cupy.cuda.Stream`: a handle, current within a ``with`` block, gone with the object."""

    def __init__(self, standin: StandIn) -> None:
        self._standin = standin
        self.ptr = standin.streams.new_stream()

    def __enter__(self) -> Self:
        self._standin.current.streams.append(self.ptr)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._standin.current.streams.pop()

    def __del__(self) -> None:
        self._standin.drop_stream(self.ptr)
