"""Driver errors as `DeviceError`, refusal of forked processes, and a device's limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from dataclasses import dataclass
from platform import machine
from typing import TYPE_CHECKING, Any, Final

import pyopencl as cl

from hdgemm.errors import DeviceError, DoesNotFitError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def driver_errors(what: str, **numbers: Any) -> Iterator[None]:
    """Convert an OpenCL driver's error in this block into a `DeviceError` about `what`.

    It is a `DoesNotFitError` where the driver ran out of memory; `numbers` become its attributes.
    """
    try:
        yield
    except cl.MemoryError as error:
        raise DoesNotFitError(f"{what}: the OpenCL driver is out of memory", **numbers) from error
    except cl.Error as error:
        raise DeviceError(f"{what}: {_first_lines(error)}", **numbers) from error


def _first_lines(error: cl.Error) -> str:
    # pyopencl repeats a status each time that it raises the error again.
    lines = [" - ".join(dict.fromkeys(x.strip().split(" - "))) for x in str(error).splitlines()]
    return "; ".join([line for line in lines if line and not set(line) <= set("=-")][:3])


class OwnerProcess:
    """The process that opened a device.

    A forked child inherits the driver's objects without the driver's threads, and its locks in
    whatever state they were. Calls with these objects block or crash, so they are refused.
    """

    __slots__ = ("__weakref__", "_name", "_pid", "forked")

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        #: Whether this process is a forked child of the owner.
        self.forked = False
        _OWNERS.add(self)

    def check(self) -> None:
        """Raise `DeviceError` in a forked child."""
        if self.forked:
            raise DeviceError(
                f"{self._name} was opened by process {self._pid}, and this is its fork "
                f"{os.getpid()}: an OpenCL device cannot be used after fork(). Start worker "
                "processes with the 'spawn' method, and open the device in each of them",
                opened_by=self._pid,
                process=os.getpid(),
            )

    def protect(self, holder: object) -> None:
        """Never release `holder`, and the driver's objects in it, in a forked child."""
        _PROTECTED.add(holder)


_OWNERS: Final[weakref.WeakSet[OwnerProcess]] = weakref.WeakSet()
_PROTECTED: Final[weakref.WeakSet[object]] = weakref.WeakSet()
_LIBC: Final = ctypes.CDLL(None)
#: Registration of exit handlers; only in glibc.
_ON_EXIT: Final = getattr(_LIBC, "on_exit", None)


def never_release(holder: object) -> None:
    """Keep an object, and the driver's objects in it, until the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))


def _isolate_child() -> None:
    """Keep a forked child from the driver's destructors, which wait for threads it lacks."""
    for owner in _OWNERS:
        owner.forked = True
    if not _PROTECTED:
        return
    for holder in _PROTECTED:
        never_release(holder)
    if _ON_EXIT is not None:
        # Handlers run last registered first: flush C's streams, then end the process before
        # the driver's handlers run.
        _ON_EXIT(_LIBC["_exit"], None)
        _LIBC["__cxa_atexit"](_LIBC.fflush, None, None)


os.register_at_fork(after_in_child=_isolate_child)


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a device on which a kernel's shape depends.

    `kind` is ``"cpu"``, ``"gpu"`` or ``"accelerator"``. A SIMD vector has `vector_bytes`: 64 with
    AVX-512, 4 or 8 on a GPU, whose SIMD lanes are work-items. `simd_width` work-items execute in
    lockstep (a warp, a wavefront); 1 on a CPU. Registers have 32 bits. OpenCL has no query for
    them, nor for the most work-items that a compute unit holds at once (`resident_items`): on a
    CPU they are its vector registers, on a GPU the numbers of common architectures.
    """

    kind: str
    platform: str
    device: str
    driver: str
    compute_units: int
    memory_bytes: int
    max_buffer_bytes: int
    local_bytes: int
    max_group: int
    max_group_shape: tuple[int, ...]
    vector_bytes: int
    simd_width: int
    registers_per_item: int
    registers_per_group: int
    resident_items: int
    has_double: bool

    @property
    def waiting_threads_work(self) -> bool:
        """Whether the runtime executes a command also on the thread that waits for it."""
        return self.kind == "cpu" and self.platform.startswith("Intel")


def read_facts(device: cl.Device) -> Facts:
    """Query the driver for a device's properties."""
    with driver_errors("querying an OpenCL device for its limits"):
        kind = _kind(device)
        vector = max(4 * device.native_vector_width_float, 8 * device.native_vector_width_double)
        if kind == "cpu":
            # AVX-512 doubles the number of registers as well as their length; AArch64 has 32 too.
            count = 32 if vector >= 64 or machine() == "aarch64" else 16
            registers = (count * vector // 4, count * vector // 4, 1)
        else:
            registers = (255, 65536, 2048)
        return Facts(
            kind,
            device.platform.name.strip(),
            device.name.strip(),
            device.driver_version.strip(),
            device.max_compute_units,
            device.global_mem_size,
            device.max_mem_alloc_size,
            device.local_mem_size,
            device.max_work_group_size,
            tuple(device.max_work_item_sizes),
            vector,
            1 if kind == "cpu" else _simd_width(device),
            *registers,
            has_double=bool(device.double_fp_config),
        )


def _kind(device: cl.Device) -> str:
    if device.type & cl.device_type.CPU:
        return "cpu"
    return "gpu" if device.type & cl.device_type.GPU else "accelerator"


def _simd_width(device: cl.Device) -> int:
    for attribute in ("warp_size_nv", "wavefront_width_amd"):
        with contextlib.suppress(cl.Error, AttributeError):
            return int(getattr(device, attribute))
    return 16
