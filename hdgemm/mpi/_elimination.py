"""LU factorisation on a grid of processes: panels with partial pivoting, interchanges, updates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hdgemm.mpi._interchange import RowExchange
from hdgemm.mpi._panel import Panel, SharedRows, factor_panel, factor_rows
from hdgemm.mpi._right_looking import RightLooking
from hdgemm.mpi._window import Strip
from hdgemm.mpi.variant import STRIP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hdgemm.mpi._part import Part
    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Window
    from hdgemm.mpi.communicator import Communicator
    from hdgemm.mpi.distribution import Axis
    from hdgemm.mpi.variant import Variant

    Columns = NDArray[Any]
    #: Factors local rows of a panel in place; `Axis` says which, the communicator has the others.
    PanelFactorisation: TypeAlias = Callable[[Columns, int, Axis, Communicator], Panel]


class Elimination(RightLooking):
    """LU factorisation of a `Part` with pivoting; parameters as for `RightLooking`.

    `pivots` are the interchanges of each panel, by its first column, `diagonal` is U's.

    Parameters
    ----------
    factor
        Factors a panel over the processes of a column: `factor_panel`, or `factor_by_tournament`.
    """

    def __init__(
        self,
        variant: Variant,
        part: Part,
        window: Window,
        recorder: PhaseRecorder,
        progress: Callable[[float], None] | None = None,
        span: tuple[int, int] | None = None,
        factor: PanelFactorisation = factor_panel,
    ) -> None:
        super().__init__(variant, part, window, recorder, progress, span)
        self._factor = factor
        self._exchanges: dict[int, RowExchange] = {}
        self.pivots: dict[int, NDArray[np.int64]] = {}
        #: The diagonal of U.
        self.diagonal: NDArray[Any] = np.zeros(variant.n, part.a.dtype)
        # Swaps have a thread and messages of their own where panels are factored beside them.
        aside = self._overlapped and "panel-swap" in variant.overlap
        self._swaps = ThreadPoolExecutor(1, "hdgemm-swap") if aside else None
        self._column = part.column.split(0, part.column.rank) if aside else part.column

    def run(self) -> None:
        """Factor A, and apply L⁻¹ and the interchanges to B."""
        try:
            super().run()
        finally:
            if self._swaps is not None:
                # After an error, a swap may wait for messages or updates that do not come.
                self._swaps.shutdown(wait=False, cancel_futures=True)

    def _panel(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel, or receive it."""
        panel = self._factored(number, block)
        self.pivots[panel.first] = panel.pivots
        self.diagonal[panel.first : panel.end] = np.diagonal(panel.top)
        return panel

    def _forget(self, number: int) -> None:
        """Free the exchange of a panel."""
        self._exchanges.pop(number, None)

    def _factored(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel, or receive it."""
        variant, part = self._variant, self._part
        first = number * variant.nb
        width = min(variant.nb, variant.n - first)
        root = part.cols.owner(first - self._first)
        own = root == part.cols.process
        shared = "shared-panel" in variant.overlap and part.row.size > 1
        arrived = part.row.arrived if shared else self._broadcast.arrived
        if own:
            self._window.wait(*block)
        else:
            self._update_until(root, arrived)
        if shared:
            return self._shared_panel(first, width, part.a[:, slice(*block)] if own else None)
        if own:
            with self._recorder.record("panel", first):
                panel = self._factor(part.a[:, slice(*block)], first, part.rows, part.column)
            with self._recorder.record("broadcast", first):
                self._broadcast.send(panel)
            return panel
        return self._receive(root, first, width)

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
                panel.first,
                panel.pivots,
                part.rows,
                self._column,
                self._variant.swap,
                split="split-swap" in self._variant.overlap,
            )
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
