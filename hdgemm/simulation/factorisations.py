"""Factorisations of hybrid machines in virtual time: the task graphs of real runs, without data.

The machines of two papers, as data: Dongarra et al., "Model-Driven One-Sided Factorizations on
Multicore Accelerated Systems", and Donfack et al., "Dynamically balanced synchronization-avoiding
LU factorization with multicore and GPUs".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hdgemm.tasks.algorithms import ALGORITHMS
from hdgemm.tasks.block_columns import BlockColumns, even_widths, split_columns
from hdgemm.tasks.capability import HOST, Capability
from hdgemm.tasks.virtual_time import VirtualRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.pipeline.timeline import Timeline

#: LAPACK's operation count of a square matrix of order n, as a multiple of n³.
FLOPS: Final = {"cholesky": 1 / 3, "lu": 2 / 3, "qr": 4 / 3}
#: Tasks that wait on a device beside the one that runs: their tiles are transferred meanwhile.
_AHEAD: Final = 2
_ROWS_PER_SECOND: Final = 1e12  # row interchanges are limited by memory, not by operations
#: Panels of CALU; the fastest count.
_CALU_WIDTHS: Final = (192, 256)
#: Panels of MAGMA's LU on Fermi GPUs for n of 10,240 and more, by its own table of block sizes.
_MAGMA_WIDTHS: Final = (512,)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSystem:
    """A host that factors panels, and devices that update.

    Parameters
    ----------
    source
        Where the figures come from.
    host, devices
        Their rates by kind of task. The matrix lies on the devices at first and at the end.
    peak
        Flop/s of the devices, or of all in a system that has `share`.
    order
        Order of the matrix by algorithm.
    width
        Columns of a panel.
    share
        d/N of the host (`hdgemm.tasks.block_columns`); None: all columns are dealt to the devices.
    hybrid_host
        The host of the comparison in which only panels are factored there; with `share` only.
    published
        Figures of the paper: name → (label, value).
    """

    name: str
    source: str
    host: Capability
    devices: tuple[Capability, ...]
    peak: float
    order: Mapping[str, int]
    width: int = 512
    share: float | None = None
    hybrid_host: Capability | None = None
    published: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Factorisation:
    """One factorisation in virtual time."""

    algorithm: str
    order: int
    timeline: Timeline

    @property
    def gflops(self) -> float:
        """10⁹ flop/s, by LAPACK's operation count."""
        return FLOPS[self.algorithm] * self.order**3 / self.timeline.seconds / 1e9


def factor_dealt(
    system: HybridSystem,
    algorithm: str,
    *,
    proportional: bool = False,
    priorities: bool = True,
    devices: int | None = None,
) -> Factorisation:
    """Factor with block columns that are dealt to the first `devices` devices, in proportion to
    their rates (HGDD) or uniformly; `priorities` prefer the tasks that unlock the next panel.
    """
    used = system.devices[:devices]
    weights = {each.name: each.rates["gemm"] if proportional else 1.0 for each in used}
    order = system.order[algorithm]
    a = BlockColumns.cut(
        (order, order), even_widths(order, system.width), lower=algorithm == "cholesky",
        weights=weights,
    )  # fmt: skip
    run = VirtualRun((system.host, *used), priorities=priorities, ahead=_AHEAD)
    for column in a.columns:
        run.dispatcher.residency.place(column.tile, column.tile.home or HOST)
    ALGORITHMS[algorithm](a, run.insert)
    return Factorisation(algorithm, order, run.finish(write_back=False))


def factor_shared(system: HybridSystem, order: int, width: int, share: float) -> Factorisation:
    """Factor by LU, with a window of the host's columns that moves with the panel.

    With `share` 0, the host of the comparison factors panels, and the device makes all updates.
    """
    (device,) = system.devices
    host = system.host if share > 0 else system.hybrid_host
    assert host is not None  # noqa: S101  (a system with `share` has both hosts)
    widths = even_widths(order, width)
    count = round(share * len(widths))
    owner = split_columns(count, [device.name] * len(widths))
    a = BlockColumns.cut((order, order), widths, owner=owner)
    run = VirtualRun((host, device), ahead=_AHEAD)
    for column in a.columns:
        at = device.name if column.number > count else HOST
        run.dispatcher.residency.place(column.tile, at)
    ALGORITHMS["lu"](a, run.insert)
    return Factorisation("lu", order, run.finish(write_back=False))


def fastest_shared(system: HybridSystem, order: int, share: float) -> Factorisation:
    """Factor by LU with the panels of CALU, or with `share` 0 of MAGMA; return the fastest."""
    widths = _CALU_WIDTHS if share > 0 else _MAGMA_WIDTHS
    return max(
        (factor_shared(system, order, width, share) for width in widths),
        key=lambda each: each.gflops,
    )


def host_of(
    panel: float, *, geqrt: float = 80e9, gemm: float | None = None, lanes: int = 1,
    memory: float = 80e9,
) -> Capability:  # fmt: skip
    """Return a host by the rates of its panels, and of its updates where it makes any."""
    rates = {"potrf": 100e9, "panel trsm": 250e9, "getrf": panel, "geqrt": geqrt}
    if gemm is not None:
        rates |= {"gemm": gemm / lanes, "trsm": 0.6 * gemm / lanes}
    return Capability(
        name=HOST, rates=rates | {"laswp": _ROWS_PER_SECOND, "discard": _ROWS_PER_SECOND},
        memory=memory, lanes=lanes,
    )  # fmt: skip


