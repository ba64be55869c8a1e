"""LU whose updates the host shares with a GPU: Donfack et al., by tournament pivoting (CALU).

The host updates a window of block columns that moves with the panel. The comparison is MAGMA's
schedule: the host factors panels, and the GPU makes all updates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.papers.comparison import Comparison, figures
from bench.papers.hybrid import device_of, factor, host_of
from hdgemm.tasks.block_columns import BlockColumns, even_widths, split_columns
from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from bench.papers.comparison import Figure, Published
    from bench.papers.hybrid import Factorisation
    from hdgemm.tasks.capability import Capability

_ORDER: Final = 18048
#: Panels of CALU; the fastest count.
_CALU_WIDTHS: Final = (192, 256)
#: Panels of MAGMA's LU on Fermi GPUs for n of 10,240 and more, by its own table of block sizes.
_MAGMA_WIDTHS: Final = (512,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSystem:
    """A host and one GPU.

    Parameters
    ----------
    cpu, gpu
        Peak flop/s.
    host, magma_host
        The host in either schedule.
    small
        Order at which the paper gives the ratio of the two schedules; None without such a figure.
    """

    cpu: float
    gpu: float
    host: Capability
    magma_host: Capability
    device: Capability
    small: int | None = None
    published: Published = field(default_factory=dict)

    @property
    def peak(self) -> float:
        """Flop/s of host and GPU."""
        return self.cpu + self.gpu

    @property
    def share(self) -> float:
        """Part of the block columns that the host updates, d/N of the paper's model."""
        return self.cpu / self.peak

    def factor(self, order: int, width: int, share: float) -> Factorisation:
        """Factor with a share of the columns for the host; with 0 by MAGMA's schedule."""
        widths = even_widths(order, width)
        count, gpu = round(share * len(widths)), self.device.name
        owner = split_columns(count, [gpu] * len(widths))
        a = BlockColumns.cut((order, order), widths, owner=owner)
        host = self.host if share > 0 else self.magma_host
        return factor(
            "lu", a, (host, self.device), lambda column: gpu if column.number > count else HOST
        )

    def fastest(self, order: int, share: float) -> Factorisation:
        """Factor with each width of panels; return the fastest."""
        widths = _CALU_WIDTHS if share > 0 else _MAGMA_WIDTHS
        runs = (self.factor(order, width, share) for width in widths)
        return max(runs, key=lambda run: run.gflops)


def _system(
    cpu: float, gpu: float, *, gemm: float, device: float, magma_panel: float,
    small: int | None = None, published: Published,
) -> SharedSystem:  # fmt: skip
    return SharedSystem(
        cpu=cpu,
        gpu=gpu,
        host=host_of(100e9, gemm=gemm, lanes=4, memory=20e9),
        magma_host=host_of(magma_panel, memory=20e9),
        device=device_of("gpu", device, trsm=0.5, memory=60e9, bus=5e9),
        small=small,
        published=published,
    )


_SHARE: Final = "d/N of the model (section IV)"

SYSTEMS: Final = {
    "opteron-6172": _system(
        403.2e9, 504e9, gemm=299e9, device=310e9, magma_panel=12e9,
        published={"share": (_SHARE, 0.444)},
    ),
    "opteron-6180": _system(
        480e9, 504e9, gemm=356e9, device=310e9, magma_panel=12e9, small=11008,
        published={
            "share": (_SHARE, 0.488),
            "ratio": ("CALU over MAGMA, n = 11,008 (Figure 5)", 2.0),
            "calu": ("CALU, n = 18,048, part of the peak (Figure 5)", 503 / 984),
            "magma": ("MAGMA, n = 18,048, part of the peak (Figure 5)", 276 / 984),
        },
    ),
    "xeon-2670": _system(
        332.8e9, 665e9, gemm=245e9, device=380e9, magma_panel=30e9, small=13056,
        published={
            "share": (_SHARE, 0.334),
            "ratio": ("CALU over MAGMA, n = 13,056 (Figure 6)", 1.5),
            "calu": ("CALU, n = 18,048, part of the peak (Figure 6)", 489 / 997.8),
            "magma": ("MAGMA, n = 18,048, part of the peak (Figure 6)", 336 / 997.8),
        },
    ),
}  # fmt: skip


def runs_of(name: str) -> dict[str, Factorisation]:
    """Factor by both schedules on one system, at each of the paper's orders."""
    system = SYSTEMS[name]
    return {
        f"{schedule}, n = {order:,}": system.fastest(order, share)
        for order in (system.small, _ORDER)
        if order is not None
        for schedule, share in (("CALU", system.share), ("MAGMA", 0.0))
    }


def figures_of(name: str, runs: dict[str, Factorisation]) -> list[Figure]:
    """Compare the runs on one system with the paper."""
    system, speed = SYSTEMS[name], {what: run.gflops for what, run in runs.items()}
    found = {
        "share": system.share,
        "calu": speed[f"CALU, n = {_ORDER:,}"] * 1e9 / system.peak,
        "magma": speed[f"MAGMA, n = {_ORDER:,}"] * 1e9 / system.peak,
    }
    if system.small is not None:
        calu, magma = (speed[f"{each}, n = {system.small:,}"] for each in ("CALU", "MAGMA"))
        found["ratio"] = calu / magma
    return figures(system.published, found, f"{name}: ")


def compare() -> Comparison:
    """Factor on every system, and compare with the paper."""
    runs = {name: runs_of(name) for name in SYSTEMS}
    return Comparison(
        paper="Dynamically balanced synchronization-avoiding LU factorization with multicore and "
        "GPUs",
        rates_from="Donfack et al., table I; assumed rates: docs/explanation/papers.md",
        speeds={
            name: {what: run.speed(SYSTEMS[name].peak) for what, run in found.items()}
            for name, found in runs.items()
        },
        figures=[row for name, found in runs.items() for row in figures_of(name, found)],
    )
