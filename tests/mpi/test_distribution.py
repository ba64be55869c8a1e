"""Block-cyclic distribution, the composed interchanges and the broadcasts' topologies."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hdgemm.mpi._broadcast import TOPOLOGIES, children
from hdgemm.mpi._interchange import compose
from hdgemm.mpi._panel import SharedRows
from hdgemm.mpi.distribution import Axis

EXTENTS = st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5))


@given(EXTENTS, st.integers(0, 60))
def test_every_position_belongs_to_one_process(extents, position):
    extent, block, processes = extents
    axes = [Axis(extent, block, processes, process) for process in range(processes)]
    held = [axis.positions().tolist() for axis in axes]
    assert sorted(each for own in held for each in own) == list(range(extent))
    for axis, own in zip(axes, held, strict=True):
        assert axis.count == len(own)
        assert all(axis.owner(each) == axis.process for each in own)
        before = sum(each < position for each in own)
        assert axis.below(position) == axes[0].below(position, axis.process) == before


@given(st.data())
def test_composed_interchanges_are_those_in_order(data):
    first = data.draw(st.integers(0, 5))
    width = data.draw(st.integers(1, 6))
    end = first + width + data.draw(st.integers(0, 8))
    pivots = np.array(
        [data.draw(st.integers(place, end - 1)) for place in range(first, first + width)]
    )
    content = list(range(end))
    for place, pivot in enumerate(pivots.tolist(), start=first):
        content[place], content[pivot] = content[pivot], content[place]
    exchange = compose(first, pivots)
    assert exchange.sources.tolist() == content[first : first + width]
    moved = {row: content[row] for row in range(first + width, end)}
    assert {row: exchange.moved.get(row, row) for row in moved} == moved
    # Only the owner of the diagonal block sends rows to others.
    assert all(first <= row < first + width for row in exchange.moved.values())


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("size", range(1, 9))
def test_a_broadcast_reaches_every_process_once(topology, size):
    passed = children(topology, size)
    reached, waiting = [0], [0]
    while waiting:
        targets = passed[waiting.pop()]
        reached += targets
        waiting += targets
    assert sorted(reached) == list(range(size))
    if topology.endswith("modified") and size > 1:
        assert passed[1] == ()


@given(EXTENTS, st.integers(0, 60), st.integers(1, 4))
def test_shared_rows_of_a_panel_belong_to_one_process(extents, first, cols):
    extent, block, processes = extents
    first = min(first, extent) // block * block
    shares = [
        SharedRows(Axis(extent, block, processes, row), first, col, cols)
        for row in range(processes)
        for col in range(cols)
    ]
    held = [share.positions().tolist() for share in shares]
    assert sorted(each for own in held for each in own) == list(range(first, extent))
    for share, own in zip(shares, held, strict=True):
        assert own == sorted(own)
        assert all(share.owner(each) == share.process for each in own)
        assert all(other.owner(each) == share.process for other in shares for each in own)
