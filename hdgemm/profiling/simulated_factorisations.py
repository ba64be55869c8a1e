"""Profile of factorisations on a simulated hybrid machine: a paper's figures, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.profiling.environment import describe_setting
from hdgemm.profiling.results import Profile, Rate, Reference, Rung, Sample
from hdgemm.simulation.factorisations import factor_dealt, fastest_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.simulation.factorisations import Factorisation, HybridSystem
    from hdgemm.simulation.native import NativeSystem


def profile_hybrid(system: HybridSystem, progress: Callable[[float, str], None]) -> Profile:
    """Factor on a hybrid system in virtual time, by the schedules of its paper."""
    if system.share is None:
        runs, figures = _dealt(system, progress)
    else:
        runs, figures = _shared(system, system.share, progress)
    return _profile(system, runs, figures, system.published)


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
    return _profile(hybrid, runs, figures, system.published)


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


def _profile(
    system: HybridSystem,
    runs: Mapping[str, Factorisation],
    figures: Mapping[str, float],
    published: Mapping[str, tuple[str, float]],
) -> Profile:
    order = max(system.order.values())
    return Profile(
        kind="simulated",
        complete=True,
        setting=describe_setting(
            f"{system.name} (factorisations)", "memory", system.source,
            (order, order, system.width),
        ),
        ladder={name: _rung(system, run) for name, run in runs.items()},
        paper=tuple(
            Reference(label, value, figures[name]) for name, (label, value) in published.items()
        ),
        notes=("simulated: nothing was measured on this machine",),
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
