"""Whether a shape fits, and what is missing when none does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hdgemm.errors import DoesNotFitError
from hdgemm.planning.memory import ring_bytes, scratch_bytes, slot_bytes

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import DeviceSpec, Overlap, Problem
    from hdgemm.planning.build import Limits
    from hdgemm.planning.memory import Count
    from hdgemm.planning.shapes import Shape, Shapes


class Need(NamedTuple):
    """The least bytes a shape holds, and the bytes of its largest slot.

    `device` counts slots; `host` counts staging at its smallest, and on a unified device the
    slots too.
    """

    host: Count
    device: Count
    largest: Count

    def fits(self, device: DeviceSpec, limits: Limits) -> Count:
        """Say whether all limits hold."""
        return (
            (self.host <= limits.host)
            & (self.device <= limits.device)
            & (self.largest <= device.max_buffer_bytes)
        )


def least_need(
    problem: Problem, device: DeviceSpec, overlap: Overlap, shapes: Shape | Shapes
) -> Need:
    """Return what a shape, or each of many, needs at least."""
    tiles = shapes.extents(problem)
    a, b, c = (slot_bytes(problem, device, x, *tiles[x]) for x in ("A", "B", "C"))
    a_count, b_count, c_count = shapes.slots
    held = a_count * a + b_count * b
    up, down = ring_bytes(problem, device, tiles, drained=overlap.c_on_device)
    host = up + down + scratch_bytes(problem, c, tiles["C"][1])
    if overlap.c_on_device:
        held = held + c_count * c
    else:
        host = host + c_count * c
    largest = a + (b - a) * (b > a)
    largest = largest + (c - largest) * (c > largest)
    return Need(host + held if device.unified else host, held, largest)


def does_not_fit(
    device: DeviceSpec, need: Need, limits: Limits, *, forced: tuple[int, int, int] | None
) -> DoesNotFitError:
    """Say which limit is too small for the least need, by how much, and what to do."""
    what = "the smallest plan" if forced is None else f"the tile {forced}"
    advice = "raise {}" if forced is None else "raise {} or let the planner choose the tile"
    checks = [
        ("host_memory", int(need.host), limits.host),
        ("device_memory", int(need.device), limits.device),
        ("device_memory", int(need.largest), device.max_buffer_bytes),
    ]
    name, requested, available = max(checks, key=lambda check: check[1] - check[2])
    missing = requested - available
    return DoesNotFitError(
        f"{what} needs {requested} bytes on {device.name}, {name} allows {available}: "
        f"{missing} bytes are missing; {advice.format(name)}",
        requested=requested,
        available=available,
        missing=missing,
        limit=name,
    )
