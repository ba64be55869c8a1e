"""Seconds of a shape in closed form: what is busy longest, and the two ends that nothing hides.

The formulas take many shapes at once. `simulate` prices one plan operation by operation; tests
hold this against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hdgemm.pipeline.plan import STAGES, Expectation
from hdgemm.planning.memory import PIECE_BYTES, ceil_div
from hdgemm.planning.rates import RESOURCES
from hdgemm.planning.traffic import load_traffic, store_traffic

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Overlap, Problem
    from hdgemm.planning.partition import Shapes
    from hdgemm.planning.rates import Machine
    from hdgemm.planning.traffic import Traffic

#: Seconds, an array with one element a shape.
Seconds: TypeAlias = Any


class Prices(NamedTuple):
    """For each shape its seconds in all, and busy seconds by stage and by resource."""

    seconds: Seconds
    stages: dict[str, Seconds]
    resources: dict[str, Seconds]

    def expectation(self, place: int) -> Expectation:
        """Return one shape's price as a plan carries it."""
        limit = max(self.resources, key=lambda name: float(self.resources[name][place]))
        stages = {stage: float(seconds[place]) for stage, seconds in self.stages.items()}
        return Expectation(float(self.seconds[place]), stages, limit)


def price(
    problem: Problem, device: DeviceSpec, overlap: Overlap, shapes: Shapes, machine: Machine
) -> Prices:
    """Price every shape, run with this overlap."""
    return _Pricing(problem, device, overlap, shapes, machine).prices()


