"""LINPACK on a cluster in virtual time: Jo et al.'s machine and its optimisations as data.

One node stands for all: in each iteration it factors, receives, swaps and updates as large a part
as every other node does. Its CPUs, its swaps and its GPUs are lanes of tasks with dependencies
("Accelerating LINPACK with MPI-OpenCL on Clusters of Multi-GPU Nodes", sections 2.2 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.papers.comparison import Comparison, Speed, figures
from hdgemm.planning.costs import Cost
from hdgemm.planning.virtual_time import Activity, run_lanes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from bench.papers.comparison import Published

#: The optimisations in the order of the paper, by the names of `hdgemm linpack --overlap`.
OPTIMISATIONS: Final = ("panel-swap", "shared-panel", "split-swap")
#: Strips of columns that are swapped before the GPUs start on an iteration, one for each GPU.
_FIRST_STRIPS: Final = 4
#: Grid of the extrapolation to 1,000 nodes, with the memory of each node filled as on the cluster.
_LARGE_GRID: Final = (25, 40)
#: A long broadcast sends each byte of a panel twice, however many nodes there are.
_LONG_HOPS: Final = 2
#: Block size of Figure 11b.
_SMALL_NB: Final = 1984


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes with several GPUs each.

    Parameters
    ----------
    n, nb, grid
        Order of the system, block size, and rows and columns of the grid of nodes.
    strip
        Columns that a GPU is dealt at a time.
    gpus
        GPUs of a node.
    kernel, further
        Flop/s of the DGEMM kernel on one GPU, and the part of it that each further GPU adds.
    peak
        Flop/s of a node: CPUs and GPUs.
    half_width
        Columns at which DGEMM reaches half of that.
    beside
        The part of DGEMM's rate that the update reaches while the CPUs work for the next one.
    panel
        Flop/s of a node's CPUs in the factorisation.
    link
        Bytes/s of a panel from one node to the next.
    swap
        Bytes/s of a swap: rows are copied, spread, exchanged and copied again.
    split
        The part of the time of the first columns' swap that is left when its halves alternate.
    hops
        How often a panel is sent one after the other until the last node has it; None: once for
        each other node of the row (1ring). Long broadcasts: twice.
    """

    n: int
    nb: int
    grid: tuple[int, int]
    strip: int
    gpus: int
    kernel: float
    further: float
    peak: float
    half_width: float
    beside: float
    panel: float
    link: float
    swap: float
    split: float
    hops: int | None = None
    published: Published = field(default_factory=dict)

    @property
    def flops(self) -> float:
        """HPL's operation count."""
        return self.n**2 * (2 * self.n / 3 + 1.5)

    @property
    def dgemm(self) -> float:
        """Flop/s of DGEMM on a node, for the whole local matrix."""
        return self._rate(self.n / self.grid[1])

    def update_seconds(self, m: float) -> float:
        """Return the seconds of DTRSM and DGEMM on a node's part of a matrix of order m."""
        rows, cols = (m / side for side in self.grid)
        flops = 2 * self.nb * rows * cols + self.nb**2 * cols
        return flops / (self.beside * self._rate(cols)) if cols > 0 else 0.0

    def panel_seconds(self, m: float, *, shared: bool) -> float:
        """Return the seconds of the factorisation; shared by a row of nodes, with its dealing."""
        rows, cols = m / self.grid[0], self.grid[1]
        alone = self.nb**2 * rows / self.panel
        dealt = 8 * self.nb * rows * (cols - 1) / cols / self.link
        return alone / cols + dealt if shared else alone

    def broadcast_seconds(self, m: float) -> float:
        """Return the seconds until the last node of a row has the panel."""
        hops = self.grid[1] - 1 if self.hops is None else self.hops
        return 8 * self.nb * m / self.grid[0] * hops / self.link

    def swap_seconds(self, m: float) -> tuple[float, float]:
        """Return the seconds of the swap of the first strips, and of all others."""
        cols = m / self.grid[1]
        first = min(cols, _FIRST_STRIPS * self.strip)
        return 8 * self.nb * first / self.swap, 8 * self.nb * (cols - first) / self.swap

    def _rate(self, cols: float) -> float:
        kernels = self.kernel * (1 + (self.gpus - 1) * self.further)
        return kernels * cols / (cols + self.half_width)


