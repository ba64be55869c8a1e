"""Stages whose C tiles are checked, on a device with memory of its own.

load2 sums A and B on the host while they are uploaded, and sends the sums after them. mult1
multiplies these with the other tile by two thin gemms, into two vectors beside each C tile. Before
a tile's first store the vectors come down, and the tile too, a panel at a time, to be summed.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.pipeline.abft.common import CheckedStages
from hdgemm.pipeline.abft.sums import UnitSums, panel_rows, panels
from hdgemm.pipeline.abft.vectors import LoadSums, Vectors
from hdgemm.pipeline.devices.dense import view
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from hdgemm.pipeline.stages import Bound
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.abft.tally import Tally
    from hdgemm.pipeline.devices.protocol import Buffer, Completion, Device
    from hdgemm.pipeline.schedule import Ledger
    from hdgemm.pipeline.plan import Operand, Plan, WorkUnit
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.slots import Operands, SlotMemory


class SeparateCheckedStages(CheckedStages):
    """See the module's docstring; `close` it before the slots are freed."""

    def __init__(self, bound: Bound, tally: Tally) -> None:
        super().__init__(bound, tally)
        self._drains = self._plan.overlap.c_on_device
        self._vectors = Vectors(self._plan, self._device, tally.scratch_bytes)
        self._loading: dict[int, LoadSums] = {}
        self._loaded: dict[tuple[Operand, int], LoadSums] = {}
        self._sums: dict[int, UnitSums] = {}
        # A tile that is computed again is uploaded and multiplied from the lane that stores it.
        self._uploading, self._multiplying = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Wait for what is enqueued, and free the vectors."""
        self._vectors.free()

    def load2(self, op: Op, after: Sequence[Completion]) -> Completion:
        """Upload, and sum what goes up; the last piece of a tile is followed by its sums."""
        source = self._source(op)
        with self._uploading:
            completion = self._device.upload(source, self._load_block(op), after)
        began = time.perf_counter()
        load = self._ledger.loads[op.load]
        sums = self._loading.get(op.load)
        if sums is None:
            sums = self._loading[op.load] = LoadSums(load, self._plan.tile[2], source.dtype)
        trans = self._plan.problem.spec(op.operand).trans
        with np.errstate(all="ignore"):
            sums.add(op.rect, source.T if trans else source, self._signs)
        if sums.complete:
            del self._loading[op.load]
            self._loaded[load.operand, load.slot] = sums
            with self._uploading:
                completion = self._vectors.send(load, sums.vector)
        self._tally.spent(time.perf_counter() - began)
        return completion

    def mult1(self, op: Op, after: Sequence[Completion]) -> Completion:
        """Multiply the sums of A and of B with the other tile, then the tiles."""
        step, unit = self._ledger.steps[op.step], self._ledger.units[op.unit]
        a, b, c = self._factors(op)
        first = op.step == unit.first
        loads = self._ledger.loads[step.a], self._ledger.loads[step.b]
        rows, cols = self._vectors.of_unit(unit)
        beta = 0.0 if first else 1.0
        with self._multiplying:
            of_b = self._vectors.part(loads[1], step)
            self._device.gemm(1.0, a, of_b, beta, rows, after)
            of_a = self._vectors.part(loads[0], step)
            self._device.gemm(1.0, of_a, b, beta, cols, after)
            completion = self._device.gemm(self._alpha, a, b, self._start(op), c, after)
        if first:
            self._sums[unit.number] = UnitSums.empty(unit.rect, a.tile.dtype)
        sums = self._sums[unit.number]
        side_a, side_b = (self._loaded[load.operand, load.slot] for load in loads)
        with np.errstate(all="ignore"):
            sums.add_sample(side_a.sample(step), side_b.sample(step))
        return completion

    def store1(self, op: Op, after: Sequence[Completion]) -> Completion:
        """Check a tile before its first piece goes down."""
        self._check(op, after)
        return super().store1(op, after)

    def store2(self, op: Op, after: Sequence[Completion]) -> Completion:
        """Check a tile that the kernel wrote into staging before its first piece is stored."""
        if not self._drains:
            self._check(op, after)
        return super().store2(op, after)

    def _check(self, op: Op, after: Sequence[Completion]) -> None:
        unit = self._ledger.units[op.unit]
        if (op.rect.row, op.rect.col) != (unit.rect.row, unit.rect.col):
            return
        for completion in after:
            completion.wait()
        began = time.perf_counter()
        sums = self._sums.pop(unit.number)
        sums.rows, sums.cols = self._vectors.fetch(unit)
        self._inspector.inspect(unit, sums)
        self._tally.spent(time.perf_counter() - began)

    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Give a C tile by panels of whole rows, downloaded one by one."""
        whole = self._c_whole(unit)
        if not self._drains:
            yield from panels(view(whole))
            return
        rows = panel_rows(whole.rows, whole.cols, whole.tile.dtype, self._vectors.panel_bytes)
        for first in range(0, whole.rows, rows):
            count = min(rows, whole.rows - first)
            target = self._vectors.panel(count, whole.cols)
            part = Block(whole.tile, whole.row + first, whole.col, count, whole.cols)
            self._device.download(part, target, ()).wait()
            yield first, target

    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """Upload chunks of A and B, multiply them into a C tile, and wait."""
        taken: list[Buffer] = []
        try:
            left, right = self._upload("A", a, taken), self._upload("B", b, taken)
            whole = self._c_whole(unit)
            beta = 0.0 if first else 1.0
            with self._multiplying:
                done = self._device.gemm(self._alpha, left, right, beta, whole, ())
            done.wait()
        finally:
            for buffer in taken:
                self._device.free(buffer)

    def _upload(self, operand: Operand, part: NDArray[Any], taken: list[Buffer]) -> Block:
        trans = self._plan.problem.spec(operand).trans
        stored = part.T if trans else part
        rows, cols = stored.shape
        staging = self._device.allocate_staging(stored.nbytes)
        taken.append(staging)
        source = np.ndarray((rows, cols), stored.dtype, staging.array)
        source[...] = stored
        buffer = self._device.allocate(self._device.slot_bytes(operand, rows, cols, stored.dtype))
        taken.append(buffer)
        tile = Tile(operand, buffer, rows, cols, cols, stored.dtype, trans)
        block = Block(tile, 0, 0, rows, cols)
        with self._uploading:
            done = self._device.upload(source, block, ())
        done.wait()
        return block
