"""Stages whose C tiles are checked, on a device whose memory is the host's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hdgemm.pipeline.abft.common import CheckedStages
from hdgemm.pipeline.abft.sums import SAMPLES, OldSums, UnitSums, panels
from hdgemm.pipeline.devices.dense import view
from hdgemm.pipeline.devices.protocol import Block, Tile

if TYPE_CHECKING:
    from hdgemm.pipeline.stages import Bound
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.abft.tally import Tally
    from hdgemm.pipeline.devices.protocol import Completion, Device
    from hdgemm.pipeline.schedule import Ledger
    from hdgemm.pipeline.plan import Operand, Plan, WorkUnit
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.slots import Operands, SlotMemory

#: B·x or y'·A of parts of one tile, by the part's extents.
_Sides: TypeAlias = "dict[tuple[int, int, int, int], NDArray[Any]]"
#: As many are kept of an operand that is used in place.
_MOST_SIDES: Final = 64


class UnifiedCheckedStages(CheckedStages):
    """mult1 sums A, B and, at a unit's end, C: in one lane, so that BLAS has all the cores."""

    def __init__(self, bound: Bound, tally: Tally) -> None:
        super().__init__(bound, tally)
        self._sums: UnitSums | None = None
        # Of each slot's tile as it was when it was first used: later, it may have changed.
        self._sides: dict[tuple[Operand, int], tuple[int, _Sides]] = {}

    def mult1(self, op: Op, after: Sequence[Completion]) -> Completion:
        """Multiply, and sum before and after it."""
        unit = self._ledger.units[op.unit]
        began = time.perf_counter()
        with np.errstate(all="ignore"):
            if op.step == unit.first:
                self._sums = self._begin(unit)
            self._expect(op, unit)
        middle = time.perf_counter()
        completion = super().mult1(op, after)
        ended = time.perf_counter()
        if op.step == unit.last and self._sums is not None:
            completion.wait()
            ended = time.perf_counter()
            self._inspector.inspect(unit, self._sums)
        self._tally.spent(middle - began + time.perf_counter() - ended)
        return completion

    def _begin(self, unit: WorkUnit) -> UnitSums:
        sums = UnitSums.empty(unit.rect, self._signs.x.dtype)
        if self._plan.problem.c.path == "resident" and self._beta != 0:
            sums.old = OldSums.of(host_view(self._c_whole(unit)), *self._signs.of(unit.rect))
        return sums

    def _expect(self, op: Op, unit: WorkUnit) -> None:
        """Add to the unit's sums what its step adds to C."""
        sums, step = self._sums, self._ledger.steps[op.step]
        assert sums is not None  # noqa: S101  (made at the unit's first step)
        blocks = self._factors(op)
        a, b = op_space(blocks[0]), op_space(blocks[1])
        x, y = self._signs.of(unit.rect)
        sides = self._sides_of("B", step.b), self._sides_of("A", step.a)
        in_b = step.k0, step.kb, unit.rect.col, unit.rect.cols
        in_a = step.k0, step.kb, unit.rect.row, unit.rect.rows
        of_b, of_a = sides[0].get(in_b), sides[1].get(in_a)
        # Of two tiles that are new, the larger is visited once, for both of its products.
        if of_b is None and (of_a is not None or b.size > a.size):
            of_a = y @ a if of_a is None else of_a
            of_b = np.empty(step.kb, b.dtype)
            for first, part in panels(b):
                of_b[first : first + len(part)] = part @ x
                sums.cols += of_a[first : first + len(part)] @ part
            sums.rows += a @ of_b
        else:
            of_b = b @ x if of_b is None else of_b
            if of_a is None:
                of_a = np.zeros(step.kb, a.dtype)
                for first, part in panels(a):
                    sums.rows[first : first + len(part)] += part @ of_b
                    of_a += y[first : first + len(part)] @ part
            else:
                sums.rows += a @ of_b
            sums.cols += of_a @ b
        sides[0][in_b], sides[1][in_a] = of_b, of_a
        sums.add_sample(a[:, :SAMPLES], b[:SAMPLES].T)

    def _sides_of(self, operand: Operand, load: int) -> _Sides:
        """Return the sums of a loaded tile's parts, made when each was first used."""
        slot = self._ledger.loads[load].slot if load >= 0 else -1
        held, sides = self._sides.get((operand, slot), (load, {}))
        if held != load or len(sides) >= _MOST_SIDES:
            sides = {}
        self._sides[operand, slot] = load, sides
        return sides

    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Give a C tile by panels of whole rows."""
        return panels(host_view(self._c_whole(unit)))

    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """Multiply chunks of A and B into a C tile."""
        beta = 0.0 if first else 1.0
        self._device.gemm(
            self._alpha, _block("A", a), _block("B", b), beta, self._c_whole(unit), ()
        ).wait()


def host_view(block: Block) -> NDArray[Any]:
    """Return a block of a tile in host memory, or of the caller's own array."""
    array = block.tile.buffer
    if isinstance(array, np.ndarray):
        part: NDArray[Any] = array[
            block.row : block.row + block.rows, block.col : block.col + block.cols
        ]
        return part
    return view(block)


def op_space(block: Block) -> NDArray[Any]:
    """Return a block of A or B as it is multiplied."""
    seen = host_view(block)
    return seen.T if block.tile.trans else seen


def _block(operand: Operand, part: NDArray[Any]) -> Block:
    trans = not part.flags.c_contiguous
    stored = part.T if trans else part
    rows, cols = stored.shape
    return Block(Tile(operand, stored, rows, cols, cols, part.dtype, trans), 0, 0, rows, cols)
