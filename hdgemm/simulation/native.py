"""Factorisations on a GPU alone in virtual time, and beside a host: speed and flops per joule.

The machine of Abdelfattah et al., "Analysis and Design Techniques towards High-Performance and
Energy-Efficient Dense Linear Solvers on GPUs", as data. In native mode the GPU factors the panels
and the host sleeps; in hybrid mode the host factors them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from hdgemm.simulation.factorisations import HybridSystem, device_of, factor_dealt
from hdgemm.tasks.capability import HOST, Capability

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.simulation.factorisations import Factorisation


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSystem:
    """One host with one GPU, in both modes.

    Parameters
    ----------
    hybrid
        The host factors panels.
    width
        Columns of a panel in native mode.
    panels
        Flop/s of the GPU in native mode, by kind of panel task.
    core
        Flop/s of the CPU core that native mode keeps: part of the speed it is relative to.
    gpu_watts
        Power of the GPU in both modes.
    host_watts
        Power of the host in native mode (one socket, mostly idle), and in hybrid mode.
    published
        Figures of the paper: name → (label, value).
    """

    hybrid: HybridSystem
    width: int
    panels: Mapping[str, float]
    core: float
    gpu_watts: float
    host_watts: tuple[float, float]
    published: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def factor(self, algorithm: str, *, native: bool) -> Factorisation:
        """Factor in one of the modes."""
        if not native:
            return factor_dealt(self.hybrid, algorithm)
        (gpu,) = self.hybrid.devices
        alone = replace(
            self.hybrid,
            host=Capability(name=HOST, rates={}),
            devices=(replace(gpu, rates={**gpu.rates, **self.panels}),),
            width=self.width,
        )
        return factor_dealt(alone, algorithm)

    def of_peak(self, run: Factorisation) -> float:
        """Return the speed of a native run as a part of DGEMM's, GPU and one core together."""
        (gpu,) = self.hybrid.devices
        return run.gflops * 1e9 / (gpu.rates["gemm"] + self.core)

    def per_watt(self, run: Factorisation, *, native: bool) -> float:
        """Return 10⁹ flop/s per watt."""
        return run.gflops / (self.gpu_watts + self.host_watts[0 if native else 1])


_HASWELL: Final = Capability(
    name=HOST,
    rates={"potrf": 200e9, "panel trsm": 450e9, "getrf": 400e9, "laswp": 1e12},
    memory=80e9,
)

P100: Final = NativeSystem(
    hybrid=HybridSystem(
        name="p100",
        source="Abdelfattah et al., sections 5 and 7; assumptions: "
        "docs/explanation/factorisations.md",
        host=_HASWELL,
        devices=(device_of("gpu", 4.55e12, memory=250e9, bus=12e9),),
        peak=4.55e12 + 0.6e12,
        order={"cholesky": 40000, "lu": 40000},
    ),
    width=256,
    panels={"potrf": 100e9, "panel trsm": 2e12, "getrf": 300e9},
    core=0.03e12,
    gpu_watts=205.0,
    host_watts=(28.0, 155.0),
    published={
        "cholesky": ("native Cholesky, part of DGEMM's speed (Figure 16: above 0.90)", 0.90),
        "lu": ("native LU, part of DGEMM's speed (Figure 16: above 0.80)", 0.80),
        "cholesky per watt": ("Cholesky, native over hybrid per watt (Table 1)", 17.70 / 12.22),
        "lu per watt": ("LU, native over hybrid per watt (Table 1)", 14.64 / 10.04),
    },
)
