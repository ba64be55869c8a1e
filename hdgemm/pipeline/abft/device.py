"""Stages with checksums on a device with memory of its own.

load2 sums A and B on the host while they are uploaded, and uploads the sums after them. mult1
multiplies the sums with the other tile by two thin gemms, into two vectors beside each C tile.
Before a tile's first store the vectors are downloaded, and the tile too, by panels, to be summed.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.pipeline.abft._checksums import LoadSums, UnitSums, panel_rows, panels, wide
from hdgemm.pipeline.abft._inspection import CheckedStages
from hdgemm.pipeline.devices.protocol import Block, Tile, view
from hdgemm.pipeline.plan import largest_tiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline._stages import Bound
    from hdgemm.pipeline.abft._counters import TileChecks
    from hdgemm.pipeline.devices.protocol import After, Buffer, Completion, Device, HostBuffer
    from hdgemm.pipeline.plan import Operand, Plan
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.tiles import Load, Step, WorkUnit


class DeviceCheckedStages(CheckedStages):
    """Stages described in the module's docstring; `close` them before the slots are freed."""

    def __init__(self, bound: Bound, checks: TileChecks) -> None:
        super().__init__(bound, checks)
        self._drains = self._plan.overlap.c_on_device
        self._thin = ThinTiles(self._plan, self._device, checks.scratch_bytes)
        self._loading: dict[int, LoadSums] = {}
        self._loaded: dict[tuple[Operand, int], LoadSums] = {}
        self._sums: dict[int, UnitSums] = {}
        # The storing lane uploads and multiplies when it computes a tile again.
        self._uploading, self._multiplying = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Wait for enqueued operations and free the thin tiles."""
        self._thin.free()

    def load2(self, op: Op, after: After) -> Completion:
        """Upload a piece and sum it; upload the sums after the last piece of a tile."""
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
                completion = self._thin.upload(load, sums.vector)
        self._checks.count(seconds=time.perf_counter() - began)
        return completion

    def mult1(self, op: Op, after: After) -> Completion:
        """Multiply the sums of A and of B with the other tile, then the tiles."""
        step, unit = self._ledger.steps[op.step], self._ledger.units[op.unit]
        a, b, c = self._factors(op)
        first = op.step == unit.first
        loads = self._ledger.loads[step.a], self._ledger.loads[step.b]
        rows, cols = self._thin.of_unit(unit)
        beta = 0.0 if first else 1.0
        with self._multiplying:
            bx, ya = self._thin.part(loads[1], step), self._thin.part(loads[0], step)
            self._device.gemm(1.0, a, bx, beta, rows, after)
            self._device.gemm(1.0, ya, b, beta, cols, after)
            completion = self._device.gemm(self._alpha, a, b, self._start(op), c, after)
        if first:
            self._sums[unit.number] = UnitSums.empty(unit.rect, a.tile.dtype)
        of_a, of_b = (self._loaded[load.operand, load.slot] for load in loads)
        with np.errstate(all="ignore"):
            self._sums[unit.number].add_sample(of_a.sample(step), of_b.sample(step))
        return completion

    def store1(self, op: Op, after: After) -> Completion:
        """Inspect a tile before its first piece is downloaded."""
        self._inspect(op, after)
        return super().store1(op, after)

    def store2(self, op: Op, after: After) -> Completion:
        """Inspect a tile that the kernel wrote into staging before its first piece is stored."""
        if not self._drains:
            self._inspect(op, after)
        return super().store2(op, after)

    def _inspect(self, op: Op, after: After) -> None:
        unit = self._ledger.units[op.unit]
        if (op.rect.row, op.rect.col) != (unit.rect.row, unit.rect.col):
            return
        for completion in after:
            completion.wait()
        began = time.perf_counter()
        sums = self._sums.pop(unit.number).replaced(*self._thin.download(unit))
        self.inspect(unit, sums)
        self._checks.count(seconds=time.perf_counter() - began)

    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Yield a C tile by panels of whole rows, each downloaded when it is reached."""
        whole = self._c_whole(unit)
        if not self._drains:
            yield from panels(view(whole))
            return
        rows = panel_rows(whole.rows, whole.cols, whole.tile.dtype, self._thin.panel_bytes)
        for first in range(0, whole.rows, rows):
            count = min(rows, whole.rows - first)
            target = self._thin.panel(count, whole.cols)
            part = Block(whole.tile, whole.row + first, whole.col, count, whole.cols)
            self._device.download(part, target, ()).wait()
            yield first, target

    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """Upload chunks of A and B, multiply them into a C tile, and wait."""
        taken: list[Buffer] = []
        try:
            left, right = self._upload("A", a, taken), self._upload("B", b, taken)
            beta = 0.0 if first else 1.0
            with self._multiplying:
                done = self._device.gemm(self._alpha, left, right, beta, self._c_whole(unit), ())
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


