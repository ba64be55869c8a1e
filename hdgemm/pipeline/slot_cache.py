"""Slots of finished runs on one device, kept for the next run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Buffer, Device, HostBuffer
    from hdgemm.pipeline.plan import Plan

#: Where a slot's memory lies.
Kind = Literal["device", "staging"]


class SlotCache:
    """Allocator of one device that reuses slots of exactly the same size.

    Invariant: slots in use and slots kept never exceed the memory of the plan that runs, since
    `retain` frees all others before the plan allocates.

    Parameters
    ----------
    device
        Allocates and frees; it is not closed here.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[tuple[Kind, int], list[Buffer]] = {}

    def retain(self, plan: Plan) -> None:
        """Free the kept slots that a plan does not use."""
        wanted = slot_sizes(plan)
        for key, buffers in list(self._kept.items()):
            while len(buffers) > wanted[key]:
                self._device.free(buffers.pop())

    def allocate(self, nbytes: int) -> Buffer:
        """Return device memory of `nbytes`; its content is undefined."""
        kept = self._kept.get(("device", nbytes))
        return kept.pop() if kept else self._device.allocate(nbytes)

    def allocate_staging(self, nbytes: int) -> HostBuffer:
        """Return host memory of `nbytes` that the device reaches; its content is undefined."""
        kept = self._kept.get(("staging", nbytes))
        return kept.pop() if kept else self._device.allocate_staging(nbytes)  # type: ignore[return-value]

    def keep(self, kind: Kind, buffer: Buffer) -> None:
        """Take a slot back after a run that succeeded."""
        self._kept.setdefault((kind, buffer.nbytes), []).append(buffer)

    def clear(self) -> None:
        """Free all kept slots."""
        for buffers in self._kept.values():
            while buffers:
                self._device.free(buffers.pop())


def slot_sizes(plan: Plan) -> Counter[tuple[Kind, int]]:
    """Count the slots of a plan by kind and bytes."""
    sizes: Counter[tuple[Kind, int]] = Counter()
    c_kind: Kind = "device" if plan.overlap.c_on_device else "staging"
    groups: list[tuple[Kind, int, int]] = [
        ("device", plan.a_slots.nbytes, plan.a_slots.count),
        ("device", plan.b_slots.nbytes, plan.b_slots.count),
        (c_kind, plan.c_slots.nbytes, plan.c_slots.count),
        ("staging", plan.up.nbytes, plan.up.count),
        ("staging", plan.down.nbytes, plan.down.count),
        ("staging", plan.scratch_bytes, 1 if plan.scratch_bytes else 0),
    ]
    for kind, nbytes, count in groups:
        sizes[kind, nbytes] += count
    return sizes
