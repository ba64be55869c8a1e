"""LU, QR and Cholesky factors of narrow panels on an OpenCL device.

The kernels follow Abdelfattah et al., "Analysis and Design Techniques towards High-Performance and
Energy-Efficient Dense Linear Solvers on GPUs", sections 6.4 and 6.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyopencl as cl

from hdgemm.errors import InputError
from hdgemm.pipeline.devices.opencl.factoring import OpenCLFactorDevice
from hdgemm.pipeline.devices.opencl.panels import rows_of
from hdgemm.pipeline.devices.opencl.programs import GROUP, groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import After, Block

    Enqueue = Callable[[cl.CommandQueue, cl.Buffer, cl.Buffer], cl.Event]

#: Most columns of a panel: with more, products of halves are faster than these kernels.
COLUMNS: Final = 32


class OpenCLNativeDevice(OpenCLFactorDevice):
    """A device that factors panels in a dense copy, which a cache holds better than rows far apart.

    For each column of LU one kernel finds the pivot and interchanges two rows, and one scales the
    column and updates the others: design D1 of the seed, with its steps fused in pairs.
    """

    panel_columns = COLUMNS

    def getrf(self, panel: Block, after: After) -> tuple[NDArray[np.int64], int]:
        """Factor a panel by two kernels for each column."""
        rows, width, dtype = panel.rows, panel.cols, panel.tile.dtype
        if not width:
            return np.empty(0, np.int64), 0
        _check_width(panel)
        find = self._programs.factor(dtype, "pivot")
        update = self._programs.factor(dtype, "eliminate")
        items = self._programs.pack_items

        def work(queue: cl.CommandQueue, dense: cl.Buffer, found: cl.Buffer) -> cl.Event:
            for col in range(width):
                find.set_args(rows, width, col, dense, found)
                last = cl.enqueue_nd_range_kernel(queue, find, (items,), (items,))
                if col + 1 < rows:
                    update.set_args(rows, width, col, dense)
                    grid = (groups(rows - col - 1),)
                    last = cl.enqueue_nd_range_kernel(queue, update, grid, (GROUP,))
            return last

        found = self._run("panel factorisation", panel, work, after, width + 1)
        return found[:width].astype(np.int64), int(found[width])

    def geqrf(self, panel: Block, after: After) -> NDArray[Any]:
        """Factor a panel by two kernels for each column."""
        rows, width, dtype = panel.rows, panel.cols, panel.tile.dtype
        if not width:
            return np.empty(0, dtype)
        _check_width(panel)
        find = self._programs.factor(dtype, "reflector")
        update = self._programs.factor(dtype, "reflect")
        items = self._programs.pack_items

        def work(queue: cl.CommandQueue, dense: cl.Buffer, found: cl.Buffer) -> cl.Event:
            for col in range(width):
                find.set_args(rows, width, col, dense, found)
                cl.enqueue_nd_range_kernel(queue, find, (items,), (items,))
                update.set_args(rows, width, col, dense, found)
                grid = (groups(rows - col),)
                last = cl.enqueue_nd_range_kernel(queue, update, grid, (GROUP,))
            return last

        # Beside tau: beta, the divisor of the column, and what each column loses.
        found = self._run("panel factorisation", panel, work, after, 2 * width + 2, dtype)
        return found[:width]

    def potrf(self, block: Block, after: After) -> int:
        """Factor a diagonal block by one kernel."""
        n, dtype = block.rows, block.tile.dtype
        if not n:
            return 0
        if block.cols != n or n > COLUMNS:
            raise InputError(f"a square of at most {COLUMNS} rows is needed, got {n}×{block.cols}")
        kernel = self._programs.factor(dtype, "cholesky")
        items = self._programs.pack_items

        def work(queue: cl.CommandQueue, dense: cl.Buffer, found: cl.Buffer) -> cl.Event:
            kernel.set_args(n, dense, found)
            return cl.enqueue_nd_range_kernel(queue, kernel, (items,), (items,))

        return int(self._run("factorisation of a block", block, work, after, 1)[0])

    def _run(
        self,
        what: str,
        block: Block,
        factor: Enqueue,
        after: After,
        count: int,
        dtype: Any = np.int32,
    ) -> NDArray[Any]:
        """Copy a block to dense workspace, factor it there, copy it back, and wait.

        Returns `count` numbers of a dtype that the kernels wrote.
        """
        dense = self._workspace.scratch("panel", block.rows, block.cols, block.tile.dtype)
        written = self._workspace.scratch("results", 2 * COLUMNS + 2, 1, np.dtype(np.complex128))
        memory, results = rows_of(dense).memory, rows_of(written).memory
        found = np.empty(count, dtype)
        copied = self.copy(block, dense, after)

        def work(queue: cl.CommandQueue, events: list[cl.Event]) -> list[cl.Event]:
            first = cl.enqueue_marker(queue, wait_for=events)
            factor(queue, memory, results)
            to: Any = found
            return [first, cl.enqueue_copy(queue, to, results, is_blocking=False)]

        done = self._compute.enqueue(what, work, (), (found, memory, results))
        back = self.copy(dense, block, ())
        for completion in (copied, done, back):
            completion.wait()
        return found


def _check_width(panel: Block) -> None:
    """Raise `InputError` for a panel that the kernels of `getrf` and `geqrf` do not take."""
    if panel.cols > min(panel.rows, COLUMNS):
        raise InputError(
            f"a panel of {panel.rows}×{panel.cols} has more columns than rows, or than {COLUMNS}"
        )
