"""LAPACK's interchanges as one permutation, held against their one-by-one application."""

import numpy as np
from hypothesis import given, strategies as st

from hdgemm.fortran import laswp
from hdgemm.pipeline.devices.interchanges import moves_of, permutation_of, pivots_of


@st.composite
def interchanges(draw):
    """Pivots as `getrf` returns them, or any others: each at a row of the matrix."""
    first = draw(st.integers(0, 5))
    count = draw(st.integers(0, 12))
    rows = first + count + draw(st.integers(0, 6))
    lowest = draw(st.booleans())
    pivots = [draw(st.integers(first + i if lowest else 0, rows - 1)) for i in range(count)]
    return np.array(pivots, np.int64), first, rows


def one_by_one(pivots, first, rows):
    matrix = np.asfortranarray(np.arange(rows, dtype=float)[:, None])
    laswp(matrix, pivots, first)
    return matrix[:, 0].astype(np.int64)


def test_the_example_of_seed_001():
    pivots = np.array([7, 7, 4, 4, 5, 8, 7, 8]) - 1
    assert (permutation_of(pivots, 8) + 1).tolist() == [7, 1, 4, 3, 5, 8, 2, 6]
    assert moves_of(pivots).places.tolist() == [0, 1, 2, 3, 5, 6, 7]  # row 5 stays


@given(interchanges())
def test_a_permutation_is_all_interchanges_at_once(found):
    pivots, first, rows = found
    np.testing.assert_array_equal(permutation_of(pivots, rows, first), one_by_one(*found))
    places, sources = moves_of(pivots, first)
    assert sorted(places) == sorted(sources)
    assert len(set(places.tolist())) == len(places)
    assert (places != sources).all()


@given(st.permutations(range(9)), st.integers(0, 9))
def test_rows_that_were_chosen_come_to_the_top(order, count):
    chosen = np.array(order[:count], np.int64)
    pivots = pivots_of(chosen)
    assert (pivots >= np.arange(count)).all()  # as LAPACK's
    np.testing.assert_array_equal(one_by_one(pivots, 0, 9)[:count], chosen)
