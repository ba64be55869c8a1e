"""Native mode: a factorisation of which every operation runs on one device.

The method is described by Abdelfattah et al., "Analysis and Design Techniques towards
High-Performance and Energy-Efficient Dense Linear Solvers on GPUs".

The matrix lies on the device row-major, where rows are permuted by copies of contiguous memory.
Panels are factored recursively down to the columns that the device's own kernels take; the host
reads their pivots, and composes them into one permutation for each update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.fortran import elimination_pairs
from hdgemm.linalg.devices._native_matrix import NativeMatrix
from hdgemm.linalg.devices._native_qr import ReflectorMatrix
from hdgemm.pipeline.devices.interchanges import Moves, moves_of, permutation_of
from hdgemm.pipeline.devices.protocol import Triangle
from hdgemm.tasks.algorithms import Factorised
from hdgemm.tasks.kernels import not_positive_definite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.call.recorder import Recorder
    from hdgemm.pipeline.devices.protocol import NativeDevice

#: Columns of a panel: products of this depth come near a device's full rate.
PANEL: Final = 512


def factor_native(
    name: str, device: Any, array: NDArray[Any], recorder: Recorder, *, panel: int = PANEL
) -> Factorised:
    """Overwrite a column-major array by its factors: "cholesky" (lower), "lu" or "qr".

    Raises
    ------
    InputError
        When the device has no kernels for panels.
    DoesNotFitError
        When the matrix does not fit the device: `requested` and `available` in bytes.
    """
    if not hasattr(device, "getrf"):
        raise InputError(
            f"{device.spec.name} has no kernels for panels: choose strategy='hybrid', an OpenCL "
            "or a CUDA device"
        )
    if not array.size:
        return Factorised()
    if name == "qr":
        with ReflectorMatrix(device, array, recorder, panel) as reflectors:
            reflectors.upload(lower=False)
            triangles = reflectors.factor()
            reflectors.download(lower=False)
        return Factorised(triangles=tuple(triangles))
    with _Elimination(device, array, recorder, panel) as matrix:
        lower = name == "cholesky"
        matrix.upload(lower=lower)
        found = matrix.cholesky() if lower else matrix.lu()
        matrix.download(lower=lower)
    return found


class _Elimination(NativeMatrix):
    """LU and Cholesky."""

    def __init__(
        self, device: NativeDevice, array: NDArray[Any], recorder: Recorder, panel: int
    ) -> None:
        super().__init__(device, array, recorder, panel)
        self._pivots = np.zeros(min(array.shape), np.int64)
        self._zeros: list[int] = []

    def lu(self) -> Factorised:
        """Factor by right-looking panels; the rows left of them are permuted at the end."""
        (m, n), count = self.array.shape, len(self._pivots)
        for number, (first, last) in enumerate(self.panels(count)):
            pairs = elimination_pairs(m - first, n - first, last - first)
            with self.step(number, pairs):
                self._lu_panel(first, last)
                self._update((first, last), (last, n))
        panels = self.panels(count)
        with self.step(len(panels), 0):
            self._permute_left(panels)
        return Factorised(self._pivots, tuple(self._zeros))

    def _permute_left(self, panels: list[tuple[int, int]]) -> None:
        """Permute the rows of each panel once, by the interchanges of all panels right of it."""
        rows = len(self.array)
        later = np.arange(rows)
        for first, last in reversed(panels):
            places = np.flatnonzero(later != np.arange(rows))
            self._move(Moves(places, later[places]), (first, last))
            later = permutation_of(self._pivots[first:last], rows, first)[later]

    def _lu_panel(self, first: int, last: int) -> None:
        """Factor columns from their diagonal on: halves recursively, narrow ones by a kernel."""
        m = self.array.shape[0]
        if last - first <= self.device.panel_columns:
            found, zero = self.device.getrf(self.block((first, m), (first, last)), ())
            self._pivots[first:last] = found + first
            if zero:
                self._zeros.append(zero + first)
            return
        middle = self.middle(first, last)
        self._lu_panel(first, middle)
        self._update((first, middle), (middle, last))
        self._lu_panel(middle, last)
        self._permute((middle, last), (first, middle))

    def _update(self, panel: tuple[int, int], cols: tuple[int, int]) -> None:
        """Apply a factored panel to columns right of it: permute, solve for U, and multiply."""
        last, m = panel[1], len(self.array)
        if cols[0] == cols[1]:
            return
        self._permute(panel, cols)
        beside = self.block(panel, cols)
        triangle = self.block(panel, panel)
        self.done(self.device.trsm(triangle, beside, Triangle(unit=True), ()))
        if last < m:
            self.work.multiply(
                -1.0, self.block((last, m), panel), beside, self.block((last, m), cols)
            )

    def _permute(self, panel: tuple[int, int], cols: tuple[int, int]) -> None:
        """Permute the rows of some columns by the interchanges of a panel, each row once."""
        first, last = panel
        self._move(moves_of(self._pivots[first:last], first), cols)

    def _move(self, moves: Moves, cols: tuple[int, int]) -> None:
        if len(moves.places) and cols[0] < cols[1]:
            whole = self.block((0, self.array.shape[0]), cols)
            self.done(self.device.permute(whole, moves, ()))

    def cholesky(self) -> Factorised:
        """Factor by left-looking panels: each is updated once, by all columns left of it."""
        n = len(self.array)
        for number, (first, last) in enumerate(self.panels(n)):
            rows, width = n - first, last - first
            pairs = first * width * rows + width**3 / 6 + width**2 * (rows - width) / 2
            with self.step(number, pairs):
                for earlier in self.panels(first):
                    self.work.multiply(
                        -1.0,
                        self.block((first, n), earlier),
                        self.block((first, last), earlier),
                        self.block((first, n), (first, last)),
                        trans_b="C",
                    )
                self._cholesky_block(first, last)
                self._solve_below((first, last), (last, n))
        return Factorised()

    def _cholesky_block(self, first: int, last: int) -> None:
        """Factor a diagonal block: halves recursively, small ones by a kernel."""
        if last - first <= self.device.panel_columns:
            order = self.device.potrf(self.block((first, last), (first, last)), ())
            if order:
                raise not_positive_definite(first + order)
            return
        middle = self.middle(first, last)
        self._cholesky_block(first, middle)
        self._solve_below((first, middle), (middle, last))
        below = self.block((middle, last), (first, middle))
        own = self.block((middle, last), (middle, last))
        self.work.multiply(-1.0, below, below, own, trans_b="C")
        self._cholesky_block(middle, last)

    def _solve_below(self, panel: tuple[int, int], rows: tuple[int, int]) -> None:
        """Compute rows of L below a factored diagonal block."""
        if rows[0] < rows[1]:
            triangle, below = self.block(panel, panel), self.block(rows, panel)
            self.done(self.device.trsm(triangle, below, Triangle("R", trans="C"), ()))
