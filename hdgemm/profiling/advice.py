"""What would help: the same product planned and simulated with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import DoesNotFitError
from hdgemm.planning.expectation import simulate
from hdgemm.planning.planner import plan_problem
from hdgemm.profiling.conclusions import Advice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem

#: What is doubled to see which resource a run waits for.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "device": ("gemm",),
    "pcie_up": ("pcie_up",),
    "pcie_down": ("pcie_down", "remote_write"),
    "host_memory": ("memory", "copy"),
    "disk": ("disk_read", "disk_write"),
    "cores": ("cores",),
}
#: Gains below this are not worth a word.
_WORTH: Final = 0.02


class WhatIf:
    """One product on one machine, and what becomes of it when something is changed.

    Parameters
    ----------
    plan
        What runs now.
    options
        What it was planned with.
    """

    def __init__(self, plan: Plan, options: Options, machine: Machine) -> None:
        self._plan = plan
        self._options = options
        self._machine = machine
        self._now = simulate(plan, machine).seconds

    def doubled(self) -> dict[str, float]:
        """Return for each resource how much faster the plan would be with twice of it."""
        return {
            resource: self._now / simulate(self._plan, _doubled(self._machine, resource)).seconds
            - 1
            for resource in _RATES
        }

    def limit(self) -> tuple[str, float]:
        """Return the resource of which twice as much helps most, and that gain."""
        gains = self.doubled()
        limit = max(gains, key=gains.__getitem__)
        return limit, gains[limit]

    def advice(self, copy_rate: float | None = None) -> list[Advice]:
        """Return what would help, best first.

        Parameters
        ----------
        copy_rate
            The most that more copying threads reach, in bytes/s; None where it is unknown.
        """
        device, problem = self._plan.device, self._plan.problem
        found: dict[str, float] = {}
        if not device.unified:
            more = 2 * (self._options.device_bytes or device.memory_bytes)
            larger = replace(self._options, device_memory=more)
            room = replace(
                device,
                memory_bytes=max(more, device.memory_bytes),
                max_buffer_bytes=max(device.max_buffer_bytes, more),
            )
            found["twice the device memory"] = self._gain(options=larger, device=room)
            found["pinned A and B, which DMA reaches where they lie"] = self._gain(
                problem=_pinned(problem)
            )
        else:
            limit = replace(self._options, host_memory=2 * self._plan.host_limit)
            found["twice the host memory"] = self._gain(
                options=limit, host_limit=2 * self._plan.host_limit
            )
        if copy_rate is not None and copy_rate > self._machine.copy:
            faster = replace(self._machine, copy=copy_rate)
            found["more copying threads"] = self._now / simulate(self._plan, faster).seconds - 1
        found["another tile, chosen for these rates"] = self._gain()
        rows = [Advice(what, gain) for what, gain in found.items() if gain >= _WORTH]
        return sorted(rows, key=lambda row: -row.gain)

    def _gain(
        self,
        *,
        problem: Problem | None = None,
        options: Options | None = None,
        device: DeviceSpec | None = None,
        host_limit: int | None = None,
    ) -> float:
        """Plan anew, tiles free, and return how much faster that would be; 0 where it cannot."""
        try:
            plan = plan_problem(
                problem or self._plan.problem,
                replace(options or self._options, tile=None),
                device or self._plan.device,
                self._machine,
                host_limit=host_limit or self._plan.host_limit,
            )
        except DoesNotFitError:
            return 0.0
        return self._now / simulate(plan, self._machine).seconds - 1


def _pinned(problem: Problem) -> Problem:
    a, b = (
        replace(spec, path="direct") if spec.place == "memory" else spec
        for spec in (problem.a, problem.b)
    )
    return replace(problem, a=a, b=b)


def _doubled(machine: Machine, resource: str) -> Machine:
    changed: dict[str, Any] = {}
    for name in _RATES[resource]:
        rate = getattr(machine, name)
        if name == "gemm":
            changed[name] = {dtype: 2 * each for dtype, each in rate.items()}
        elif rate is not None:
            changed[name] = 2 * rate
    return replace(machine, **changed)
