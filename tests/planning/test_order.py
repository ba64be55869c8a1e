"""The wriggled order: every tile once, each turn next to the last tile."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdgemm.planning.order import CTile, cut, sweep, taper, walk

_extent = st.integers(1, 60)


@given(_extent, st.integers(1, 70))
def test_a_cut_dimension_is_whole(extent, size):
    spans = cut(extent, size)
    assert [i for start, length in spans for i in range(start, start + length)] == list(
        range(extent)
    )
    assert all(length == size for _, length in spans[:-1])


@given(_extent, _extent, st.integers(1, 20), st.integers(1, 20), st.booleans(), st.booleans())
def test_every_tile_once(m, n, mb, nb, columns, wriggled):
    tiles = walk(cut(m, mb), cut(n, nb), "columns" if columns else "rows", wriggled=wriggled)
    area = {
        (i, j)
        for _, r in tiles
        for i in range(r.row, r.row + r.rows)
        for j in range(r.col, r.col + r.cols)
    }
    assert len(area) == m * n == sum(r.rows * r.cols for _, r in tiles)


@pytest.mark.parametrize("bars", ["columns", "rows"])
def test_each_step_of_the_wriggle_changes_one_of_the_two_panels(bars):
    tiles = walk(cut(15, 5), cut(20, 5), bars, wriggled=True)
    for (bar, one), (next_bar, other) in pairwise(tiles):
        assert (one.row == other.row) != (one.col == other.col)
        along = one.row != other.row if bars == "columns" else one.col != other.col
        assert along == (bar == next_bar)


def test_the_paper_s_example():
    # HDGEMM, section 3.2: C1 = A1 B1, C2 = A1 B2, C4 = A2 B2, C3 = A2 B1.
    tiles = walk(cut(2, 1), cut(2, 1), "rows", wriggled=True)
    assert [(r.row + 1, r.col + 1) for _, r in tiles] == [(1, 1), (1, 2), (2, 2), (2, 1)]


def test_k_is_swept_to_and_fro():
    chunks = cut(7, 3)
    assert list(sweep(chunks, 0, wriggled=True)) == chunks
    assert list(sweep(chunks, 1, wriggled=True)) == chunks[::-1]
    assert list(sweep(chunks, 1, wriggled=False)) == chunks


@given(st.integers(1, 200), st.integers(0, 6), st.integers(1, 24))
def test_halving_cuts_the_last_tile_into_smaller_ones(rows, halvings, quantum):
    tiles = walk(cut(rows + 10, 10), cut(7, 7), "columns", wriggled=True)
    tapered = taper(tiles, halvings, quantum)
    head, last = tapered[: len(tiles) - 1], tapered[len(tiles) - 1 :]
    assert head == tiles[:-1]
    assert sum(cell.rect.rows for cell in last) == tiles[-1].rect.rows
    starts = [cell.rect.row for cell in last]
    assert starts == sorted(set(starts))
    assert all((start - tiles[-1].rect.row) % quantum == 0 for start in starts)
    assert len(last) <= halvings + 1
    assert all(isinstance(cell, CTile) and cell.bar == tiles[-1].bar for cell in last)
