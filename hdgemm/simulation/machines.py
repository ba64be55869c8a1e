"""Machines to simulate, as frozen data; each names the source of its figures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from hdgemm.machine.rates import H200, Machine
from hdgemm.pipeline.plan import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A host with one or several equal devices.

    Parameters
    ----------
    source
        Where the figures come from.
    device, machine
        One device, and its rates with those of the host that all devices share.
    devices
        Number of devices.
    device_peak, cpu_peak
        Peak flop/s of one device, and of all CPUs together; efficiency is relative to these.
    cpu_rate
        Flop/s of DGEMM on all CPUs with idle devices.
    staging
        Bytes of host memory that the devices reach by DMA.
    shape
        m, n and k of the detailed figures.
    work_unit
        Rows and columns of a work unit, cut into `blocks` of rows; None: the planner searches.
    phases
        Number of start-time offsets, evenly spread over one work unit, at which a further device
        follows the first; every figure of several devices is the mean over the offsets.
    published
        Figures of the system's paper: name → (label, value).
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
    published: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def cpu(self) -> Machine:
        """Return the rates of the CPUs as a device of their own."""
        return replace(self.machine, gemm={"float64": self.cpu_rate})


#: Steps of the ladder are ratios, speeds are in GFLOP/s; the bandwidth of each stage and the rate
#: of the CPUs are relative to the same alone.
_HDGEMM_FIGURES: Final[Mapping[str, tuple[str, float]]] = {
    "double-buffering": ("double buffering over initial (Figure 6)", 1.16),
    "data-reuse": ("data reuse over double buffering (Figure 6)", 1.18),
    "data-placement": ("data placement over data reuse (Figure 6)", 1.74),
    "one chip": ("one chip, GFLOP/s (section 4.2)", 408.0),
    "two chips": ("two chips, GFLOP/s (section 4.2)", 758.0),
    "two chips and CPU": ("two chips and CPUs, GFLOP/s (section 4.2)", 844.0),
    "store1": ("store1 with two chips (Figure 9)", 0.56),
    "load2": ("load2 with two chips (Figure 9)", 0.89),
    "load1": ("load1 with two chips (Figure 10)", 0.92),
    "store2": ("store2 with two chips (Figure 10)", 0.86),
    "CPU": ("the CPUs beside two chips (Figure 11)", 0.78),
}

#: HDGEMM, Table 3: a Radeon HD 5970 with two Cypress chips, and two Xeon X5650. Fitted, since the
#: paper does not give them: `depth_half`, `memory`, `copy`, the rates of the link and
#: `multiply_memory`; docs/explanation/paper.md says how.
HD5970: Final = System(
    name="hd5970",
    source="HDGEMM, table 3 and section 4; assumptions: docs/explanation/paper.md",
    device=DeviceSpec("cypress", unified=False, memory_bytes=_GIB, max_buffer_bytes=_GIB),
    machine=Machine(
        name="hd5970",
        cores=12,
        gemm={"float64": 0.94 * 464e9},
        depth_half=80.0,
        side_half=0.0,
        memory=12.5e9,
        copy=3.75e9,
        pcie_up=2.6e9,
        pcie_down=1.2e9,
        remote_write=1.06e9,
        link_up=2.6e9,
        link_down=1.3e9,
        multiply_memory=4.8e9,
        disk_read=0.1e9,
        disk_write=0.1e9,
        source="HDGEMM, table 3 and section 4; assumptions in docs/explanation/paper.md",
    ),
    devices=2,
    device_peak=464e9,
    cpu_peak=128e9,
    cpu_rate=0.9 * 128e9,
    staging=2288 << 20,
    shape=(16384, 16384, 2048),
    work_unit=(4096, 4096),
    phases=8,
    published=_HDGEMM_FIGURES,
)


def _one_cuda_device(machine: Machine, cpu_peak: float, cpu_rate: float) -> System:
    """Return a host with one device that is held to 8 GB, for matrices of about 58 GB."""
    memory = 8 * 10**9
    return System(
        name=machine.name,
        source=machine.source,
        device=DeviceSpec("cuda:0", unified=False, memory_bytes=memory, max_buffer_bytes=memory),
        machine=machine,
        devices=1,
        device_peak=67e12,
        cpu_peak=cpu_peak,
        cpu_rate=cpu_rate,
        staging=4 * _GIB,
        shape=(49152, 49152, 8192),
    )


H200_SERVER: Final = _one_cuda_device(H200, 1.5e12, 1.2e12)

#: The H200's kernel behind NVLink-C2C.
GH200_NODE: Final = _one_cuda_device(
    replace(
        H200,
        name="gh200",
        cores=72,
        memory=450e9,
        copy=150e9,
        pcie_up=350e9,
        pcie_down=280e9,
        source="cuBLAS DGEMM on GH200 at n = 16384 (GEMMul8's results); NVLink-C2C at 450 GB/s a "
        "way and LPDDR5X at 500 GB/s, nominal, taken at four fifths and nine tenths",
    ),
    3.4e12,
    2.7e12,
)

#: Systems by name.
SYSTEMS: Final = {system.name: system for system in (HD5970, H200_SERVER, GH200_NODE)}
