"""Plans of several devices in virtual time."""

from dataclasses import replace

import pytest

from hdgemm.pipeline.plan import Problem
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.expectation import simulate
from hdgemm.simulation.executor import Member, Run, run_plans, work_unit_tiling
from hdgemm.simulation.machines import HD5970, SYSTEMS

MACHINE = HD5970.machine


@pytest.fixture(scope="module")
def plan():
    tiling = work_unit_tiling((2048, 2048), 4, "data-placement", 1024)
    limits = Limits(HD5970.staging, HD5970.device.memory_bytes)
    problem = Problem(4096, 4096, 1024)
    return build_plan(Case(problem, HD5970.device, "data-placement", limits), tiling)


def test_one_member_runs_as_its_plan_alone(plan):
    alone = simulate(plan, MACHINE)
    together = run_plans([Member("one", plan, MACHINE)])
    assert together.seconds == pytest.approx(alone.seconds)
    assert len(together.events) == len(alone.events)


def test_two_members_share_the_host_and_the_link(plan):
    alone = simulate(plan, MACHINE).seconds
    members = (Member("one", plan, MACHINE), Member("two", plan, MACHINE, 0.01))
    two = Run(run_plans(members), members)
    assert alone < two.timeline.seconds < 2 * alone + 0.01
    second = two.of_device("two")
    assert min(event.start for event in second.events) >= 0.01
    assert len(second.events) == len(two.of_device("one").events)
    assert 0 <= two.imbalance < 0.1
    assert two.gflops == pytest.approx(2 * plan.flops / two.timeline.seconds / 1e9)
    mult1 = second.stages()["mult1"]
    assert two.busy_rate("two", "mult1") == pytest.approx(mult1.flops / mult1.seconds / 1e9)
    assert two.busy_rate("three", "mult1") == 0.0


def test_a_device_on_the_hosts_cores_takes_them_from_copies(plan):
    machine = replace(MACHINE, cores=2)
    own = simulate(plan, machine)
    shared = simulate(plan, replace(machine, on_host_cores=True))
    # Every transfer then needs a core, and the kernel uses both.
    used = own.stages()
    moving = sum(used[stage].seconds for stage in ("load1", "load2", "store1", "store2"))
    assert own.seconds < shared.seconds <= own.seconds + moving


def test_every_system_names_its_source():
    for name, system in SYSTEMS.items():
        assert system.name == name
        assert system.source
        assert system.machine.source
