"""Accounting of a run on several devices: shares of C, and the bytes that were to be moved."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.plan import STAGES, bytes_of, flops_per_multiply_add
from hdgemm.run.split_report import Dropped, Share, SplitReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.plan import Operand, Plan, Stage
    from hdgemm.pipeline.tiles import Rect
    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.run.balance import Refusal
    from hdgemm.run.shared_pool import SharedPool


#: A device that stopped while more than this part of the run was left was dropped; later it is
#: how every run ends.
_EARLY: Final = 0.05


def describe_split(
    plans: Mapping[str, Plan],
    shared: SharedPool,
    timelines: Mapping[str, Timeline],
    seconds: float,
    *,
    alone: Mapping[str, float],
    regions: Mapping[str, Rect] | None,
) -> SplitReport:
    """Describe which device computed which part of C, and how evenly the run ended.

    `alone` is flop/s of devices by themselves, `regions` are the parts of C of a fixed split.
    """
    problem = next(iter(plans.values())).problem
    per_element = problem.k * flops_per_multiply_add(problem.dtype)
    if regions is None:
        weights = {name: shared.first_rate(name) for name in plans}
    else:
        weights = {name: float(rect.area) for name, rect in regions.items()}
    expected = sum(weights.values())
    shares = {}
    for name in plans:
        record = shared.records[name]
        began, finished = shared.seconds(name)
        busy = _busy(timelines.get(name))
        shares[name] = Share(
            planned=weights[name] / expected,
            used=record.elements / (problem.m * problem.n),
            elements=record.elements,
            flop_rate=record.elements * per_element / (finished - began)
            if finished > began
            else 0.0,
            kernel_rate=busy,
            began=began,
            finished=finished,
            tiles=tuple(record.tiles),
            failed=name not in timelines,
            alone=alone.get(name),
            dropped=_dropped(shared.refusal(name), per_element, seconds),
        )
    return SplitReport.of(shares, problem.flops, seconds)


def _dropped(refusal: Refusal | None, per_element: int, run_seconds: float) -> Dropped | None:
    if refusal is None or refusal.others_seconds <= _EARLY * run_seconds:
        return None
    return Dropped(refusal.rate * per_element, refusal.seconds, refusal.others_seconds)


def _busy(timeline: Timeline | None) -> float:
    stats = None if timeline is None else timeline.stages().get("mult1")
    return stats.flops / stats.seconds if stats is not None and stats.seconds > 0 else 0.0


def moved_bytes(
    plans: Mapping[str, Plan], elements: Mapping[str, Mapping[Operand, int]]
) -> dict[Stage, int]:
    """Return the bytes that each stage was to move for the units that were drawn: `elements` of
    each operand, by device.
    """
    moved: Counter[Stage] = Counter(dict.fromkeys(STAGES, 0))
    for name, plan in plans.items():
        drawn = elements[name]
        moved.update(bytes_of(plan, drawn["A"], drawn["B"], drawn["C"]))
    return dict(moved)