class Iteration(NamedTuple):
    """Seconds of one iteration: work of the CPUs and of the GPUs, and until both were done."""

    cpu: float
    gpu: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run of LINPACK in virtual time."""

    cluster: Cluster
    iterations: tuple[Iteration, ...]
    seconds: float

    @property
    def gflops(self) -> float:
        """10⁹ flop/s of a node."""
        nodes = self.cluster.grid[0] * self.cluster.grid[1]
        return self.cluster.flops / self.seconds / nodes / 1e9

    @property
    def speed(self) -> Speed:
        """Speed of a node, with its peak."""
        return Speed(self.gflops, self.cluster.peak / 1e9)

    @property
    def dgemm(self) -> Speed:
        """Speed of DGEMM alone on a node."""
        return Speed(self.cluster.dgemm / 1e9, self.cluster.peak / 1e9)

    @property
    def cpu_seconds(self) -> float:
        """Seconds of the CPUs over all iterations."""
        return sum(each.cpu for each in self.iterations)

    def hidden(self) -> tuple[float, float]:
        """Return the part of iterations in which the GPUs work longer, and their part of time."""
        found = [each for each in self.iterations if each.cpu <= each.gpu]
        seconds = sum(each.seconds for each in found)
        return len(found) / len(self.iterations), seconds / self.seconds


def run_linpack(cluster: Cluster, optimisations: Sequence[str] = ()) -> ClusterRun:
    """Run the factorisation with the baseline's overlap and some of `OPTIMISATIONS`.

    The update of iteration i on the GPUs hides the remaining swap of i and the factorisation, the
    broadcast and the first swap of i + 1 on the CPUs (section 4.1).
    """
    lanes = _Lanes(cluster, frozenset(optimisations))
    count = cluster.n // cluster.nb
    for number in range(count):
        lanes.add(number, cluster.n - number * cluster.nb)
    return lanes.run()


class _Lanes:
    """The lanes "cpu", "swap" and "gpu" of a node.

    Iteration i has two tasks on each lane. cpu: factorisation and broadcast; the swap of the
    first strips. gpu: the update of the next panel's columns; the rest. swap: the rest of the rows.
    """

    def __init__(self, cluster: Cluster, optimisations: frozenset[str]) -> None:
        self._cluster, self._optimisations = cluster, optimisations
        self._tasks: dict[Hashable, list[Activity]] = {"cpu": [], "swap": [], "gpu": []}
        self._work: list[tuple[float, float]] = []
        self._rest = 0.0

    def add(self, number: int, m: float) -> None:
        """Add the iteration whose panel is m rows high."""
        cluster, nb = self._cluster, self._cluster.nb
        panel = cluster.panel_seconds(m, shared="shared-panel" in self._optimisations)
        broadcast = cluster.broadcast_seconds(m)
        first, rest = cluster.swap_seconds(m - nb)
        if "split-swap" in self._optimisations:
            first *= cluster.split
        update = cluster.update_seconds(m - nb)
        urgent = update * min(1.0, nb * cluster.grid[1] / max(m - nb, 1.0))
        beside = "panel-swap" in self._optimisations
        # The panel waits for the update of its columns, and without panel-swap for all swaps.
        swapped: list[tuple[Hashable, int]] = [("swap", number)]
        updated: list[tuple[Hashable, int]] = [("gpu", max(0, 2 * number - 1))]
        self._add("cpu", panel, updated if beside else updated + swapped)
        self._add("cpu", broadcast + first, swapped)
        self._add("gpu", urgent, [("cpu", 2 * number + 2)])
        self._add("swap", rest, [("cpu", 2 * number + 2)])
        self._add("gpu", update - urgent, swapped)
        hidden = min(panel, self._rest) if beside else 0.0
        self._work.append((panel + broadcast + first + self._rest - hidden, update))
        self._rest = rest

    def run(self) -> ClusterRun:
        """Run all tasks; an iteration ends with its update, and the swaps and panel beneath it."""
        ran = run_lanes(self._tasks)
        count = len(self._work)
        ends = [
            max(ran["gpu"][2 * number + 1].end, ran["cpu"][min(2 * number + 3, 2 * count - 1)].end)
            for number in range(count)
        ]
        # Beneath the update of iteration i the CPUs work for i + 1.
        cpu = [seconds for seconds, _ in self._work[1:]] + [0.0]
        iterations = tuple(
            Iteration(each, work[1], end - begin)
            for each, work, begin, end in zip(cpu, self._work, [0.0, *ends[:-1]], ends, strict=True)
        )
        return ClusterRun(self._cluster, iterations, max(ends))

    def _add(self, lane: str, seconds: float, needs: Sequence[tuple[Hashable, int]]) -> None:
        self._tasks[lane].append(Activity(Cost(max(seconds, 1e-9), ()), needs))


#: Jo et al., section 5.1: 7×7 nodes with two Xeon E5-2650 and four Radeon HD 7970 each. `kernel`
#: and `further` are the paper's (717 GFLOP/s, 3.95 times with four GPUs); `half_width`, `beside`,
#: `panel`, `link` and `swap` are fitted; docs/explanation/papers.md says how.
CHUNDOONG: Final = Cluster(
    n=777_728,
    nb=3968,
    grid=(7, 7),
    strip=3968,
    gpus=4,
    kernel=717e9,
    further=2.95 / 3,
    peak=4 * 983e9 + 256e9,
    half_width=8750.0,
    beside=0.865,
    panel=73.5e9,
    link=1.15e9,
    swap=0.7e9,
    split=0.5,
    published={
        "baseline": ("baseline, NB = 3968, GFLOP/s a node (section 5.3)", 1397.0),
        "small blocks": ("baseline, NB = 1984, GFLOP/s a node (section 5.3)", 1686.0),
        "final": ("all optimisations, GFLOP/s a node (Figure 12)", 1912.0),
        "gain": ("all optimisations over the baseline (Figure 12)", 93.69 / 68.43),
        "panel-swap": ("CPU time left by panel-swap (Figure 13)", 1 - 0.063),
        "shared-panel": ("CPU time left by shared-panel (Figure 13)", 1 - 0.42),
        "split-swap": ("CPU time left by split-swap (Figure 13)", 1 - 0.049),
        "cpu": ("CPU time left by all (Figure 13)", 1 - 0.485),
        "hidden": ("iterations that hide all CPU time (Figure 14)", 0.48),
        "hidden time": ("part of the time in them (Figure 14)", 0.74),
        "dgemm": ("DGEMM on four GPUs, GFLOP/s (Figure 15)", 2592.0),
        "one": ("LINPACK of DGEMM with one GPU (Figure 15)", 0.82),
        "four": ("LINPACK of DGEMM with four GPUs (Figure 15)", 0.74),
    },
)


def compare() -> Comparison:
    """Run LINPACK with its optimisations one after the other, and compare with the paper."""
    names = ("baseline", *OPTIMISATIONS)
    runs = {name: run_linpack(CHUNDOONG, OPTIMISATIONS[:count]) for count, name in enumerate(names)}
    by_gpus = [
        run_linpack(replace(CHUNDOONG, gpus=gpus), OPTIMISATIONS)
        for gpus in range(1, CHUNDOONG.gpus + 1)
    ]
    large = {
        f"{name} broadcasts": extrapolated(CHUNDOONG, _LARGE_GRID, long=name == "long").speed
        for name in ("1ring", "long")
    }
    return Comparison(
        paper="Accelerating LINPACK with MPI-OpenCL on Clusters of Multi-GPU Nodes",
        rates_from="Jo et al., section 5; fitted rates: docs/explanation/papers.md",
        speeds={
            "a node, optimisations": {
                ("" if name == "baseline" else "+ ") + name: run.speed for name, run in runs.items()
            },
            "a node by GPUs, DGEMM": {str(run.cluster.gpus): run.dgemm for run in by_gpus},
            "a node by GPUs, LINPACK": {str(run.cluster.gpus): run.speed for run in by_gpus},
            "a node of 1,000": large,
        },
        figures=figures(CHUNDOONG.published, _figures(runs, by_gpus[0])),
    )


def extrapolated(cluster: Cluster, grid: tuple[int, int], *, long: bool) -> ClusterRun:
    """Run LINPACK on another grid of the same nodes, with the same bytes a node."""
    nodes, before = grid[0] * grid[1], cluster.grid[0] * cluster.grid[1]
    blocks = round(cluster.n * (nodes / before) ** 0.5 / cluster.nb)
    hops = _LONG_HOPS if long else None
    larger = replace(cluster, n=blocks * cluster.nb, grid=grid, hops=hops)
    return run_linpack(larger, OPTIMISATIONS)


def _figures(runs: Mapping[str, ClusterRun], one_gpu: ClusterRun) -> dict[str, float]:
    """Return the figures of the paper's evaluation, by the names of `Cluster.published`."""
    *_, last = runs.values()
    first = runs["baseline"]
    hidden, hidden_time = last.hidden()
    return {
        "baseline": first.gflops,
        "small blocks": run_linpack(replace(CHUNDOONG, nb=_SMALL_NB)).gflops,
        "final": last.gflops,
        "gain": last.gflops / first.gflops,
        **{
            after: runs[after].cpu_seconds / runs[before].cpu_seconds
            for before, after in pairwise(runs)
        },
        "cpu": last.cpu_seconds / first.cpu_seconds,
        "hidden": hidden,
        "hidden time": hidden_time,
        "dgemm": last.dgemm.gflops,
        "one": one_gpu.gflops / one_gpu.dgemm.gflops,
        "four": last.gflops / last.dgemm.gflops,
    }
