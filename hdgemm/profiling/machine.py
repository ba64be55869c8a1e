"""From probes to the rates that the model calculates with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hdgemm.machine.assumed import assumed
from hdgemm.profiling.choice import on_host_cores
from hdgemm.profiling.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec
    from hdgemm.profiling.paired_runs import Windows, Work


def measured_machine(device: DeviceSpec, windows: Windows, cores: int) -> Machine:
    """Return this machine's rates as the probes have them; what has none keeps what is assumed.

    A copying stage alone gives `copy`; both at once, reads and writes counted each, give the
    host memory bus.
    """
    base = assumed(device)
    alone = {name: _median(works) for name, works in windows.alone.items()}
    both = sum(
        _median(windows.pairs.get(pair, ())) for pair in (("load1", "store2"), ("store2", "load1"))
    )
    copy = _positive((alone.get("load1", 0.0) + alone.get("store2", 0.0)) / 2, base.copy)
    return replace(
        base,
        name=f"{device.name}, measured",
        cores=cores,
        gemm=_gemm(alone, base),
        copy=copy,
        memory=2 * max(both, copy),
        pcie_up=_positive(alone.get("load2", 0.0), base.pcie_up),
        pcie_down=_positive(alone.get("store1", 0.0), base.pcie_down),
        disk_read=_positive(alone.get("disk", 0.0), base.disk_read),
        disk_write=_positive(alone.get("disk", 0.0), base.disk_write),
        on_host_cores=on_host_cores(device.name),
        source="probes of this profile, each alone",
    )


def _gemm(alone: Mapping[str, float], base: Machine) -> Mapping[str, float]:
    rate = alone.get("mult1", 0.0)
    return {"float64": rate} if rate > 0 else base.gemm


def _positive(rate: float, otherwise: float) -> float:
    return rate if rate > 0 else otherwise


def _median(works: Iterable[Work]) -> float:
    return Sample.of(work.rate for work in works).median
