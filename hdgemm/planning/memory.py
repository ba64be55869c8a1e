"""Bytes that a plan holds and bytes that it moves: arithmetic only.

The functions take Python integers or NumPy arrays of them alike, so that the search prices
thousands of shapes with the very formulas that make the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.plan import NO_SLOTS, SCRATCH_BYTES, STAGES, Slots
from hdgemm.pipeline.staging import PHASE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.plan import DeviceSpec, Operand, Plan, Problem, Stage

#: An integer, or a NumPy array of integers.
Count: TypeAlias = Any

#: Staging is cut into pieces no larger than this: long enough for a link to reach its speed,
#: short enough that the first and the last piece delay little.
PIECE_BYTES: Final = 16 << 20
#: Pieces in a ring: one being filled, one being emptied, two to even out.
RING_PIECES: Final = 4


def op_extents(problem: Problem) -> dict[Operand, tuple[int, int]]:
    """Return rows and columns of each operand in op-space."""
    m, n, k = problem.m, problem.n, problem.k
    return {"A": (m, k), "B": (k, n), "C": (m, n)}


def bounce_bytes(problem: Problem, limit: int) -> int:
    """Return what files bounce through: the run's memory as well, though no plan knows of it."""
    return min(BOUNCE_BYTES, limit // 8) if problem.in_files else 0


class Staging(NamedTuple):
    """The two rings between application and device memory."""

    up: Slots
    down: Slots


def round_up(value: Count, quantum: Count) -> Count:
    """Return the least multiple of `quantum` that is not below `value`."""
    return -(-value // quantum) * quantum


def ceil_div(value: Count, divisor: Count) -> Count:
    """Return how many pieces of `divisor` cover `value`."""
    return -(-value // divisor)


def slot_bytes(
    problem: Problem, device: DeviceSpec, operand: Operand, rows: Count, cols: Count
) -> Count:
    """Return the bytes of a slot for tiles of op(X) with up to `rows` × `cols` elements.

    Devices keep A and B in extents rounded up to their granularity. On a unified device a tile
    of a file starts at the file's own phase within a page, so that direct reads need no copy.
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
    return rows * cols * problem.itemsize + phase


def scratch_bytes(problem: Problem, c_slot: Count, nb: Count) -> Count:
    """Return the bytes in which store2 reads the old C; as `Plan.scratch_bytes`, for the search."""
    if not problem.reads_c or problem.c.path == "resident":
        return 0 * c_slot
    most = SCRATCH_BYTES - (SCRATCH_BYTES - c_slot) * (c_slot < SCRATCH_BYTES)
    row = nb * problem.itemsize
    return most + (row - most) * (row > most)


def staging(
    problem: Problem,
    device: DeviceSpec,
    tiles: Mapping[Operand, tuple[int, int]],
    room: int,
    *,
    drained: bool = True,
) -> Staging:
    """Size both rings for tiles of these op-space extents within `room` bytes, if that can be.

    A piece holds at least one stored row of each tile. Rings are empty on a unified device, and
    in a direction in which nothing is staged; `drained` false says that C lies in staging
    already. When there is little room, pieces shrink first and then get fewer.
    """
    least_up, least_down = ring_bytes(problem, device, tiles, drained=drained)
    share = (room - least_up - least_down) // (bool(least_up) + bool(least_down) or 1)
    ups = [_tile_bytes(problem, x, tiles) for x in ("A", "B") if problem.spec(x).path == "staged"]
    return Staging(
        _ring(least_up, max(ups, default=0), least_up + share),
        _ring(least_down, _tile_bytes(problem, "C", tiles), least_down + share),
    )


def ring_bytes(
    problem: Problem,
    device: DeviceSpec,
    tiles: Mapping[Operand, tuple[Count, Count]],
    *,
    drained: bool = True,
) -> tuple[Count, Count]:
    """Return the least bytes of a piece of either ring: one stored row of its widest tile."""
    if device.unified:
        return 0, 0
    widest: Count = 0
    for operand in ("A", "B"):
        if problem.spec(operand).path == "staged":
            row = _row_bytes(problem, operand, tiles)
            widest = widest + (row - widest) * (row > widest)
    down = _row_bytes(problem, "C", tiles) if drained and problem.c.path == "staged" else 0
    return widest, down


def _row_bytes(
    problem: Problem, operand: Operand, tiles: Mapping[Operand, tuple[Count, Count]]
) -> Count:
    rows, cols = tiles[operand]
    spec = problem.spec(operand)
    phase = PHASE_BYTES if spec.place == "file" else 0
    return (rows if spec.trans else cols) * problem.itemsize + phase


def _tile_bytes(
    problem: Problem, operand: Operand, tiles: Mapping[Operand, tuple[int, int]]
) -> int:
    rows, cols = tiles[operand]
    return rows * cols * problem.itemsize + PHASE_BYTES


def _ring(least: int, tile: int, share: int) -> Slots:
    if least == 0:
        return NO_SLOTS
    most = max(least, min(tile, PIECE_BYTES))
    count = max(1, min(RING_PIECES, share // least))
    return Slots(count, max(least, min(most, share // count)))


def planned_bytes(plan: Plan) -> dict[Stage, int]:
    """Return the bytes that each stage will have moved when the plan is done.

    load1 and store2 count bytes as the application stores them, load2 and store1 as the device
    does; store2 counts the old C that it reads.
    """
    moved: dict[Stage, int] = dict.fromkeys(STAGES, 0)
    problem, unified = plan.problem, plan.device.unified
    for load in plan.loads:
        spec = problem.spec(load.operand)
        area = load.rect.rows * load.rect.cols
        if spec.path == "staged":
            moved["load1"] += area * spec.itemsize
        if not unified:
            moved["load2"] += area * problem.itemsize
    if plan.in_place or problem.c.path == "resident":
        return moved
    area = plan.cells
    if plan.overlap.c_on_device and not unified:
        moved["store1"] = area * problem.itemsize
    if problem.c.path == "staged":
        moved["store2"] = area * problem.c.itemsize * (2 if problem.reads_c else 1)
    return moved
