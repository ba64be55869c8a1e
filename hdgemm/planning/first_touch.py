"""Memory that a run writes for the first time: the system hands it over page by page, as it is.

A run takes its slots, rings and scratch anew, so the first tile in each waits for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from hdgemm.pipeline.plan import Plan, Stage
    from hdgemm.pipeline.schedule import Op, Schedule


def fresh_bytes(
    plan: Plan, schedule: Schedule, *, on_host_cores: bool
) -> dict[tuple[Stage, int], int]:
    """Return by stage and number the bytes that an operation is first to write.

    Parameters
    ----------
    on_host_cores
        The device's memory is the host's, and handed over like it.
    """
    left: dict[Hashable, int] = {}
    found: dict[tuple[Stage, int], int] = {}
    for stage, ops in schedule.items():
        for op in ops:
            for place, size, nbytes in _written(plan, op, on_host_cores=on_host_cores):
                new = min(nbytes, left.get(place, size))
                if new > 0:
                    left[place] = left.get(place, size) - new
                    found[stage, op.number] = found.get((stage, op.number), 0) + new
    return found


def _written(plan: Plan, op: Op, *, on_host_cores: bool) -> Iterator[tuple[Hashable, int, int]]:
    """Yield places in host memory that an operation writes: which, its size, bytes written."""
    in_host = plan.device.unified or on_host_cores
    nbytes = op.rect.rows * op.rect.cols * plan.problem.itemsize
    if op.stage == "load1" and not plan.device.unified:
        yield ("up", op.ring), plan.up.nbytes, nbytes
    elif op.stage in {"load1", "load2"} and in_host:
        yield (op.operand, plan.loads[op.load].slot), plan.slots(op.operand).nbytes, nbytes
    elif op.stage == "mult1" and (in_host or not plan.overlap.c_on_device):
        yield ("C", plan.units[op.unit].slot), plan.c_slots.nbytes, nbytes
    elif op.stage == "store1" and op.ring >= 0:
        yield ("down", op.ring), plan.down.nbytes, nbytes
    elif op.stage == "store2" and plan.problem.reads_c:
        yield "scratch", plan.scratch_bytes, nbytes