def device_of(
    name: str, gemm: float, *, larfb: float = 0.8, trsm: float = 0.8, link: str | None = None,
    memory: float = 100e9, bus: float = 6e9,
) -> Capability:  # fmt: skip
    """Return an accelerator by its DGEMM rate, and the other kernels' rates relative to that."""
    rates = {"gemm": gemm, "larfb": larfb * gemm, "trsm": trsm * gemm, "laswp": _ROWS_PER_SECOND}
    return Capability(name=name, rates=rates, depth_half=15, latency=10e-6, memory=memory,
                      up=bus, down=bus, link=link)  # fmt: skip


_K20C, _PHI = 1.05e12, 0.86e12
_DONGARRA: Final = "Dongarra et al., section 7.1; assumptions: docs/explanation/factorisations.md"
_SANDY_BRIDGE: Final = host_of(200e9)

K20C_6: Final = HybridSystem(
    name="k20c-6",
    source=_DONGARRA,
    host=_SANDY_BRIDGE,
    devices=tuple(device_of(f"k20c{i}", _K20C, link=f"hub{i // 3}") for i in range(6)),
    peak=6 * 1.17e12,
    order={"cholesky": 60000, "lu": 56000, "qr": 56000},
    published={
        "cholesky": ("Cholesky, n = 60,000, part of the peak (Figure 20)", 5.1 / 7.02),
        "lu": ("LU, n = 56,000, part of the peak (Figure 22)", 5.2 / 7.02),
        "qr": ("QR, n = 56,000, part of the peak (Figure 24)", 4.7 / 7.02),
    },
)

M2090_3: Final = HybridSystem(
    name="m2090-3",
    source=_DONGARRA,
    host=_SANDY_BRIDGE,
    devices=tuple(device_of(f"m2090{i}", 0.4e12, link=f"hub{i // 2}") for i in range(3)),
    peak=3 * 0.665e12,
    order={"cholesky": 40000, "lu": 40000, "qr": 40000},
)

PHI_3: Final = HybridSystem(
    name="phi-3",
    source=_DONGARRA,
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
    name="mixed-3",
    source=_DONGARRA,
    host=_SANDY_BRIDGE,
    devices=tuple(
        device_of(name, part * _K20C) for name, part in (("k20c", 1.0), ("phi", 0.8), ("k20", 0.5))
    ),
    peak=2.3 * 1.17e12,
    order={"cholesky": 30000, "lu": 30000, "qr": 30000},
    published={
        "third": ("a third, slower device, columns dealt uniformly (Figure 16)", 0.94),
        "hgdd": ("columns in proportion to the rates over uniform (Figure 16)", 1.53),
        "priorities": ("priorities of panels, one device (section 6.4)", 1.05),
    },
)

_DONFACK: Final = "Donfack et al., table I; assumptions: docs/explanation/factorisations.md"


def _shared(
    name: str, cpu: float, gpu: float, *, gemm: float, device: float, magma_panel: float,
    published: Mapping[str, tuple[str, float]],
) -> HybridSystem:  # fmt: skip
    share = cpu / (cpu + gpu)
    label = "d/N of the model (section IV)"
    return HybridSystem(
        name=name,
        source=_DONFACK,
        host=host_of(100e9, gemm=gemm, lanes=4, memory=20e9),
        hybrid_host=host_of(magma_panel, memory=20e9),
        devices=(device_of("gpu", device, trsm=0.5, memory=60e9, bus=5e9),),
        peak=cpu + gpu,
        order={"lu": 18048},
        share=share,
        published={"share": (label, round(share, 3)), **published},
    )


OPTERON_6172: Final = _shared(
    "opteron-6172", 403.2e9, 504e9, gemm=299e9, device=310e9, magma_panel=12e9, published={}
)
OPTERON_6180: Final = _shared(
    "opteron-6180", 480e9, 504e9, gemm=356e9, device=310e9, magma_panel=12e9,
    published={
        "11008": ("CALU over MAGMA, n = 11,008 (Figure 5)", 2.0),
        "calu": ("CALU, n = 18,048, part of the peak (Figure 5)", 503 / 984),
        "magma": ("MAGMA, n = 18,048, part of the peak (Figure 5)", 276 / 984),
    },
)  # fmt: skip
XEON_2670: Final = _shared(
    "xeon-2670", 332.8e9, 665e9, gemm=245e9, device=380e9, magma_panel=30e9,
    published={
        "13056": ("CALU over MAGMA, n = 13,056 (Figure 6)", 1.5),
        "calu": ("CALU, n = 18,048, part of the peak (Figure 6)", 489 / 997.8),
        "magma": ("MAGMA, n = 18,048, part of the peak (Figure 6)", 336 / 997.8),
    },
)  # fmt: skip

#: Systems by name.
HYBRID_SYSTEMS: Final = {
    system.name: system
    for system in (
        K20C_6, M2090_3, PHI_3, MIXED_3, OPTERON_6172, OPTERON_6180, XEON_2670,
    )
}  # fmt: skip
