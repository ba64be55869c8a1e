"""Every element of C once, whoever draws when and whoever fails."""

import numpy as np
from hypothesis import given, settings, strategies as st

from hdgemm.pipeline.slots import pieces
from hdgemm.pipeline.tiles import Rect
from hdgemm.run.balance import Pool, PoolMember, Wait

names = ("a", "b", "c")
members = st.builds(
    PoolMember,
    tile=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    rate=st.floats(0.1, 10.0),
    measured=st.booleans(),
    side=st.sampled_from(["top", "bottom"]),
    granularity=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)


@settings(max_examples=120, deadline=None)
@given(
    m=st.integers(1, 30),
    n=st.integers(1, 30),
    members=st.lists(members, min_size=1, max_size=3),
    fixed=st.booleans(),
    failures=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_every_cell_is_stored_once_whatever_the_interleaving(
    m, n, members, fixed, failures, chance
):
    by_name = dict(zip(names, members, strict=False))
    regions = None
    if fixed:
        edges = [0, *sorted(chance.randint(0, m) for _ in members[1:]), m]
        regions = {
            x: Rect(top, 0, low - top, n)
            for x, top, low in zip(by_name, edges[:-1], edges[1:], strict=True)
        }
    pool = Pool(m, n, by_name, regions)
    times = np.zeros((m, n), int)
    out = {name: [] for name in by_name}

    def store(name):
        rect = out[name].pop(0)
        if rect.rows > 1 and chance.random() < 0.3:
            out[name].insert(0, rect._replace(row=rect.row + 1, rows=rect.rows - 1))
            rect = rect._replace(rows=1)
        pool.stored(name, rect)
        pool.timed(name, rect.rows * rect.cols, chance.choice([0.1, 1.0, 10.0, 100.0]))
        times[rect.row : rect.row + rect.rows, rect.col : rect.col + rect.cols] += 1

    ended = set()
    while len(ended) < len(pool.alive):
        name = chance.choice(pool.alive)
        if failures and len(pool.alive) > 1 and chance.random() < 0.02:
            pool.fail(name)
            out[name] = []
            ended.clear()
        elif out[name] and (len(out[name]) >= 2 or chance.random() < 0.5):
            store(name)
        else:
            got = pool.draw(name)
            if isinstance(got, Rect):
                assert got.rows <= by_name[name].tile[0]
                assert got.cols <= by_name[name].tile[1]
                out[name].append(got)
            elif got is Wait.NOTHING_LEFT:
                ended.add(name)
    assert (times == 1).all()
    assert pool.undrawn == 0


def test_a_fixed_split_gives_the_same_pieces_each_time():
    def pieces():
        pool = Pool(
            40, 30, {"a": PoolMember((8, 8), 1.0), "b": PoolMember((6, 10), 5.0)},
            {"a": Rect(0, 0, 25, 30), "b": Rect(25, 0, 15, 30)},
        )  # fmt: skip
        found = {"a": [], "b": []}
        for name, rects in found.items():
            while isinstance(rect := pool.draw(name), Rect):
                rects.append(rect)
                pool.timed(name, len(rects), 1.0)
                pool.stored(name, rect)
        return found

    first = pieces()
    assert first == pieces()
    assert sum(r.rows * r.cols for r in first["a"]) == 25 * 30


def test_a_device_is_not_judged_by_its_first_tile():
    pool = Pool(
        1000,
        1000,
        {"fast": PoolMember((100, 100), 100.0, True), "slow": PoolMember((100, 100), 50.0)},
    )
    for seconds in (100.0, 1.0, 1.0):
        tile = pool.draw("slow")
        assert isinstance(tile, Rect)
        pool.stored("slow", tile)
        pool.timed("slow", 50.0, seconds)
    assert pool._states["slow"].rate == 50.0
    assert pool.refusal("slow") is None


def test_a_device_that_is_too_slow_says_why():
    pool = Pool(
        100,
        100,
        {"fast": PoolMember((50, 50), 100.0, True), "slow": PoolMember((80, 80), 0.1, True)},
    )
    assert pool.draw("slow") is Wait.FOR_OTHERS
    refusal = pool.refusal("slow")
    assert refusal.rate == 0.1
    assert refusal.seconds == 100 / 0.1
    assert refusal.others_seconds == 100 * 100 / 100.0
    assert isinstance(pool.draw("fast"), Rect)


def test_an_unknown_device_gets_one_small_piece_first():
    pool = Pool(
        800, 800, {"x": PoolMember((400, 400), 10.0), "y": PoolMember((400, 400), 10.0, True)}
    )
    tile = pool.draw("x")
    assert (tile.rows, tile.cols) <= (50, 50)
    assert pool.draw("x") is Wait.FOR_OTHERS
    pool.stored("x", tile)
    pool.timed("x", 1.0, 1.0)
    assert isinstance(pool.draw("x"), Rect)


def test_pieces_of_the_chunks_of_a_tile_are_recorded_in_their_order():
    # Of a narrow last chunk more rows go together than of the first ones.
    pool = Pool(8, 5, {"a": PoolMember((8, 5), 1.0, measured=True)})
    tile = pool.draw("a")
    parts = pieces(tile, trans=False, itemsize=8, most=64, chunk=(8, 4))
    assert len({part.rows for part in parts}) == 2
    for part in parts:
        pool.stored("a", part)
    assert pool.draw("a") is Wait.NOTHING_LEFT
