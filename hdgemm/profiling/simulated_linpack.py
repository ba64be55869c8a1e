"""Profile of LINPACK on a simulated cluster: the paper's figures, from runs in virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hdgemm.profiling.environment import describe_setting
from hdgemm.profiling.results import Profile, Rate, Reference, Rung, Sample
from hdgemm.simulation.linpack import OPTIMISATIONS, simulate_linpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.simulation.linpack import Cluster, ClusterRun

#: Grid of the extrapolation to 1,000 nodes, with the memory of each node filled as on the cluster.
_LARGE_GRID: Final = (25, 40)
#: A long broadcast sends each byte of a panel twice, however many nodes there are.
_LONG_HOPS: Final = 2
#: Block size of Figure 11b.
_SMALL_NB: Final = 1984


def profile_cluster(cluster: Cluster, progress: Callable[[float, str], None]) -> Profile:
    """Run LINPACK on a cluster in virtual time, with its optimisations one after the other."""
    progress(0.0, "optimisations")
    names = ("baseline", *OPTIMISATIONS)
    runs = {
        name: simulate_linpack(cluster, OPTIMISATIONS[:count]) for count, name in enumerate(names)
    }
    progress(0.5, "GPUs and nodes")
    by_gpus = {
        gpus: simulate_linpack(replace(cluster, gpus=gpus), OPTIMISATIONS)
        for gpus in range(1, cluster.gpus + 1)
    }
    small = simulate_linpack(replace(cluster, nb=_SMALL_NB))
    figures = _figures(runs, by_gpus) | {"small blocks": small.gflops}
    order = cluster.n
    return Profile(
        kind="simulated",
        complete=True,
        setting=describe_setting(
            f"{cluster.name} (LINPACK)", "memory", cluster.source, (order, order, cluster.nb)
        ),
        ladder={
            ("" if name == "baseline" else "+ ") + name: _rung(run) for name, run in runs.items()
        },
        scaling=_scaling(by_gpus) | _large(cluster),
        paper=tuple(
            Reference(label, value, figures[name])
            for name, (label, value) in cluster.published.items()
        ),
        notes=(
            "simulated: nothing was measured on this machine",
            "rates are of one node; busy times are of CPUs and GPUs over all iterations",
            "1,000 nodes hold as many bytes each; 1ring broadcasts pass from node to node",
        ),
    )


def extrapolated(cluster: Cluster, grid: tuple[int, int], *, long: bool) -> ClusterRun:
    """Run LINPACK on another grid of the same nodes, with the same bytes a node."""
    nodes, before = grid[0] * grid[1], cluster.grid[0] * cluster.grid[1]
    blocks = round(cluster.n * (nodes / before) ** 0.5 / cluster.nb)
    hops = _LONG_HOPS if long else None
    larger = replace(cluster, n=blocks * cluster.nb, grid=grid, hops=hops)
    return simulate_linpack(larger, OPTIMISATIONS)


def _figures(runs: Mapping[str, ClusterRun], by_gpus: Mapping[int, ClusterRun]) -> dict[str, float]:
    """Return the figures of the paper's evaluation, by the names of `Cluster.published`."""
    *_, last = runs.values()
    first = runs["baseline"]
    hidden, hidden_time = last.hidden()
    figures = {
        "baseline": first.gflops,
        "final": last.gflops,
        "gain": last.gflops / first.gflops,
        "cpu": last.cpu_seconds / first.cpu_seconds,
        "hidden": hidden,
        "hidden time": hidden_time,
        "dgemm": last.cluster.dgemm / 1e9,
        "one": _of_dgemm(by_gpus[1]),
        "four": _of_dgemm(last),
    }
    for before, after in pairwise(runs):
        figures[after] = runs[after].cpu_seconds / runs[before].cpu_seconds
    return figures


def _of_dgemm(run: ClusterRun) -> float:
    return run.gflops * 1e9 / run.cluster.dgemm


def _rung(run: ClusterRun) -> Rung:
    busy = {"cpu": run.cpu_seconds, "gpu": sum(each.gpu for each in run.iterations)}
    return Rung(_rate(run.gflops, run), run.seconds, busy)


def _scaling(by_gpus: Mapping[int, ClusterRun]) -> dict[str, Rate]:
    found = {}
    for gpus, run in by_gpus.items():
        label = f"{gpus} GPU a node" if gpus == 1 else f"{gpus} GPUs a node"
        found[f"DGEMM, {label}"] = _rate(run.cluster.dgemm / 1e9, run)
        found[f"LINPACK, {label}"] = _rate(run.gflops, run)
    return found


def _large(cluster: Cluster) -> dict[str, Rate]:
    """Return the extrapolation to 1,000 nodes."""
    found = {}
    for name, long in (("1ring", False), ("long", True)):
        run = extrapolated(cluster, _LARGE_GRID, long=long)
        found[f"1,000 nodes, {name} broadcasts"] = _rate(run.gflops, run)
    return found


def _rate(gflops: float, run: ClusterRun) -> Rate:
    return Rate(Sample((gflops,)), run.cluster.peak / 1e9)
