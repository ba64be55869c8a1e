"""Bytes that a plan holds and bytes that it moves: arithmetic only.

The functions take Python integers or NumPy arrays of integers, so that the search sizes thousands
of shapes with the formulas that make the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.pipeline.plan import NO_SLOTS, SCRATCH_BYTES, Slots
from hdgemm.pipeline.slots import PHASE_BYTES
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.plan import DeviceSpec, Operand, Problem
    from hdgemm.planning.case import Case

#: An integer, or a NumPy array of integers.
Count: TypeAlias = Any
#: Rows and columns of the largest tile of each operand, in op-space.
Tiles: TypeAlias = "Mapping[Operand, tuple[Count, Count]]"

#: The most bytes of a piece of staging: long enough for a link to reach its speed, short enough
#: that the first and the last piece delay little.
PIECE_BYTES: Final = 16 << 20
#: Pieces in a ring: one being filled, one being emptied, and two that absorb variation.
RING_PIECES: Final = 4


class Ring(NamedTuple):
    """Pieces of staging, and the bytes of each."""

    count: Count
    nbytes: Count

    def slots(self) -> Slots:
        """Return one shape's ring as a plan has it."""
        return Slots(int(self.count), int(self.nbytes)) if self.nbytes else NO_SLOTS


class Staging(NamedTuple):
    """The two rings between application and device memory."""

    up: Ring
    down: Ring


class Need(NamedTuple):
    """The least bytes that a shape holds, and the bytes of its largest slot.

    `device` counts slots. `host` counts staging of the least size and, on a unified device, the
    slots.
    """

    host: Count
    device: Count
    largest: Count

    def fits(self, case: Case) -> Count:
        """Say whether all limits hold."""
        return (
            (self.host <= case.limits.host)
            & (self.device <= case.limits.device)
            & (self.largest <= case.largest_slot)
        )

    def missing(self, case: Case) -> Count:
        """Return the bytes by which the tightest limit is exceeded."""
        host, device = self.host - case.limits.host, self.device - case.limits.device
        return larger(larger(host, device), self.largest - case.largest_slot)


def round_up(value: Count, quantum: Count) -> Count:
    """Return the least multiple of `quantum` that is not below `value`."""
    if isinstance(quantum, int) and quantum == 1:  # on the host: divisions are slow
        return value
    return -(-value // quantum) * quantum


def ceil_div(value: Count, divisor: Count) -> Count:
    """Return how many pieces of `divisor` cover `value`."""
    return -(-value // divisor)


def larger(a: Count, b: Count) -> Count:
    """Return the larger of two integers, or of two arrays element by element."""
    return a + (b - a) * (b > a)


def op_extents(problem: Problem) -> dict[Operand, tuple[int, int]]:
    """Return rows and columns of each operand in op-space."""
    m, n, k = problem.m, problem.n, problem.k
    return {"A": (m, k), "B": (k, n), "C": (m, n)}


def slot_bytes(
    problem: Problem, device: DeviceSpec, operand: Operand, rows: Count, cols: Count
) -> Count:
    """Return the bytes of a slot for tiles of op(X) with up to `rows` × `cols` elements.

    Devices keep A and B in extents rounded up to their granularity. On a unified device a tile
    of a file starts at the file's own phase within a page, so that direct reads need no copy.
    Slots are whole pieces of what the driver allocates.
    """
    spec = problem.spec(operand)
    if spec.path == "resident":
        return 0 * rows * cols
    gm, gn, gk = device.granularity
    if operand == "A":
        rows, cols = round_up(rows, gm), round_up(cols, gk)
    elif operand == "B":
        rows, cols = round_up(rows, gk), round_up(cols, gn)
    phase = PHASE_BYTES if device.unified and spec.place == "file" else 0
    nbytes = rows * cols * problem.tile_itemsize(operand) + phase
    return round_up(nbytes, device.allocation_bytes)


def scratch_bytes(problem: Problem, c_slot: Count, nb: Count) -> Count:
    """Return the bytes in which store2 reads the old C, as `Plan.scratch_bytes` does."""
    if not problem.reads_c or problem.c.path == "resident":
        return 0 * c_slot
    return larger(SCRATCH_BYTES - larger(0 * c_slot, SCRATCH_BYTES - c_slot), nb * problem.itemsize)


def does_not_fit(case: Case, need: Need, what: str, advice: str) -> DoesNotFitError:
    """Return the error that names the limit that a plan, `what`, exceeds by most, its shortfall,
    and what to do instead of raising the limit: `advice`, which may be empty.
    """
    checks = [
        ("host_memory", int(need.host), case.limits.host),
        ("device_memory", int(need.device), case.limits.device),
        ("device_memory", int(need.largest), case.largest_slot),
    ]
    name, requested, available = max(checks, key=lambda check: check[1] - check[2])
    missing = requested - available
    return DoesNotFitError(
        f"{what} needs {format_size(requested)} for tiles on {case.device.name}, {name} leaves "
        f"{format_size(available)} for them: {format_size(missing)} are missing; raise "
        f"{name}{advice}",
        requested=requested,
        available=available,
        missing=missing,
        limit=name,
    )


def staging(case: Case, tiles: Tiles, c_slots: Count) -> Staging:
    """Size both rings for these tiles within the host memory, if that is possible.

    A piece holds at least one stored row of each tile. Rings are empty on a unified device, and
    in a direction in which nothing is staged. Where memory is short, pieces get smaller first,
    then fewer.
    """
    problem = case.problem
    up, down = ring_bytes(case, tiles)
    c_slot = slot_bytes(problem, case.device, "C", *tiles["C"])
    room = case.limits.host - scratch_bytes(problem, c_slot, tiles["C"][1]) - up - down
    if not case.overlap.c_on_device:
        room = room - c_slots * c_slot
    share = room // (bool(np.any(up)) + bool(np.any(down)) or 1)
    largest: Count = 0
    for operand in ("A", "B"):
        if problem.spec(operand).path == "staged":
            largest = larger(largest, _tile_bytes(problem, operand, tiles))
    c_bytes = _tile_bytes(problem, "C", tiles)
    return Staging(_ring(up, largest, up + share), _ring(down, c_bytes, down + share))


def ring_bytes(case: Case, tiles: Tiles) -> tuple[Count, Count]:
    """Return the least bytes of a piece of either ring: one stored row of its widest tile."""
    problem = case.problem
    if case.device.unified:
        return 0, 0
    widest: Count = 0
    for operand in ("A", "B"):
        if problem.spec(operand).path == "staged":
            widest = larger(widest, _row_bytes(problem, operand, tiles))
    # Where the kernel writes C into staging, nothing is copied down.
    drained = case.overlap.c_on_device and problem.c.path == "staged"
    return widest, _row_bytes(problem, "C", tiles) if drained else 0


def _tile_bytes(problem: Problem, operand: Operand, tiles: Tiles) -> Count:
    rows, cols = tiles[operand]
    return rows * cols * problem.tile_itemsize(operand)


def _row_bytes(problem: Problem, operand: Operand, tiles: Tiles) -> Count:
    rows, cols = tiles[operand]
    spec = problem.spec(operand)
    phase = PHASE_BYTES if spec.place == "file" else 0
    return (rows if spec.trans else cols) * problem.tile_itemsize(operand) + phase


def _ring(least: Count, tile: Count, share: Count) -> Ring:
    if not np.any(least):
        return Ring(0, 0)
    most = np.maximum(least, np.minimum(tile + PHASE_BYTES, PIECE_BYTES))
    count = np.clip(share // least, 1, RING_PIECES)
    return Ring(count, np.maximum(least, np.minimum(most, share // count)))
