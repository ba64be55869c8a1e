"""Every plan keeps the invariants: each element of C once, within limits, each tile in its slot."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.errors import DoesNotFitError
from hdgemm.machine.rates import HOST
from hdgemm.options import STRATEGIES, Options
from hdgemm.pipeline.plan import (
    STAGES,
    DeviceSpec,
    OperandSpec,
    Problem,
    from_json,
    planned_bytes,
)
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.slot_reuse import DrawnUnits
from hdgemm.pipeline.tiles import Rect
from hdgemm.pipeline.validate import PlanError, validate
from hdgemm.pipeline.walk import Layout
from hdgemm.planning.case import (
    Case,
    Limits,
    checking_bytes,
    machine_that_checks,
    reserved_bytes,
)
from hdgemm.planning.planner import plan_case, plan_for
from tests.planning.listed_plan import check, drawn, listed
from tests.planning.strategies import DEVICES, OPTIONS, PROBLEMS, with_few_steps


def plan_or_none(problem, options, device, members=1):
    try:
        return plan_for(problem, options, device, HOST, members=members)
    except DoesNotFitError as refusal:
        error = refusal
    assert error.missing == error.requested - error.available > 0
    assert error.limit in str(error)
    return None


@given(PROBLEMS, DEVICES, OPTIONS)
@settings(max_examples=120, deadline=None)
def test_any_plan_is_whole_within_limits_and_moves_what_it_says(problem, device, options):
    options = with_few_steps(problem, options)
    plan = plan_or_none(problem, options, device)
    if plan is None:
        return
    validate(plan)
    found = listed(plan)
    check(found)
    check_counts(plan, found)
    check_products(found)
    check_limits(plan, options, device, members=1)
    if options.tile:
        assert plan.tile == tuple(np.minimum(options.tile, (problem.m, problem.n, problem.k)))
    if not plan.in_place:
        schedule = build_schedule(plan)
        moved = {stage: sum(op.nbytes for op in schedule[stage]) for stage in STAGES}
        assert moved == planned_bytes(plan)
        check_stores(plan, schedule)
    assert from_json(plan.to_json()) == plan
    assert plan_for(problem, options, device, HOST) == plan


@given(PROBLEMS, DEVICES, OPTIONS, st.integers(2, 3), st.data())
@settings(max_examples=60, deadline=None)
def test_the_tiles_that_a_member_draws_form_a_valid_plan(problem, device, options, members, data):
    options = with_few_steps(problem, options)
    plan = plan_or_none(problem, options, device, members)
    if plan is None:
        return
    assert (plan.problem.m, plan.problem.n, plan.problem.k) == (problem.m, problem.n, problem.k)
    check_limits(plan, options, device, members)
    units = DrawnUnits(plan.course)
    rects = data.draw(st.permutations([unit.rect for unit in plan.units]))
    check(drawn(plan, [units.append(rect) for rect in rects]))


def check_counts(plan, found):
    """Formulas equal the sums over what the plan generates."""
    bars = len({unit.bar for unit in found.units})
    lengths = len(found.units), len(found.steps), len(found.loads)
    assert plan.counts == (bars, *lengths)
    assert plan.elements == sum(unit.rect.area for unit in found.units)
    for operand in ("A", "B"):
        areas = [load.rect.area for load in found.loads if load.operand == operand]
        assert plan.course.loaded[operand] == (len(areas), sum(areas))
    for number in {0, len(found.units) // 2, len(found.units) - 1}:
        assert plan.units[number] == found.units[number]


def check_limits(plan, options, device, members):
    """Plan, reserved memory and checks together fit the device's share of the memory."""
    share = options.host_bytes // members
    assert plan.host_limit == share
    reserved = reserved_bytes(plan.problem, share * members) // members
    checks = checking_bytes(share - reserved) if options.checks_tiles and not plan.in_place else 0
    assert plan.host_bytes + reserved + checks <= share
    on_device = checking_bytes(device.memory_bytes)
    checks = on_device if options.checks_tiles and not device.unified else 0
    assert plan.device_bytes + checks <= device.memory_bytes
    slots = [plan.slots(operand).nbytes for operand in "ABC"]
    assert max(slots) <= device.max_buffer_bytes


