"""Records of finished pieces: read as they were written, and small for many of them."""

import json

from hypothesis import given, settings, strategies as st

from hdgemm.durable.journal import encode
from hdgemm.durable.pieces import Entry, FinishedPieces
from hdgemm.pipeline.tiles import Rect


def grid(m, n, height, width):
    """The pieces of an m×n matrix, row by row; those at its edges may be smaller."""
    return [
        Rect(row, col, min(height, m - row), min(width, n - col))
        for row in range(0, m, height)
        for col in range(0, n, width)
    ]


def read_again(entry):
    return Entry.of(json.loads(json.dumps(entry.to_record())))


@st.composite
def some_pieces(draw):
    m, n, height, width = (draw(st.integers(1, 9)) for _ in range(4))
    whole = grid(m, n, height, width)
    kept = draw(st.lists(st.sampled_from(whole), unique=True, max_size=len(whole)))
    return {rect: draw(st.integers(0, 2**32 - 1)) for rect in kept}


@settings(deadline=None, max_examples=60)
@given(some_pieces(), st.integers(0, 2))
def test_a_record_has_the_pieces_that_were_written(pieces, pass_number):
    entry = Entry(pieces, {"worker": "a"} if pass_number else {}, pass_number)
    assert read_again(entry) == entry


def test_neighbours_take_no_more_than_their_checksums():
    for rects in (grid(10**6, 50, 10, 50), grid(50, 10**6, 50, 10), grid(10**6 - 3, 50, 10, 50)):
        pieces = dict.fromkeys(rects, 2**32 - 1)
        assert len(encode(Entry(pieces).to_record())) < 11 * len(pieces) + 100


def test_later_passes_and_undone_pieces():
    first, second, below = Rect(0, 0, 4, 2), Rect(0, 2, 4, 2), Rect(2, 0, 2, 2)
    entries = [Entry({first: 1}), Entry({second: 2}), Entry({below: 3}, {}, 1)]
    done = FinishedPieces(entry.to_record() for entry in entries)
    assert done.standing() == {below: 3, second: 2}
    assert done.overwritten
    done.undo([below])
    assert done.standing() == {first: 1, second: 2}
    assert not done.overwritten
    done.undo([first, second])
    assert not done
