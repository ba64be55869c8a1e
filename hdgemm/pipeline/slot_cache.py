"""Slots of finished runs on one device, kept for the next run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from hdgemm.pipeline.plan import NO_SLOTS, Slots

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Buffer, Device
    from hdgemm.pipeline.plan import Plan

#: Where a slot's memory lies.
Kind = Literal["device", "staging"]


class SlotCache:
    """Allocator of one device that reuses slots of exactly the same size.

    Invariant: slots in use and slots kept never exceed the memory of the plan that runs, since
    `retain` frees all others before the plan allocates.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: dict[tuple[Kind, int], list[Buffer]] = {}

    def retain(self, plan: Plan) -> None:
        """Free the kept slots that a plan does not use."""
        wanted: Counter[tuple[Kind, int]] = Counter()
        for kind, slots in slot_groups(plan).values():
            wanted[kind, slots.nbytes] += slots.count
        for key, buffers in self._kept.items():
            while len(buffers) > wanted[key]:
                self._device.free(buffers.pop())

    def allocate(self, kind: Kind, nbytes: int) -> Buffer:
        """Return memory of `nbytes`; its content is undefined."""
        if kept := self._kept.get((kind, nbytes)):
            return kept.pop()
        if kind == "device":
            return self._device.allocate(nbytes)
        return self._device.allocate_staging(nbytes)

    def keep(self, kind: Kind, buffer: Buffer) -> None:
        """Take a slot back after a run that succeeded."""
        self._kept.setdefault((kind, buffer.nbytes), []).append(buffer)

    def clear(self) -> None:
        """Free all kept slots."""
        for buffers in self._kept.values():
            while buffers:
                self._device.free(buffers.pop())


def slot_groups(plan: Plan) -> dict[str, tuple[Kind, Slots]]:
    """Return the slots of a plan by what they hold, and where their memory lies."""
    scratch = Slots(1, plan.scratch_bytes) if plan.scratch_bytes else NO_SLOTS
    return {
        "A": ("device", plan.a_slots),
        "B": ("device", plan.b_slots),
        "C": ("device" if plan.overlap.c_on_device else "staging", plan.c_slots),
        "up": ("staging", plan.up),
        "down": ("staging", plan.down),
        "scratch": ("staging", scratch),
    }
