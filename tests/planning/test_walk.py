"""The wriggled order: every tile once, each turn next to the last tile, all in closed form."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from hdgemm.pipeline.walk import Cut, Layout, Units, Walk, runs_between, runs_of

_extent = st.integers(1, 60)
_bars = st.sampled_from(["columns", "rows"])


def walk(m, n, k=1, tile=(1, 1, 1), *, wriggled=True, **layout):
    return Walk((m, n, k), tile, Layout(k, k, **layout), wriggled=wriggled)


def rects(found):
    return [found.rect(number) for number in range(found.units)]


@given(_extent, st.integers(1, 70))
def test_a_cut_dimension_is_whole(extent, size):
    cut = Cut(extent, size)
    spans = [cut.span(place) for place in range(cut.count)]
    assert [i for start, length in spans for i in range(start, start + length)] == list(
        range(extent)
    )
    assert all(length == size for _, length in spans[:-1])
    for first in range(cut.count):
        for end in range(cut.count + 1):
            assert cut.length(first, end) == sum(length for _, length in spans[first:end])


@given(
    _extent, _extent, st.integers(1, 20), st.integers(1, 20), _bars, st.booleans(),
    st.integers(0, 4), st.integers(1, 9),
)  # fmt: skip
def test_every_tile_once_and_the_area_of_any_run(m, n, mb, nb, bars, wriggled, halvings, quantum):
    found = walk(
        m, n, tile=(mb, nb, 1), wriggled=wriggled, bars=bars, halvings=halvings, quantum=quantum
    )
    tiles = rects(found)
    covered = {
        (i, j)
        for r in tiles
        for i in range(r.row, r.row + r.rows)
        for j in range(r.col, r.col + r.cols)
    }
    assert len(covered) == m * n == sum(r.area for r in tiles)
    for first, end in [(0, found.units), (found.units // 3, found.units // 2), (1, found.units)]:
        assert found.area(first, end) == sum(r.area for r in tiles[first:end])


@pytest.mark.parametrize("bars", ["columns", "rows"])
def test_each_step_of_the_wriggle_changes_one_of_the_two_panels(bars):
    found = walk(15, 20, tile=(5, 5, 1), bars=bars)
    for number, (one, other) in enumerate(pairwise(rects(found))):
        assert (one.row == other.row) != (one.col == other.col)
        along = one.row != other.row if bars == "columns" else one.col != other.col
        assert along == (found.bar(number) == found.bar(number + 1))


def test_the_paper_s_example():
    # HDGEMM, section 3.2: C1 = A1 B1, C2 = A1 B2, C4 = A2 B2, C3 = A2 B1.
    tiles = rects(walk(2, 2, bars="rows"))
    assert [(r.row + 1, r.col + 1) for r in tiles] == [(1, 1), (1, 2), (2, 2), (2, 1)]


def test_k_is_swept_to_and_fro():
    found = walk(1, 1, 7, (1, 1, 3))
    chunks = [(0, 3), (3, 3), (6, 1)]
    assert list(found.sweep(0)) == chunks
    assert list(found.sweep(1)) == chunks[::-1]
    assert list(walk(1, 1, 7, (1, 1, 3), wriggled=False).sweep(1)) == chunks


@given(st.integers(1, 200), st.integers(0, 6), st.integers(1, 24))
def test_halving_cuts_the_last_tile_into_smaller_ones(rows, halvings, quantum):
    whole = rects(walk(rows + 10, 7, tile=(10, 7, 1)))
    found = walk(rows + 10, 7, tile=(10, 7, 1), halvings=halvings, quantum=quantum)
    tapered = rects(found)
    head, last = tapered[: len(whole) - 1], tapered[len(whole) - 1 :]
    assert head == whole[:-1]
    assert sum(rect.rows for rect in last) == whole[-1].rows
    starts = [rect.row for rect in last]
    assert starts == sorted(set(starts))
    assert all((start - whole[-1].row) % quantum == 0 for start in starts)
    assert len(last) <= halvings + 1
    assert {found.bar(number) for number in range(len(whole) - 1, found.units)} == {0}


@given(st.sets(st.integers(0, 30)), st.integers(1, 4))
def test_units_left_out_leave_the_others_in_their_order(skipped, slots):
    whole = walk(31, 1)
    units = Units(whole, runs_of(sorted(skipped)), slots)
    kept = [number for number in range(31) if number not in skipped]
    assert [unit.rect.row for unit in units] == kept
    assert [unit.number for unit in units] == list(range(len(kept))) == [u.first for u in units]
    assert list(units) == [units[number] for number in range(len(units))] == units[:]
    assert not kept or units[-1] == units[len(kept) - 1]
    with pytest.raises(IndexError):
        units[len(kept)]


def test_runs_and_what_lies_between_them():
    assert runs_of([1, 2, 3, 7, 9, 10]) == ((1, 4), (7, 8), (9, 11))
    assert runs_between(((1, 4), (7, 8), (9, 11)), 12) == ((0, 1), (4, 7), (8, 9), (11, 12))
    assert runs_between((), 0) == ()


def test_a_walk_of_10_to_the_18_tiles_knows_any_of_them():
    found = walk(10**9, 10**9, 10**9)
    assert found.units == found.area(0, found.units) == 10**18
    assert found.rect(10**18 - 1) == (0, 10**9 - 1, 1, 1)
    assert Units(found, ((0, 10**17),), 2).length == 9 * 10**17
