"""What is left of a plan: the same units, the same sums, loads counted for the shorter order."""

from hypothesis import given, settings, strategies as st

from hdgemm.machine.rates import Machine
from hdgemm.options import STRATEGIES, Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem, from_json, planned_bytes
from hdgemm.pipeline.validate import validate
from hdgemm.planning.planner import plan_for
from hdgemm.planning.resume import remaining
from tests.planning.listed_plan import check, listed

MACHINE = Machine()
FILE = OperandSpec(place="file")
HOST = DeviceSpec()
DISCRETE = DeviceSpec("device", unified=False, memory_bytes=1 << 20, granularity=(4, 2, 2))


def make_plan(m, n, k, tile, *, strategy="data-placement", device=HOST, reads_c=False):
    problem = Problem(m, n, k, a=FILE, b=FILE, c=FILE, reads_c=reads_c)
    options = Options(tile=tile, strategy=strategy, host_memory="1GiB")
    return plan_for(problem, options, device, MACHINE)


def sums(plan):
    """Per C tile, what it multiplies and in which order."""
    result = {}
    steps, loads = list(plan.course.steps()), list(plan.course.loads())
    for unit in plan.units:
        sweep = steps[unit.first : unit.last + 1]
        result[unit.rect] = [
            (step.k0, step.kb, loads[step.a].rect, loads[step.b].rect) for step in sweep
        ]
    return result


@st.composite
def plans_and_done(draw):
    extent = st.integers(1, 24)
    m, n, k = draw(extent), draw(extent), draw(extent)
    tile = tuple(draw(st.integers(2, 9)) for _ in range(3))
    plan = make_plan(
        m, n, k, tile,
        strategy=draw(st.sampled_from(STRATEGIES)),
        device=draw(st.sampled_from([HOST, DISCRETE])),
        reads_c=draw(st.booleans()),
    )  # fmt: skip
    done = draw(st.sets(st.integers(0, len(plan.units) - 1)))
    return plan, done


@settings(deadline=None, max_examples=25)
@given(plans_and_done())
def test_the_units_left_keep_their_tiles_their_order_and_their_sums(case):
    plan, done = case
    rest = remaining(plan, done)
    validate(rest)
    check(listed(rest))
    kept = [unit.rect for unit in plan.units if unit.number not in done]
    assert [unit.rect for unit in rest.units] == kept
    whole = sums(plan)
    assert sums(rest) == {rect: whole[rect] for rect in kept}
    assert from_json(rest.to_json()) == rest


@settings(deadline=None, max_examples=15)
@given(plans_and_done())
def test_what_is_left_twice_is_what_is_left(case):
    plan, done = case
    once = remaining(plan, done)
    numbers = range(len(once.units))
    assert not remaining(once, set(numbers)).units
    assert sum(r.rows * r.cols for r in once.done) + once.elements == plan.elements


@settings(deadline=None, max_examples=50)
@given(plans_and_done(), st.booleans())
def test_loads_of_what_is_left_are_counted_and_never_grow_behind_a_beginning(case, gaps):
    plan, done = case
    done = done if gaps else set(range(len(done)))
    rest = remaining(plan, done)
    loads = list(rest.course.loads())
    for operand in ("A", "B"):
        areas = [load.rect.area for load in loads if load.operand == operand]
        assert rest.course.loaded[operand] == (len(areas), sum(areas))
        if not gaps:
            assert len(areas) <= plan.course.loaded[operand].tiles
    stored, stored_left = planned_bytes(plan)["store2"], planned_bytes(rest)["store2"]
    assert stored_left * plan.elements == stored * rest.elements


def test_nothing_done_is_the_plan_itself():
    plan = make_plan(20, 20, 20, (7, 7, 7))
    assert remaining(plan, set()) is plan


def test_loads_are_derived_for_the_shorter_order():
    # One row of tiles: B's panels change with every unit, A's stay. Without unit 1, unit 2 finds
    # the chunk at which unit 0's sweep ended where it was left.
    plan = make_plan(10, 30, 20, (10, 10, 10))
    rest = remaining(plan, {1})
    assert [unit.rect.col for unit in rest.units] == [0, 20]
    # Both sweep forwards, as their numbers in the whole plan say.
    assert [step.k0 for step in rest.course.steps()] == [0, 10, 0, 10]
