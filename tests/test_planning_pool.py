"""Every cell of C once, whoever draws when and whoever fails; and in good time."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdgemm.pipeline.plan import Rect
from hdgemm.planning.pool import Member, Pool, Wait

names = ("a", "b", "c")
members = st.builds(
    Member,
    tile=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    rate=st.floats(0.1, 10.0),
    measured=st.booleans(),
    side=st.sampled_from(["top", "bottom"]),
    granularity=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)


@settings(max_examples=200, deadline=None)
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
        pool.set_rate(name, chance.choice([0.01, 0.1, 1.0, 10.0]))
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
            40, 30, {"a": Member((8, 8), 1.0), "b": Member((6, 10), 5.0)},
            {"a": Rect(0, 0, 25, 30), "b": Rect(25, 0, 15, 30)},
        )  # fmt: skip
        found = {"a": [], "b": []}
        for name, rects in found.items():
            while isinstance(rect := pool.draw(name), Rect):
                rects.append(rect)
                pool.set_rate(name, len(rects))
                pool.stored(name, rect)
        return found

    first = pieces()
    assert first == pieces()
    assert sum(r.rows * r.cols for r in first["a"]) == 25 * 30


def virtual_run(m, n, members, speed, *, overhead=0.0):
    """Seconds until C is whole, when `speed(name, now)` gives cells per second; finish times."""
    pool = Pool(m, n, members)
    heap = [(0.0, name, None) for name in members]
    heapq.heapify(heap)
    finish = dict.fromkeys(members, 0.0)
    waiting = []
    while heap:
        now, name, rect = heapq.heappop(heap)
        if rect is not None:
            pool.stored(name, rect)
            finish[name] = now
            heap += [(now, other, None) for other in waiting]
            heapq.heapify(heap)
            waiting = []
        got = pool.draw(name)
        if isinstance(got, Rect):
            seconds = got.rows * got.cols / speed(name, now) + overhead
            pool.set_rate(name, got.rows * got.cols / seconds)
            heapq.heappush(heap, (now + seconds, name, got))
        elif got is Wait.FOR_OTHERS:
            waiting.append(name)
    return max(finish.values()), finish


@pytest.mark.parametrize("slow", [1.0, 1 / 3, 1 / 10])
@pytest.mark.parametrize("known", [True, False])
def test_balances_within_two_percent(slow, known):
    speeds = {"gpu": 100.0, "cpu": 100.0 * slow}
    members = {
        "gpu": Member((100, 100), speeds["gpu"] if known else 50.0, known),
        "cpu": Member((100, 100), speeds["cpu"] if known else 50.0, known, "bottom"),
    }
    total, finish = virtual_run(1000, 1000, members, lambda name, now: speeds[name])
    ideal = 1e6 / sum(speeds.values())
    assert total <= 1.02 * ideal
    assert total - min(finish.values()) <= 0.02 * total


def test_follows_a_speed_that_changes_in_mid_run():
    def speed(name, now):
        return 100.0 if name == "gpu" or now < 3000 else 10.0

    members = {
        "gpu": Member((100, 100), 100.0, measured=True),
        "cpu": Member((100, 100), 100.0, side="bottom"),
    }
    total, _ = virtual_run(1000, 1000, members, speed)
    ideal = 3000 + (1e6 - 3000 * 200) / 110
    assert total <= 1.05 * ideal


def test_never_slower_than_the_best_alone():
    members = {
        "gpu": Member((100, 100), 100.0, measured=True),
        "cpu": Member((100, 100), 100.0, side="bottom"),
    }
    total, _ = virtual_run(1000, 1000, members, lambda name, now: 100.0 if name == "gpu" else 0.5)
    assert total <= 1.01 * 1e6 / 100.0
