"""Register or stage: chosen from measured costs and from what the planner expects."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdgemm.options import Options
from hdgemm.pipeline.plan import DeviceSpec, OperandSpec, Problem
from hdgemm.machine.assumed import H200
from hdgemm.planning.planner import plan_problem
from hdgemm.planning.registration import MARGIN, Lockable, LockCost, choose_paths

FREE = LockCost(0.0, 0.0)
DEAR = LockCost(1.0, 1.0)
#: A tenth of a second per GB to lock, half of it to unlock.
USUAL = LockCost(1e-10, 0.5e-10)
PROBLEM = Problem(100, 200, 300)


def table(**seconds):
    """Expected seconds by the names of the direct operands."""

    def expected(problem):
        direct = [name for name in "ABC" if problem.spec(name).path == "direct"]
        return seconds["".join(direct) or "none"]

    return expected


def test_registering_wins_where_it_saves_more_than_it_costs():
    choice = choose_paths(PROBLEM, {"A": Lockable(10**9)}, USUAL, table(none=10.0, A=9.0))
    assert choice.register == ("A",)
    assert choice.problem.a.path == "direct"
    assert choice.lock_seconds == pytest.approx(0.15)
    assert choice.seconds == pytest.approx(9.15)


@pytest.mark.parametrize(
    ("direct", "cost"),
    [
        (10.0, FREE),  # staging is hidden: nothing to gain
        (10.0 * (1 - MARGIN / 2), FREE),  # less than the figures are sure of
        (9.9, USUAL),
        (0.0, DEAR),
    ],
)
def test_staging_stays_where_registering_saves_nothing(direct, cost):
    choice = choose_paths(PROBLEM, {"A": Lockable(10**9)}, cost, table(none=10.0, A=direct))
    assert choice.register == ()
    assert choice.problem == PROBLEM


def test_what_is_locked_already_goes_directly_even_if_it_saves_nothing():
    choice = choose_paths(PROBLEM, {"B": Lockable(10**9, locked=True)}, DEAR, table(B=10.0))
    assert (choice.register, choice.problem.b.path, choice.lock_seconds) == ((), "direct", 0.0)


def test_operands_are_chosen_together():
    """Neither alone is worth it while the other still fills the memory bus; both are."""
    seconds = table(none=10.0, A=10.0, B=10.0, C=10.0, AB=8.0, AC=10.0, BC=10.0, ABC=7.99)
    lockable = dict.fromkeys("ABC", Lockable(10**9))
    assert choose_paths(PROBLEM, lockable, USUAL, seconds).register == ("A", "B")


@given(
    st.dictionaries(
        st.sampled_from("ABC"), st.builds(Lockable, st.integers(0, 10**12), st.booleans())
    ),
    st.lists(st.floats(0.1, 100.0), min_size=8, max_size=8),
    st.floats(0, 1e-8),
)
def test_never_worse_than_staging(lockable, seconds, rate):
    def expected(problem):
        return seconds[
            sum(2**i for i, name in enumerate("ABC") if problem.spec(name).path == "direct")
        ]

    cost = LockCost(rate, rate / 2)
    choice = choose_paths(PROBLEM, lockable, cost, expected)
    assert choice.seconds <= choice.staged_seconds
    assert choice.seconds == pytest.approx(expected(choice.problem) + choice.lock_seconds)
    locked = sum(lockable[name].nbytes for name in choice.register)
    assert choice.lock_seconds == pytest.approx(cost.seconds(locked))
    for name, operand in lockable.items():
        direct = choice.problem.spec(name).path == "direct"
        assert direct == (operand.locked or name in choice.register)


def test_where_copies_are_hidden_two_plans_are_made():
    made = []

    def expected(problem):
        made.append(problem)
        return 10.0

    choose_paths(PROBLEM, dict.fromkeys("ABC", Lockable(10**9)), USUAL, expected)
    assert len(made) == 2


def test_with_the_planners_own_expectation():
    """Slow copies on a fast GPU: registering pays. Free copies: it never does."""
    n = 16384
    device = DeviceSpec("cuda:0", False, 8 * 10**9, 8 * 10**9, (128, 128, 32))
    spec = OperandSpec()
    problem = Problem(n, n, n, "float64", spec, spec, spec)
    lockable = dict.fromkeys("ABC", Lockable(n * n * 8))

    def expected(machine):
        def seconds(one):
            plan = plan_problem(one, Options(), device, machine, host_limit=10**9)
            return plan.expected.seconds

        return seconds

    slow, fast = replace(H200, copy=5e9), replace(H200, copy=1e15, memory=1e15)
    assert choose_paths(problem, lockable, USUAL, expected(slow)).register != ()
    assert choose_paths(problem, lockable, USUAL, expected(fast)).register == ()
