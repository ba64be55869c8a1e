"""Slots: the device and staging memory that a plan's tiles reuse, and how tiles pass through it.

Tiles travel through staging in pieces: whole stored rows, as many as a staging buffer holds. Of a
chunked operand a piece takes whole chunks, since a chunk that is cut is decoded twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from hdgemm.errors import AllocationError, DoesNotFitError, InputError
from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.plan import OPERANDS
from hdgemm.pipeline.slot_cache import SlotCache, slot_groups
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.devices.protocol import Buffer, Device, HostBuffer
    from hdgemm.pipeline.plan import Operand, Plan, Slots
    from hdgemm.pipeline.slot_cache import Kind
    from hdgemm.pipeline.tiles import Load

#: The largest piece where staging is device memory and holds whole tiles: one operation stays
#: short enough to cancel, and long enough for several large requests to the disk.
UNIFIED_PIECE_BYTES: Final = 32 << 20

#: Extra bytes of a buffer whose content starts at its file's offset modulo this page size, so
#: that direct (O_DIRECT) reads fill it without a copy.
PHASE_BYTES: Final = 4096


def piece_bytes(plan: Plan, operand: Operand) -> int:
    """Return the most bytes that one load1, load2, store1 or store2 operation moves."""
    ring = plan.down if operand == "C" else plan.up
    if ring.count == 0:
        return UNIFIED_PIECE_BYTES
    phase = PHASE_BYTES if plan.problem.spec(operand).place == "file" else 0
    # An operand that moves directly has no part in the ring's size.
    return max(1, ring.nbytes - phase)


def pieces_of(plan: Plan, operand: Operand, rect: Rect) -> list[Rect]:
    """Cut one tile of a plan into the pieces in which the stages move it."""
    spec = plan.problem.spec(operand)
    return pieces(
        rect,
        trans=spec.trans,
        itemsize=plan.problem.tile_itemsize(operand),
        most=piece_bytes(plan, operand),
        chunk=spec.chunk,
        origin=spec.chunk_origin,
    )


def pieces(
    rect: Rect,
    *,
    trans: bool,
    itemsize: int,
    most: int,
    chunk: tuple[int, int] | None = None,
    origin: tuple[int, int] = (0, 0),
) -> list[Rect]:
    """Cut a tile along its stored rows into pieces of at most `most` bytes.

    A piece holds at least one stored row, of the tile or of a chunk. Pieces of chunked operands
    end at chunk borders; a piece smaller than a chunk is followed by the rest of that chunk.
    Tile and pieces are in op-space, `chunk` and `origin` (the operand's first element in its
    chunk) in stored rows and columns.
    """
    stored = _turned(rect) if trans else rect
    if chunk is None or stored.area * itemsize <= most:
        step = max(1, most // max(1, stored.cols * itemsize))
        found = list(_bands(stored, step, step, start=stored.row))
    else:
        row, col = origin
        shifted = stored._replace(row=stored.row + row, col=stored.col + col)
        found = [
            part._replace(row=part.row - row, col=part.col - col)
            for part in _whole_chunks(shifted, itemsize, most, *chunk)
        ]
    return [_turned(part) for part in found] if trans else found


def _whole_chunks(tile: Rect, itemsize: int, most: int, high: int, wide: int) -> Iterator[Rect]:
    if together := most // (min(high, tile.rows) * tile.cols * itemsize):
        yield from _bands(tile, high * together, high)
        return
    together = max(1, most // (min(high, tile.rows) * min(wide, tile.cols) * itemsize))
    for band in _bands(tile, high, high):
        for part in _bands(_turned(band), wide * together, wide):
            piece = _turned(part)
            step = max(1, most // (piece.cols * itemsize))
            yield from _bands(piece, step, step, start=piece.row)


def _bands(tile: Rect, step: int, grid: int, start: int | None = None) -> Iterator[Rect]:
    """Cut along the rows every `step`, from `start` or from the grid line above the tile."""
    first, last = tile.row, tile.row + tile.rows
    until = (first // grid * grid if start is None else start) + step
    while first < last:
        yield tile._replace(row=first, rows=min(until, last) - first)
        first, until = until, until + step


def _turned(rect: Rect) -> Rect:
    return Rect(rect.col, rect.row, rect.cols, rect.rows)


@dataclass(frozen=True, slots=True)
class Operands:
    """The stored matrices of one run, and the factors of the product.

    store2 reads the C that beta multiplies from `old_c`: `c` itself for an update in place. load1
    conjugates A and B where `conj_a` and `conj_b` say so.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    old_c: Matrix
    conj_a: bool = False
    conj_b: bool = False
    alpha: complex = 1.0
    beta: complex = 0.0

    def matrix(self, operand: Operand) -> Matrix:
        """Return the store of one operand."""
        return self.a if operand == "A" else self.b if operand == "B" else self.c

    def conj(self, operand: Operand) -> bool:
        """Say whether an operand is to be conjugated."""
        return self.conj_a if operand == "A" else self.conj_b if operand == "B" else False


