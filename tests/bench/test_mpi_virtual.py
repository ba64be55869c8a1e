"""Factorisations over MPI in virtual time: the plan's seconds, and what limits."""

import pytest

from bench import mpi_virtual
from hdgemm import mpi

HOW = {"ranks": 64, "host_memory": "64GB", "link": "25GB", "storage": "100GB"}


def test_steps_have_the_seconds_of_their_plan():
    plan = mpi.plan("lu", 192_000, rate=1e12, **HOW)
    ranks = mpi_virtual.Ranks(
        n=plan.n, nb=plan.nb, grid=plan.grid, strip=1024, gpus=1, kernel=1.0, further=0.0,
        peak=1.0, half_width=0.0, beside=1.0, panel=1.0, link=1.0, swap=1.0, split=1.0, plan=plan,
    )  # fmt: skip
    orders = range(plan.n, 0, -plan.nb)
    phases = plan.expected_phase_seconds
    sums = {
        "update": sum(ranks.update_seconds(m) for m in orders),
        "panel": sum(ranks.panel_seconds(m, shared=False) for m in orders),
        "broadcast": sum(ranks.broadcast_seconds(m) for m in orders),
        "swap": sum(sum(ranks.swap_seconds(m)) for m in orders),
    }
    assert sums == pytest.approx({name: phases[name] for name in sums}, rel=0.01)


def test_a_slow_storage_and_slow_ranks_are_named():
    slow = mpi_virtual.simulated(mpi.plan("lu", 192_000, rate=1e10, **HOW))
    assert (slow["limit"], slow["bound"]) == ("update", "arithmetic")
    waits = mpi_virtual.simulated(mpi.plan("lu", 192_000, rate=1e13, **HOW | {"storage": "1GB"}))
    assert waits["limit"] in {"read", "write"}
    for run in (slow, waits):
        assert 0 < run["factor_efficiency"] <= 1.01
        assert 0 < run["efficiency"] <= 1.01
