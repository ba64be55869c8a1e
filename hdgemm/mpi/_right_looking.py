"""Right-looking factorisation with lookahead on a grid of processes: the order of its steps.

While the devices update the trailing matrix by panel i, the caller's thread prepares the update by
the panels after it, and factors and sends panel i + depth (Jo et al., "Accelerating LINPACK with
MPI-OpenCL on Clusters of Multi-GPU Nodes", section 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.mpi._broadcast import PanelBroadcast

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.mpi._panel import Panel
    from hdgemm.mpi._part import Part
    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Window
    from hdgemm.mpi.variant import Variant


class RightLooking:
    """One factorisation of a `Part`, in place, with the updates by the threads of `window`.

    Subclasses factor a panel (`_panel`), and announce and open the strips that it updates
    (`_apply`).

    Parameters
    ----------
    progress
        Called with the part of the operations that is done.
    span
        The columns of the matrix that are factored, whose first one is the part's first; None for
        all. Panels left of them update the part and have no columns in it.
    """

    #: A panel could not be factored: every process stops after the same step.
    failed = False

    def __init__(
        self,
        variant: Variant,
        part: Part,
        window: Window,
        recorder: PhaseRecorder,
        progress: Callable[[float], None] | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        self._variant, self._part, self._window = variant, part, window
        self._recorder, self._progress = recorder, progress
        self._first, self._last = span or (0, variant.n)
        self._broadcast = PanelBroadcast(part.row, variant.broadcast)
        self._panels: dict[int, Panel] = {}
        #: Whether the phases of the next step run beneath an update, or only after it.
        # All processes decide the same, since they exchange messages in one order.
        threaded = part.grid.largest(float(window.threads == 0)) == 0
        self._overlapped = "window" in variant.overlap and variant.depth > 0 and threaded

    def run(self) -> None:
        """Factor A, and apply the factors to the columns after it."""
        count = self._count
        depth = min(self._variant.depth, count)
        for step in range(-depth, count):
            self._step(step, min(step + depth, count))
            if self.failed:
                break
            if self._progress is not None and step >= 0:
                self._progress(1.0 - (1.0 - (step + 1) / count) ** 3)
        self._drain()
        self._broadcast.finish()

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
        if ahead < self._count:
            self._panels[ahead] = self._panel(ahead, block)
        if step >= 0 and not rest_first:
            self._apply(step, block[1], self._part.cols.count)
        if not self._overlapped:
            self._drain()
        self._panels.pop(step, None)
        self._forget(step)

    @property
    def _count(self) -> int:
        """Panels up to the last column."""
        return -(-self._last // self._variant.nb)

    def _block(self, number: int) -> tuple[int, int]:
        """Return the local columns of a panel; none left of the part's, and none, at the end of the
        factored ones, beyond the last panel.
        """
        nb, cols = self._variant.nb, self._part.cols
        if number * nb < self._first:
            return 0, 0
        first, last = (min(at * nb, self._last) - self._first for at in (number, number + 1))
        start = cols.below(first)
        own = cols.owner(first) == cols.process
        return start, cols.below(last) if own and number < self._count else start

    def _panel(self, number: int, block: tuple[int, int]) -> Panel:
        """Return a panel, and prepare the updates by it."""
        raise NotImplementedError

    def _factored(self, number: int, block: tuple[int, int]) -> Panel:
        """Factor and send a panel of local columns, or receive it."""
        raise NotImplementedError

    def _update_until(self, root: int, arrived: Callable[[int], bool]) -> None:
        """Help with updates until a message of the process `root` of the row has arrived."""
        if self._variant.depth:
            self._window.wait(0, self._part.cols.count, help_until=lambda: arrived(root))

    def _receive(self, root: int, first: int, width: int) -> Panel:
        """Receive a panel from the process `root` of the row."""
        part = self._part
        below = part.rows.count - self._below(first + width)
        with self._recorder.record("broadcast", first):
            return self._broadcast.receive(root, first, width, below, part.a.dtype)

    def _below(self, end: int) -> int:
        """Return the local row at which `below` begins of a panel that ends before column `end`."""
        return self._part.rows.below(end)

    def _apply(self, number: int, start: int, stop: int, *, urgent: bool = False) -> None:
        """Give the local columns from `start` to `stop` to the window, to be updated by a panel."""
        raise NotImplementedError

    def _forget(self, number: int) -> None:
        """Free what `_apply` keeps of a panel."""

    def _drain(self) -> None:
        """Wait until every strip is updated."""
        self._window.wait(0, self._part.cols.count)
