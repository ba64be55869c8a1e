"""Operations of factorisations on an OpenCL device, in the queue of products.

The kernels of panels follow Abdelfattah et al., "Analysis and Design Techniques towards
High-Performance and Energy-Efficient Dense Linear Solvers on GPUs", sections 6.4 and 6.5.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyopencl as cl

from hdgemm.errors import DeviceError, InputError
from hdgemm.pipeline.devices.opencl._device import OpenCLDevice
from hdgemm.pipeline.devices.opencl._panels import panel_width, rows_of
from hdgemm.pipeline.devices.opencl._programs import GROUP, ORDER, groups
from hdgemm.pipeline.devices.opencl._transfers import copy_rows, pack_block
from hdgemm.pipeline.devices.protocol import Block
from hdgemm.pipeline.devices.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.interchanges import Moves
    from hdgemm.pipeline.devices.opencl._queues import EventCompletion
    from hdgemm.pipeline.devices.protocol import After, Completion, Triangle

    Enqueue = Callable[[cl.CommandQueue, cl.Buffer, cl.Buffer], object]

#: Most columns of a panel: with more, products of halves are faster than these kernels.
COLUMNS: Final = 32


class OpenCLNativeDevice(OpenCLDevice):
    """A device that solves, permutes, copies, conjugates and factors panels; see `NativeDevice`.

    Panels are factored in a dense copy, which a cache holds better than rows far apart.
    """

    panel_columns = COLUMNS
    packs = True
    locks_pages = False

    @cached_property
    def _workspace(self) -> Workspace:
        return Workspace(self)

    def copy(self, source: Block, target: Block, after: After) -> Completion:
        """Copy a block to another tile, packing A and B on the way."""
        if (source.rows, source.cols) != (target.rows, target.cols):
            raise DeviceError(
                f"copy of a block of {source.rows}×{source.cols} to one of "
                f"{target.rows}×{target.cols}",
                source=(source.rows, source.cols),
            )
        if not (source.rows and source.cols):
            return self._compute.mark("copy", after)
        tile, rows, target_rows = target.tile, rows_of(source), rows_of(target)
        shape = self._dtype_shapes(tile.dtype).square

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            if tile.operand == "C" or not shape.packed:
                extents = source.rows, source.cols, tile.dtype.itemsize
                return [copy_rows(queue, rows, target_rows, extents, events)]
            width = panel_width(shape, tile)
            return [pack_block(queue, self._programs, rows, target, width, events, user="compute")]

        return self._compute.enqueue("copy", work, after, (rows, target_rows))

    def permute(self, block: Block, moves: Moves, after: After, axis: int = 0) -> Completion:
        """Gather the lines that change into workspace, and put them in their places."""
        dtype, count = block.tile.dtype, len(moves.places)
        across = block.cols if axis == 0 else block.rows
        if not (count and across):
            return self._compute.mark("permutation", after)
        scratch = rows_of(self._workspace.scratch("lines", count, across, dtype)).memory
        sources, places = (
            self._memory.constant(each.astype(np.int32)) for each in (moves.sources, moves.places)
        )
        memory, start, ld = rows_of(block)
        inside = (memory, start, *((ld, 1) if axis == 0 else (1, ld)))
        kernel = self._programs.factor(dtype, "move")

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            held = (scratch, 0, 1, count) if axis else (scratch, 0, across, 1)
            grid = (groups(count), across) if axis else (groups(across), count)
            group, extents = (GROUP, 1), (across, count, axis)
            kernel.set_args(*extents, sources, 0, *inside, *held)
            first = cl.enqueue_nd_range_kernel(queue, kernel, grid, group, wait_for=events)
            kernel.set_args(*extents, places, 1, *held, *inside)
            return [first, cl.enqueue_nd_range_kernel(queue, kernel, grid, group)]

        return self._compute.enqueue("permutation", work, after, (sources, places, scratch))

    def conjugate(self, block: Block, after: After) -> EventCompletion:
        """Conjugate a block that is not empty, in place."""
        kernel, rows = self._programs.factor(block.tile.dtype, "conjugate"), rows_of(block)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            kernel.set_args(block.cols, *rows)
            grid, group = (groups(block.cols), block.rows), (GROUP, 1)
            return [cl.enqueue_nd_range_kernel(queue, kernel, grid, group, wait_for=events)]

        return self._compute.enqueue("conjugation", work, after, rows)

    def trsm(self, a: Block, b: Block, form: Triangle, after: After) -> Completion:
        """Solve block by block.

        The diagonal block is inverted and multiplied with B's rows (or columns) beside it; then
        their product with the rest of op(A) is subtracted from the rows that are not yet solved.
        """
        n = b.rows if form.side == "L" else b.cols
        if (a.rows, a.cols) != (n, n):
            raise DeviceError(
                f"a solve of {b.rows}×{b.cols} on side {form.side} with A {a.rows}×{a.cols}"
            )
        if not (b.rows and b.cols):
            return self._compute.mark("triangular solve", after)
        if form.trans == "C" and b.tile.dtype.kind == "c":  # A^-H·B is conj(A^-T·conj(B))
            first = self.conjugate(b, after)
            self._solve(a, b, form, ())
            last = self.conjugate(b, ())
        else:
            first, last = self._solve(a, b, form, after)
        return first.until("triangular solve", last)

    def _solve(
        self, a: Block, b: Block, form: Triangle, after: After
    ) -> tuple[EventCompletion, EventCompletion]:
        """Enqueue a solve with A or A^T; return its first and its last completion."""
        left, transposed = form.side == "L", form.trans != "N"
        for own, rest in _blocks(a.rows, ascending=(form.lower != transposed) == left):
            inverse = self._invert(_part(a, own, own), form, after)
            solved = _part(b, own, None) if left else _part(b, None, own)
            self._multiply(1.0, inverse, solved, 0.0, solved, form)
            if rest.start < rest.stop:
                beside = _part(a, own, rest) if left == transposed else _part(a, rest, own)
                unsolved = _part(b, rest, None) if left else _part(b, None, rest)
                self._multiply(-1.0, beside, solved, 1.0, unsolved, form)
            after = ()
        ends = cast("list[EventCompletion]", self._workspace.take())
        return ends[0], ends[-1]

    def _multiply(
        self, alpha: float, factor: Block, x: Block, beta: float, c: Block, form: Triangle
    ) -> None:
        """C := alpha·op(F)·X + beta·C, or with side R alpha·X·op(F) + beta·C; C may be X."""
        op = "N" if form.trans == "N" else "T"
        if form.side == "L":
            self._workspace.multiply(alpha, factor, x, c, beta=beta, trans_a=op)
        else:
            self._workspace.multiply(alpha, x, factor, c, beta=beta, trans_b=op)

    def _invert(self, a: Block, form: Triangle, after: After) -> Block:
        """Invert a triangular block into workspace."""
        kernel, rows = self._programs.factor(a.tile.dtype, "invert"), rows_of(a)
        inverse = self._workspace.scratch("inverse", ORDER, ORDER, a.tile.dtype)
        target = rows_of(inverse).memory

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            kernel.set_args(a.rows, int(form.lower), int(form.unit), *rows, target)
            grid, group = (groups(a.rows),), (GROUP,)
            return [cl.enqueue_nd_range_kernel(queue, kernel, grid, group, wait_for=events)]

        done = self._compute.enqueue("inversion of a block", work, after, (rows, target))
        self._workspace.completions.append(done)
        return Block(inverse.tile, 0, 0, a.rows, a.rows)

    def getrf(self, panel: Block, after: After) -> tuple[NDArray[np.int64], int]:
        """Factor a panel: design D1 of the paper, with its steps fused in pairs."""
        width = panel.cols
        if not width:
            return np.empty(0, np.int64), 0
        found = self._factor_columns("pivot", "eliminate", panel, after, width + 1, np.int32)
        return found[:width].astype(np.int64), int(found[width])

    def geqrf(self, panel: Block, after: After) -> NDArray[Any]:
        """Factor a panel; wait for tau."""
        width, dtype = panel.cols, panel.tile.dtype
        if not width:
            return np.empty(0, dtype)
        # Beside tau: beta, the divisor of the column, and what each column loses.
        count = 2 * width + 2
        return self._factor_columns("reflector", "reflect", panel, after, count, dtype)[:width]

    def _factor_columns(
        self, find: str, update: str, panel: Block, after: After, count: int, results: Any
    ) -> NDArray[Any]:
        """Run two kernels for each column: one on the column, one that updates the others."""
        rows, width, dtype = panel.rows, panel.cols, panel.tile.dtype
        if width > min(rows, COLUMNS):
            raise InputError(
                f"a panel of {rows}×{width} has more columns than rows, or than {COLUMNS}"
            )
        finder, updater = self._programs.factor(dtype, find), self._programs.factor(dtype, update)
        items = self._programs.pack_items
        lu = find == "pivot"

        def work(queue: cl.CommandQueue, dense: cl.Buffer, found: cl.Buffer) -> None:
            for col in range(width):
                finder.set_args(rows, width, col, dense, found)
                cl.enqueue_nd_range_kernel(queue, finder, (items,), (items,))
                if below := rows - col - lu:  # elimination leaves the pivot's row as it is
                    updater.set_args(rows, width, col, dense, *(() if lu else (found,)))
                    cl.enqueue_nd_range_kernel(queue, updater, (groups(below),), (GROUP,))

        return self._run("panel factorisation", panel, work, after, count, results)

    def potrf(self, block: Block, after: After) -> int:
        """Factor a diagonal block by one kernel."""
        n, dtype = block.rows, block.tile.dtype
        if not n:
            return 0
        if block.cols != n or n > COLUMNS:
            raise InputError(f"a square of at most {COLUMNS} rows is needed, got {n}×{block.cols}")
        kernel = self._programs.factor(dtype, "cholesky")
        items = self._programs.pack_items

        def work(queue: cl.CommandQueue, dense: cl.Buffer, found: cl.Buffer) -> None:
            kernel.set_args(n, dense, found)
            cl.enqueue_nd_range_kernel(queue, kernel, (items,), (items,))

        return int(self._run("factorisation of a block", block, work, after, 1, np.int32)[0])

    def _run(
        self, what: str, block: Block, factor: Enqueue, after: After, count: int, results: Any
    ) -> NDArray[Any]:
        """Factor a dense copy, copy it back, and wait; return `count` numbers of the kernels."""
        dense = self._workspace.scratch("panel", block.rows, block.cols, block.tile.dtype)
        written = self._workspace.scratch("results", 2 * COLUMNS + 2, 1, np.dtype(np.complex128))
        memory, source = rows_of(dense).memory, rows_of(written).memory
        found = np.empty(count, results)
        copied = self.copy(block, dense, after)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            first = cl.enqueue_marker(queue, wait_for=events)
            factor(queue, memory, source)
            to: Any = found
            return [first, cl.enqueue_copy(queue, to, source, is_blocking=False)]

        done = self._compute.enqueue(what, work, (), (found, memory, source))
        back = self.copy(dense, block, ())
        for completion in (copied, done, back):
            completion.wait()
        return found

    def close(self) -> None:
        """Close, and free the workspace."""
        super().close()
        if not self._owner.forked:
            self._workspace.free()


def _blocks(n: int, *, ascending: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of each diagonal block, and those that are solved after them."""
    starts = range(0, n, ORDER)
    for start in starts if ascending else reversed(starts):
        stop = min(start + ORDER, n)
        yield slice(start, stop), slice(stop, n) if ascending else slice(0, start)


def _part(block: Block, rows: slice | None, cols: slice | None) -> Block:
    """Return rows and columns of a block; None for all."""
    top, height = (0, block.rows) if rows is None else (rows.start, rows.stop - rows.start)
    first, width = (0, block.cols) if cols is None else (cols.start, cols.stop - cols.start)
    return Block(block.tile, block.row + top, block.col + first, height, width)
