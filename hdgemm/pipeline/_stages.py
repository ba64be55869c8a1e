"""The five stages, one method each: what an operation does when its needs are met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.pipeline.devices.protocol import DONE, Block, view, widening
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import After, Completion, Device
    from hdgemm.pipeline.plan import Operand, Plan
    from hdgemm.pipeline.schedule import Ledger, Op
    from hdgemm.pipeline.slots import Operands, SlotMemory
    from hdgemm.pipeline.tiles import WorkUnit


#: A resident tile is the whole operand: its blocks are counted from the first element.
_ORIGIN: Final = Rect(0, 0, 0, 0)


class Bound(NamedTuple):
    """A plan with the device, memory and matrices of one run."""

    plan: Plan
    ledger: Ledger
    device: Device
    memory: SlotMemory
    operands: Operands


class Stages:
    """The stages of one run, each a method of its name."""

    def __init__(self, bound: Bound) -> None:
        self._plan, self._ledger, self._device, self._memory, self._operands = bound
        self._alpha, self._beta = bound.operands.alpha, bound.operands.beta
        self._widening = widening(bound.device) if bound.plan.problem.exact_terms else None

    def load1(self, op: Op, _after: After) -> Completion:
        """Copy from the application to staging; convert dtype and layout, conjugate."""
        target = (
            view(self._load_block(op))
            if self._plan.device.unified
            else self._memory.staging(op.operand, op.ring, op.rect)
        )
        row, col = self._stored_corner(op.operand, op.rect)
        matrix = self._operands.matrix(op.operand)
        if self._operands.conj(op.operand):
            matrix.read(row, col, target)
            np.conjugate(target, out=target)
            return DONE
        return matrix.begin_read(row, col, target) or DONE

    def load2(self, op: Op, after: After) -> Completion:
        """Upload from staging, or from the caller's pinned memory, to the device."""
        return self._device.upload(self._source(op), self._load_block(op), after)

    def mult1(self, op: Op, after: After) -> Completion:
        """C tile := alpha · A block · B block + C tile; the first step of a unit starts it."""
        a, b, c = self._factors(op)
        if self._widening is not None:
            terms = self._plan.problem.exact_terms
            return self._widening.gemm_exact(a, b, self._start(op).real, c, terms, after)
        return self._device.gemm(self._alpha, a, b, self._start(op), c, after)

    def _factors(self, op: Op) -> tuple[Block, Block, Block]:
        """Return the blocks of A, B and C of one step."""
        step, unit = self._ledger.steps[op.step], self._ledger.units[op.unit]
        row, col, rows, cols = unit.rect
        a = self._input("A", step.a, Rect(row, step.k0, rows, step.kb))
        b = self._input("B", step.b, Rect(step.k0, col, step.kb, cols))
        return a, b, self._c_whole(unit)

    def _start(self, op: Op) -> complex:
        """Return the beta of a step's kernel call."""
        if op.step > self._ledger.units[op.unit].first:
            return 1.0
        return self._beta if self._plan.problem.c.path == "resident" else 0.0

    def _c_whole(self, unit: WorkUnit) -> Block:
        rect = unit.rect
        tile = self._memory.c_tile(rect, unit.slot)
        if self._plan.problem.c.path == "resident":
            return Block(tile, rect.row, rect.col, rect.rows, rect.cols)
        return Block(tile, 0, 0, rect.rows, rect.cols)

    def store1(self, op: Op, after: After) -> Completion:
        """Download from the device to staging, or to the caller's pinned memory."""
        target = (
            self._memory.staging("C", op.ring, op.rect)
            if op.ring >= 0
            else self._application_view("C", op.rect)
        )
        return self._device.download(self._c_block(op), target, after)

    def store2(self, op: Op, _after: After) -> Completion:
        """Copy from staging to the application; add beta times the old C."""
        tile = (
            self._memory.staging("C", op.ring, op.rect) if op.ring >= 0 else view(self._c_block(op))
        )
        if self._plan.problem.reads_c:
            self._add_old(op.rect, tile)
        return self._operands.c.begin_write(op.rect.row, op.rect.col, tile) or DONE

    def _add_old(self, rect: Rect, tile: NDArray[Any]) -> None:
        scratch = self._memory.scratch
        assert scratch is not None  # noqa: S101  (a plan that reads C holds scratch)
        factor = self._plan.problem.tile_dtype("C").type(self._beta)
        self._operands.old_c.add_to(rect.row, rect.col, factor, tile, scratch.array)

    def _input(self, operand: Operand, number: int, part: Rect) -> Block:
        if number < 0:
            tile = self._memory.resident_tile(operand)
            return self._memory.block(tile, _ORIGIN, part)
        load = self._ledger.loads[number]
        return self._memory.block(self._memory.load_tile(load), load.rect, part)

    def _source(self, op: Op) -> NDArray[Any]:
        """Return the array that load2 uploads, in its stored orientation."""
        if op.ring >= 0:
            return self._memory.staging(op.operand, op.ring, op.rect)
        return self._application_view(op.operand, op.rect)

    def _load_block(self, op: Op) -> Block:
        load = self._ledger.loads[op.load]
        return self._memory.block(self._memory.load_tile(load), load.rect, op.rect)

    def _c_block(self, op: Op) -> Block:
        unit = self._ledger.units[op.unit]
        tile = self._memory.c_tile(unit.rect, unit.slot)
        return self._memory.block(tile, unit.rect, op.rect)

    def _stored_corner(self, operand: Operand, rect: Rect) -> tuple[int, int]:
        if self._plan.problem.spec(operand).trans:
            return rect.col, rect.row
        return rect.row, rect.col

    def _application_view(self, operand: Operand, rect: Rect) -> NDArray[Any]:
        array = self._memory.resident_tile(operand).buffer
        row, col = self._stored_corner(operand, rect)
        trans = self._plan.problem.spec(operand).trans
        rows, cols = (rect.cols, rect.rows) if trans else (rect.rows, rect.cols)
        part: NDArray[Any] = array[row : row + rows, col : col + cols]
        return part
