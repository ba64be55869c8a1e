"""What several units at once leave each other: bandwidths, imbalance, the matrix of pairs."""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING

from hdgemm.planning.costs import Cost
from hdgemm.planning.virtual_time import speeds
from hdgemm.profiling.results import Bandwidth
from hdgemm.profiling.sample import Sample
from hdgemm.simulation.ladder import busy_rate

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Stage
    from hdgemm.simulation.ladder import Together
    from hdgemm.simulation.systems import System


def simulated_bandwidths(alone: list[Together], together: list[Together]) -> dict[str, Bandwidth]:
    """Return each stage's rate while busy, of one device alone and of all at once."""
    stages: tuple[Stage, ...] = ("load1", "load2", "mult1", "store1", "store2")
    found: dict[str, Bandwidth] = {}
    for stage in stages:
        unit = "GFLOP/s" if stage == "mult1" else "GB/s"
        before, after = (
            Sample(
                (
                    mean(
                        busy_rate(run.timeline, member.name, stage)
                        for run in runs
                        for member in run.members
                    ),
                )
            )
            for runs in (alone, together)
        )
        if before.median > 0:
            found[stage] = Bandwidth(before, after, unit)
    return found


def simulated_imbalance(runs: list[Together]) -> float:
    """Return how far apart the units end, as a part of the run (HDGEMM, Figure 12)."""
    gaps = []
    for run in runs:
        ends = [
            max(event.end for event in run.timeline.events if event.device == member.name)
            for member in run.members
        ]
        gaps.append((max(ends) - min(ends)) / max(ends))
    return mean(gaps)


def simulated_matrix(system: System) -> dict[str, dict[str, Sample]]:
    """Return what row's stage keeps while column's stage of another device runs beside it."""
    machine = system.machine
    whole = {
        "pcie_up": (machine.pcie_up, machine.link_up),
        "pcie_down": (machine.pcie_down, machine.link_down),
    }
    demands = {
        "load1": {"host_memory": min(1.0, 2 * machine.copy / machine.memory)},
        "load2": _link_demand(*whole["pcie_up"], "pcie_up"),
        "mult1": {"device": 1.0},
        "store1": _link_demand(*whole["pcie_down"], "pcie_down"),
        "store2": {"host_memory": min(1.0, 2 * machine.copy / machine.memory)},
        "cores": {"host_memory": machine.multiply_memory / machine.memory},
    }
    costs = {name: Cost(1.0, tuple(used.items())) for name, used in demands.items()}
    return {
        row: {
            column: Sample((speeds([own, other])[0],))
            for column, other in costs.items()
            if column != "mult1" or row != "mult1"
        }
        for row, own in costs.items()
    }


def _link_demand(alone: float, whole: float | None, name: str) -> dict[str, float]:
    return {} if whole is None else {name: min(1.0, alone / whole)}
