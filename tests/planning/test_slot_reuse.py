"""Loads of a walk: as few as any choice allows, and their number and elements in closed form."""

from functools import cache

from hypothesis import given, settings, strategies as st

from hdgemm.machine.rates import HOST
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem, planned_bytes
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import OVERLAPS, Case, Limits
from hdgemm.planning.shapes import Shape
from tests.planning.listed_plan import check, listed


def built(extents, tile, shape, strategy="data-placement"):
    """A plan with these depths in chunks, slots, bars, halvings and blocks."""
    (a_deep, b_deep), slots, bars, halvings, blocks = shape
    m, n, k = extents
    kb = min(tile[2], k)
    depths = min(k, a_deep * kb), min(k, b_deep * kb)
    case = Case(
        Problem(m, n, k), DeviceSpec("gpu", unified=False), strategy, Limits(1 << 40, 1 << 40)
    )
    return build_plan(case, Shape((*tile[:2], kb), *depths, slots, bars, halvings, blocks))


_SHAPES = st.tuples(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(*[st.integers(1, 9)] * 3),
    st.sampled_from(["columns", "rows"]),
    st.integers(0, 3),
    st.just(1),
)
_EXTENTS = st.tuples(*[st.integers(1, 23)] * 3)
_TILES = st.tuples(*[st.integers(1, 7)] * 3)


def check_counts(plan):
    found = listed(plan)
    check(found)
    assert plan.counts[1:] == (len(found.units), len(found.steps), len(found.loads))
    for operand in ("A", "B"):
        areas = [load.rect.area for load in found.loads if load.operand == operand]
        assert plan.course.loaded[operand] == (len(areas), sum(areas))


@settings(deadline=None, max_examples=200)
@given(_EXTENTS, _TILES, _SHAPES)
def test_loads_of_a_wriggled_walk_are_counted_in_closed_form(extents, tile, shape):
    check_counts(built(extents, tile, shape))


@settings(deadline=None, max_examples=150)
@given(_EXTENTS, _TILES, _SHAPES, st.integers(1, 5))
def test_loads_of_the_ladder_s_first_steps_are_counted_in_closed_form(extents, tile, shape, blocks):
    depths, slots, bars, _, _ = shape
    if blocks > 1:  # tiles share the loads of a work unit where k is uncut
        tile = (*tile[:2], extents[2])
    shape = depths, slots, bars, 0, blocks
    check_counts(built(extents, tile, shape, "double-buffering"))


def fewest_loads(tiles, slots):
    """Try every choice: the least loads where the tile before keeps its slot."""

    @cache
    def least(step, held):
        if step == len(tiles):
            return 0
        tile = tiles[step]
        if tile in held:
            return least(step + 1, held)
        if len(held) < slots:
            return 1 + least(step + 1, held | {tile})
        before = tiles[step - 1] if slots > 1 else None
        return 1 + min(
            least(step + 1, held - {out} | {tile}) for out in held if out != before or slots == 1
        )

    return least(0, frozenset())


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*[st.integers(1, 4)] * 3), _SHAPES.map(lambda shape: (*shape[:3], shape[3] % 2, 1))
)
def test_no_choice_of_slots_loads_fewer_tiles(counts, shape):
    plan = built(tuple(count * 2 for count in counts), (2, 2, 2), shape)
    found = listed(plan)
    for operand, slots in (("A", plan.a_slots.count), ("B", plan.b_slots.count)):
        loads = [step.a if operand == "A" else step.b for step in found.steps]
        tiles = tuple(found.loads[load].rect for load in loads)
        own = sum(load.operand == operand for load in found.loads)
        assert own == fewest_loads(tiles, min(slots, 4)) or slots > 4
        assert own >= len(set(tiles))


@settings(deadline=None, max_examples=60)
@given(_EXTENTS, _TILES, _SHAPES)
def test_the_slot_that_the_step_before_reads_is_never_taken(extents, tile, shape):
    found = listed(built(extents, tile, shape))
    for load in found.loads:
        slots = found.plan.slots(load.operand).count
        if load.step and slots > 1:
            step = found.steps[load.step - 1]
            before = found.loads[step.a if load.operand == "A" else step.b]
            assert before.slot != load.slot


def test_strategies_are_covered():
    assert {overlap.loads for overlap in OVERLAPS.values()} == {False, True}


def test_counts_of_10_to_the_18_steps_end():
    n = 10**9
    spec = OperandSpec(place="file", itemsize=4)
    case = Case(
        Problem(n, n, n, "float32", spec, spec, spec), DeviceSpec(), "data-placement",
        Limits(1 << 62, 1 << 62), HOST,
    )  # fmt: skip
    plan = build_plan(case, Shape((1000, 1000, 1000), n, 3000, (3, 5, 2), "rows", 3))
    counts = plan.counts
    assert counts.steps > 10**18
    assert counts.loads > 10**17
    moved = planned_bytes(plan)
    assert moved["load1"] == 4 * sum(plan.course.loaded[x].elements for x in ("A", "B")) > 10**24
    assert len(plan.to_json()) < 2000
