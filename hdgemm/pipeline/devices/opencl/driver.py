"""The one place where a driver's error becomes ours, and where a device's limits are read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from hdgemm.errors import DeviceError, DoesNotFitError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def driver_errors(what: str, **numbers: Any) -> Iterator[None]:
    """Turn an error of the OpenCL driver in this block into a `DeviceError` about `what`.

    Raises
    ------
    DoesNotFitError
        When the driver ran out of memory.
    DeviceError
        For everything else; `numbers` become its attributes.
    """
    try:
        yield
    except cl.MemoryError as error:
        raise DoesNotFitError(f"{what}: the OpenCL driver is out of memory", **numbers) from error
    except cl.Error as error:
        raise DeviceError(f"{what}: {_first_lines(error)}", **numbers) from error


def _first_lines(error: cl.Error, most: int = 3) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join([line for line in lines if line and not set(line) <= set("=-")][:most])


@dataclass(frozen=True, slots=True)
class Facts:
    """What a kernel's shape depends on of a device, as its driver tells.

    Parameters
    ----------
    kind
        ``"cpu"``, ``"gpu"`` or ``"accelerator"``.
    vector_bytes
        The device's own vector; 64 with AVX-512. 4 or 8 on a GPU, whose lanes are work-items.
    simd_width
        Work-items that run in step (a warp, a wavefront); 1 on a CPU.
    registers_per_item, registers_per_group
        32-bit registers. Not told by OpenCL: on a CPU its vector registers, on a GPU what the
        common architectures have.
    resident_items
        Work-items that a compute unit holds at most; taken as for registers.
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
        """Whether the runtime lets a thread that waits for a command work on it."""
        return self.kind == "cpu" and self.platform.startswith("Intel")


def read_facts(device: cl.Device) -> Facts:
    """Ask a device's driver for its limits."""
    with driver_errors("asking an OpenCL device for its limits"):
        kind = _kind(device)
        vector = max(4 * device.native_vector_width_float, 8 * device.native_vector_width_double)
        if kind == "cpu":
            # AVX-512 doubles the number of registers together with their length.
            count = 32 if vector >= 64 else 16
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