class ThinTiles:
    """Vectors on the device: y'·A beside A's slots, B·x beside B's, two checksums beside C's.

    A panel of C, which has at least one row, takes `scratch_bytes` of host memory.
    """

    def __init__(self, plan: Plan, device: Device, scratch_bytes: int) -> None:
        self._device = device
        self._dtype = np.dtype(plan.problem.dtype)
        self._taken: list[Buffer] = []
        self._sent: dict[tuple[Operand, int], Completion] = {}
        tiles = largest_tiles(plan)
        (_, deep_a), (deep_b, _), (mb, nb) = tiles["A"], tiles["B"], tiles["C"]
        try:
            self._on_device: dict[Operand, list[Buffer]] = {
                "A": [self._allocate("A", 1, deep_a) for _ in range(plan.a_slots.count)],
                "B": [self._allocate("B", deep_b, 1) for _ in range(plan.b_slots.count)],
            }
            self._rows = [self._allocate("C", mb, 1) for _ in range(plan.c_slots.count)]
            self._cols = [self._allocate("C", 1, nb) for _ in range(plan.c_slots.count)]
            self._staging: dict[Operand, list[HostBuffer]] = {
                "A": [self._stage(deep_a) for _ in range(plan.a_slots.count)],
                "B": [self._stage(deep_b) for _ in range(plan.b_slots.count)],
            }
            self._down = self._stage(max(mb, nb))
            self._panel = self._stage(panel_rows(mb, nb, self._dtype, scratch_bytes) * nb)
            self.panel_bytes = self._panel.nbytes
        except BaseException:
            self.free()
            raise

    def _allocate(self, operand: Operand, rows: int, cols: int) -> Buffer:
        nbytes = self._device.slot_bytes(operand, rows, cols, self._dtype)
        self._taken.append(self._device.allocate(nbytes))
        return self._taken[-1]

    def _stage(self, count: int) -> HostBuffer:
        buffer = self._device.allocate_staging(count * self._dtype.itemsize)
        self._taken.append(buffer)
        return buffer

    def free(self) -> None:
        """Free all memory, once, after the device has finished what is enqueued."""
        if self._taken:
            self._device.synchronize()
        while self._taken:
            self._device.free(self._taken.pop())

    def upload(self, load: Load, vector: NDArray[Any]) -> Completion:
        """Upload a loaded tile's vector; it follows the tile in the device's queue."""
        place = load.operand, load.slot
        if (before := self._sent.get(place)) is not None:
            before.wait()
        tile = self._tile(load)
        staging = self._staging[load.operand][load.slot].array
        source = np.ndarray((tile.rows, tile.cols), self._dtype, staging)
        source[...] = vector.reshape(source.shape)
        self._sent[place] = self._device.upload(source, Block(tile, 0, 0, tile.rows, tile.cols), ())
        return self._sent[place]

    def _tile(self, load: Load) -> Tile:
        buffer = self._on_device[load.operand][load.slot]
        rows, cols = (1, load.rect.cols) if load.operand == "A" else (load.rect.rows, 1)
        return Tile(load.operand, buffer, rows, cols, cols, self._dtype)

    def part(self, load: Load, step: Step) -> Block:
        """Return a step's part of a loaded tile's vector."""
        tile = self._tile(load)
        if load.operand == "A":
            return Block(tile, 0, step.k0 - load.rect.col, 1, step.kb)
        return Block(tile, step.k0 - load.rect.row, 0, step.kb, 1)

    def of_unit(self, unit: WorkUnit) -> tuple[Block, Block]:
        """Return the vectors beside a C slot: a column for its rows, a row for its columns."""
        rows, cols = unit.rect.rows, unit.rect.cols
        column = Tile("C", self._rows[unit.slot], rows, 1, 1, self._dtype)
        row = Tile("C", self._cols[unit.slot], 1, cols, cols, self._dtype)
        return Block(column, 0, 0, rows, 1), Block(row, 0, 0, 1, cols)

    def download(self, unit: WorkUnit) -> tuple[NDArray[Any], NDArray[Any]]:
        """Download the vectors beside a C slot."""
        found = []
        for block in self.of_unit(unit):
            target = np.ndarray((block.rows, block.cols), self._dtype, self._down.array)
            self._device.download(block, target, ()).wait()
            found.append(target.astype(wide(self._dtype)).ravel())
        return found[0], found[1]

    def panel(self, rows: int, cols: int) -> NDArray[Any]:
        """Return host memory for a panel of C."""
        return np.ndarray((rows, cols), self._dtype, self._panel.array)
