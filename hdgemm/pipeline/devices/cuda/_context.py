"""One GPU's context: makes it current around driver calls, and translates their errors."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import psutil

from hdgemm.errors import DeviceError, DoesNotFitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY, CUBLAS_STATUS_ALLOC_FAILED and
#: CUSOLVER_STATUS_ALLOC_FAILED.
_OUT_OF_MEMORY: Final = {
    "CUDARuntimeError": 2,
    "CUDADriverError": 2,
    "CUBLASError": 3,
    "CUSOLVERError": 2,
}
#: Errors of `cudaError_t` after which every call fails until the process ends: ECC, NVLink,
#: contained error, illegal address, launch timeout, assertion, hardware stack, illegal
#: instruction, misaligned address, address space, program counter, launch failure, tensor memory
#: leak, unknown.
_CONTEXT_LOST: Final = frozenset(
    {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 999}
)
#: cudaErrorInitializationError and CUDA_ERROR_NOT_INITIALIZED: what a forked child gets.
_NOT_INITIALIZED: Final = 3
AFTER_FORK: Final = (
    "CUDA cannot be used after fork() by a child of a process that used it: start worker processes "
    "with multiprocessing's 'spawn' method, and open the device in each of them"
)
#: EXECUTION_FAILED and INTERNAL_ERROR: what cuBLAS and cuSOLVER return where a kernel could not be
#: launched, on a lost context above all.
_LIBRARY_FAILED: Final = {"CUBLASError": frozenset({13, 14}), "CUSOLVERError": frozenset({6, 7})}


class Contexts(Protocol):
    """The thread's stack of current contexts, from the CUDA driver API."""

    def push(self, index: int) -> None:
        """Make a GPU's primary context current; make the context at the first call."""

    def pop(self) -> None:
        """Make the context below it current again, or none."""


class CudaApi(NamedTuple):
    """The functions used of CuPy and of the CUDA driver.

    `runtime` and `blas` are `cupy.cuda.runtime` and `cupy.cuda.cublas`; `solver` returns
    `cupy.cuda.cusolver`, which need not be installed. `stream` makes a
    non-blocking stream with a `ptr`, current within a ``with`` block. `address_range` returns the
    start and bytes of the allocation that an address lies in, None where the driver knows none.
    `kernel` is `cupy.RawKernel`: it takes source and a name, and returns a function with `compile`.
    """

    name: str
    runtime: Any
    blas: Any
    solver: Callable[[], Any]
    stream: Callable[[], Any]
    contexts: Contexts
    address_range: Callable[[int], tuple[int, int] | None]
    kernel: Callable[[str, str], Any]


class Context:
    """The context of one GPU, and the calls made in it.

    A failed call raises `DeviceError` with its name, the driver's message and its `status`; where
    memory ran out, `DoesNotFitError` with `requested`, and with `available`, `missing`, `free` and
    `total` where the driver still answers, in bytes.
    """

    def __init__(self, api: CudaApi, index: int = 0) -> None:
        self.api = api
        self.index = index
        self._process = os.getpid()
        #: The error after which no call to this GPU succeeds; None while there was none.
        self.lost: DeviceError | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU's context the thread's current one within a ``with`` block."""
        if os.getpid() != self._process:
            self.lost = DeviceError(
                f"cuda:{self.index} was opened by process {self._process}, and this is its fork "
                f"{os.getpid()}: {AFTER_FORK}",
                opened_by=self._process,
                process=os.getpid(),
            )
            raise self.lost
        self.checked("cuCtxPushCurrent", self.api.contexts.push, self.index)
        try:
            yield
        finally:
            self.api.contexts.pop()

    def call(self, name: str, *arguments: Any, requested: int = 0) -> Any:
        """Call a function of the runtime; `requested` is the bytes that it is asked for."""
        function = getattr(self.api.runtime, name)
        return self.checked(name, function, *arguments, requested=requested)

    def checked(
        self, name: str, function: Callable[..., Any], *arguments: Any, requested: int = 0
    ) -> Any:
        """Call a function of any library; `name` is what errors say."""
        try:
            return function(*arguments)
        except RuntimeError as error:
            if not hasattr(error, "status"):
                raise
            raise self._translate(name, error, requested) from error

    def _translate(self, call: str, error: RuntimeError, requested: int) -> Exception:
        kind, status = type(error).__name__, int(getattr(error, "status"))  # noqa: B009
        if _OUT_OF_MEMORY.get(kind) == status:
            return self._out_of_memory(call, requested)
        message = f"cuda:{self.index}: {call} failed: {error} (status {status})"
        if is_after_fork(error):
            message += f"; {AFTER_FORK}"
        if self._is_lost(kind, status):
            message += "; this process cannot use the GPU any more, start it again"
            self.lost = DeviceError(message, call=call, status=status)
            return self.lost
        return DeviceError(message, call=call, status=status)

    def _is_lost(self, kind: str, status: int) -> bool:
        """Say whether an error ends all work on the GPU; for a library's error, the GPU tells."""
        if kind not in _LIBRARY_FAILED:
            return status in _CONTEXT_LOST
        if status not in _LIBRARY_FAILED[kind]:
            return False
        try:
            self.api.runtime.deviceSynchronize()
        except RuntimeError as error:
            return getattr(error, "status", None) in _CONTEXT_LOST
        return False

    def check_host_memory(self, nbytes: int) -> None:
        """Raise `DoesNotFitError` where the host has less: to touch it would end a process."""
        if nbytes > _host_memory_left()[0]:
            raise self._out_of_memory("hostRegister", nbytes)

    def _out_of_memory(self, call: str, requested: int) -> DoesNotFitError:
        found: tuple[int, int] | None
        if call == "hostRegister":
            where, found = "host memory to page-lock", _host_memory_left()
        else:
            where, found = "device memory", self._memory_left()
        numbers, left = {"requested": requested}, ""
        if found is not None:
            free, total = found
            missing = max(0, requested - free)
            numbers |= {"available": free, "missing": missing, "free": free, "total": total}
            left = f": {free:,} of {total:,} bytes are free"
        asked = f"{requested:,} bytes of {where}" if requested else f"{where} for {call}"
        return DoesNotFitError(
            f"cuda:{self.index} has no room for {asked}{left}; "
            "lower device_memory or host_memory, or free what other programs hold",
            **numbers,
        )

    def _memory_left(self) -> tuple[int, int] | None:
        """Return free and total device memory, None where there is too little for a context."""
        try:
            self.api.contexts.push(self.index)
            try:
                free, total = self.api.runtime.memGetInfo()
            finally:
                self.api.contexts.pop()
        except RuntimeError:
            return None
        return int(free), int(total)


def is_after_fork(error: RuntimeError) -> bool:
    """Say whether an error is the one of every call in a forked child."""
    kinds = ("CUDARuntimeError", "CUDADriverError")
    return type(error).__name__ in kinds and getattr(error, "status", None) == _NOT_INITIALIZED


def _host_memory_left() -> tuple[int, int]:
    machine = psutil.virtual_memory()
    return int(machine.available), int(machine.total)
