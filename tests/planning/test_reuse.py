"""Slots for a known order: the fewest loads, and never a tile that is still in use."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from hdgemm.planning.reuse import fetch_always, keep_nearest

_tiles = st.lists(st.integers(0, 4), min_size=1, max_size=12)


def fewest_loads(tiles, slots):
    """Try every choice: the least fetches where the tile before keeps its slot."""

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


def check(tiles, slots, residence):
    """Walk the steps and see that each reads its own tile from a slot that still holds it."""
    fetches, reads = residence
    held, coming = {}, list(enumerate(fetches))
    for step, tile in enumerate(tiles):
        while coming and coming[0][1].step == step:
            number, fetch = coming.pop(0)
            assert 0 <= fetch.slot < slots
            held[fetch.slot] = number
        fetch = fetches[reads[step]]
        assert fetch.tile == tile
        assert held[fetch.slot] == reads[step]
    assert not coming


@given(_tiles, st.integers(1, 4))
@settings(max_examples=300)
def test_no_choice_of_slots_loads_fewer_tiles(tiles, slots):
    residence = keep_nearest(tiles, slots)
    check(tiles, slots, residence)
    assert len(residence.fetches) == fewest_loads(tuple(tiles), slots)


@given(_tiles, st.integers(2, 4))
def test_the_slot_that_the_step_before_reads_is_never_taken(tiles, slots):
    fetches, reads = keep_nearest(tiles, slots)
    for number, fetch in enumerate(fetches):
        if fetch.step:
            before = fetches[reads[fetch.step - 1]]
            assert before.slot != fetch.slot or reads[fetch.step - 1] == number


def test_a_stream_takes_slots_in_turn():
    # The slot left longest ago is free first, so that loads run as far ahead as slots allow.
    assert [fetch.slot for fetch in keep_nearest(range(7), 3).fetches] == [0, 1, 2, 0, 1, 2, 0]


def test_a_sweep_to_and_fro_finds_its_last_tiles_again():
    sweeps = [0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4]
    for slots in (2, 3, 4):
        assert len(keep_nearest(sweeps, slots).fetches) == 5 + 2 * (5 - slots)
    assert len(keep_nearest(sweeps, 5).fetches) == 5


@given(_tiles, st.integers(1, 3))
def test_without_reuse_each_owner_loads_anew(tiles, slots):
    owners = [step // 3 for step in range(len(tiles))]
    residence = fetch_always(tiles, owners, slots)
    check(tiles, slots, residence)
    runs = sum(
        step == 0 or (tiles[step], owners[step]) != (tiles[step - 1], owners[step - 1])
        for step in range(len(tiles))
    )
    assert len(residence.fetches) == runs
