"""Devices by name: which there are, and why one cannot be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hdgemm.errors import DeviceUnavailableError
from hdgemm.machine.limits import available_bytes, cores
from hdgemm.tables import Table
from hdgemm.units import format_size
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Device


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, or one kind of device that cannot be used.

    Parameters
    ----------
    name
        As in `Options.devices`.
    description
        The driver's name for it, and the driver's version.
    memory_bytes
        Bytes that it can hold.
    usable
        Whether it can be opened.
    note
        Why it cannot be opened, or what a user should know.
    accelerator
        It has memory of its own, so that products in RAM can be faster on it.

    See Also
    --------
    devices : Returns a list of them.

    Examples
    --------
    >>> hdgemm.devices()[0].name
    'host'
    """

    name: str
    description: str
    memory_bytes: int = 0
    usable: bool = True
    note: str = ""
    accelerator: bool = False


class DeviceList(list[DeviceInfo]):
    """Devices; in a notebook, a table."""

    def _repr_html_(self) -> str:
        """Return a row for each device."""
        rows = [
            (
                info.name,
                info.description,
                format_size(info.memory_bytes) if info.memory_bytes else "",
                "yes" if info.usable else "no",
                info.note,
            )
            for info in self
        ]
        heads = ("device", "description", "memory", "usable", "note")
        return Table(heads, rows, text=True).html()


@refuses_unknown
def list_devices() -> DeviceList:
    """Return every device of this machine, the host first.

    Asks the drivers, and allocates no memory on devices.

    Returns
    -------
    DeviceList
        Devices with their memory; of one that cannot be used, the reason. Prints as a table.

    See Also
    --------
    check_device : Test that a device computes correctly.

    Examples
    --------
    >>> print(hdgemm.devices())
    """
    from hdgemm.pipeline.devices import cuda, opencl

    host = DeviceInfo("host", f"{cores()} cores, its BLAS", available_bytes())
    return DeviceList([host, *cuda.list_devices(), *opencl.list_devices()])


def first_accelerator() -> str | None:
    """Return the first usable device with memory of its own, None if there is none.

    OpenCL's loader is slow, and is not asked where it can find CPUs only.
    """
    from hdgemm.pipeline.devices import cuda, opencl

    listed = cuda.list_devices()
    if opencl.may_find_accelerators():
        listed += opencl.list_devices()
    return next((info.name for info in listed if info.usable and info.accelerator), None)


def _accelerators() -> tuple[str, ...]:
    """Return the usable CUDA accelerators, else OpenCL's: both may list the same GPU."""
    from hdgemm.pipeline.devices import cuda, opencl

    listed: list[DeviceInfo] = []
    for library in (cuda, opencl):
        listed += library.list_devices()
        found = tuple(info.name for info in listed if info.usable and info.accelerator)
        if found:
            return found
    reasons = "; ".join(
        f"{info.name}: {'a CPU, no accelerator' if info.usable else info.note}"
        for info in listed
        if info.usable or info.note
    )
    raise DeviceUnavailableError(
        f"devices='gpu' found no accelerator ({reasons or 'no driver'}); `hdgemm devices` lists "
        "all devices"
    )


def open_device(
    name: str, memory_bytes: int | None = None, *, threads: int | None = None
) -> Device:
    """Open one device by name: ``"host"``, ``"opencl:0"``, ``"cuda:0"``.

    It holds at most `memory_bytes`, None: all it has. The host multiplies with `threads`, None for
    one for each core. Raises `DeviceUnavailableError` with the reason where there is no such
    device, or it cannot be used.
    """
    kind = name.partition(":")[0]
    if name == "host":
        from hdgemm.pipeline.devices.host import HostDevice

        return HostDevice(threads=threads)
    if kind == "opencl":
        from hdgemm.pipeline.devices import opencl

        return opencl.open_device(name, memory_bytes)
    if kind == "cuda":
        from hdgemm.pipeline.devices import cuda

        return cuda.open_device(name, memory_bytes)
    raise DeviceUnavailableError(
        f"there is no device {name!r}; names are 'host', 'opencl:N' and 'cuda:N' "
        "(`hdgemm devices` lists them)"
    )


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names that a name stands for: ``"opencl:0/2"`` two halves of a device, ``"gpu"``
    all accelerators.

    Raises
    ------
    DeviceUnavailableError
        For ``"gpu"`` without an accelerator that can be used.
    """
    if name == "gpu":
        return _accelerators()
    match = re.fullmatch(r"opencl:\d{1,4}/(\d{1,4})", name)
    count = int(match[1]) if match else 0
    return tuple(f"{name}:{part}" for part in range(count)) or (name,)
