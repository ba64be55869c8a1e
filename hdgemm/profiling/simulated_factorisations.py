"""Profiles of factorisations and of LINPACK on simulated machines: the papers' figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from hdgemm.profiling.environment import describe_setting
from hdgemm.profiling.results import Profile, Rate, Reference, Rung, Sample
from hdgemm.simulation.factorisations import factor_dealt, fastest_shared
from hdgemm.simulation.linpack import OPTIMISATIONS, simulate_linpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.simulation.factorisations import Factorisation, HybridSystem
    from hdgemm.simulation.linpack import Cluster, ClusterRun
    from hdgemm.simulation.native import NativeSystem

#: Grid of the extrapolation to 1,000 nodes, with the memory of each node filled as on the cluster.
_LARGE_GRID: Final = (25, 40)
#: A long broadcast sends each byte of a panel twice, however many nodes there are.
_LONG_HOPS: Final = 2
#: Block size of Figure 11b.
_SMALL_NB: Final = 1984
NOTE: Final = "simulated: nothing was measured on this machine"


def profile_hybrid(system: HybridSystem, progress: Callable[[float, str], None]) -> Profile:
    """Factor on a hybrid system in virtual time, by the schedules of its paper."""
    if system.share is None:
        runs, figures = _dealt(system, progress)
    else:
        runs, figures = _shared(system, system.share, progress)
    return _profile_of(system, runs, figures, system.published)


def profile_native(system: NativeSystem, progress: Callable[[float, str], None]) -> Profile:
    """Factor on a GPU alone and beside a host, in virtual time."""
    hybrid = system.hybrid
    runs: dict[str, Factorisation] = {}
    figures: dict[str, float] = {}
    for number, algorithm in enumerate(hybrid.order):
        progress(number / len(hybrid.order), algorithm)
        native, both = (system.factor(algorithm, native=native) for native in (True, False))
        runs |= {f"{algorithm}, native": native, f"{algorithm}, hybrid": both}
        gain = system.per_watt(native, native=True) / system.per_watt(both, native=False)
        figures |= {algorithm: system.of_peak(native), f"{algorithm} per watt": gain}
    return _profile_of(hybrid, runs, figures, system.published)


def _dealt(
    system: HybridSystem, progress: Callable[[float, str], None]
) -> tuple[dict[str, Factorisation], dict[str, float]]:
    """Factor with columns dealt to all devices."""
    runs = {}
    for number, algorithm in enumerate(system.order):
        progress(number / 4, algorithm)
        runs[algorithm] = factor_dealt(system, algorithm)
    figures = {name: _of_peak(system, run) for name, run in runs.items()}
    progress(0.75, "priorities and proportions")
    alone = [factor_dealt(system, "cholesky", devices=1, priorities=on) for on in (True, False)]
    runs |= {
        "cholesky, all devices but one": factor_dealt(
            system, "cholesky", devices=len(system.devices) - 1
        ),
        "cholesky, proportional": factor_dealt(system, "cholesky", proportional=True),
        "cholesky, one device": alone[0],
        "cholesky, one device, no priorities": alone[1],
    }
    uniform = runs["cholesky"].gflops
    figures |= {
        "third": uniform / runs["cholesky, all devices but one"].gflops,
        "hgdd": runs["cholesky, proportional"].gflops / uniform,
        "priorities": alone[0].gflops / alone[1].gflops,
    }
    return runs, figures


def _shared(
    system: HybridSystem, share: float, progress: Callable[[float, str], None]
) -> tuple[dict[str, Factorisation], dict[str, float]]:
    """Factor by LU with columns shared by host and device, and with panels only on the host."""
    orders = [*(int(name) for name in system.published if name.isdigit()), system.order["lu"]]
    runs: dict[str, Factorisation] = {}
    figures = {"share": share}
    for number, order in enumerate(orders):
        progress(number / len(orders), f"n = {order:,}")
        both = {
            "calu": fastest_shared(system, order, share),
            "magma": fastest_shared(system, order, 0.0),
        }
        runs |= {
            f"CALU, updates shared, n = {order:,}": both["calu"],
            f"MAGMA, panels on the host, n = {order:,}": both["magma"],
        }
        figures |= {name: _of_peak(system, run) for name, run in both.items()}
        figures[str(order)] = both["calu"].gflops / both["magma"].gflops
    return runs, figures


def _profile_of(
    system: HybridSystem,
    runs: Mapping[str, Factorisation],
    figures: Mapping[str, float],
    published: Mapping[str, tuple[str, float]],
) -> Profile:
    order = max(system.order.values())
    setting = describe_setting(
        f"{system.name} (factorisations)", "memory", system.source, (order, order, system.width)
    )
    ladder = {name: _rung(system, run) for name, run in runs.items()}
    return _profile(setting, ladder, published, figures)


def _profile(
    setting: Mapping[str, Any],
    ladder: Mapping[str, Rung],
    published: Mapping[str, tuple[str, float]],
    figures: Mapping[str, float],
    *,
    scaling: Mapping[str, Rate] | None = None,
    notes: tuple[str, ...] = (),
) -> Profile:
    paper = [Reference(label, value, figures[name]) for name, (label, value) in published.items()]
    return Profile(
        kind="simulated", complete=True, setting=setting, ladder=ladder, scaling=scaling or {},
        paper=tuple(paper), notes=(NOTE, *notes),
    )  # fmt: skip


def _of_peak(system: HybridSystem, run: Factorisation) -> float:
    return run.gflops * 1e9 / system.peak


def _rung(system: HybridSystem, run: Factorisation) -> Rung:
    busy: dict[str, float] = {}
    for event in run.timeline.events:
        kind = "host" if event.device == "host" else "devices"
        kind = kind if event.stage == "mult1" else event.stage
        busy[kind] = busy.get(kind, 0.0) + event.end - event.start
    return Rung(Rate(Sample((run.gflops,)), system.peak / 1e9), run.timeline.seconds, busy)


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
    setting = describe_setting(
        f"{cluster.name} (LINPACK)", "memory", cluster.source, (cluster.n, cluster.n, cluster.nb)
    )
    ladder = {
        ("" if name == "baseline" else "+ ") + name: _cluster_rung(run)
        for name, run in runs.items()
    }
    return _profile(
        setting, ladder, cluster.published, figures, scaling=_scaling(by_gpus) | _large(cluster),
        notes=(
            "rates are of one node; busy times are of CPUs and GPUs over all iterations",
            "1,000 nodes hold as many bytes each; 1ring broadcasts pass from node to node",
        ),
    )  # fmt: skip


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


def _cluster_rung(run: ClusterRun) -> Rung:
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
