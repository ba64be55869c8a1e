"""No plan passes that would leave an element of C unwritten, whatever paths its operands take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.pipeline.plan import NO_SLOTS, DeviceSpec, OperandSpec, Problem, Slots
from hdgemm.pipeline.schedule import build_schedule
from hdgemm.pipeline.validate import PlanError, validate
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import OVERLAPS, Case, Limits
from hdgemm.planning.resume import remaining
from hdgemm.planning.shapes import Shape

PATHS = ("staged", "direct", "resident")
GPU = DeviceSpec("cuda:0", unified=False)
LIMITS = Limits(1 << 30, 1 << 30)


def built(paths=("staged",) * 3, strategy="data-placement", device=GPU, reads_c=False):
    """A plan of 7×6×5 in tiles of 3×4×2, built whatever the paths, as the planner never does."""
    problem = Problem(7, 6, 5, "float64", *(OperandSpec(path=path) for path in paths), reads_c)
    return build_plan(Case(problem, device, strategy, LIMITS), Shape((3, 4, 2), 4, 4, (2, 2, 2)))


def times_stored(plan):
    """How often each element of C is stored, as the stages of the plan's schedule would."""
    schedule = build_schedule(plan)
    last = {"resident": "mult1", "direct": "store1", "staged": "store2"}[plan.problem.c.path]
    stored = np.zeros((plan.problem.m, plan.problem.n), int)
    for op in schedule[last]:
        if last != "mult1" or op.step == plan.units[op.unit].last:
            row, col, rows, cols = op.rect
            stored[row : row + rows, col : col + cols] += 1
    return stored


@settings(deadline=None, max_examples=300)
@given(
    st.tuples(*[st.sampled_from(PATHS)] * 3), st.sampled_from(list(OVERLAPS)),
    st.sampled_from([GPU, DeviceSpec()]), st.booleans(), st.sets(st.integers(0, 5)),
)  # fmt: skip
def test_a_plan_that_passes_stores_every_element_once(paths, strategy, device, reads_c, done):
    plan = built(paths, strategy, device, reads_c)
    try:
        validate(plan)
    except PlanError:
        direct = "direct" in paths
        assert direct, "a plan without page-locked operands must pass"
        return
    assert (times_stored(plan) == 1).all()
    rest = remaining(plan, done)
    stored = times_stored(rest)
    for rect in rest.done:
        stored[rect.row : rect.row + rect.rows, rect.col : rect.col + rect.cols] += 1
    assert (stored == 1).all()


@pytest.mark.parametrize("strategy", ["initial", "double-buffering", "data-reuse"])
def test_page_locked_c_needs_a_kernel_that_writes_to_the_device(strategy):
    plan = built(("staged", "staged", "direct"), strategy)
    assert not times_stored(plan).any()
    with pytest.raises(PlanError, match="nothing stores C"):
        validate(plan)


def test_page_locked_c_takes_no_beta():
    validate(built(("staged", "direct", "direct")))
    with pytest.raises(PlanError, match="beta"):
        validate(built(("staged", "direct", "direct"), reads_c=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tile": (3, 4.5, 2)}, "whole number"),
        ({"tile": (3, "4", 2)}, "whole number"),
        ({"tile": (3, 2**70, 2)}, "64-bit"),
        ({"skipped": ((0, 7),)}, "of 6"),
        ({"c_slots": NO_SLOTS}, "has 0 slots"),
        ({"a_slots": Slots(2, 95)}, "a tile of A takes 96 bytes, its slot 95"),
        ({"up": NO_SLOTS}, "a row of A"),
        ({"down": NO_SLOTS}, "a row of C"),
        ({"down": Slots(4, 31)}, "a row of C takes 32 bytes"),
        ({"in_place": True}, "in place"),
        ({"problem": Problem(2**61, 6, 5)}, "2\\^63 bytes"),
        ({"problem": Problem(7, 6, 0)}, "at least 1"),
    ],
)
def test_a_spoilt_plan_does_not_pass(changes, message):
    plan = built()
    validate(plan)
    with pytest.raises(PlanError, match=message):
        validate(replace(plan, **changes))
