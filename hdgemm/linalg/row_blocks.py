"""LU with tournament pivoting by blocks of rows: panels may be taller than memory.

Right-looking. For each panel the rows pass through memory once: the block's part of L is computed,
its other columns are updated, and its rows take part in the tournament for the next panel.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.fortran import elimination_pairs, gemm, trsm
from hdgemm.linalg.recorder import Recorder
from hdgemm.linalg.slab import Slab
from hdgemm.linalg.slab_plan import Columns
from hdgemm.linalg.slab_run import say_state
from hdgemm.linalg.updates import host_bytes
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.pipeline.devices.interchanges import moves_of, pivots_of
from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.tasks.tournament import PANEL, Chosen, Tournament, divide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.storage import Destination
    from hdgemm.matrices.stored import StoredMatrix
    from hdgemm.pipeline.plan import Stage


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """How the rows of an m×n matrix pass through memory: `rows` of a block, `panel` columns.

    `bytes_held` is the memory that this takes, `host_limit` what it was planned for.
    """

    m: int
    n: int
    dtype: str
    rows: int
    panel: int
    bytes_held: int
    host_limit: int

    @property
    def flops(self) -> int:
        """Floating-point operations by LAPACK's count."""
        return int(flops_per_multiply_add(self.dtype) * elimination_pairs(self.m, self.n))

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves: A is copied, and each panel updates the trailing matrix."""
        itemsize = np.dtype(self.dtype).itemsize
        passes = sum(
            (self.m - first) * (self.n - first)
            for first in range(0, min(self.m, self.n), self.panel)
        )
        moved = (self.m * self.n + passes) * itemsize
        return {"load1": moved, "store2": moved}

    def summary(self) -> dict[str, Any]:
        """Return shape, blocks and memory as plain values, for reports."""
        return asdict(self) | {
            "kind": "lu by blocks of rows",
            "flops": self.flops,
            "host_bytes": self.bytes_held,
            "read_bytes": self.planned_bytes["load1"],
            "write_bytes": self.planned_bytes["store2"],
        }


def plan_blocks(
    shape: tuple[int, int], dtype: str, memory: int, *, rows: int | None = None,
    panel: int | None = None,
) -> BlockPlan:  # fmt: skip
    """Return the largest blocks of rows that fit `memory` bytes.

    Parameters
    ----------
    rows, panel
        Force the columns of a panel, and the rows of a block, which are not fewer.

    Raises
    ------
    DoesNotFitError
        When a block with as many rows as a panel has columns does not fit: `requested`,
        `available` and `missing` in bytes.
    """
    m, n = shape
    itemsize = np.dtype(dtype).itemsize
    columns = min(PANEL if panel is None else panel, max(1, min(m, n)))
    levels = max(1, m // columns).bit_length() + 2
    # The panel's own rows and those that they change with, and a proposal for each level.
    fixed = 3 * columns * n * itemsize + 3 * levels * columns**2 * itemsize + BOUNCE_BYTES
    row_bytes = (n + 2 * columns) * itemsize
    least = min(m, columns) if rows is None else max(rows, columns)
    fitting = min(m, (memory - fixed) // row_bytes) if rows is None else max(rows, columns)
    held = fixed + max(least, fitting) * row_bytes
    if fitting < least or held > memory:
        what = f"LU of a {m}×{n} {dtype} matrix by blocks of {least} rows"
        raise DoesNotFitError.within(what, held, memory)
    return BlockPlan(m, n, dtype, fitting, columns, held, memory)


def factor_row_blocks(
    source: StoredMatrix,
    target: Destination,
    run: OpenRun,
    check: Callable[[Slab], None] | None,
) -> tuple[NDArray[np.int64], int]:
    """Factor a matrix of which no slab of columns fits; return interchanges and first zero pivot.

    Raises
    ------
    InputError
        With a checkpoint: a panel changes all rows, so that there are no finished parts to keep.
    """
    if target.checkpoint is not None:
        raise InputError(
            "a factorisation by blocks of rows takes no checkpoint; raise host_memory so that a "
            "slab of columns fits"
        )
    options = run.options
    rows, _, panel = options.tile or (None, None, None)
    plan = plan_blocks(source.shape, source.dtype.name, host_bytes(options), rows=rows, panel=panel)
    recorder = Recorder(run.watch, plan.flops)
    blocks = RowBlocks(source, target.stored, plan, recorder, check)
    try:
        with recorder.measuring_memory():
            found = blocks.factor()
    except BaseException as error:
        if not target.new:
            say_state(error, f"{target.stored.operand.matrix.name} is partly overwritten")
        raise
    recorder.finish(plan)
    return found


class RowBlocks:
    """One factorisation by blocks of rows.

    Parameters
    ----------
    a, out
        The matrix to be factored, and where its factors are stored; the same one in place.
    check
        Called with each block of A, as a slab of all columns; None for no check.
    """

    def __init__(
        self,
        a: StoredMatrix,
        out: StoredMatrix,
        plan: BlockPlan,
        recorder: Recorder,
        check: Callable[[Slab], None] | None,
    ) -> None:
        self._a, self._out, self._plan, self._recorder = a, out, plan, recorder
        self._check = check
        self._dtype = np.dtype(plan.dtype)
        self._buffer = np.empty(plan.rows * plan.n, self._dtype)

    def factor(self) -> tuple[NDArray[np.int64], int]:
        """Return the interchanges, and the 1-based index of the first zero pivot, 0 without one."""
        count, panel = min(self._plan.m, self._plan.n), self._plan.panel
        pivots, zero = np.empty(count, np.int64), 0
        found = self._copy(min(panel, count))
        for first in range(0, count, panel):
            last = min(first + panel, count)
            pivots[first:last] = pivots_of(found.rows - first) + first
            zero = zero or (found.zero and found.zero + first)
            self._interchange(pivots[first:last], first)
            found = self._eliminate(found, Columns(first, last, first), min(last + panel, count))
        return pivots, zero

    def _blocks(self, top: int) -> Iterator[tuple[int, int]]:
        """Yield the first row of each block below row `top`, and the row behind it."""
        for first in range(top, self._plan.m, self._plan.rows):
            yield first, min(first + self._plan.rows, self._plan.m)

    def _read(self, source: StoredMatrix, rows: tuple[int, int], first: int) -> NDArray[Any]:
        shape = (rows[1] - rows[0], self._plan.n - first)
        block = self._buffer[: shape[0] * shape[1]].reshape(shape, order="F")
        with self._recorder.operation("load1", 0, nbytes=block.nbytes):
            source[rows[0] : rows[1], first:].read(block)
        return block

    def _write(self, block: NDArray[Any], top: int, first: int) -> None:
        with self._recorder.operation("store2", 0, nbytes=block.nbytes):
            self._out[top : top + len(block), first:] = block

    def _copy(self, last: int) -> Chosen:
        """Copy A to the output, and choose the pivots of its first columns."""
        tournament = Tournament()
        for rows in self._blocks(0):
            block = self._read(self._a, rows, 0)
            if self._check is not None:
                self._check(Slab(0, Columns(0, self._plan.n, rows[0]), block))
            with self._recorder.operation("mult1", 0):
                tournament.add(rows[0], block[:, :last])
            if self._out is not self._a:
                self._write(block, rows[0], 0)
        return tournament.choose()

    def _interchange(self, pivots: NDArray[np.int64], first: int) -> None:
        """Move whole rows of the output, each once."""
        places, sources = moves_of(pivots, first)
        held = np.empty((len(sources), self._plan.n), self._dtype)
        for index, row in enumerate(sources.tolist()):
            self._out[row : row + 1, :].read(held[index : index + 1])
        for index, row in enumerate(places.tolist()):
            self._out[row : row + 1, :] = held[index : index + 1]

    def _eliminate(self, chosen: Chosen, panel: Columns, following: int) -> Chosen:
        """Compute the rows of U and the columns of L of a panel, and update what is right of them.

        Returns the pivots of the next panel's columns, which end with column `following`.
        """
        first, last, _ = panel
        width = panel.width
        top = self._read(self._out, (first, last), first).copy(order="F")
        top[:, :width] = chosen.factors
        with self._recorder.operation("mult1", 0):
            trsm(top[:, :width], top[:, width:], unit=True)
        self._write(top, first, first)
        tournament = Tournament()
        pairs = elimination_pairs(self._plan.m - first, self._plan.n - first, width)
        flops = flops_per_multiply_add(self._plan.dtype) * pairs / max(1, self._plan.m - last)
        for rows in self._blocks(last):
            block = self._read(self._out, rows, first)
            with self._recorder.operation("mult1", 0, flops=int(flops * len(block))):
                divide(block[:, :width], chosen.factors)
                gemm(-1.0, block[:, :width], top[:, width:], block[:, width:])
                if following > last:
                    tournament.add(rows[0], block[:, width : width + following - last])
            self._write(block, rows[0], first)
        return tournament.choose() if following > last else chosen
