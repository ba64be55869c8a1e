"""Pool of the blocks of C: which worker computes which block next, and how large it is.

Guided self-scheduling with weights: a worker draws a part of what is left in proportion to its
speed, so that blocks shrink towards the end and all workers finish together. Pure state: no clock,
no thread, no network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hdgemm.pipeline.tiles import Rect
from hdgemm.run.regions import joined_remainder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A worker draws at most this part of its share of the elements that are left; one of two the half,
#: one alone all.
_PART_OF_REST: Final = 1 / 3
#: A block is at most this part of a worker's share of C, or takes so many seconds at most: that is
#: what a lost worker costs.
MOST: Final = 1 / 8
MOST_SECONDS: Final = 10.0
#: A block takes at least so many seconds at the worker's speed: starting it takes a few hundredths.
LEAST_SECONDS: Final = 0.25
#: Most blocks into which columns of C are cut, unless square blocks make more.
_MOST_CUTS: Final = 16
#: A worker's queue holds the block that it computes, one that waits there, and short blocks of so
#: many seconds: the last ones are on their way to the journal.
_QUEUE_SECONDS: Final = 0.25
_SHALLOWEST: Final = 2
#: Blocks in a worker's queue at most.
_DEEPEST: Final = 64
#: Weight of the earlier blocks in a worker's speed at each new one (exponential average).
_FADING: Final = 0.5
#: Squares on the diagonal of a triangle: computed whole, they add one such part to the work.
_DIAGONAL_BLOCKS: Final = 64
#: Parts of rows with smaller gaps, in bytes, cost as much as whole rows: short requests are slow.
_GAP: Final = 96 << 10
#: Extents of a free rectangle relative to those wanted, below which it is taken whole.
_WHOLE: Final = 1.5


@dataclass(frozen=True, slots=True)
class Costs:
    """What reading costs a block of C, for the choice of its shape; k is the extent of A and B.

    An element takes `a_bytes` and `b_bytes`; a request of a row that is not contiguous with the
    next takes `request_seconds`. A stored row of B in a row-major file has `row_bytes`: the gaps
    between parts of rows are read, too, up to `_GAP`. 0 for other storage.
    """

    k: int
    a_bytes: int = 8
    b_bytes: int = 8
    request_seconds: float = 20e-6
    row_bytes: int = 0

    def nbytes(self, rows: int, cols: int) -> int:
        """Return the bytes of A and B that a block needs, each read once."""
        return self.k * (rows * self.a_bytes + cols * self.b_bytes)

    def reads_whole_rows(self, cols: int) -> bool:
        """Say whether so many columns of B are read with all gaps between them."""
        return self.row_bytes > 0 and self.row_bytes - cols * self.b_bytes <= _GAP

    def seconds(self, rows: int, cols: int, bandwidth: float, *, whole_rows: bool) -> float:
        """Return the seconds that reading a block's A and B takes at so many bytes/s."""
        if self.reads_whole_rows(cols):
            return self.k * (rows * self.a_bytes + self.row_bytes) / bandwidth
        requests = 0 if whole_rows else self.k
        return self.nbytes(rows, cols) / bandwidth + requests * self.request_seconds


@dataclass
class _Worker:
    """A worker's speed in elements of C per second, and the blocks that it has drawn."""

    rate: float
    #: The best rate so far bounds blocks from below: reading makes small blocks slow.
    best: float
    most_elements: float
    elements: float = 0.0
    seconds: float = 0.0
    out: list[Rect] = field(default_factory=list)


