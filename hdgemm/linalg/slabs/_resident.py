"""Columns of a slab in the memory of one device, and their updates by factored columns.

A device holds the transpose of column-major columns, row-major: the elements are in the same order,
so that a transfer is a copy. Host memory that it reads and writes is page-locked.

Uploads, updates and downloads run in queues of their own. Each operation is given those that it
comes after: the first operation of an update the uploads before it, a download the last update.
Updates run in the order in which they are enqueued. There is memory for two blocks: a block is
uploaded while the one before it updates the slab, and the host waits for the update of the block
that its memory held. An error of an operation is raised where the host waits for its update.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hdgemm.linalg.planning.devices import buffer_sizes, squares_bytes
from hdgemm.linalg.planning.slab import Columns, dealt, link_bytes
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.workspace import Workspace, free_all
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.linalg.slabs.slab import FactoredColumns, Slab
    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.protocol import Completion, NativeDevice, Triangle
    from hdgemm.pipeline.plan import Stage


class _Transfer(NamedTuple):
    """A copy over the link that was enqueued."""

    stage: Stage
    number: int
    nbytes: int
    enqueued: float
    completion: Completion


@dataclass(slots=True)
class _Step:
    """The updates by one block: `number` is a stream block's, 0 for a panel of the slab."""

    slab: int
    number: int
    enqueued: float
    pairs: float = 0.0
    completions: list[Completion] = field(default_factory=list)


