"""Hazards of the task graph against a brute-force oracle."""

import random

from hypothesis import given, settings, strategies as st

from hdgemm.tasks._graph import Graph
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.tiles import TaskTile

TILES = [TaskTile(name, 8) for name in "abcd"]
some = st.lists(st.sampled_from(TILES), max_size=3, unique=True)
programs = st.lists(st.tuples(some, some), min_size=1, max_size=14)


def conflict(earlier, later):
    reads, writes = map(set, earlier)
    return bool(writes & {*later[0], *later[1]} or reads & set(later[1]))


def insert_all(graph, program):
    return [graph.insert(Kernel("k"), reads=reads, writes=writes) for reads, writes in program]


@settings(deadline=None, max_examples=60)
@given(programs, st.randoms(use_true_random=False))
def test_a_task_is_ready_exactly_when_all_conflicting_earlier_ones_are_finished(program, rng):
    graph = Graph()
    tasks = insert_all(graph, program)
    # Serial execution orders conflicts transitively: a task that conflicts with an unfinished
    # earlier one must wait, another one must not wait for tasks that it has no chain to.
    direct = [[i for i in range(j) if conflict(program[i], program[j])] for j in range(len(tasks))]
    finished = set()
    while len(finished) < len(tasks):
        ready = {t.number for t in tasks if t.waits_for == 0 and t.number not in finished}
        expected = {
            j
            for j in range(len(tasks))
            if j not in finished and all(i in finished for i in direct[j])
        }
        assert ready == expected
        chosen = rng.choice(sorted(ready))
        became = {t.number for t in graph.finish(tasks[chosen])}
        finished.add(chosen)
        assert all(set(direct[j]) <= finished for j in became)
    assert graph.unfinished == 0
    assert graph._accesses == {}


@settings(deadline=None, max_examples=60)
@given(programs, st.randoms(use_true_random=False))
def test_tasks_that_finish_between_insertions_leave_no_dependency(program, rng):
    graph, unfinished = Graph(), []
    for number, (reads, writes) in enumerate(program):
        task = graph.insert(Kernel("k"), reads=reads, writes=writes)
        waits = {i for i in unfinished if conflict(program[i.number], program[number])}
        assert (task.waits_for == 0) == (not waits)
        unfinished.append(task)
        ready = [each for each in unfinished if each.waits_for == 0]
        if ready and rng.random() < 0.5:
            done = rng.choice(ready)
            graph.finish(done)
            unfinished.remove(done)
    assert graph.unfinished == len(unfinished)


def test_memory_is_bounded_by_the_unfinished_tasks():
    graph, rng = Graph(), random.Random(0)
    for _ in range(2000):
        tiles = [TaskTile("t", 8) for _ in range(3)]
        task = graph.insert(Kernel("k"), reads=tiles[:2], writes=[rng.choice(tiles)])
        graph.finish(task)
    assert graph._accesses == {}
