"""Right-looking LU factorisation with lookahead on a grid of processes.

While the devices update the trailing matrix by panel i, the caller's thread swaps rows for it, and
factors and sends panel i + depth (Jo et al., "Accelerating LINPACK with MPI-OpenCL on Clusters of
Multi-GPU Nodes", section 4).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.mpi.broadcast import PanelBroadcast
from hdgemm.mpi.interchange import RowExchange
from hdgemm.mpi.panel import Panel, SharedRows, factor_panel, factor_rows
from hdgemm.mpi.variant import STRIP
from hdgemm.mpi.window import Strip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.mpi.part import Part
    from hdgemm.mpi.timeline import Recorder
    from hdgemm.mpi.variant import Variant
    from hdgemm.mpi.window import Window

    Columns = NDArray[Any]


class Elimination:
    """One factorisation of a `Part`, in place, with the updates by the threads of `window`.

    `progress` is called with the part of the operations that is done. `pivots` are the interchanges
    of each panel, by its first column, `diagonal` is U's.
    """

    def __init__(
        self,
        variant: Variant,
        part: Part,
        window: Window,
        recorder: Recorder,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._variant, self._part, self._window = variant, part, window
        self._recorder, self._progress = recorder, progress
        self._broadcast = PanelBroadcast(part.row, variant.broadcast)
        self._panels: dict[int, Panel] = {}
        self._exchanges: dict[int, RowExchange] = {}
        self.pivots: dict[int, NDArray[np.int64]] = {}
        #: The diagonal of U.
        self.diagonal: NDArray[Any] = np.zeros(variant.n, part.a.dtype)
        #: Whether the phases of the next step run beneath an update, or only after it.
        # All processes decide the same, since they exchange messages in one order.
        threaded = part.grid.largest(float(window.threads == 0)) == 0
        self._overlapped = "window" in variant.overlap and variant.depth > 0 and threaded
        # Swaps have a thread and messages of their own where panels are factored beside them.
        aside = self._overlapped and "panel-swap" in variant.overlap
        self._swaps = ThreadPoolExecutor(1, "hdgemm-swap") if aside else None
        self._column = part.column.split(0, part.column.rank) if aside else part.column

    def run(self) -> None:
        """Factor A, and apply L⁻¹ and the interchanges to B."""
        count = self._variant.panels
        depth = min(self._variant.depth, count)
        try:
            for step in range(-depth, count):
                self._step(step, min(step + depth, count))
                if self._progress is not None and step >= 0:
                    self._progress(1.0 - (1.0 - (step + 1) / count) ** 3)
            self._drain()
            self._broadcast.finish()
        finally:
            if self._swaps is not None:
                # After an error, a swap may wait for messages or updates that do not come.
                self._swaps.shutdown(wait=False, cancel_futures=True)

    def _step(self, step: int, ahead: int) -> None:
        """Apply panel `step` to the trailing matrix, and factor panel `ahead`.

        Panel `ahead` gets the updates of all panels since `step` first; the columns up to it have
        had panel `step` already.
        """
        depth, block = self._variant.depth, self._block(ahead)
        own = block[0] < block[1]
        if depth and own:
            for earlier in range(max(step, 0), ahead):
                self._apply(earlier, *block, urgent=True)
        # The panel comes first where nothing hides it, and the rest where it takes the waiting.
        rest_first = depth > 0 and step >= 0 and (self._overlapped or not own)
        if rest_first:
            self._apply(step, block[1], self._part.cols.count)
        if ahead < self._variant.panels:
            self._panels[ahead] = panel = self._panel(ahead, block)
            self.pivots[panel.first] = panel.pivots
            self.diagonal[panel.first : panel.end] = np.diagonal(panel.top)
        if step >= 0 and not rest_first:
            self._apply(step, block[1], self._part.cols.count)
        if not self._overlapped:
            self._drain()
        self._panels.pop(step, None)
        self._exchanges.pop(step, None)

    def _block(self, number: int) -> tuple[int, int]:
        """Return the local columns of a panel; beyond the last panel, none, at the end of A."""
        nb = self._variant.nb
        first = min(number * nb, self._variant.n)
        start = self._part.cols.below(first)
        own = self._part.cols.owner(first) == self._part.cols.process
        if number >= self._variant.panels or not own:
            return start, start
        return start, self._part.cols.below(min(first + nb, self._variant.n))

    def _panel(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel, or receive it."""
        variant, part = self._variant, self._part
        first = number * variant.nb
        width = min(variant.nb, variant.n - first)
        root = part.cols.owner(first)
        own = root == part.cols.process
        shared = "shared-panel" in variant.overlap and part.row.size > 1
        arrived = part.row.arrived if shared else self._broadcast.arrived
        if own:
            self._window.wait(*block)
        elif variant.depth:
            self._window.wait(0, part.cols.count, help_until=lambda: arrived(root))
        if shared:
            return self._shared_panel(first, width, part.a[:, slice(*block)] if own else None)
        if own:
            with self._recorder.record("panel", first):
                panel = factor_panel(part.a[:, slice(*block)], first, part.rows, part.column)
            with self._recorder.record("broadcast", first):
                self._broadcast.send(panel)
            return panel
        below = part.rows.count - part.rows.below(first + width)
        with self._recorder.record("broadcast", first):
            return self._broadcast.receive(root, first, width, below, part.a.dtype)

    def _shared_panel(self, first: int, width: int, columns: Columns | None) -> Panel:
        """Factor a panel on all processes (Jo et al., section 4.3); the root has its `columns`."""
        part, end = self._part, first + width
        shared = SharedRows(part.rows, first, part.cols.process, part.cols.processes)
        cuts = shared.cuts(part.rows.process).tolist()
        root = part.cols.owner(first)
        with self._recorder.record("broadcast", first):
            piece = self._dealt(columns, cuts, root, width)
        with self._recorder.record("panel", first):
            pivots, top = factor_rows(piece, first, shared, part.grid)
        start, stop = part.rows.below(first), part.rows.below(end)
        with self._recorder.record("broadcast", first):
            rows = [max(0, high - max(low, stop)) for low, high in pairwise(cuts)]
            own = piece[len(piece) - rows[part.cols.process] :]
            parts = part.row.gather_parts(own.ravel("F"), [width * count for count in rows])
            below = np.empty((sum(rows), width), part.a.dtype, order="F")
            np.concatenate(
                [each.reshape((-1, width), order="F") for each in parts], axis=0, out=below
            )
        if columns is not None:
            columns[stop:] = below
            if part.rows.owner(first) == part.rows.process:
                columns[start:stop] = top
        return Panel(first, pivots, top, below)

    def _dealt(
        self, columns: Columns | None, cuts: Sequence[int], root: int, width: int
    ) -> Columns:
        """Return this process's part of a panel's rows, which the root of the row deals out."""
        row = self._part.row
        if columns is None:
            size = cuts[row.rank + 1] - cuts[row.rank]
            piece = np.empty((size, width), self._part.a.dtype, order="F")
            row.receive(piece.reshape(-1, order="F"), root)
            return piece
        pieces: list[Columns] = [
            np.array(columns[low:high], order="F") for low, high in pairwise(cuts)
        ]
        sent = [
            row.send(piece.reshape(-1, order="F"), process)
            for process, piece in enumerate(pieces)
            if process != row.rank
        ]
        for request in sent:
            request.wait()
        return pieces[row.rank]

    def _apply(self, number: int, start: int, stop: int, *, urgent: bool = False) -> None:
        """Swap rows of local columns for a panel, and give them to the window, strip by strip."""
        part, panel = self._part, self._panels[number]
        width = self._variant.strip or STRIP
        if number not in self._exchanges:
            self._exchanges[number] = RowExchange(
                panel.first, panel.pivots, part.rows, self._column, self._variant.swap,
                split="split-swap" in self._variant.overlap,
            )  # fmt: skip
        below = part.a[part.rows.below(panel.end) :]
        strips = [
            Strip(panel, left, right, below[:, left:right], urgent=urgent)
            for left in range(start, stop, width)
            for right in (min(left + width, stop),)
        ]
        for strip in strips:
            self._window.announce(strip)
        for strip in strips:
            if self._swaps is None:
                self._window.wait(strip.start, strip.stop, before=strip)
                self._swap(strip, self._exchanges[number])
            else:
                self._swaps.submit(self._swap_aside, strip, self._exchanges[number])

    def _swap_aside(self, strip: Strip, exchange: RowExchange) -> None:
        """Swap rows in the thread of swaps."""
        with self._window.failing():
            self._window.wait(strip.start, strip.stop, before=strip, helping=False)
            self._swap(strip, exchange)

    def _swap(self, strip: Strip, exchange: RowExchange) -> None:
        """Swap rows of a strip, and open the window."""
        with self._recorder.record("swap", strip.panel.first):
            strip.u = exchange.apply(self._part.a[:, strip.start : strip.stop])
        self._window.open(strip)

    def _drain(self) -> None:
        """Wait until every strip is updated."""
        self._window.wait(0, self._part.cols.count)