def check_stores(plan, schedule):
    """The last stage that moves C stores each element once, whatever C's path."""
    path = plan.problem.c.path
    if path == "resident":
        return
    stage = "store2" if path == "staged" else "store1"
    stored = np.zeros((plan.problem.m, plan.problem.n), int)
    for op in schedule[stage]:
        r = op.rect
        stored[r.row : r.row + r.rows, r.col : r.col + r.cols] += 1
    assert (stored == 1).all()


def check_products(found):
    """Follow slots through time: what a step reads is really there."""
    plan, held, coming = found.plan, {}, list(found.loads)[::-1]
    for step in found.steps:
        while coming and coming[-1].step <= step.number:
            load = coming.pop()
            held[load.operand, load.slot] = load
        r = found.units[step.unit].rect
        blocks = {
            "A": Rect(r.row, step.k0, r.rows, step.kb),
            "B": Rect(step.k0, r.col, step.kb, r.cols),
        }
        for (operand, block), number in zip(blocks.items(), (step.a, step.b), strict=True):
            if plan.problem.spec(operand).path == "resident":
                assert number == -1
                continue
            load = found.loads[number]
            assert held[operand, load.slot] == load
            assert load.rect.covers(block)
    assert not coming


def test_the_ladder_s_first_steps_load_both_tiles_for_every_unit():
    problem, gpu = Problem(60, 60, 20), DeviceSpec("cuda:0", unified=False)
    counts = {
        strategy: plan_for(
            problem, Options(strategy=strategy, tile=(10, 10, 20)), gpu, HOST
        ).counts.loads
        for strategy in STRATEGIES
    }
    assert counts["initial"] == 2 * 36
    # Four blocks, one below the other, share a work unit's tiles: 6 rows of tiles are 2 units.
    assert counts["double-buffering"] == 2 * 2 * 6
    # Either A or B: one new tile for every unit, one more for the first, fewer for a third slot.
    assert counts["data-reuse"] == counts["data-placement"] == counts["hybrid"] < 37


def test_without_overlap_there_is_one_slot_of_each():
    gpu = DeviceSpec("cuda:0", unified=False)
    options = Options(strategy="initial", tile=(10, 10, 10))
    plan = plan_for(Problem(60, 60, 60), options, gpu, HOST)
    assert [plan.slots(x).count for x in "ABC"] == [1, 1, 1]


def test_the_shortfall_is_exact():
    problem = Problem(50, 60, 70, a=OperandSpec(place="file"))
    tile = (11, 13, 17)

    def plan(limit):
        case = Case(problem, DeviceSpec(), "data-placement", Limits(limit, 1 << 40))
        return plan_case(case, tile)

    with pytest.raises(DoesNotFitError, match="host_memory") as caught:
        plan(5000)
    assert caught.value.available == 5000
    enough = caught.value.requested
    assert enough == (11 * 17 + 17 * 13 + 11 * 13) * 8 + 4096
    assert plan(enough).host_bytes == enough
    with pytest.raises(DoesNotFitError):
        plan(enough - 1)


def test_memory_is_set_aside_for_chunks_that_are_decoded():
    def reserved(order, **stored):
        spec = OperandSpec(place="file", chunk=(order, order), **stored)
        return reserved_bytes(Problem(m=9000, n=9000, k=9000, b=spec), 10**9)

    assert reserved(2000) == reserved(1000)
    assert reserved(2000, encoded=True) - reserved(1000, encoded=True) == 4 * 3000 * 1000 * 8


def test_the_device_s_limit_is_named():
    gpu = DeviceSpec("cuda:0", unified=False)
    with pytest.raises(DoesNotFitError, match="device_memory leaves 20 B for them:") as caught:
        plan_for(Problem(5, 5, 5), Options(device_memory=20), gpu, HOST)
    assert (caught.value.requested, caught.value.missing) == (24, 4)


