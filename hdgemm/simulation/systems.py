"""Whole systems as data: devices on a link, the CPUs beside them, their peaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hdgemm.machine.assumed import GH200, H200, HD5970
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from hdgemm.machine.rates import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine with several equal devices, for simulation.

    Parameters
    ----------
    name, source
        What it is called, and where its figures come from.
    device, machine
        One device, and the rates of it and of what all share.
    devices
        How many there are.
    device_peak, cpu_peak
        Peaks of one device and of all CPUs, in flop/s: what efficiency is a part of.
    cpu_rate
        What the CPUs multiply at when nothing else runs, in flop/s.
    staging
        Bytes of host memory that the devices reach.
    work_unit
        Rows and columns of a work unit, cut into `blocks` of rows; None lets the planner search.
    shape
        m, n and k of detailed figures.
    phases
        In how many phases, evenly spread over a work unit, further devices are run behind the
        first: processes start when they start, and a figure is the mean over the phases.
    """

    name: str
    source: str
    device: DeviceSpec
    machine: Machine
    devices: int
    device_peak: float
    cpu_peak: float
    cpu_rate: float
    staging: int
    shape: tuple[int, int, int]
    work_unit: tuple[int, int] | None = None
    blocks: int = 4
    phases: int = 1

    @property
    def cpu(self) -> Machine:
        """Return the rates of the CPUs as a device of their own."""
        return replace(self.machine, gemm={"float64": self.cpu_rate})


_GIB: Final = 1 << 30

#: HDGEMM, Table 3: a Radeon HD 5970 with two Cypress chips, and two Xeon X5650.
RADEON_HD5970: Final = System(
    name="hd5970",
    source="HDGEMM, table 3 and section 4; what is assumed beyond them: docs/paper.md",
    device=DeviceSpec("cypress", unified=False, memory_bytes=_GIB, max_buffer_bytes=_GIB),
    machine=HD5970,
    devices=2,
    device_peak=464e9,
    cpu_peak=128e9,
    cpu_rate=0.9 * 128e9,
    staging=2288 << 20,
    shape=(16384, 16384, 2048),
    work_unit=(4096, 4096),
    phases=8,
)


def _modern(machine: Machine, memory: int, device_peak: float, cpu: tuple[float, float]) -> System:
    return System(
        name=machine.name,
        source=machine.source,
        device=DeviceSpec("cuda:0", unified=False, memory_bytes=memory, max_buffer_bytes=memory),
        machine=machine,
        devices=1,
        device_peak=device_peak,
        cpu_peak=cpu[0],
        cpu_rate=cpu[1],
        staging=4 * _GIB,
        shape=(49152, 49152, 8192),
    )


#: One of each, held to 8 GB of device memory so that matrices of some 58 GB do not fit.
H200_SERVER: Final = _modern(H200, 8 * 10**9, 67e12, (1.5e12, 1.2e12))
GH200_NODE: Final = _modern(GH200, 8 * 10**9, 67e12, (3.4e12, 2.7e12))

#: By the names that a simulation takes.
SYSTEMS: Final = {system.name: system for system in (RADEON_HD5970, H200_SERVER, GH200_NODE)}
