"""Where slabs are updated: by the host's BLAS, or on other devices; what a plan needs of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.run.members import update_devices
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.planning.slab import Kind, SlabPlan
    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.devices.protocol import NativeDevice
    from hdgemm.pipeline.plan import Operand

#: Columns that the host factors at once where devices compute the updates.
PANEL: Final = 256
#: Rows and columns for which a device's triangular solve may hold workspace.
_SOLVED: Final = 128


@dataclass(frozen=True, slots=True)
class SlabDevices:
    """The devices that update slabs, and the rates at which each is expected to.

    The columns of a slab are dealt to several devices in proportion to their rates.
    """

    devices: tuple[NativeDevice, ...]
    machines: tuple[Machine, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(device.spec.name for device in self.devices)

    def weights(self, dtype: str) -> tuple[float, ...]:
        """Return the part of a slab's columns that each device takes."""
        rates = [machine.flop_rate(dtype) for machine in self.machines]
        return tuple(max(0.001, round(rate / sum(rates), 3)) for rate in rates)

    def most_columns(self, kind: Kind, m: int, n: int, dtype: str, block: int) -> int:
        """Return the columns of the widest slab of m rows that the devices hold; 0 for none."""
        low, high = 0, n
        while low < high:
            middle = (low + high + 1) // 2
            if self._missing(kind, m, dtype, block, middle) is None:
                low = middle
            else:
                high = middle - 1
        return low

    def locked_bytes(self, kind: Kind, dtype: str, block: int) -> int:
        """Return the bytes of page-locked memory beside slabs and blocks."""
        return len(self.devices) * squares_bytes(kind, np.dtype(dtype), block)

    def check(self, kind: Kind, m: int, dtype: str, block: int, width: int) -> None:
        """Raise `DoesNotFitError` where a device does not hold so many columns."""
        missing = self._missing(kind, m, dtype, block, width)
        if missing is not None:
            name, needed, limit = missing
            raise DoesNotFitError(
                f"{name} holds {format_size(limit)}; {width} columns of a slab, blocks of {block} "
                f"columns of {m} rows and the workspace of {kind} take {format_size(needed)}: "
                "raise device_memory, or choose narrower slabs and blocks",
                requested=needed,
                available=limit,
                missing=needed - limit,
                device=name,
            )

    def _missing(
        self, kind: Kind, m: int, dtype: str, block: int, width: int
    ) -> tuple[str, int, int] | None:
        """Return a device that does not hold a slab, the bytes that it needs and those it has."""
        others = len(self.devices) - 1
        for device, weight in zip(self.devices, self.weights(dtype), strict=True):
            # Columns are dealt by strips: see `dealt` in `resident_plan`.
            dealt = int(width * weight) + 1 + others * max(PANEL, block)
            columns = min(width, dealt) if others else width
            sizes = buffer_sizes(device, kind, m, np.dtype(dtype), block, columns)
            exceeded = device.spec.exceeded(sizes)
            if exceeded is not None:
                return device.spec.name, *exceeded
        return None


def squares_bytes(kind: Kind, dtype: np.dtype[Any], block: int) -> int:
    """Return the bytes of staging for what a device needs beside two blocks (`Factorisation`)."""
    return 0 if kind in ("lu", "cholesky") else 4 * block**2 * dtype.itemsize


def buffer_sizes(
    device: NativeDevice, kind: Kind, m: int, dtype: np.dtype[Any], block: int, columns: int
) -> list[int]:
    """Return the bytes of each buffer that updates of a slab take on a device.

    First the slab's columns, twice a block's, and twice T's; then
    workspace: packed operands, lines that are permuted, and what a triangular solve holds.
    """

    def size(operand: Operand, rows: int, cols: int) -> int:
        held = device.packs or operand == "C"
        return device.slot_bytes(operand, rows, cols, dtype) if held else 0

    square = 0 if kind in ("lu", "cholesky") else size("C", block, block)
    held = [size("C", columns, m), *[size("C", block, m)] * 2, *[square] * 2, size("B", block, m)]
    conjugates = dtype.kind == "c"
    if kind == "cholesky":
        strip = min(columns, PANEL)
        return [*held, size("A", block, strip), size("C", block, strip) if conjugates else 0]
    if kind == "lu":
        moved = min(2 * block, m)
        return [
            *held,
            size("A", columns, block),
            size("C", moved * columns, 1),
            size("C", 4 * moved, 1),
            size("C", _SOLVED, _SOLVED),
            size("A", columns, _SOLVED),
            size("B", _SOLVED, block),
        ]
    products = [size("C", columns, block)] * 2
    return [*held, size("A", columns, m), *products, size("C", block, m) if conjugates else 0]


def slab_devices(shape: tuple[int, int], dtype: str, run: OpenRun) -> SlabDevices | None:
    """Open the devices of the updates, with their rates; None for the host alone.

    Raises
    ------
    DeviceUnavailableError
        When a device cannot be used.
    """
    options, session, callbacks = run
    (m, n), names = shape, update_devices(options)
    if not names:
        return None
    staged = OperandSpec(False, "memory", "staged", np.dtype(dtype).itemsize)
    depth = max(1, min(m, n) // 3)
    problem = Problem(max(1, m), max(1, n), depth, dtype, staged, staged, staged, reads_c=True)
    devices, machines = [], []
    for name in names:
        device = factor_device(name, "factorisations", run)
        devices.append(device)
        machines.append(session.machine(device.spec, problem, None, options.threads, callbacks))
    return SlabDevices(tuple(devices), tuple(machines))


def factor_device(name: str, what: str, run: OpenRun) -> NativeDevice:
    """Open a device for factorisations, or for something else that needs their operations.

    Raises
    ------
    DeviceUnavailableError
        When it cannot be used.
    InputError
        When it has no such operations.
    """
    device: Any = run.session.device(name, run.options)
    if not hasattr(device, "permute"):
        raise InputError(f"{name} has no kernels for {what}: choose another device")
    found: NativeDevice = device
    return found


def devices_of(plan: SlabPlan, run: OpenRun) -> Sequence[NativeDevice]:
    """Return the opened devices that a plan names."""
    found: list[Any] = [
        run.session.device(name, run.options) for name in update_devices(run.options)
    ]
    return [device for device in found if device.spec.name in plan.devices]