class _Pricing:
    """The terms of one call to `price`, each an array with one element a shape."""

    def __init__(
        self,
        problem: Problem,
        device: DeviceSpec,
        overlap: Overlap,
        shapes: Shapes,
        machine: Machine,
    ) -> None:
        self.problem, self.device, self.shapes, self.machine = problem, device, shapes, machine
        self.overlap = overlap
        self.a = load_traffic(problem, shapes, "A", reuse=overlap.loads)
        self.b = load_traffic(problem, shapes, "B", reuse=overlap.loads)
        self.c = store_traffic(problem, shapes)
        self.steps = self.c.loads * ceil_div(problem.k, shapes.kb)
        self.zero = np.zeros(len(shapes.mb))

    def prices(self) -> Prices:
        stages = self._stages()
        resources = self._resources(stages)
        if not self.overlap.loads:
            return Prices(self._in_turn(stages), stages, resources)
        ends = self._prologue() + self._epilogue() + self._bursts(stages)
        busy = np.max(np.stack([*resources.values(), *stages.values()]), axis=0)
        return Prices(busy + ends, stages, resources)

    def _in_turn(self, stages: dict[str, Seconds]) -> Seconds:
        """Seconds where nothing is loaded while the device multiplies."""
        loading = np.maximum(stages["load1"], stages["load2"])
        if self.overlap.stores:
            return loading + np.maximum(stages["mult1"], stages["store2"]) + self._epilogue()
        return loading + stages["mult1"] + stages["store2"]

    def _stages(self) -> dict[str, Seconds]:
        problem, machine, shapes = self.problem, self.machine, self.shapes
        each = machine.operation_seconds
        efficiency = machine.efficiency(
            np.minimum(shapes.mb, problem.m), np.minimum(shapes.nb, problem.n), shapes.kb
        )
        rate = machine.flop_rate(problem.dtype)
        stages: dict[str, Seconds] = dict.fromkeys(STAGES, self.zero)
        stages["mult1"] = problem.flops / (rate * efficiency) + self.steps * each
        for traffic, spec in ((self.a, problem.a), (self.b, problem.b)):
            stages["load1"] = stages["load1"] + self._application(traffic, spec, write=False)
            stages["load2"] = stages["load2"] + self._link(traffic, spec, machine.pcie_up)
        stages["store2"] = self._application(self.c, problem.c, write=True)
        stages["store1"] = self._link(self.c, problem.c, machine.pcie_down)
        return stages

    def _application(self, traffic: Traffic, spec: OperandSpec, *, write: bool) -> Seconds:
        """Return the seconds of load1 or store2 for one operand."""
        if spec.path != "staged":
            return self.zero
        machine = self.machine
        if spec.place == "memory":
            return self.zero + traffic.nbytes / machine.copy
        if not write:
            return self.zero + traffic.nbytes / machine.disk_read
        one = traffic.nbytes / traffic.passes
        return self.zero + one / machine.disk_write + (traffic.passes - 1) * one / machine.disk_read

    def _link(self, traffic: Traffic, spec: OperandSpec, rate: float) -> Seconds:
        """Return the seconds of load2 or store1 for one operand."""
        if self.device.unified or spec.path == "resident":
            return self.zero
        nbytes = traffic.nbytes / spec.itemsize * self.problem.itemsize
        if traffic is self.c:
            nbytes = nbytes / traffic.passes
        return self.zero + nbytes / rate

    def _resources(self, stages: dict[str, Seconds]) -> dict[str, Seconds]:
        problem, machine = self.problem, self.machine
        resources = dict.fromkeys(RESOURCES, self.zero)
        resources["device"] = stages["mult1"]
        resources["pcie_up"], resources["pcie_down"] = stages["load2"], stages["store1"]
        for traffic, spec, write in (
            (self.a, problem.a, False),
            (self.b, problem.b, False),
            (self.c, problem.c, True),
        ):
            seconds = self._application(traffic, spec, write=write)
            if spec.path != "staged":
                continue
            if spec.place == "file":
                resources["disk"] = resources["disk"] + seconds
                core_seconds = traffic.requests * machine.request_seconds
            else:
                bus = 2 * traffic.nbytes / machine.memory
                resources["host_memory"] = resources["host_memory"] + bus
                # A copying stage keeps one core busy, whoever else multiplies.
                core_seconds = seconds
            resources["cores"] = resources["cores"] + core_seconds / machine.cores
        if self.device.unified:
            resources["cores"] = resources["cores"] + stages["mult1"]
        return resources

    def _prologue(self) -> Seconds:
        """Seconds until the first step has both its tiles."""
        problem, machine = self.problem, self.machine
        seconds = self.zero
        for traffic, spec in ((self.a, problem.a), (self.b, problem.b)):
            seconds = seconds + self._tile(traffic, spec, write=False)
            if not self.device.unified and spec.path == "staged":
                seconds = seconds + np.minimum(traffic.tile_bytes, PIECE_BYTES) / machine.pcie_up
        return seconds

    def _tile(self, traffic: Traffic, spec: OperandSpec, *, write: bool) -> Seconds:
        """Seconds of one tile through the slower of its two stages."""
        rate = self.machine.pcie_down if write else self.machine.pcie_up
        slower = np.maximum(
            self._application(traffic, spec, write=write), self._link(traffic, spec, rate)
        )
        return slower / traffic.loads

    def _epilogue(self) -> Seconds:
        """Seconds after the last step: the last C tile's way home."""
        seconds = self._tile(self.c, self.problem.c, write=True)
        if not self.device.unified and self.problem.c.path == "staged":
            piece = np.minimum(self.c.tile_bytes, PIECE_BYTES)
            seconds = seconds + piece / self.machine.pcie_down
        return seconds

    def _bursts(self, stages: dict[str, Seconds]) -> Seconds:
        """Seconds in which a long load of one operand outlasts what is held of the other.

        Loads go in the order of need, so while a deep load is under way the other operand lives
        on what its slots hold.
        """
        shapes, step = self.shapes, stages["mult1"] / self.steps
        stall = self.zero
        for long, other, depth, slots, specs in (
            (self.a, self.b, shapes.b_depth, shapes.b_slots, (self.problem.a, self.problem.b)),
            (self.b, self.a, shapes.a_depth, shapes.a_slots, (self.problem.b, self.problem.a)),
        ):
            if "resident" in (specs[0].path, specs[1].path):
                continue
            seconds = self._tile(long, specs[0], write=False)
            ahead = np.maximum(slots - 1, 0) * (depth // shapes.kb) * step
            more = np.maximum(0.0, seconds - ahead) * (long.loads < other.loads)
            stall = stall + more * np.maximum(long.loads - 1, 0)
        return stall
