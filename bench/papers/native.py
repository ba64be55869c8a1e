"""Factorisations on a GPU alone, and beside a host: Abdelfattah et al., on a P100.

In native mode the GPU factors the panels and the host sleeps; in hybrid mode the host factors them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bench.papers.comparison import Comparison, figures
from bench.papers.hybrid import HybridSystem, device_of, factor_dealt
from hdgemm.tasks.capability import HOST, Capability

if TYPE_CHECKING:
    from bench.papers.hybrid import Factorisation

_DGEMM: Final = 4.55e12
#: Flop/s of the CPU core that native mode keeps: part of the speed it is relative to.
_CORE: Final = 0.03e12
#: Power of the GPU in both modes; of the host in native mode (one socket, mostly idle) and in
#: hybrid mode.
_GPU_WATTS, _NATIVE_WATTS, _HYBRID_WATTS = 205.0, 28.0, 155.0

HYBRID: Final = HybridSystem(
    host=Capability(
        name=HOST,
        rates={"potrf": 200e9, "panel trsm": 450e9, "getrf": 400e9, "laswp": 1e12},
        memory=80e9,
    ),
    devices=(device_of("gpu", _DGEMM, memory=250e9, bus=12e9),),
    peak=_DGEMM + 0.6e12,
    order={"cholesky": 40000, "lu": 40000},
    published={
        "cholesky": ("native Cholesky, part of DGEMM's speed (Figure 16: above 0.90)", 0.90),
        "lu": ("native LU, part of DGEMM's speed (Figure 16: above 0.80)", 0.80),
        "cholesky per watt": ("Cholesky, native over hybrid per watt (Table 1)", 17.70 / 12.22),
        "lu per watt": ("LU, native over hybrid per watt (Table 1)", 14.64 / 10.04),
    },
)


def native_mode(system: HybridSystem) -> HybridSystem:
    """Return the system with its panels on the GPU, narrower ones, and a host that does nothing."""
    (gpu,) = system.devices
    panels = {"potrf": 100e9, "panel trsm": 2e12, "getrf": 300e9}
    return replace(
        system,
        host=Capability(name=HOST, rates={}),
        devices=(replace(gpu, rates={**gpu.rates, **panels}),),
        width=256,
    )


def compare() -> Comparison:
    """Factor in both modes, and compare with the paper."""
    runs: dict[str, Factorisation] = {}
    found: dict[str, float] = {}
    for algorithm in HYBRID.order:
        native = factor_dealt(native_mode(HYBRID), algorithm)
        hybrid = factor_dealt(HYBRID, algorithm)
        runs |= {f"{algorithm}, native": native, f"{algorithm}, hybrid": hybrid}
        watts = (_GPU_WATTS + _HYBRID_WATTS) / (_GPU_WATTS + _NATIVE_WATTS)
        found[algorithm] = native.gflops * 1e9 / (_DGEMM + _CORE)
        found[f"{algorithm} per watt"] = native.gflops / hybrid.gflops * watts
    return Comparison(
        paper="Analysis and Design Techniques towards High-Performance and Energy-Efficient Dense "
        "Linear Solvers on GPUs",
        rates_from="Abdelfattah et al., sections 5, 7; assumed rates: docs/explanation/papers.md",
        speeds={"p100": {what: run.speed(HYBRID.peak) for what, run in runs.items()}},
        figures=figures(HYBRID.published, found),
    )
