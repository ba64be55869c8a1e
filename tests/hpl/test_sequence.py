"""HPL's random sequence: jumps against single steps, and any part made alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdgemm.hpl.sequence import INCREMENT, MULTIPLIER, SEED, RandomMatrix, jump, jumps

MODULUS = 1 << 64


def stepped(count, seed=SEED):
    """The sequence one step after the other."""
    found, x = [], seed
    for _ in range(count):
        x = (MULTIPLIER * x + INCREMENT) % MODULUS
        found.append(x)
    return found


def test_the_first_elements_are_those_of_hpl():
    # X₁ = 6364136223846793005·100 + 1 modulo 2**64, and ½ - X/2**64 in double precision.
    column = RandomMatrix(3, np.arange(3)).column(0)
    assert column.tolist() == [
        -5.159944193766641e-05, 0.38413122531282284, 0.4436836675989427,
    ]  # fmt: skip


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_two_jumps_are_one(first, second):
    a, c = jump(first)
    b, d = jump(second)
    assert jump(first + second) == (b * a % MODULUS, (b * c + d) % MODULUS)


@pytest.mark.parametrize("count", [1, 2, 3, 64, 100])
def test_jumps_are_steps(count):
    factors, terms = jumps(count)
    steps = [SEED, *stepped(count - 1)]
    assert (factors * np.uint64(SEED) + terms).tolist() == steps


@pytest.mark.parametrize("n", [1, 5, 16])
def test_columns_follow_one_another(n):
    steps = np.array(stepped(n * (n + 1)), np.uint64).astype(float) / 2.0**64
    whole = (0.5 - steps).reshape(n + 1, n).T
    rows = np.array([row for row in range(n) if row % 3 != 1])
    part = RandomMatrix(n, rows)
    for col in range(n + 1):
        np.testing.assert_array_equal(part.column(col), whole[rows, col])
