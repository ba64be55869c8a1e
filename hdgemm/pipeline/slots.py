"""The memory that a plan's tiles take turns in, taken whole before the first operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hdgemm.errors import AllocationError, DoesNotFitError, InputError
from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.devices.protocol import Buffer, Device, HostBuffer
    from hdgemm.pipeline.slot_cache import Kind, SlotCache
    from hdgemm.pipeline.plan import Load, Operand, Plan, Rect, Slots


@dataclass(frozen=True, slots=True)
class Operands:
    """The stored matrices of one run.

    Parameters
    ----------
    c
        Where the product is stored.
    old_c
        Where store2 reads the C that beta multiplies: `c` itself when it is updated in place.
    conj_a, conj_b
        load1 conjugates on the way.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    old_c: Matrix
    conj_a: bool = False
    conj_b: bool = False

    def matrix(self, operand: Operand) -> Matrix:
        """Return the store of one operand."""
        return {"A": self.a, "B": self.b, "C": self.c}[operand]

    def conj(self, operand: Operand) -> bool:
        """Say whether an operand is to be conjugated."""
        return {"A": self.conj_a, "B": self.conj_b, "C": False}[operand]


class SlotMemory:
    """Device slots, staging rings and scratch of one run; freed together, also after errors."""

    def __init__(
        self, plan: Plan, device: Device, operands: Operands, cache: SlotCache | None = None
    ) -> None:
        self._plan = plan
        self._device = device
        self._cache = cache
        self._source: Device | SlotCache = device if cache is None else cache
        self._operands = operands
        self._taken: list[tuple[Kind, Buffer]] = []
        self.dtype = np.dtype(plan.problem.dtype)
        try:
            if cache is not None:
                cache.retain(plan)
            self._slots: dict[Operand, list[Any]] = {
                "A": self._take(plan.a_slots, staging=False),
                "B": self._take(plan.b_slots, staging=False),
                "C": self._take(plan.c_slots, staging=not plan.overlap.c_on_device),
            }
            self._up = self._take(plan.up, staging=True)
            self._down = self._take(plan.down, staging=True)
            self.scratch = self._take_staging(plan.scratch_bytes)
        except BaseException:
            self.free()
            raise

    def _take(self, slots: Slots, *, staging: bool) -> list[Any]:
        if staging:
            return [self._take_staging(slots.nbytes) for _ in range(slots.count)]
        taken = []
        for _ in range(slots.count):
            taken.append(self._allocate(slots.nbytes))
            self._taken.append(("device", taken[-1]))
        return taken

    def _allocate(self, nbytes: int) -> Buffer:
        try:
            return self._source.allocate(nbytes)
        except DoesNotFitError as error:
            if self._plan.device.unified:
                raise
            numbers = {**error.numbers, "planned": self._plan.device_bytes}
            raise AllocationError(str(error), **numbers) from error.__cause__

    def _take_staging(self, nbytes: int) -> HostBuffer | None:
        if nbytes == 0:
            return None
        buffer = self._source.allocate_staging(nbytes)
        self._taken.append(("staging", buffer))
        return buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._cache is not None:
            self._device.synchronize()
            while self._taken:
                self._cache.keep(*self._taken.pop())
        self.free()

    def free(self) -> None:
        """Free all memory, once; enqueued operations are waited for first."""
        if self._taken:
            self._device.synchronize()
        while self._taken:
            self._device.free(self._taken.pop()[1])

    def load_tile(self, load: Load) -> Tile:
        """Return the tile of A or B that a load makes."""
        buffer = self._slots[load.operand][load.slot]
        return self._tile(load.operand, load.rect, buffer)

    def c_tile(self, rect: Rect, slot: int) -> Tile:
        """Return the C tile of a work unit: in its slot, or in the caller's C."""
        if self._plan.problem.c.path == "resident":
            return self.resident_tile("C")
        return self._tile("C", rect, self._slots["C"][slot])

    def _tile(self, operand: Operand, rect: Rect, buffer: Any) -> Tile:
        trans = self._plan.problem.spec(operand).trans
        rows, cols = _stored(rect, trans=trans)
        origin = self._phase(operand, rect) if self._plan.device.unified else 0
        return Tile(operand, buffer, rows, cols, cols, self.dtype, trans, origin)

    def _phase(self, operand: Operand, rect: Rect) -> int:
        spec = self._plan.problem.spec(operand)
        if spec.place != "file":
            return 0
        row, col = (rect.col, rect.row) if spec.trans else (rect.row, rect.col)
        phase = self._operands.matrix(operand).phase(row, col)
        return phase if phase % self.dtype.itemsize == 0 else 0

    def resident_tile(self, operand: Operand) -> Tile:
        """Return the caller's own array as one tile."""
        matrix = self._operands.matrix(operand)
        array = matrix.device_array if isinstance(matrix, DeviceArrayMatrix) else matrix.array
        if array is None:
            raise InputError(f"the plan uses {operand} in place, but it is not in memory")
        ld = array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1]
        trans = self._plan.problem.spec(operand).trans
        rows, cols = array.shape
        return Tile(operand, array, rows, cols, ld, self.dtype, trans)

    def block(self, tile: Tile, rect: Rect, part: Rect) -> Block:
        """Return the part of a tile over `rect` that lies over `part`, both in op-space."""
        row, col = part.row - rect.row, part.col - rect.col
        if tile.trans:
            return Block(tile, col, row, part.cols, part.rows)
        return Block(tile, row, col, part.rows, part.cols)

    def staging(self, operand: Operand, ring: int, rect: Rect) -> NDArray[Any]:
        """Return the piece of a staging ring in which `rect` travels."""
        buffer = (self._down if operand == "C" else self._up)[ring]
        rows, cols = _stored(rect, trans=self._plan.problem.spec(operand).trans)
        origin = self._phase(operand, rect)
        return np.ndarray((rows, cols), self.dtype, buffer.array, origin)


def _stored(rect: Rect, *, trans: bool) -> tuple[int, int]:
    return (rect.cols, rect.rows) if trans else (rect.rows, rect.cols)
