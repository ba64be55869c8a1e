"""Stages with checksums on the host device: mult1 makes them from the tiles in the slots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hdgemm.pipeline.abft._checksums import SAMPLES, UnitSums, panels
from hdgemm.pipeline.abft._inspection import CheckedStages
from hdgemm.pipeline.devices.host import host_view
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.tiles import Rect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from hdgemm.pipeline._stages import Bound
    from hdgemm.pipeline.abft._counters import TileChecks
    from hdgemm.pipeline.devices.protocol import After, Completion
    from hdgemm.pipeline.plan import Operand
    from hdgemm.pipeline.schedule import Op
    from hdgemm.pipeline.tiles import WorkUnit

#: B·x or y'·A of parts of one tile, by the part's extents.
_Vectors: TypeAlias = "dict[tuple[int, int, int, int], NDArray[Any]]"
#: Vectors kept for an operand that is used in place, at most.
_MOST_VECTORS: Final = 64


class HostCheckedStages(CheckedStages):
    """mult1 sums A and B before each step, and C after the last step of a unit."""

    def __init__(self, bound: Bound, checks: TileChecks) -> None:
        super().__init__(bound, checks)
        self._sums = UnitSums.empty(Rect(0, 0, 0, 0), self._signs.x.dtype)
        # By slot, for the load that fills it: vectors made when a tile was first used, before
        # its memory could change.
        self._vectors: dict[tuple[Operand, int], tuple[int, _Vectors]] = {}

    def mult1(self, op: Op, after: After) -> Completion:
        """Add the step to the checksums, multiply, and inspect the tile after its last step."""
        unit = self._ledger.units[op.unit]
        began = time.perf_counter()
        with np.errstate(all="ignore"):
            if op.step == unit.first:
                self._begin(unit)
            self._add_step(op, unit)
        self._checks.count(seconds=time.perf_counter() - began)
        completion = super().mult1(op, after)
        if op.step == unit.last:
            completion.wait()
            began = time.perf_counter()
            self.inspect(unit, self._sums)
            self._checks.count(seconds=time.perf_counter() - began)
        return completion

    def _begin(self, unit: WorkUnit) -> None:
        self._sums = UnitSums.empty(unit.rect, self._signs.x.dtype)
        if self._plan.problem.c.path == "resident" and self._beta != 0:
            self._sums.start_from(host_view(self._c_whole(unit)), *self._signs.of(unit.rect))

    def _add_step(self, op: Op, unit: WorkUnit) -> None:
        """Add A_s·(B_s·x) and (y'·A_s)·B_s to the unit's checksums."""
        rows, cols, step = self._sums.rows.sums, self._sums.cols.sums, self._ledger.steps[op.step]
        a, b = (_op_space(block) for block in self._factors(op)[:2])
        x, y = self._signs.of(unit.rect)
        vectors_b, vectors_a = self._vectors_of("B", step.b), self._vectors_of("A", step.a)
        in_b = step.k0, step.kb, unit.rect.col, unit.rect.cols
        in_a = step.k0, step.kb, unit.rect.row, unit.rect.rows
        bx, ya = vectors_b.get(in_b), vectors_a.get(in_a)
        # If both tiles are new, the larger one is read once, by panels, for both of its products.
        if bx is None and (ya is not None or b.size > a.size):
            ya = y @ a if ya is None else ya
            bx = np.empty(step.kb, b.dtype)
            for first, part in panels(b):
                bx[first : first + len(part)] = part @ x
                cols += ya[first : first + len(part)] @ part
            rows += a @ bx
        else:
            bx = b @ x if bx is None else bx
            if ya is None:
                ya = np.zeros(step.kb, a.dtype)
                for first, part in panels(a):
                    rows[first : first + len(part)] += part @ bx
                    ya += y[first : first + len(part)] @ part
            else:
                rows += a @ bx
            cols += ya @ b
        vectors_b[in_b], vectors_a[in_a] = bx, ya
        self._sums.add_sample(a[:, :SAMPLES], b[:SAMPLES].T)

    def _vectors_of(self, operand: Operand, load: int) -> _Vectors:
        """Return the vectors of a loaded tile, or of the whole operand where it is in place."""
        slot = self._ledger.loads[load].slot if load >= 0 else -1
        held, vectors = self._vectors.get((operand, slot), (load, {}))
        if held != load or len(vectors) >= _MOST_VECTORS:
            vectors = {}
        self._vectors[operand, slot] = load, vectors
        return vectors

    def panels(self, unit: WorkUnit) -> Iterable[tuple[int, NDArray[Any]]]:
        """Yield a C tile by panels of whole rows."""
        return panels(host_view(self._c_whole(unit)))

    def multiply(self, unit: WorkUnit, a: NDArray[Any], b: NDArray[Any], *, first: bool) -> None:
        """Multiply chunks of A and B into a C tile."""
        beta = 0.0 if first else 1.0
        self._device.gemm(
            self._alpha, _block("A", a), _block("B", b), beta, self._c_whole(unit), ()
        ).wait()


def _op_space(block: Block) -> NDArray[Any]:
    stored = host_view(block)
    return stored.T if block.tile.trans else stored


def _block(operand: Operand, part: NDArray[Any]) -> Block:
    trans = not part.flags.c_contiguous
    stored = part.T if trans else part
    rows, cols = stored.shape
    return Block(Tile(operand, stored, rows, cols, cols, part.dtype, trans), 0, 0, rows, cols)
