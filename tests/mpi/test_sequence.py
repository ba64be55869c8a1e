"""HPL's random sequence: jumps against single steps, and any part made alone."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hdgemm.mpi.linpack._sequence import INCREMENT, MULTIPLIER, SEED, RandomMatrix, jump, jumps

MODULUS = 1 << 64


def stepped(count, seed=SEED):
    """The sequence one step after the other."""
    found, x = [], seed
    for _ in range(count):
        x = (MULTIPLIER * x + INCREMENT) % MODULUS
        found.append(x)
    return found


#: Row, column and element of [A|b] for N = 1000, printed by HPL 2.3's own HPL_pdmatgen in C.
PRINTED = [
    (0, 0, -5.159944193766641e-05), (1, 0, 0.38413122531282284), (2, 0, 0.4436836675989427),
    (999, 0, 0.3836515271517733), (0, 1, -0.3044593982094538), (500, 500, -0.24603954114827908),
    (999, 999, -0.4588445242892768), (0, 1000, 0.03385556116369698),
    (999, 1000, 0.19857774149730228),
]  # fmt: skip


def test_the_elements_are_those_of_hpls_own_program():
    matrix = RandomMatrix(1000, np.arange(1000))
    found = [(row, col, matrix.column(col)[row].item()) for row, col, _ in PRINTED]
    assert found == PRINTED


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
