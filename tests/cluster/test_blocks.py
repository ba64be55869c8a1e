"""The pool of blocks: each element of C is drawn until it is finished, and never twice."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.cluster.blocks import BlockPool, Costs
from hdgemm.pipeline.tiles import Rect


def pool_of(shape, rates, **arguments):
    pool = BlockPool(shape, Costs(k=100), **arguments)
    for name, rate in rates.items():
        pool.join(name, rate)
    return pool


@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.integers(1, 5),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(0, 1 << 30),
)
@settings(max_examples=30, deadline=None)
def test_every_element_is_finished_once_whatever_fails(shape, count, quantum, seed):
    random = Random(seed)
    pool = pool_of(
        shape, {f"w{i}": 10.0 ** random.randint(0, 6) for i in range(count)}, quantum=quantum
    )
    stored = np.zeros(shape, int)
    out = []
    for step in range(100_000):
        if not pool.left:
            break
        name = random.choice(pool.workers)
        fate = random.random()
        if fate < 0.05 and len(pool.workers) > 1:
            assert sorted(pool.leave(name)) == sorted(b for n, b in out if n == name)
            out = [(n, b) for n, b in out if n != name]
        elif fate < 0.1:
            pool.join(f"new{step}", 10.0)
        elif fate < 0.5 and out:
            name, block = out.pop(random.randrange(len(out)))
            if random.random() < 0.1:
                pool.failed(name, block)
                continue
            pool.finished(name, block, random.random())
            stored[block.row : block.row + block.rows, block.col : block.col + block.cols] += 1
        elif (block := pool.draw(name)) is not None:
            out.append((name, block))
            assert block in pool.out(name)
            assert block.row % quantum[0] == block.col % quantum[1] == 0
    assert (stored == 1).all()
    assert pool.undrawn == pool.left == 0


def test_what_is_done_already_is_not_drawn():
    done = [Rect(0, 0, 40, 100), Rect(70, 10, 30, 20)]
    pool = pool_of((100, 100), {"a": 1.0}, done=done)
    seen = np.zeros((100, 100), int)
    while (block := pool.draw("a")) is not None:
        seen[block.row : block.row + block.rows, block.col : block.col + block.cols] += 1
    for rect in done:
        assert not seen[rect.row : rect.row + rect.rows, rect.col : rect.col + rect.cols].any()
    assert seen.sum() == 100 * 100 - sum(rect.rows * rect.cols for rect in done)


def test_blocks_follow_speed_and_memory_and_shrink():
    pool = BlockPool((10_000, 10_000), Costs(k=10_000))
    pool.join("slow", 1e5)
    pool.join("fast", 1e6)
    pool.join("small", 1e6, most_elements=1000)
    slow, fast, small = (pool.draw(name) for name in ("slow", "fast", "small"))
    assert fast.rows * fast.cols > 4 * slow.rows * slow.cols
    assert small.rows * small.cols < 2000
    last = fast
    while (block := pool.draw("fast")) is not None:
        last = block
    assert last.rows * last.cols < fast.rows * fast.cols / 8


def test_a_measured_speed_replaces_the_expected_one():
    pool = pool_of((1000, 1000), {"a": 1.0, "b": 1.0})
    before = pool._total_rate
    block = pool.draw("a")
    pool.finished("a", block, block.rows * block.cols / 50.0)
    assert pool._total_rate == pytest.approx(before - 1.0 + 50.0)


@pytest.mark.parametrize("bandwidth", [1e6, 1e12])
def test_a_slow_storage_gets_square_blocks_a_fast_one_whole_rows(bandwidth):
    costs = Costs(k=4096, request_seconds=1e-3)
    pool = BlockPool((4096, 4096), costs, bandwidth=bandwidth)
    pool.join("a", 1e5)
    block = pool.draw("a")
    assert (block.cols == 4096) == (bandwidth > 1e9)


def test_queues_hold_two_long_blocks_or_many_short_ones(monkeypatch):
    monkeypatch.setattr("hdgemm.cluster.blocks.LEAST_SECONDS", 1e-9)
    monkeypatch.setattr("hdgemm.cluster.blocks.MOST_SECONDS", 1e-9)
    monkeypatch.setattr("hdgemm.cluster.blocks.MOST", 1 / 1000)
    long, short = pool_of((640, 640), {"w": 1.0}), pool_of((640, 640), {"w": 1e9})
    assert len(long.refill("w")) == 2
    assert long.refill("w") == []
    long.finished("w", long.out("w")[0], 400.0)
    assert len(long.refill("w")) == 1
    assert len(short.refill("w")) == 2
    assert len(short.out("w")) == 2
    short.finished("w", short.out("w")[0], 1e-6)
    drawn = short.refill("w")
    assert len(drawn) + 1 == len(short.out("w")) == 64
    for block in drawn[:30]:
        short.finished("w", block, 1e-6)
        assert short.refill("w") == []
    assert short.refill("gone") == []


def test_blocks_that_are_slowed_by_reading_do_not_shrink_without_end():
    pool = pool_of((8192, 8192), {"fast": 3e6, "slow": 3e6})
    blocks = []
    while (block := pool.draw("slow")) is not None:
        pool.finished("slow", block, 2.0 + block.area / 3e6)
        blocks.append(block)
    assert min(rect.area for rect in blocks) >= 0.25 * 3e6 / 1.5


def test_one_worker_alone_gets_equal_blocks_of_what_fits_its_memory():
    pool = BlockPool((8192, 8192), Costs(k=8192))
    pool.join("w", 3e6, most_elements=2500 * 8192)
    assert len(blocks := [pool.draw("w") for _ in range(3)]) == 3
    assert {block.cols for block in blocks} == {8192}
    assert {block.rows for block in blocks} <= {2730, 2731}
    assert pool.draw("w") is None


def test_workers_that_have_not_joined_yet_get_their_shares():
    pool = pool_of((8000, 8000), {"first": 1e7})
    pool.expected = 4
    assert sum(rect.area for rect in pool.refill("first")) < 8000**2 / 4


def test_a_block_is_an_eighth_of_a_workers_share_or_ten_seconds():
    slow, fast = (pool_of((8000, 8000), {"a": rate, "b": rate}) for rate in (1e4, 1e8))
    eighth = 8000**2 / 2 / 8
    assert slow.draw("a").area == pytest.approx(eighth, rel=0.2)
    assert fast.draw("a").area > 2 * eighth


def test_blocks_of_whole_rows_where_all_of_a_row_major_b_is_read_for_each():
    pool = BlockPool((8192, 8192), Costs(k=8192, row_bytes=8 * 8192))
    for name in "ab":
        pool.join(name, 3e6)
    blocks = [pool.draw(name) for name in "abab"]
    assert all(block.cols == 8192 for block in blocks)
    # Reading B takes no longer than both workers compute on their blocks.
    assert all(block.rows * 8192 / 3e6 >= 2 * 8192**2 * 8 / pool.bandwidth for block in blocks)
