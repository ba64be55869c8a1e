"""One-sided factorisations on several accelerators: Dongarra et al., section 7.

The host factors panels, and the accelerators update the block columns that are dealt to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.papers.comparison import Comparison, figures
from bench.papers.hybrid import HybridSystem, device_of, factor_dealt, host_of

if TYPE_CHECKING:
    from bench.papers.comparison import Figure
    from bench.papers.hybrid import Factorisation

_K20C, _PHI = 1.05e12, 0.86e12
_SANDY_BRIDGE: Final = host_of(200e9)

K20C_6: Final = HybridSystem(
    host=_SANDY_BRIDGE,
    devices=tuple(device_of(f"k20c{i}", _K20C) for i in range(6)),
    hubs={f"k20c{i}": f"hub{i // 3}" for i in range(6)},
    peak=6 * 1.17e12,
    order={"cholesky": 60000, "lu": 56000, "qr": 56000},
    published={
        "cholesky": ("Cholesky, n = 60,000, part of the peak (Figure 20)", 5.1 / 7.02),
        "lu": ("LU, n = 56,000, part of the peak (Figure 22)", 5.2 / 7.02),
        "qr": ("QR, n = 56,000, part of the peak (Figure 24)", 4.7 / 7.02),
    },
)

PHI_3: Final = HybridSystem(
    host=_SANDY_BRIDGE,
    devices=tuple(device_of(f"phi{i}", _PHI, larfb=0.95) for i in range(3)),
    peak=3 * 1.18e12,
    order={"cholesky": 40000, "lu": 40000, "qr": 40000},
    published={
        "cholesky": ("Cholesky, n = 40,000, part of the peak (Figure 21)", 2.3 / 3.54),
        "lu": ("LU, n = 40,000, part of the peak (Figure 23)", 2.4 / 3.54),
        "qr": ("QR, n = 40,000, part of the peak (Figure 25)", 2.2 / 3.54),
    },
)

#: Rates in the paper's proportion 10 : 8 : 5.
MIXED_3: Final = HybridSystem(
    host=_SANDY_BRIDGE,
    devices=tuple(
        device_of(name, part * _K20C) for name, part in (("k20c", 1.0), ("phi", 0.8), ("k20", 0.5))
    ),
    peak=2.3 * 1.17e12,
    order={"cholesky": 30000},
    published={
        "third": ("a third, slower device, columns dealt uniformly (Figure 16)", 0.94),
        "hgdd": ("columns in proportion to the rates over uniform (Figure 16)", 1.53),
        "priorities": ("priorities of panels, one device (section 6.4)", 1.05),
    },
)

SYSTEMS: Final = {"k20c-6": K20C_6, "phi-3": PHI_3, "mixed-3": MIXED_3}


def runs_of(name: str) -> dict[str, Factorisation]:
    """Factor on one system; on the mixed one with its columns dealt in several ways."""
    system = SYSTEMS[name]
    runs = {algorithm: factor_dealt(system, algorithm) for algorithm in system.order}
    if system is not MIXED_3:
        return runs
    return runs | {
        "cholesky, two devices": factor_dealt(system, "cholesky", devices=2),
        "cholesky, proportional": factor_dealt(system, "cholesky", proportional=True),
        "cholesky, one device": factor_dealt(system, "cholesky", devices=1),
        "cholesky, one device, no priorities": factor_dealt(
            system, "cholesky", devices=1, priorities=False
        ),
    }


def figures_of(name: str, runs: dict[str, Factorisation]) -> list[Figure]:
    """Compare the runs on one system with the paper."""
    system, speed = SYSTEMS[name], {what: run.gflops for what, run in runs.items()}
    if system is MIXED_3:
        found = {
            "third": speed["cholesky"] / speed["cholesky, two devices"],
            "hgdd": speed["cholesky, proportional"] / speed["cholesky"],
            "priorities": speed["cholesky, one device"]
            / speed["cholesky, one device, no priorities"],
        }
    else:
        found = {what: gflops * 1e9 / system.peak for what, gflops in speed.items()}
    return figures(system.published, found, f"{name}: ")


def compare() -> Comparison:
    """Factor on every system, and compare with the paper."""
    runs = {name: runs_of(name) for name in SYSTEMS}
    return Comparison(
        paper="Model-Driven One-Sided Factorizations on Multicore Accelerated Systems",
        rates_from="Dongarra et al., section 7.1; assumed rates: docs/explanation/papers.md",
        speeds={
            name: {what: run.speed(SYSTEMS[name].peak) for what, run in found.items()}
            for name, found in runs.items()
        },
        figures=[row for name, found in runs.items() for row in figures_of(name, found)],
    )
