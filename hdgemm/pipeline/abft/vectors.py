"""Sums of loaded tiles, and the thin tiles that hold them on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.pipeline.abft.sums import SAMPLES, panel_rows, wide
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.abft.sums import Signs
    from hdgemm.pipeline.devices.protocol import Buffer, Completion, Device, HostBuffer
    from hdgemm.pipeline.plan import Load, Operand, Plan, Rect, Step, WorkUnit


class LoadSums:
    """y'·A or B·x of one loaded tile, piece by piece, with some of its columns (rows).

    Parameters
    ----------
    kb
        The usual chunk of k: samples are taken where steps begin.
    """

    def __init__(self, load: Load, kb: int, dtype: np.dtype[Any]) -> None:
        self._load = load
        self._along_a = load.operand == "A"
        rect = load.rect
        self._k0, depth = (rect.col, rect.cols) if self._along_a else (rect.row, rect.rows)
        self._across = rect.rows if self._along_a else rect.cols
        self._left = rect.rows * rect.cols
        places = np.arange(self._k0, self._k0 + depth)
        self._places = places[places % kb < SAMPLES]
        self._samples = np.zeros((self._across, self._places.size), dtype)
        self._sum = np.zeros(depth, wide(dtype))
        self._dtype = dtype

    def add(self, rect: Rect, part: NDArray[Any], signs: Signs) -> None:
        """Sum one piece: `part` lies over `rect`, both in op-space."""
        if self._along_a:
            k0, first, side = rect.col, rect.row - self._load.rect.row, part.T
            weights = signs.y[rect.row : rect.row + rect.rows]
        else:
            k0, first, side = rect.row, rect.col - self._load.rect.col, part
            weights = signs.x[rect.col : rect.col + rect.cols]
        depth, across = side.shape
        self._sum[k0 - self._k0 : k0 - self._k0 + depth] += side @ weights
        here = (self._places >= k0) & (self._places < k0 + depth)
        self._samples[first : first + across, here] = side[self._places[here] - k0].T
        self._left -= rect.rows * rect.cols

    @property
    def complete(self) -> bool:
        """All pieces are in."""
        return self._left == 0

    @property
    def vector(self) -> NDArray[Any]:
        """The sums in the product's dtype, over the tile's part of k."""
        return self._sum.astype(self._dtype)

    def sample(self, step: Step) -> NDArray[Any]:
        """Return some of the tile's columns (A) or rows (B) in a step, as columns."""
        here = (self._places >= step.k0) & (self._places < step.k0 + min(step.kb, SAMPLES))
        found: NDArray[Any] = self._samples[:, here]
        return found


class Vectors:
    """Thin tiles beside the slots: y'·A beside A's, B·x beside B's, two sums beside C's.

    Parameters
    ----------
    room
        Bytes of host memory for a panel of C; at least one row.

    Raises
    ------
    DoesNotFitError
        When the device has no memory left for them.
    """

    def __init__(self, plan: Plan, device: Device, room: int) -> None:
        self._device = device
        self._dtype = np.dtype(plan.problem.dtype)
        self._taken: list[Buffer] = []
        self._sent: dict[tuple[Operand, int], Completion] = {}
        deep_a = max((load.rect.cols for load in plan.loads if load.operand == "A"), default=1)
        deep_b = max((load.rect.rows for load in plan.loads if load.operand == "B"), default=1)
        mb = max([plan.tile[0], *(unit.rect.rows for unit in plan.units)])
        nb = max([plan.tile[1], *(unit.rect.cols for unit in plan.units)])
        try:
            self._on_device: dict[Operand, list[Buffer]] = {
                "A": [self._take("A", 1, deep_a) for _ in range(plan.a_slots.count)],
                "B": [self._take("B", deep_b, 1) for _ in range(plan.b_slots.count)],
            }
            self._rows = [self._take("C", mb, 1) for _ in range(plan.c_slots.count)]
            self._cols = [self._take("C", 1, nb) for _ in range(plan.c_slots.count)]
            self._staging: dict[Operand, list[HostBuffer]] = {
                "A": [self._stage(deep_a) for _ in range(plan.a_slots.count)],
                "B": [self._stage(deep_b) for _ in range(plan.b_slots.count)],
            }
            self._down = self._stage(max(mb, nb))
            self._panel = self._stage(panel_rows(mb, nb, self._dtype, room) * nb)
            self.panel_bytes = self._panel.nbytes
        except BaseException:
            self.free()
            raise

    def _take(self, operand: Operand, rows: int, cols: int) -> Buffer:
        nbytes = self._device.slot_bytes(operand, rows, cols, self._dtype)
        self._taken.append(self._device.allocate(nbytes))
        return self._taken[-1]

    def _stage(self, count: int) -> HostBuffer:
        buffer = self._device.allocate_staging(count * self._dtype.itemsize)
        self._taken.append(buffer)
        return buffer

    def free(self) -> None:
        """Give everything back, once; what is still enqueued is waited for first."""
        if self._taken:
            self._device.synchronize()
        while self._taken:
            self._device.free(self._taken.pop())

    def send(self, load: Load, vector: NDArray[Any]) -> Completion:
        """Upload a loaded tile's sums; follows the tile itself in the device's queue."""
        place = load.operand, load.slot
        if (before := self._sent.get(place)) is not None:
            before.wait()
        tile = self._tile(load)
        source = np.ndarray((tile.rows, tile.cols), self._dtype, self._host(load))
        source[...] = vector.reshape(source.shape)
        self._sent[place] = self._device.upload(source, Block(tile, 0, 0, tile.rows, tile.cols), ())
        return self._sent[place]

    def _host(self, load: Load) -> NDArray[np.uint8]:
        return self._staging[load.operand][load.slot].array

    def _tile(self, load: Load) -> Tile:
        buffer = self._on_device[load.operand][load.slot]
        rows, cols = (1, load.rect.cols) if load.operand == "A" else (load.rect.rows, 1)
        return Tile(load.operand, buffer, rows, cols, cols, self._dtype)

    def part(self, load: Load, step: Step) -> Block:
        """Return a step's part of a loaded tile's sums."""
        tile = self._tile(load)
        if load.operand == "A":
            return Block(tile, 0, step.k0 - load.rect.col, 1, step.kb)
        return Block(tile, step.k0 - load.rect.row, 0, step.kb, 1)

    def of_unit(self, unit: WorkUnit) -> tuple[Block, Block]:
        """Return the sums beside a C slot: a column for its rows, a row for its columns."""
        rows, cols = unit.rect.rows, unit.rect.cols
        column = Tile("C", self._rows[unit.slot], rows, 1, 1, self._dtype)
        row = Tile("C", self._cols[unit.slot], 1, cols, cols, self._dtype)
        return Block(column, 0, 0, rows, 1), Block(row, 0, 0, 1, cols)

    def fetch(self, unit: WorkUnit) -> tuple[NDArray[Any], NDArray[Any]]:
        """Download the sums beside a C slot."""
        found = []
        for block in self.of_unit(unit):
            target = np.ndarray((block.rows, block.cols), self._dtype, self._down.array)
            self._device.download(block, target, ()).wait()
            found.append(target.astype(wide(self._dtype)).ravel())
        return found[0], found[1]

    def panel(self, rows: int, cols: int) -> NDArray[Any]:
        """Return host memory for a panel of C."""
        return np.ndarray((rows, cols), self._dtype, self._panel.array)
