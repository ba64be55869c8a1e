"""Units drawn one at a time form a valid plan, with about as few loads as a planned order."""

import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.pipeline.slot_reuse import DrawnUnits
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.shapes import Shape
from tests.planning.listed_plan import check, drawn


def planned(extents, tile, slots, depths=(1, 1), path="staged"):
    m, n, k = extents
    kb = tile[2]
    spec = OperandSpec(path=path)
    problem = Problem(m, n, k, a=spec, b=spec)
    shape = Shape(tile, min(k, depths[0] * kb), min(k, depths[1] * kb), slots)
    device = DeviceSpec("recording", unified=path == "resident")
    return build_plan(Case(problem, device, "data-placement", Limits(1 << 40, 1 << 40)), shape)


def drawn_plan(plan, rects):
    units = DrawnUnits(plan.course)
    return drawn(plan, [units.append(rect) for rect in rects])


extents = st.tuples(*[st.sampled_from([1, 4, 7, 12, 17])] * 3)
tiles = st.tuples(*[st.integers(1, 6)] * 3)


@settings(max_examples=150, deadline=None)
@given(
    extents=extents, tile=tiles, slots=st.tuples(*[st.integers(1, 4)] * 3),
    depths=st.tuples(*[st.integers(1, 3)] * 2),
)  # fmt: skip
def test_drawn_units_form_a_valid_plan(extents, tile, slots, depths):
    plan = planned(extents, tile, slots, depths)
    check(drawn_plan(plan, [unit.rect for unit in plan.units]))


@pytest.mark.parametrize("slots", [(2, 2, 2), (2, 3, 2), (3, 4, 2), (5, 2, 2)])
@pytest.mark.parametrize("extents", [(24, 24, 24), (48, 12, 30), (12, 60, 18)])
def test_loads_are_as_few_as_with_the_order_known(extents, slots):
    plan = planned(extents, (6, 6, 6), slots)
    again = drawn_plan(plan, [unit.rect for unit in plan.units])
    assert len(again.loads) <= 1.1 * plan.counts.loads


def test_resident_operands_are_not_loaded():
    plan = planned((12, 12, 12), (4, 4, 4), (2, 2, 2), path="resident")
    again = drawn_plan(plan, [unit.rect for unit in plan.units])
    assert not again.loads
    assert {step.a for step in again.steps} == {-1}