@pytest.mark.parametrize("n", [10**6, 10**9, 10**12])
def test_tiles_beyond_any_memory_do_not_fit(n):
    with pytest.raises(DoesNotFitError, match="for tiles on host") as caught:
        plan_for(Problem(n, n, n), Options(tile=(n, n, n)), DeviceSpec(), HOST)
    assert caught.value.requested >= 3 * 8 * n * n


def test_rows_of_files_stay_whole():
    files = [OperandSpec(place="file")] * 3
    problem = Problem(16384, 16384, 16384, "float64", *files)
    plan = plan_for(problem, Options(host_memory="1.5GB"), DeviceSpec(), HOST)
    for load in plan.course.loads():
        assert load.rect.cols == 16384
    assert all(unit.rect.cols == 16384 for unit in plan.units)
    assert plan.host_bytes <= 1_500_000_000


def test_a_matrix_beyond_every_32_bit_trap_is_planned_and_written_as_json():
    n = 3_000_017
    problem = Problem(n, n, n)
    options = Options(tile=(10**6, 10**6, 10**6), host_memory=1 << 50)
    plan = plan_for(problem, options, DeviceSpec("cuda:0", unified=False), HOST)
    assert sum(unit.rect.rows * unit.rect.cols for unit in plan.units) == n * n > 2**43
    assert planned_bytes(plan)["store2"] == 8 * n * n
    assert all(type(number) is int for unit in plan.units for number in unit.rect)
    assert from_json(plan.to_json()) == plan


def a_plan():
    options = Options(tile=(10, 12, 7))
    return plan_for(Problem(50, 60, 35), options, DeviceSpec(), HOST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tile": (10, 0, 7)}, "extents of a tile"),
        ({"tile": (11, 12, 7)}, "a tile of A takes"),
        ({"tile": (10, 12, 4)}, "a load of A takes 7 of k"),
        ({"layout": Layout(7, 9)}, "a load of B takes 9 of k"),
        ({"layout": Layout(7, 7, "diagonals")}, "bars are columns or rows"),
        ({"layout": Layout(7, 7, halvings=-1)}, "halved -1 times"),
        ({"layout": Layout(7, 7, blocks=2)}, "share loads"),
        ({"skipped": ((20, 30),)}, "left out, of 25"),
        ({"skipped": ((4, 6), (5, 7))}, "left out"),
        ({"host_limit": 100}, "in host memory"),
        ({"device_limit": 100}, "on the device"),
    ],
)
def test_a_spoilt_plan_does_not_pass(changes, message):
    plan = a_plan()
    validate(plan)
    with pytest.raises(PlanError, match=message):
        validate(replace(plan, **changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 2}', "null"])
def test_what_is_not_a_plan_is_refused(text):
    with pytest.raises(ValueError, match="plan"):
        from_json(text)


def test_checked_tiles_are_not_flat():
    # Each step of a checked run reads A and B once more, on the cores that multiply.
    spec = OperandSpec(place="file")
    problem = Problem(4096, 4096, 4096, a=spec, b=spec, c=spec)
    limits = Limits(180 << 20, 1 << 40)
    flat, tall = (
        plan_case(Case(problem, DeviceSpec(), "data-placement", limits, machine)).tile
        for machine in (HOST, machine_that_checks(HOST, problem))
    )
    assert 1 / tall[0] + 1 / tall[1] < 1 / flat[0] + 1 / flat[1]


def test_narrow_steps_of_files_have_loads_of_whole_rows():
    there = OperandSpec(place="file")
    problem = Problem(2000, 2000, 2000, a=there, b=there, c=there)
    for memory, deep in (("100MB", True), ("8MB", False)):
        options = Options(tile=(500, 500, 40), host_memory=memory)
        plan = plan_for(problem, options, DeviceSpec(), HOST)
        validate(plan)
        assert plan.tile == options.tile
        widths = {load.rect.cols for load in plan.course.loads() if load.operand == "A"}
        assert (widths == {2000}) == deep
