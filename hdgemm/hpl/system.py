"""The distributed system Ax = b: factorisation, solution and residual, as HPL does them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from hdgemm.fortran import gemm, trsm
from hdgemm.hpl.broadcast import PanelBroadcast
from hdgemm.hpl.distribution import Axis
from hdgemm.hpl.interchange import interchange
from hdgemm.hpl.panel import Panel, factor_panel
from hdgemm.hpl.sequence import DominantMatrix, RandomMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.hpl.communicator import Communicator
    from hdgemm.hpl.settings import Settings

    Vector = NDArray[np.floating]
    Columns = NDArray[np.floating]
    #: C := C - A·B on column-major arrays.
    Update = Callable[[Columns, Columns, Columns], None]

#: What a process spends its time on.
PHASES: Final = ("panel", "broadcast", "swap", "update", "solve")
#: HPL's unit of the residual: the relative machine precision, half of `np.finfo(float).eps`.
_EPSILON: Final = 2.0**-53


def host_update(a: Columns, b: Columns, c: Columns) -> None:
    """Compute C := C - A·B with the host's BLAS."""
    gemm(-1.0, a, b, c)


class System:
    """One process's part of the N×(N + 1) matrix [A|b] in a P×Q grid.

    Processes are numbered along the rows of the grid. Blocks of NB×NB are dealt to the grid in
    turn, in both directions (seed 004, section 2.1).

    Parameters
    ----------
    world
        At least P·Q processes; this one is among the first P·Q.
    update
        Computes the product of each update.
    mixed
        HPL-MxP: a diagonally dominant matrix, factored in single precision.
    progress
        Called with the part of the operations that is done, by each process for itself.
    """

    def __init__(
        self,
        settings: Settings,
        world: Communicator,
        update: Update = host_update,
        progress: Callable[[float], None] | None = None,
        *,
        mixed: bool = False,
    ) -> None:
        p, q = settings.grid
        self._settings, self._update, self._progress = settings, update, progress
        my_row, my_col = divmod(world.rank, q)
        self._row, self._column = world.split(my_row, my_col), world.split(p + my_col, my_row)
        self._rows = Axis(settings.n, settings.nb, p, my_row)
        self._cols = Axis(settings.n + 1, settings.nb, q, my_col)
        self._broadcast = PanelBroadcast(self._row, settings.broadcast)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._pivots: dict[int, NDArray[np.int64]] = {}
        self._random = RandomMatrix(settings.n, self._rows.positions(), settings.seed)
        if mixed:
            sums = self._row.total(self._absolute_sums())
            self._random = DominantMatrix(settings.n, self._rows.positions(), sums, settings.seed)
        dtype = np.float32 if mixed else np.float64
        self._a: Columns = np.empty((self._rows.count, self._cols.count), dtype, order="F")
        for place, col in enumerate(self._cols.positions().tolist()):
            self._a[:, place] = self._random.column(col)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of this process by phase."""
        return dict(self._seconds)

    def factor(self) -> None:
        """Factor A, and apply L⁻¹ and the interchanges to b."""
        panel = self._panel(0)
        while panel is not None:
            start, following = self._cols.below(panel.end), None
            own = self._cols.owner(panel.end) == self._cols.process
            if self._settings.depth and panel.end < self._settings.n and own:
                stop = self._cols.below(panel.end + self._settings.nb)
                self._apply(panel, start, stop)
                following = self._panel(panel.end)
                start = stop
            self._apply(panel, start, self._cols.count)
            if self._progress is not None:
                self._progress(1.0 - (1.0 - panel.end / self._settings.n) ** 3)
            panel = following or self._panel(panel.end)
        self._broadcast.finish()

    def _panel(self, first: int) -> Panel | None:
        """Factor and send the panel that begins at a column, or receive it; None after the last."""
        n, nb = self._settings.n, self._settings.nb
        if first >= n:
            return None
        root, width = self._cols.owner(first), min(nb, n - first)
        if root == self._cols.process:
            place = self._cols.below(first)
            with self._timed("panel"):
                panel = factor_panel(
                    self._a[:, place : place + width], first, self._rows, self._column
                )
            with self._timed("broadcast"):
                self._broadcast.send(panel)
        else:
            below = self._rows.count - self._rows.below(first + width)
            with self._timed("broadcast"):
                panel = self._broadcast.receive(root, first, width, below, self._a.dtype)
        self._pivots[first] = panel.pivots
        return panel

    def _apply(self, panel: Panel, start: int, stop: int) -> None:
        """Apply a panel to some of the local columns after it."""
        if start == stop:
            return
        columns = self._a[:, start:stop]
        with self._timed("swap"):
            u = interchange(
                columns, panel.first, panel.pivots, self._rows, self._column, self._settings.swap
            )
        with self._timed("update"):
            trsm(panel.top, u, unit=True)
            if self._column.size > 1 and self._rows.owner(panel.first) == self._rows.process:
                place = self._rows.below(panel.first)
                columns[place : place + panel.width] = u
            below = columns[self._rows.below(panel.end) :]
            if len(below):
                self._update(panel.below, u, below)

    def solve(self) -> Vector:
        """Return x, by back substitution for the b that was factored along with A."""
        right = np.empty(self._rows.count, self._a.dtype)
        owner = self._cols.owner(self._settings.n)
        if owner == self._cols.process:
            right[:] = self._a[:, -1]
        with self._timed("solve"):
            self._row.broadcast(right, owner)
            return self._back_substitute(right)

    def correction(self, right: Vector) -> Vector:
        """Return A⁻¹ times a vector of which each process has its rows, by the factors."""
        with self._timed("solve"):
            return self._back_substitute(self._eliminate(right.astype(self._a.dtype)))

    def _eliminate(self, right: Vector) -> Vector:
        """Apply all interchanges and L⁻¹, panel by panel, as the factorisation did to b.

        The rows of L are stored in the order in which their panel was factored.
        """
        vector = right.reshape(-1, 1, order="F")
        for first, pivots in self._pivots.items():
            owner, end = self._cols.owner(first), first + len(pivots)
            if owner == self._cols.process:
                u = interchange(vector, first, pivots, self._rows, self._column).copy(order="F")
                columns = self._columns(first, len(pivots))
                block = self._block(first, len(pivots))
                if self._rows.owner(first) == self._rows.process:
                    trsm(columns[block], u, unit=True)
                self._column.broadcast(u, self._rows.owner(first))
                if self._rows.owner(first) == self._rows.process:
                    vector[block] = u
                vector[self._rows.below(end) :] -= columns[self._rows.below(end) :] @ u
            self._row.broadcast(right, owner)
        return right

    def _back_substitute(self, right: Vector) -> Vector:
        """Return U⁻¹ times a vector, the same on every process, in double precision."""
        n, nb = self._settings.n, self._settings.nb
        done = np.zeros(self._rows.count)
        x = np.zeros(n)
        for first in range((n - 1) // nb * nb, -1, -nb):
            width = min(nb, n - first)
            here = self._rows.owner(first) == self._rows.process
            block = self._block(first, width)
            solution = np.empty(width, self._a.dtype)
            if here:
                solution[:] = right[block] - self._row.total(done[block])
            if self._cols.owner(first) != self._cols.process:
                continue
            columns = self._columns(first, width)
            if here:
                trsm(columns[block], solution.reshape(-1, 1, order="F"), lower=False)
            self._column.broadcast(solution, self._rows.owner(first))
            x[first : first + width] = solution
            done[: block.start] += columns[: block.start] @ solution
        return self._row.total(x)

    def _columns(self, first: int, width: int) -> Columns:
        """Return the local columns of a panel, all rows."""
        return self._a[:, self._cols.below(first) :][:, :width]

    def _block(self, first: int, width: int) -> slice:
        """Return the local rows of a panel's diagonal block, on the processes that hold it."""
        place = self._rows.below(first)
        return slice(place, place + width)

    def residual(self, x: Vector) -> float:
        """Return ‖Ax - b‖∞ / (ε(‖A‖∞‖x‖∞ + ‖b‖∞)N) with A and b made anew; NaN is no success."""
        return self.scaled(self.difference(x), x)

    def scaled(self, difference: Vector, x: Vector) -> float:
        """Return the residual of x from the local rows of b - Ax."""
        norm, norm_b = self._norms
        size = norm * float(np.max(np.abs(x))) + norm_b
        return self._largest(difference) / (_EPSILON * size * self._settings.n)

    @cached_property
    def _norms(self) -> tuple[float, float]:
        """‖A‖∞ and ‖b‖∞, for which the matrix is made anew once."""
        sums = self._row.total(self._absolute_sums())
        return self._largest(sums), self._largest(self._random.column(self._settings.n))

    def difference(self, x: Vector) -> Vector:
        """Return the local rows of b - Ax, with A and b made anew."""
        n, product = self._settings.n, np.zeros(self._rows.count)
        for col in self._cols.positions().tolist():
            if col < n:
                product += self._random.column(col) * x[col]
        found: Vector = self._random.column(n) - self._row.total(product)
        return found

    def _absolute_sums(self) -> Vector:
        """Return for each local row the sum of the absolute values in the local columns of A."""
        sums = np.zeros(self._rows.count)
        for col in self._cols.positions().tolist():
            if col < self._settings.n:
                sums += np.abs(self._random.column(col))
        return sums

    def _largest(self, values: Vector) -> float:
        return self._column.largest(float(np.max(np.abs(values), initial=0.0)))

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - start
