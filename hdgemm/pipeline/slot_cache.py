"""Slots of finished runs on one device, kept for the next run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from hdgemm.pipeline.plan import NO_SLOTS, Slots

if TYPE_CHECKING:
    from hdgemm.pipeline.devices.protocol import Buffer, Device
    from hdgemm.pipeline.plan import Plan

#: Where a slot's memory lies.
Kind = Literal["device", "staging"]
#: A slot of a finished run.
_Kept: TypeAlias = "tuple[Kind, Buffer]"
#: The kind and bytes of a slot of the next plan, and the kept slot that it takes; None for none.
_Choice: TypeAlias = "tuple[tuple[Kind, int], Buffer | None]"


class SlotCache:
    """Allocator of one device that reuses slots of finished runs.

    To take and page-lock 1 GiB took 0.07 s on an H100's host. So a slot is reused for a smaller
    one, too.

    Invariant: slots in use and slots kept never exceed the limits of the plan that runs, since
    `retain` frees all others before the plan allocates.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        #: By kind and the requested bytes; a slot may be larger.
        self._kept: dict[tuple[Kind, int], list[Buffer]] = {}

    def retain(self, plan: Plan) -> None:
        """Choose kept slots for the slots of a plan, and free the others.

        Larger ones are chosen where the limits of the plan allow it, else slots of the same size.
        """
        kept = [(kind, buffer) for (kind, _), found in self._kept.items() for buffer in found]
        if not kept:
            return
        chosen, left = _chosen(plan, kept, larger=True)
        if not _within_limits(plan, chosen):
            chosen, left = _chosen(plan, kept, larger=False)
        for _, buffer in left:
            self._device.free(buffer)
        self._kept.clear()
        for asked, slot in chosen:
            if slot is not None:
                self._kept.setdefault(asked, []).append(slot)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory in slots that are kept."""
        unified = self._device.spec.unified
        return sum(
            sum(buffer.nbytes for buffer in buffers)
            for (kind, _), buffers in self._kept.items()
            if unified or kind == "staging"
        )

    def allocate(self, kind: Kind, nbytes: int) -> Buffer:
        """Return memory of `nbytes` or more; its content is undefined."""
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


def _chosen(plan: Plan, kept: list[_Kept], *, larger: bool) -> tuple[list[_Choice], list[_Kept]]:
    """Return the smallest kept slot, or None, for each slot of a plan, and those that are left."""
    left = sorted(kept, key=lambda each: each[1].nbytes)
    wanted = [
        (kind, slots.nbytes)
        for kind, slots in slot_groups(plan).values()
        for _ in range(slots.count)
    ]
    chosen: list[_Choice] = []
    for kind, nbytes in sorted(wanted, key=lambda each: each[1], reverse=True):
        found = next(
            (
                at
                for at, (of_kind, buffer) in enumerate(left)
                if of_kind == kind
                and (buffer.nbytes == nbytes or (larger and buffer.nbytes > nbytes))
            ),
            None,
        )
        chosen.append(((kind, nbytes), None if found is None else left.pop(found)[1]))
    return chosen, left


def _within_limits(plan: Plan, chosen: list[_Choice]) -> bool:
    held = {"device": 0, "staging": 0}
    for (kind, nbytes), buffer in chosen:
        held[kind] += nbytes if buffer is None else buffer.nbytes
    if plan.device.unified:
        return sum(held.values()) <= plan.host_limit
    return held["device"] <= plan.device_limit and held["staging"] <= plan.host_limit
