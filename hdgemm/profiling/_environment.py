"""Environment of a profile: its device, the machine, measured rates, versions and time."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from hdgemm.machine.benchmarks import Deadline, measure_executor
from hdgemm.machine.limits import cores
from hdgemm.machine.rates import assumed
from hdgemm.pipeline.devices.registry import list_devices
from hdgemm.report import versions

if TYPE_CHECKING:
    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec
    from hdgemm.profiling._contention import Contention

#: Seconds for measuring the executor's time for an operation.
_EXECUTOR_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class Target:
    """The device of a profile.

    `peers` are all accelerators of its kind, itself first; itself alone if it is not an
    accelerator. One `on_host_cores` is the host's own processor under another driver.
    """

    name: str
    peers: tuple[str, ...]
    on_host_cores: bool


def choose_target(name: str | None) -> Target:
    """Return the named device, else the first accelerator, OpenCL device, or the host."""
    usable = [info for info in list_devices() if info.usable]
    accelerators = [info.name for info in usable if info.accelerator]
    opencl = [info.name for info in usable if info.name.startswith("opencl")]
    chosen = name or [*accelerators, *opencl, "host"][0]
    kind = chosen.partition(":")[0]
    peers = [each for each in accelerators if each.partition(":")[0] == kind and each != chosen]
    accelerated = chosen.partition("/")[0] in accelerators
    return Target(
        chosen,
        (chosen, *(peers if chosen in accelerators else ())),
        on_host_cores=kind == "opencl" and not accelerated,
    )


def measured_machine(device: DeviceSpec, contention: Contention, target: Target) -> Machine:
    """Return this machine's rates from the probes; the others are assumed.

    load1 and store2 alone give `copy`; both at once, reads and writes counted each, give the
    memory bus.
    """
    base = assumed(device)

    def rate(name: str, otherwise: float) -> float:
        return contention.alone(name).median or otherwise

    copy = (contention.alone("load1").median + contention.alone("store2").median) / 2 or base.copy
    both = contention.beside("load1", "store2").median + contention.beside("store2", "load1").median
    return replace(
        base,
        name=f"{device.name}, measured",
        cores=cores(),
        gemm={"float64": rate("mult1", base.flop_rate("float64"))},
        copy=copy,
        memory=2 * max(both, copy),
        pcie_up=rate("load2", base.pcie_up),
        pcie_down=rate("store1", base.pcie_down),
        disk_read=rate("disk", base.disk_read),
        disk_write=rate("disk", base.disk_write),
        operation_seconds=measure_executor(Deadline(_EXECUTOR_SECONDS)),
        on_host_cores=target.on_host_cores,
        source="probes of this profile",
    )


def describe_setting(device: str, place: str) -> dict[str, Any]:
    """Return device, product, machine, versions, command and time, ready for JSON.

    A, B and C lie in `place`, ``"memory"`` or ``"file"``; their extents are known after the runs.
    """
    return {
        "device": device,
        "product": {"m": 0, "n": 0, "k": 0, "dtype": "float64", "place": place},
        "rates_from": "probes of this profile",
        "machine": describe_machine(),
        "versions": dict(versions()),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe_machine() -> dict[str, Any]:
    """Return the processor, cores, memory in bytes and the load, ready for JSON."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load": os.getloadavg()[0],
        "system": " ".join(os.uname()[i] for i in (0, 2, 4)),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return os.uname().machine
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)
