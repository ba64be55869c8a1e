"""The plan of one of several devices that share a product: slots, tile and rings for its share.

The devices draw C tiles from a common pool while they run, so the units of this plan are not
executed; its tile, slots and staging are used. Its expected time assumes that the device is alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hdgemm.planning.byte_counts import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.pipeline.plan import Expectation, Plan, Problem
    from hdgemm.planning.case import Case

    TileExtents = tuple[int, int, int]

#: Tiles along each side of C that each device's share has at least, so that the load can be
#: balanced.
_TILES: Final = 2
#: The smallest extent to which a tile is cut for the sake of balance.
_LEAST_TILE: Final = 256


def member_plan(
    case: Case,
    tile: TileExtents | None,
    members: int,
    plan_case: Callable[[Case, TileExtents | None], Plan],
) -> Plan:
    """Plan a share of C that leaves several tiles to each device; return it for all of C.

    The case is the whole product within one device's part of the host memory. `plan_case` plans a
    case with a forced tile, or None for the one that the search finds.
    """
    problem = case.problem
    part = replace(problem, m=_part(problem.m, _TILES * members), n=_part(problem.n, _TILES))
    if tile is None and problem.in_place:
        # BLAS needs no slots; the tile only says how much of C is drawn at a time.
        tile = (part.m, part.n, part.k)
    elif tile is None and not problem.in_files:
        # In a plan for the share alone start and end dominate, and short steps win; in the run
        # they do not. Files are read in whole rows, which a forced tile would prevent.
        tile = _cut_rows(plan_case(case, None).tile, part, case.device.granularity)
    plan = plan_case(replace(case, problem=part), tile)
    whole = replace(plan.problem, m=problem.m, n=problem.n)
    expected = _expected(plan, whole.flops / plan.problem.flops)
    return _hold_bar(replace(plan, problem=whole, expected=expected))


def _expected(plan: Plan, times: float) -> Expectation | None:
    """Return what the model expects of the device alone for so many times the plan's part of C."""
    found = plan.expected
    if found is None:
        return None
    stages = {stage: seconds * times for stage, seconds in found.stage_seconds.items()}
    return replace(found, seconds=found.seconds * times, stage_seconds=stages)


def _part(extent: int, parts: int) -> int:
    size: int = max(_LEAST_TILE, ceil_div(extent, parts))
    return min(extent, size)


def _cut_rows(tile: TileExtents, part: Problem, granularity: TileExtents) -> TileExtents:
    """Cut a tile to the share's rows and deepen its steps, so that a step keeps its flops.

    No slot takes more memory than a slot of the given tile.
    """
    mb, nb, kb = tile
    rows = _whole(min(mb, part.m), granularity[0])
    times = max(1, min(mb // rows, nb // granularity[1]))
    return rows, min(_whole(nb // times, granularity[1]), part.n), min(kb * times, part.k)


def _whole(extent: int, quantum: int) -> int:
    return extent - extent % quantum if extent > quantum else extent


def _hold_bar(plan: Plan) -> Plan:
    """Give A's slots the memory left over, up to a whole bar: its tiles then load only B.

    The planner cannot foresee this, since it does not know into how small tiles a bar is drawn.
    """
    slots = plan.a_slots
    if not slots.count:
        return plan
    depth = min(plan.layout.a_depth, plan.problem.k)
    room = plan.device_limit - plan.device_bytes
    if plan.device.unified:
        room = min(room, plan.host_limit - plan.host_bytes)
    # With one more than the bar has, the next bar's first tile is loaded while this bar ends.
    count = min(ceil_div(plan.problem.k, depth) + 1, slots.count + max(0, room) // slots.nbytes)
    return replace(plan, a_slots=replace(slots, count=max(slots.count, count)))
