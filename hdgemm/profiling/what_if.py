"""What-if analysis: the same product planned and simulated with one resource changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import DoesNotFitError
from hdgemm.planning.expectation import simulate
from hdgemm.planning.planner import plan_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.machine.rates import Machine
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Plan

#: The rates of each resource.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "device": ("gemm",),
    "pcie_up": ("pcie_up",),
    "pcie_down": ("pcie_down", "remote_write"),
    "host_memory": ("memory", "copy"),
    "disk": ("disk_read", "disk_write"),
    "cores": ("cores",),
}
#: Advice with a smaller gain is left out.
_WORTH: Final = 0.02


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that would make the run faster, and by how much the model says."""

    what: str
    gain: float
    source: str = "model"


class WhatIf:
    """A plan on a machine, compared with the same product under changed conditions.

    Parameters
    ----------
    options
        The options that the plan was made with.
    """

    def __init__(self, plan: Plan, options: Options, machine: Machine) -> None:
        self._plan = plan
        self._options = options
        self._machine = machine

    def gains(self) -> dict[str, float]:
        """Return for each resource the relative gain in speed from twice of it."""
        now = simulate(self._plan, self._machine).seconds
        return {
            resource: now / simulate(self._plan, _doubled(self._machine, resource)).seconds - 1
            for resource in _RATES
        }

    def advice(self) -> tuple[Advice, ...]:
        """Return what twice the memory would gain, where that is worth mentioning."""
        plan, options = self._plan, self._options
        device, limit = plan.device, plan.host_limit
        if device.unified:
            what, limit = "twice the host memory", 2 * limit
            more = replace(options, host_memory=limit)
        else:
            what, size = (
                "twice the device memory",
                2 * (options.device_bytes or device.memory_bytes),
            )
            more = replace(options, device_memory=size)
            device = replace(
                device,
                memory_bytes=max(size, device.memory_bytes),
                max_buffer_bytes=max(size, device.max_buffer_bytes),
            )
        try:
            now = self._seconds(options, plan.device, plan.host_limit)
            gain = now / self._seconds(more, device, limit) - 1
        except DoesNotFitError:
            return ()
        return (Advice(what, gain),) if gain >= _WORTH else ()

    def _seconds(self, options: Options, device: DeviceSpec, host_limit: int) -> float:
        """Plan the product anew, with a free choice of tiles, and simulate it."""
        options = replace(options, tile=None, host_memory=host_limit)
        plan = plan_for(self._plan.problem, options, device, self._machine)
        return simulate(plan, self._machine).seconds


def _doubled(machine: Machine, resource: str) -> Machine:
    changed: dict[str, Any] = {}
    for name in _RATES[resource]:
        rate = getattr(machine, name)
        if name == "gemm":
            changed[name] = {dtype: 2 * each for dtype, each in rate.items()}
        elif rate is not None:
            changed[name] = 2 * rate
    return replace(machine, **changed)