class ResidentColumns:
    """The columns of each slab that one device holds.

    Parameters
    ----------
    index
        The number of the device in the plan.
    """

    def __init__(
        self, device: NativeDevice, index: int, plan: SlabPlan, recorder: Recorder
    ) -> None:
        self.device, self.plan, self.work = device, plan, Workspace(device)
        self._index, self._recorder = index, recorder
        self._dtype = np.dtype(plan.dtype)
        self._buffers: list[Any] = []
        self._strips: list[Columns] = []
        self._transfers: list[_Transfer] = []
        self._pending: list[Completion] = []
        self._steps: deque[_Step] = deque()
        self._blocks = 0

    def allocate(self) -> None:
        """Take memory for the widest part of a slab, two blocks and, for QR, two triangles T."""
        plan = self.plan
        widest = max(sum(s.width for s in dealt(plan, x)[self._index]) for x in plan.slabs)
        sizes = buffer_sizes(self.device, plan.kind, plan.m, self._dtype, plan.block, widest)
        for nbytes in sizes[:5]:
            self._buffers.append(self.device.allocate(nbytes))
        staged = squares_bytes(plan.kind, self._dtype, plan.block)
        self._buffers.append(self.device.allocate_staging(staged))

    def free(self) -> None:
        """Wait for all operations, failed ones too, and free the memory."""
        self.device.synchronize()
        with ExitStack() as memory:
            memory.callback(free_all, self.device, self._buffers)
            memory.callback(self.work.free)

    def begin(self, slab: Slab) -> None:
        """Upload the columns of a slab, when all operations on the slab before are done."""
        self.finish()
        self._slab, top = slab, slab.place.top
        self._strips = dealt(self.plan, slab.place)[self._index]
        width, rows = sum(strip.width for strip in self._strips), len(slab.array)
        self._tile = Tile("C", self._buffers[0], width, rows, rows, self._dtype)
        for strip in self._strips:
            first, last = self.rows(strip.first, strip.last)
            block = Block(self._tile, first, strip.top - top, last - first, rows + top - strip.top)
            self._send(_columns(slab, strip).T, block, 0)

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """Return where the columns that this device holds, of some of a slab's, lie in its tile."""
        at = [
            sum(min(max(0, column - strip.first), strip.width) for strip in self._strips)
            for column in (first, last)
        ]
        return at[0], at[1]

    def block(
        self, number: int, block: FactoredColumns, squares: Sequence[NDArray[Any]]
    ) -> ResidentBlock:
        """Upload a block of earlier columns, or a panel of the slab: `number` 0.

        The first of the `squares` takes the place of the top of its array; see `Factorisation`.
        """
        while len(self._steps) > 1:
            self._retire()
        array, width, rows = block.array, block.place.width, len(block.array)
        turn, self._blocks = self._blocks % 2, self._blocks + 1
        tiles = [Tile("C", self._buffers[1 + turn], width, rows, rows, self._dtype)]
        below = 0
        if squares:
            below = width
            tiles.append(Tile("C", self._buffers[3 + turn], width, width, width, self._dtype))
            shape = 2, 2, width, width
            staged: NDArray[Any] = np.ndarray(shape, self._dtype, self._buffers[5].array)
            for tile, square, values in zip(tiles, staged[turn], squares, strict=True):
                square[...] = values
                self._send(square, Block(tile, 0, 0, width, width), number)
        self._send(array[below:].T, Block(tiles[0], 0, below, width, rows - below), number)
        self._steps.append(_Step(self._slab.number, number, time.perf_counter()))
        return ResidentBlock(self, block, tiles)

    def update(
        self,
        enqueue: Callable[[ResidentBlock, int], float],
        block: ResidentBlock,
        first: int,
        last: int,
    ) -> None:
        """Enqueue the update of columns `first` to `last` by the block that was uploaded last.

        `enqueue` is the `update_resident` of a factorisation: it returns the multiply-adds.
        """
        self._recorder.check_cancel()
        top, bottom = self.rows(first, last)
        if top == bottom:
            return
        step = self._steps[-1]
        step.pairs += enqueue(replace(block, cols=(first, last)), step.number)
        step.completions += self.work.take()

    def settle(self) -> None:
        """Wait for all transfers: the host may read what it fetched, and overwrite what it sent."""
        while self._transfers:
            stage, number, nbytes, enqueued, completion = self._transfers.pop(0)
            completion.wait()
            self._recorder.finished(
                (completion,),
                enqueued,
                self.device.spec.name,
                stage,
                self._slab.number,
                number,
                nbytes=nbytes,
            )

    def begin_fetch(self, strip: Columns) -> None:
        """Enqueue the download of a strip, if this device has it, after the last update."""
        if strip not in self._strips:
            return
        first, last = self.rows(strip.first, strip.last)
        array, tile = _columns(self._slab, strip), self._tile
        source = Block(tile, first, tile.cols - len(array), last - first, len(array))
        updates = [completion for step in self._steps for completion in step.completions]
        after = [*self._pending, *updates[-1:]]
        enqueued = time.perf_counter()
        completion = self.device.download(source, array.T, after)
        self._transfers.append(_Transfer("store1", 0, array.nbytes, enqueued, completion))

    def finish(self) -> None:
        """Wait for all updates, and raise the error of the first that failed."""
        self.settle()
        while self._steps:
            self._retire()

    def order(self) -> list[Completion]:
        """Return the uploads that the next operation comes after, and all operations behind it."""
        pending, self._pending = self._pending, []
        return pending

    def _send(self, source: NDArray[Any], target: Block, number: int) -> None:
        if not source.size:
            return
        enqueued = time.perf_counter()
        completion = self.device.upload(source, target, ())
        self._pending.append(completion)
        self._transfers.append(_Transfer("load2", number, source.nbytes, enqueued, completion))

    def _retire(self) -> None:
        """Wait for the oldest updates; their block's memory is free then."""
        step = self._steps[0]
        for completion in step.completions:
            completion.wait()
        self._steps.popleft()
        if step.completions:
            flops = int(flops_per_multiply_add(self._dtype.name) * step.pairs)
            self._recorder.finished(
                step.completions,
                step.enqueued,
                self.device.spec.name,
                "mult1",
                step.slab,
                step.number,
                flops=flops,
            )

    def parts(self, first: int, last: int) -> Iterator[Columns]:
        """Yield the columns `first` to `last` that this device holds, by strips."""
        for strip in self._strips:
            part = Columns(max(first, strip.first), min(last, strip.last), strip.top)
            if part.first < part.last:
                yield part

    def target(self, cols: tuple[int, int], row: int, last: int) -> Block:
        """Return the columns of the slab that this device holds of some, and rows of the matrix."""
        left, right = self.rows(*cols)
        return Block(self._tile, left, row - self._slab.place.top, right - left, last - row)


