"""Factorisations of hybrid machines in virtual time: the task graphs of real runs, without data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.papers.comparison import Speed
from hdgemm.tasks.algorithms import ALGORITHMS
from hdgemm.tasks.block_columns import BlockColumns, even_widths
from hdgemm.tasks.capability import HOST, Capability
from hdgemm.tasks.virtual_time import VirtualRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.papers.comparison import Published
    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.tasks.block_columns import BlockColumn

#: LAPACK's operation count of a square matrix of order n, as a multiple of n³.
_FLOPS: Final = {"cholesky": 1 / 3, "lu": 2 / 3, "qr": 4 / 3}
_ROWS_PER_SECOND: Final = 1e12  # row interchanges are limited by memory, not by operations


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSystem:
    """A host that factors panels, and devices that update.

    Parameters
    ----------
    host, devices
        Their rates by kind of task. The matrix lies on the devices at first and at the end.
    peak
        Flop/s of the devices.
    order
        Order of the matrix by algorithm.
    width
        Columns of a panel.
    hubs
        Name of the hub by device, where several devices share the link of one.
    """

    host: Capability
    devices: tuple[Capability, ...]
    peak: float
    order: Mapping[str, int]
    width: int = 512
    hubs: Mapping[str, str] = field(default_factory=dict)
    published: Published = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Factorisation:
    """One factorisation in virtual time; `seconds` end with its last task."""

    algorithm: str
    order: int
    timeline: Timeline
    seconds: float

    @property
    def gflops(self) -> float:
        """10⁹ flop/s, by LAPACK's operation count."""
        return _FLOPS[self.algorithm] * self.order**3 / self.seconds / 1e9

    def speed(self, peak: float) -> Speed:
        """Return the speed with the machine's peak flop/s."""
        return Speed(self.gflops, peak / 1e9)


class HybridRun(VirtualRun):
    """A run on devices of which some share the link of a hub.

    While a device runs a task, the tiles of two further ones are transferred.
    """

    ahead = 2

    def __init__(
        self,
        capabilities: Sequence[Capability],
        hubs: Mapping[str, str],
        *,
        priorities: bool = True,
    ) -> None:
        super().__init__(capabilities, priorities=priorities)
        self._hubs = hubs

    def links(self, device: str) -> set[str]:
        """Return the links that a transfer occupies: the device's own and its hub's."""
        return {device, self._hubs.get(device, device)}


def factor(
    algorithm: str,
    a: BlockColumns,
    capabilities: Sequence[Capability],
    home: Callable[[BlockColumn], str],
    *,
    hubs: Mapping[str, str] | None = None,
    priorities: bool = True,
) -> Factorisation:
    """Factor block columns, each of which lies at its `home` at first."""
    run = HybridRun(capabilities, hubs or {}, priorities=priorities)
    for column in a.columns:
        run.dispatcher.residency.place(column.tile, home(column))
    ALGORITHMS[algorithm](a, run.insert)
    return Factorisation(algorithm, a.shape[0], run.finish(), run.now)


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
    return factor(
        algorithm, a, (system.host, *used), lambda column: column.tile.home or HOST,
        hubs=system.hubs, priorities=priorities,
    )  # fmt: skip


def host_of(
    panel: float, *, geqrt: float = 80e9, gemm: float | None = None, lanes: int = 1,
    memory: float = 80e9,
) -> Capability:  # fmt: skip
    """Return a host by the rates of its panels, and of its updates where it makes any."""
    rates = {"potrf": 100e9, "panel trsm": 250e9, "getrf": panel, "geqrt": geqrt}
    if gemm is not None:
        rates |= {"gemm": gemm / lanes, "trsm": 0.6 * gemm / lanes}
    rates["laswp"] = _ROWS_PER_SECOND
    return Capability(name=HOST, rates=rates, memory=memory, lanes=lanes)


def device_of(
    name: str, gemm: float, *, larfb: float = 0.8, trsm: float = 0.8, memory: float = 100e9,
    bus: float = 6e9,
) -> Capability:  # fmt: skip
    """Return an accelerator by its DGEMM rate, and the other kernels' rates relative to that."""
    rates = {"gemm": gemm, "larfb": larfb * gemm, "trsm": trsm * gemm, "laswp": _ROWS_PER_SECOND}
    return Capability(
        name=name, rates=rates, depth_half=15, latency=10e-6, memory=memory, up=bus, down=bus
    )