class SlotMemory:
    """Device slots, staging rings and scratch of one run.

    All of it is allocated before the first operation and freed together, after errors too.
    """

    def __init__(
        self, plan: Plan, device: Device, operands: Operands, cache: SlotCache | None = None
    ) -> None:
        self._plan = plan
        self._device = device
        self._cache = SlotCache(device) if cache is None else cache
        self._keeps = cache is not None
        self._operands = operands
        self._taken: list[tuple[Kind, Buffer]] = []
        self._dtypes = {operand: plan.problem.tile_dtype(operand) for operand in OPERANDS}
        self._unified = plan.device.unified
        specs = {operand: plan.problem.spec(operand) for operand in OPERANDS}
        self._trans = {operand: spec.trans for operand, spec in specs.items()}
        self._files = {
            operand: operands.matrix(operand)
            for operand, spec in specs.items()
            if spec.place == "file"
        }
        try:
            self._cache.retain(plan)
            self._slots: dict[str, list[Any]] = {
                name: self._allocate(kind, slots) if slots.count else []
                for name, (kind, slots) in slot_groups(plan).items()
            }
        except BaseException:
            self.free()
            raise
        self.scratch: HostBuffer | None = next(iter(self._slots["scratch"]), None)

    def _allocate(self, kind: Kind, slots: Slots) -> list[Buffer]:
        first = len(self._taken)
        try:
            for _ in range(slots.count if slots.nbytes else 0):
                self._taken.append((kind, self._cache.allocate(kind, slots.nbytes)))
        except DoesNotFitError as error:
            if self._unified or kind == "staging":
                raise
            numbers = {**error.numbers, "planned": self._plan.device_bytes}
            raise AllocationError(str(error), **numbers) from error.__cause__
        return [buffer for _, buffer in self._taken[first:]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None and self._keeps:
            self._device.synchronize()
            while self._taken:
                self._cache.keep(*self._taken.pop())
        self.free()

    def free(self) -> None:
        """Free everything, once, after the device has finished what is enqueued, also in place."""
        self._device.synchronize()
        while self._taken:
            self._device.free(self._taken.pop()[1])

    def load_tile(self, load: Load) -> Tile:
        """Return the tile of A or B that a load makes."""
        return self._tile(load.operand, load.rect, self._slots[load.operand][load.slot])

    def c_tile(self, rect: Rect, slot: int) -> Tile:
        """Return the C tile of a work unit: in its slot, or in the caller's C."""
        if self._plan.problem.c.path == "resident":
            return self.resident_tile("C")
        return self._tile("C", rect, self._slots["C"][slot])

    def _tile(self, operand: Operand, rect: Rect, buffer: Any) -> Tile:
        trans = self._trans[operand]
        rows, cols = (rect.cols, rect.rows) if trans else (rect.rows, rect.cols)
        origin = self._phase(operand, rect) if self._unified else 0
        return Tile(operand, buffer, rows, cols, cols, self._dtypes[operand], trans, origin)

    def _phase(self, operand: Operand, rect: Rect) -> int:
        if (matrix := self._files.get(operand)) is None:
            return 0
        row, col = (rect.col, rect.row) if self._trans[operand] else (rect.row, rect.col)
        phase = matrix.phase(row, col)
        return phase if phase % self._dtypes[operand].itemsize == 0 else 0

    def resident_tile(self, operand: Operand) -> Tile:
        """Return the caller's own array as one tile."""
        matrix = self._operands.matrix(operand)
        array = matrix.device_array if isinstance(matrix, DeviceArrayMatrix) else matrix.array
        if array is None:
            raise InputError(f"the plan uses {operand} in place, but it is not in memory")
        ld = array.strides[0] // array.itemsize if array.shape[0] > 1 else array.shape[1]
        rows, cols = array.shape
        return Tile(operand, array, rows, cols, ld, self._dtypes[operand], self._trans[operand])

    def block(self, tile: Tile, rect: Rect, part: Rect) -> Block:
        """Return the part of a tile over `rect` that lies over `part`, both in op-space."""
        row, col = part.row - rect.row, part.col - rect.col
        if tile.trans:
            return Block(tile, col, row, part.cols, part.rows)
        return Block(tile, row, col, part.rows, part.cols)

    def staging(self, operand: Operand, ring: int, rect: Rect) -> NDArray[Any]:
        """Return the piece of a staging ring that holds `rect`."""
        buffer = self._slots["down" if operand == "C" else "up"][ring]
        shape = (rect.cols, rect.rows) if self._trans[operand] else (rect.rows, rect.cols)
        dtype = self._dtypes[operand]
        return np.ndarray(shape, dtype, buffer.array, self._phase(operand, rect))