class BlockPool:
    """The part of C that no worker has drawn, and the blocks that are being computed.

    The storage serves all workers together at `bandwidth` bytes/s. The extents of blocks are
    multiples of `quantum`, the rows and columns of the chunks of C's storage. `done` are disjoint
    rectangles of C that are stored already, `region` those that are computed; None for all of C.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        costs: Costs,
        *,
        bandwidth: float = 1e9,
        quantum: tuple[int, int] = (1, 1),
        done: Sequence[Rect] = (),
        region: Sequence[Rect] | None = None,
    ) -> None:
        self.shape = shape
        self._costs = costs
        self.bandwidth = bandwidth
        self._quantum = quantum
        whole = [Rect(0, 0, *shape)] if region is None else region
        #: Elements of C that are computed, those done before included.
        self.total = sum(rect.area for rect in whole)
        self._region = whole
        self._free = [part for rect in whole for part in joined_remainder(rect, done)]
        self._workers: dict[str, _Worker] = {}
        self._total_rate = 0.0
        #: Workers that are there; those that have not joined yet get their shares later.
        self.expected = 0
        self.undrawn = sum(rect.area for rect in self._free)
        #: Elements of C that are not stored.
        self.left = self.undrawn

    def join(self, name: str, rate: float, most_elements: float = math.inf) -> None:
        """Add a worker of so many elements of C per second, and of its largest block in memory."""
        self._workers[name] = _Worker(rate, rate, most_elements)
        self._total_rate += rate

    def leave(self, name: str) -> list[Rect]:
        """Remove a worker and return its unfinished blocks, which other workers get."""
        worker = self._workers.pop(name)
        self._total_rate -= worker.rate
        for block in worker.out:
            self._put_back(block)
        return worker.out

    def __contains__(self, name: str) -> bool:
        return name in self._workers

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        return list(self._workers)

    def out(self, name: str) -> Sequence[Rect]:
        """Return the blocks that a worker has drawn and not finished."""
        return tuple(self._workers[name].out)

    def draw(self, name: str) -> Rect | None:
        """Return a worker's next block; None where every element is drawn."""
        if not self._free:
            return None
        worker = self._workers[name]
        block = self._cut(*self._extents(self._elements(worker)))
        self.undrawn -= block.area
        worker.out.append(block)
        return block

    def refill(self, name: str) -> list[Rect]:
        """Draw blocks for a worker's queue; a deep one only once it is half empty."""
        worker = self._workers.get(name)
        if worker is None:
            return []
        deep = _SHALLOWEST
        if worker.out and worker.rate > 0:
            seconds = worker.out[-1].area / worker.rate
            deep = min(_DEEPEST, deep + round(_QUEUE_SECONDS / seconds))
        drawn: list[Rect] = []
        if len(worker.out) > max(deep // 2, _SHALLOWEST - 1):
            return drawn
        while len(worker.out) < deep and (block := self.draw(name)) is not None:
            drawn.append(block)
        return drawn

    def finished(self, name: str, block: Rect, seconds: float) -> None:
        """Record that a worker has stored a block, and the seconds that it took."""
        worker = self._workers[name]
        worker.out.remove(block)
        self.left -= block.area
        worker.elements = block.area + _FADING * worker.elements
        worker.seconds = seconds + _FADING * worker.seconds
        rate = worker.elements / worker.seconds if worker.seconds > 0 else worker.rate
        self._total_rate += rate - worker.rate
        worker.rate = rate
        worker.best = max(worker.best, rate)

    def failed(self, name: str, block: Rect) -> None:
        """Return a block that a worker could not compute."""
        self._workers[name].out.remove(block)
        self._put_back(block)

    def holds(self, block: Rect) -> bool:
        """Say whether a block lies in the part of C that is computed."""
        return joined_remainder(block, self._region) == []

    def undo(self, block: Rect) -> None:
        """Return a block that was finished, and must be computed again."""
        self.left += block.area
        self._put_back(block)

    def _put_back(self, block: Rect) -> None:
        self._free.append(block)
        self.undrawn += block.area

    def _elements(self, worker: _Worker) -> float:
        """Return the elements of a worker's next block."""
        total, count = self.total, max(len(self._workers), self.expected)
        share = worker.rate / self._total_rate * len(self._workers) / count
        part = max(_PART_OF_REST, 1 / count)
        most = max(MOST * share * total, MOST_SECONDS * worker.rate)
        wanted = min(part * share * self.undrawn, most)
        # Smaller blocks of all workers together would read more than the storage serves: a square
        # of this extent is computed as fast as it is read.
        extent = self._total_rate * self._costs.nbytes(1, 1) / self.bandwidth
        served = share * count * extent**2
        if self._costs.reads_whole_rows(0):  # each block reads all of B
            seconds = self._costs.seconds(0, self.shape[1], self.bandwidth, whole_rows=True)
            served = max(served, worker.best * count * seconds)
        least = max(LEAST_SECONDS * worker.best, min(served, 2 * MOST * share * total))
        return max(1.0, min(max(wanted, least), worker.most_elements))

    def _extents(self, elements: float) -> tuple[int, int]:
        """Return the rows and columns of a block of so many elements that reads in least time."""
        n = self.shape[1]
        best, least, cuts = (1, n), math.inf, 1
        # All workers read at once.
        bandwidth = self.bandwidth / len(self._workers)
        while cuts <= n and (cuts <= _MOST_CUTS or n / cuts > math.sqrt(elements)):
            cols = -(-n // cuts)
            rows = max(1, min(self.shape[0], round(elements / cols)))
            # Per element: a block that cannot have its size is smaller or larger than wanted.
            seconds = self._costs.seconds(rows, cols, bandwidth, whole_rows=cuts == 1)
            seconds /= rows * cols
            if seconds < least and rows * cols < 2 * elements:
                best, least = (rows, cols), seconds
            cuts = cuts + 1 if cuts < 8 else cuts * 5 // 4
        return best

    def _cut(self, rows: int, cols: int) -> Rect:
        """Cut a block of about these extents from the free rectangle that suits it best."""
        place = max(range(len(self._free)), key=lambda i: _fit(self._free[i], rows))
        rect = self._free.pop(place)
        # A rectangle that a larger block left: fewer columns of its rows.
        high = _part(rect.rows, rows, self._quantum[0])
        wide = _part(rect.cols, max(1, rows * cols // high), self._quantum[1])
        below = rect._replace(row=rect.row + high, rows=rect.rows - high)
        right = Rect(rect.row, rect.col + wide, high, rect.cols - wide)
        self._free += [rest for rest in (below, right) if rest.area]
        return Rect(rect.row, rect.col, high, wide)


def _fit(rect: Rect, rows: int) -> tuple[bool, int]:
    """Rank a free rectangle: first a strip of the block's height, then the largest."""
    return rows / _WHOLE <= rect.rows < _WHOLE * rows, rect.area


def _part(extent: int, wanted: int, quantum: int) -> int:
    """Return about `wanted` of an extent, so that equal parts fill it, in whole quanta."""
    if extent < _WHOLE * wanted:
        return extent
    part = extent / max(1, round(extent / wanted))
    return min(extent, math.ceil(part / quantum) * quantum)


def triangle_region(n: int, quantum: tuple[int, int], *, lower: bool) -> list[Rect]:
    """Return one triangle of a square C: the rectangles that halving C leaves beside the diagonal,
    and the squares on it, which are computed whole.
    """
    step = math.lcm(*quantum)

    def halves(first: int, last: int) -> Iterator[Rect]:
        middle = first + round((last - first) / 2 / step) * step
        if last - first <= -(-n // _DIAGONAL_BLOCKS) or not first < middle < last:
            yield Rect(first, first, last - first, last - first)
            return
        rect = Rect(middle, first, last - middle, middle - first)
        yield rect if lower else Rect(rect.col, rect.row, rect.cols, rect.rows)
        yield from halves(first, middle)
        yield from halves(middle, last)

    return list(halves(0, n))
