"""A factorisation over MPI in virtual time: how near it comes to the bound of its plan.

    python -m bench.mpi_virtual [--n 1000000] [--ranks 1024] [--link 25GB] [--storage 100GB]

The plan of `hdgemm.mpi` gives each phase its seconds. In virtual time every step has its part of
them, and the lanes of `bench.papers.linpack`: the panel, its broadcast and the swap of the next
step run beneath the update. The bound has the same reading and writing, and between them the longer
one of the arithmetic and of what a rank receives; nothing waits. What limits is the longest phase.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.harness import environment, save
from bench.papers.linpack import Cluster, run_linpack
from hdgemm import mpi

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.mpi import MpiPlan

#: Flop/s of a rank: a node's cores, one GPU, four GPUs.
RATES: Final = (2e12, 20e12, 80e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(Cluster):
    """The ranks of a plan: a step has its part of the plan's seconds by the order m of its matrix.

    Parameters
    ----------
    plan
        The plan.
    """

    plan: MpiPlan

    def _part(self, phase: str, m: float, power: int) -> float:
        """Return a step's seconds of a phase that grows with a power of m."""
        steps = self.n / self.nb
        return self.plan.expected_phase_seconds[phase] * (power + 1) * (m / self.n) ** power / steps

    def update_seconds(self, m: float) -> float:
        """Return the seconds of the update."""
        return self._part("update", max(m, 0.0), 2)

    def panel_seconds(self, m: float, *, shared: bool) -> float:  # noqa: ARG002 - never shared
        """Return the seconds of the panel: messages for pivots, of one number in each step."""
        return self._part("panel", m, 0)

    def broadcast_seconds(self, m: float) -> float:
        """Return the seconds of the broadcast."""
        return self._part("broadcast", m, 1)

    def swap_seconds(self, m: float) -> tuple[float, float]:
        """Return the seconds of the swap of the first strip, and of all others."""
        cols = max(m, 0.0) / self.grid[1]
        first = min(1.0, self.strip / cols) if cols else 0.0
        whole = self._part("swap", max(m, 0.0), 1)
        return first * whole, (1 - first) * whole


def simulated(plan: MpiPlan) -> dict[str, Any]:
    """Run a plan in virtual time, and compare it with its bound."""
    rate = plan.rank_rate
    ranks = Ranks(
        n=plan.n, nb=plan.nb, grid=plan.grid, strip=1024, gpus=1, kernel=rate, further=0.0,
        peak=rate, half_width=0.0, beside=1.0, panel=rate, link=plan.link, swap=plan.link,
        split=1.0, plan=plan,
    )  # fmt: skip
    phases = plan.expected_phase_seconds
    outside = phases["read"] + phases["solve"] + phases["write"]
    arithmetic = plan.flops / plan.ranks / rate
    received = plan.words * 8 / plan.link
    bound, factored = max(arithmetic, received), run_linpack(ranks).seconds
    seconds = outside + factored
    return {
        "rank_tflops": rate / 1e12,
        "pivoting": plan.pivoting,
        "seconds": seconds,
        "efficiency": (outside + bound) / seconds,
        "factor_seconds": factored,
        "factor_efficiency": bound / factored,
        "limit": plan.expected_limit,
        "phases": dict(phases),
        "bound": "arithmetic" if arithmetic > received else "messages",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate ranks of several rates, and both ways of pivoting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--link", default="25GB")
    parser.add_argument("--storage", default="100GB")
    parser.add_argument("--memory", default="64GB", help="of a rank")
    parser.add_argument("--save", action="store_true", help="write bench/results/mpi_virtual.json")
    asked = parser.parse_args(arguments)
    found = []
    for rate in RATES:
        for pivoting in ("partial", "tournament"):
            plan = mpi.plan(
                "lu", asked.n, ranks=asked.ranks, rate=rate, link=asked.link,
                storage=asked.storage, host_memory=asked.memory, pivoting=pivoting,
            )  # fmt: skip
            run = simulated(plan)
            found.append(run)
            print(
                f"{run['rank_tflops']:.0f} TFLOP/s a rank, {pivoting}: {run['seconds']:.0f} s, "
                f"{run['efficiency']:.3f} of the bound, limited by {run['limit']}; in memory "
                f"{run['factor_seconds']:.0f} s, {run['factor_efficiency']:.3f}, {run['bound']}"
            )
    if asked.save:
        save("mpi_virtual", {**vars(asked), "runs": found}, environment())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
