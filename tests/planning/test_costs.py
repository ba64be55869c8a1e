"""First-touch page faults: each page counts once, and an allocation never beyond its size."""

from dataclasses import replace

import pytest

from hdgemm.machine.assumed import assumed
from hdgemm.options import STRATEGIES
from hdgemm.pipeline.plan import DeviceSpec, Problem
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.costs import first_touch_bytes
from hdgemm.planning.expectation import expect, simulate
from hdgemm.planning.shapes import Shape

CUT = Shape((256, 256, 128), 128, 128, (2, 2, 2))


def plan_of(strategy="data-placement", *, unified=False, reads_c=False):
    device = DeviceSpec("some", unified=unified)
    limits = Limits(1 << 30, 1 << 30)
    problem = Problem(1024, 1024, 384, reads_c=reads_c)
    return build_plan(Case(problem, device, strategy, limits), CUT)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "hybrid"])
@pytest.mark.parametrize("unified", [False, True])
def test_no_more_pages_are_new_than_a_plan_holds(strategy, unified):
    plan = plan_of(strategy, unified=unified, reads_c=True)
    found = first_touch_bytes(plan, build_schedule(plan), on_host_cores=True)
    assert 0 < sum(found.values()) <= plan.device_bytes + plan.staging_bytes + plan.scratch_bytes
    assert {stage for stage, _ in found} >= {"load1", "mult1"}


def test_a_devices_own_memory_has_no_page_faults():
    plan = plan_of()
    found = first_touch_bytes(plan, build_schedule(plan), on_host_cores=False)
    assert {stage for stage, _ in found} == {"load1", "store1"}
    assert sum(found.values()) == plan.up.total + plan.down.total


def test_only_the_first_tile_in_a_slot_has_page_faults():
    plan = plan_of(unified=True)
    found = first_touch_bytes(plan, build_schedule(plan), on_host_cores=False)
    tiles = [number for stage, number in found if stage == "mult1"]
    assert len(tiles) == plan.c_slots.count
    assert ("mult1", 0) in found


def test_page_faults_lengthen_a_run():
    plan = plan_of()
    machine = replace(assumed(plan.device), on_host_cores=True)
    plain, later = simulate(plan, machine), simulate(plan, machine, fresh=1e9)
    assert plain.seconds < later.seconds
    assert expect(plan, machine, 1e9).seconds == later.seconds
    assert simulate(plan, machine, fresh=1e30).seconds == pytest.approx(plain.seconds)