@dataclass(frozen=True, slots=True)
class ResidentBlock:
    """Factored columns on a device, and the columns `cols` of the slab that they update.

    Parameters
    ----------
    held
        The columns of the slab that the device holds.
    columns
        The factored columns in the host's memory.
    tiles
        Their transpose on the device and, for QR, T as it is multiplied.
    """

    held: ResidentColumns
    columns: FactoredColumns
    tiles: list[Tile]
    cols: tuple[int, int] = (0, 0)

    @property
    def width(self) -> int:
        """How many of the columns that are updated this device holds."""
        first, last = self.held.rows(*self.cols)
        return last - first

    def parts(self) -> Iterator[Columns]:
        """Yield the columns that are updated and that this device holds, strip by strip."""
        return self.held.parts(*self.cols)

    def target(self, row: int, last: int | None = None, cols: Columns | None = None) -> Block:
        """Return the columns that are updated, or some of them, between two rows of the matrix."""
        span = self.cols if cols is None else (cols.first, cols.last)
        return self.held.target(span, row, self.held.plan.m if last is None else last)

    def source(self, row: int, last: int | None = None) -> Block:
        """Return the transpose of the factored columns, from one row of the matrix to another."""
        tile, top = self.tiles[0], self.columns.place.top
        stop = self.held.plan.m if last is None else last
        return Block(tile, 0, row - top, tile.rows, stop - row)

    @property
    def triangle(self) -> Block:
        """T of reflectors as it is multiplied."""
        tile = self.tiles[1]
        return Block(tile, 0, 0, tile.rows, tile.cols)

    def scratch(self, name: str, rows: int, cols: int) -> Block:
        """Return workspace of this name."""
        return self.held.work.scratch(name, rows, cols, self.tiles[0].dtype)

    def permute(self, moves: Moves) -> None:
        """Permute the rows of the columns that are updated: columns of their transpose."""
        if len(moves.places):
            done = self.held.device.permute(self.target(0), moves, self.held.order(), axis=1)
            self.held.work.completions.append(done)

    def solve(self, a: Block, b: Block, form: Triangle) -> None:
        """Solve with a triangle, see `FactorDevice.trsm`."""
        done = self.held.device.trsm(a, b, form, self.held.order())
        self.held.work.completions.append(done)

    def multiply(
        self,
        alpha: float,
        a: Block,
        b: Block,
        c: Block,
        *,
        beta: float = 1.0,
        trans_a: str = "N",
        trans_b: str = "N",
    ) -> None:
        """Compute C := alpha·op(A)·op(B) + beta·C, see `Workspace.multiply`."""
        self.held.work.multiply(
            alpha, a, b, c, self.held.order(), beta=beta, trans_a=trans_a, trans_b=trans_b
        )


@contextmanager
def resident_columns(
    devices: Sequence[NativeDevice], plan: SlabPlan, recorder: Recorder, done: int
) -> Iterator[list[ResidentColumns]]:
    """Hold memory on the devices of a plan for its slabs, of which some are done already."""
    held: list[ResidentColumns] = []
    with ExitStack() as memory:
        for index, device in enumerate(devices if plan.slabs else ()):
            held.append(ResidentColumns(device, index, plan, recorder))
            memory.callback(held[-1].free)
            held[-1].allocate()
        for stage, nbytes in link_bytes(plan, done).items() if held else ():
            recorder.expect(stage, nbytes)
        yield held


def _columns(slab: Slab, strip: Columns) -> NDArray[Any]:
    """Return the elements of a strip in the host's memory."""
    first, _, top = slab.place
    array: NDArray[Any] = slab.array[strip.top - top :, strip.first - first : strip.last - first]
    return array
