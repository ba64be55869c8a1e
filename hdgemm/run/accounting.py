"""After a run on several devices: one timeline, the bytes that were due, and who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.plan import STAGES, flops_per_multiply_add
from hdgemm.pipeline.timeline import Event, Timeline
from hdgemm.run.split_report import Dropped, Share, SplitReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.pipeline.dynamic_schedule import Batch
    from hdgemm.pipeline.plan import Plan, Rect, Stage
    from hdgemm.run.balance import Refusal
    from hdgemm.run.members import Seat
    from hdgemm.run.shared_pool import SharedPool


#: A device that stopped while more than this part of the run was left was dropped; later it is
#: how every run ends.
_EARLY: Final = 0.05


def describe_split(
    seats: Sequence[Seat],
    shared: SharedPool,
    timelines: Mapping[str, Timeline],
    seconds: float,
    *,
    alone: Mapping[str, float],
    regions: Mapping[str, Rect] | None,
) -> SplitReport:
    """Sum up who computed what, and how evenly it ended.

    Parameters
    ----------
    alone
        Flop/s of devices by themselves.
    regions
        The parts of C of a fixed split.
    """
    problem = seats[0].plan.problem
    per_cell = problem.k * flops_per_multiply_add(problem.dtype)
    if regions is None:
        weights = {seat.name: seat.member.rate for seat in seats}
    else:
        weights = {name: float(rect.rows * rect.cols) for name, rect in regions.items()}
    expected = sum(weights.values())
    shares = {}
    for seat in seats:
        record = shared.records[seat.name]
        began, finished = shared.seconds(seat.name)
        busy = _busy(timelines.get(seat.name))
        shares[seat.name] = Share(
            planned=weights[seat.name] / expected,
            used=record.cells / (problem.m * problem.n),
            cells=record.cells,
            flop_rate=record.cells * per_cell / (finished - began) if finished > began else 0.0,
            kernel_rate=busy,
            began=began,
            finished=finished,
            tiles=tuple(record.tiles),
            failed=seat.name not in timelines,
            alone=alone.get(seat.name),
            dropped=_dropped(shared.refusal(seat.name), per_cell, seconds),
        )
    ends = [
        share.finished
        for share in shares.values()
        if share.cells and not share.failed and share.dropped is None
    ]
    kernels = sum(share.kernel_rate for share in shares.values())
    return SplitReport(
        shares,
        (max(ends) - min(ends)) / seconds if ends and seconds > 0 else 0.0,
        problem.flops / seconds / kernels if kernels > 0 and seconds > 0 else 0.0,
    )


def _dropped(refusal: Refusal | None, per_cell: int, run_seconds: float) -> Dropped | None:
    if refusal is None or refusal.others_seconds <= _EARLY * run_seconds:
        return None
    return Dropped(refusal.rate * per_cell, refusal.seconds, refusal.others_seconds)


def _busy(timeline: Timeline | None) -> float:
    stats = None if timeline is None else timeline.stages().get("mult1")
    return stats.flops / stats.seconds if stats is not None and stats.seconds > 0 else 0.0


def merge_timelines(timelines: Mapping[str, Timeline], seconds: float) -> Timeline:
    """Return the events of all devices as one run of this length."""
    events: list[Event] = [event for one in timelines.values() for event in one.events]
    return Timeline(tuple(sorted(events, key=lambda event: event.start)), seconds)


def moved_bytes(seats: Sequence[Seat], batches: Mapping[str, Sequence[Batch]]) -> dict[Stage, int]:
    """Return the bytes that each stage was to move for the tiles that were drawn."""
    moved: dict[Stage, int] = dict.fromkeys(STAGES, 0)
    for seat in seats:
        for batch in batches[seat.name]:
            _add_batch(moved, seat.plan, batch)
    return moved


def _add_batch(moved: dict[Stage, int], plan: Plan, batch: Batch) -> None:
    problem, unified = plan.problem, plan.device.unified
    for load in batch.loads:
        spec = problem.spec(load.operand)
        area = load.rect.rows * load.rect.cols
        if spec.path == "staged":
            moved["load1"] += area * spec.itemsize
        if not unified:
            moved["load2"] += area * problem.itemsize
    area = batch.unit.rect.rows * batch.unit.rect.cols
    if problem.c.path == "resident":
        return
    if plan.overlap.c_on_device and not unified:
        moved["store1"] += area * problem.itemsize
    if problem.c.path == "staged":
        moved["store2"] += area * problem.c.itemsize * (2 if problem.reads_c else 1)
